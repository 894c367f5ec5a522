"""`cpuManager.podLevelResources`: pods with resources of their own have bubbles, or whole parts."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Any

import pytest

from cpupool import cli
from cpupool.core.workloads import QoSClass
from tests.scenarios import test_agent_process, test_embedded_node
from tests.scenarios.test_static_policy import EVERYTHING, LAPTOP, STATIC, right
from tests.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from cpupool.core.workloads import Pod
    from cpupool.kube.views import Body
    from tests.scenarios.test_agent_process import World

WHOLES = STATIC.replace("policy: static", "policy: static, podLevelResources: true")
BUBBLES = WHOLES.replace("policy: static", "policy: static, topologyScope: pod")
RESIZING = """\
pools: {default: {cpus: "0-7"}}
cpuManager:
  policy: dynamic
  reserved: "0-0"
  topologyScope: pod
  podLevelResources: true
"""


@pytest.fixture
def world(folder: Path) -> Iterator[World]:
    with test_agent_process.living(folder, LAPTOP.write(folder), {"role": "worker"}) as world:
        world.mount.show(worker=BUBBLES)
        yield world


def asking(name: str, cpu: str = "", **fields: str) -> dict[str, Any]:
    """Make a container that requests cpu and memory, and is limited to both; or nothing."""
    amounts = {"cpu": cpu, "memory": "1Gi"}
    return {"name": name, "resources": {"limits": amounts} if cpu else {}, **fields}


def sidecar(name: str, cpu: str = "") -> dict[str, Any]:
    return asking(name, cpu, restartPolicy="Always")


def of_pod(cpu: str) -> dict[str, Any]:
    amounts = {"cpu": cpu, "memory": "8Gi"}
    return {"requests": amounts, "limits": amounts}


def pod_with(
    name: str, cpu: str, *containers: dict[str, Any], inits: list[dict[str, Any]] | None = None
) -> dict[str, Any]:
    """Make a Guaranteed pod with resources of its own."""
    spec = {"resources": of_pod(cpu), "containers": containers, "initContainers": inits or []}
    return {"metadata": {"name": name}, "spec": spec}


def explained(world: World, container: str, capsys: pytest.CaptureFixture[str]) -> str:
    cli.main(["explain", container, "--file", str(world.node.root.status)])
    return capsys.readouterr().out


def test_a_whole_container_owns_a_part_of_the_bubble_and_the_others_share_the_rest(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    with world.agent():
        pod = world.node.run_pod(pod_with("web", "4", asking("db", "2"), asking("a"), asking("b")))
        assert pod.qos is QoSClass.GUARANTEED
        right(world, "0-1,6-7", web__="4-5", web__db="2-3", web__a="4-5", web__b="4-5")
        world.node.run_pod(pod_with("other", "1", asking("a")))
        own = {"web__": "4-5", "web__db": "2-3", "web__a": "4-5", "web__b": "4-5"}
        right(world, "0-1,7", other__="6", other__a="6", **own)

        def status() -> str:
            file, machine = str(world.node.root.status), str(world.node.root.sysfs)
            cli.main(["status", "--file", file, "--topology", machine])
            return " ".join(capsys.readouterr().out.split())

        bubble = "Pod default/web has the bubble 2-5: db owns 2-3, a and b share 4-5."
        eventually(lambda: bubble in status(), status)
        whole = explained(world, "default/web/db", capsys)
        assert "it requests 2 whole CPUs, in a pod with resources of its own => 2-3" in whole
        assert "has chosen the bubble 2-5 for the resources of the whole pod: this part" in whole
        shares = explained(world, "default/web/a", capsys)
        assert "its other containers share these, and run nowhere else" in shares
        assert "they are its pod's: no other pod runs there => 4-5" in shares


def test_init_containers_and_sidecars_have_the_cpus_that_the_kubelet_gives_them(
    world: World,
) -> None:
    inits = [asking("prepare"), sidecar("proxy", "1"), asking("copy"), sidecar("logs")]
    during = {"prepare": "2-4", "copy": "2-3"}

    def look(_pod: Pod, name: str) -> None:
        now = {f"web__{name}": during[name]}
        started = {"web__proxy": "4"} if name == "copy" else {}
        right(world, "0-1,5-7", web__="3", **now, **started)

    with world.agent():
        web = pod_with("web", "3", asking("db", "1"), asking("a"), inits=inits)
        pod = world.node.run_pod(web, look)
        after = {"web__proxy": "4", "web__logs": "3", "web__db": "2", "web__a": "3"}
        right(world, "0-1,5-7", web__="3", **after)
        # A debugger is no part of the bubble.
        world.node.add_ephemeral(pod.uid, {"name": "debug"})
        for name in ("proxy", "logs", "db", "a"):
            world.node.restart_container(pod.uid, name)
            right(world, "0-1,5-7", web__="3", **after)


def test_a_bubble_that_leaves_no_cpu_to_a_container_is_refused(world: World) -> None:
    with world.agent():
        world.node.run_pod(pod_with("web", "2", asking("db", "2"), asking("a")))
        right(world)
        fact = "sum of exclusive container cpu requests equals pod budget, leaving no cpus for"
        refused = f"pod rejected, {fact} shared containers"
        eventually(lambda: refused in str(world.events("EmptyPodSharedPoolError", "web")), refused)


@pytest.mark.parametrize("cpu", ["2500m", "500m"])
def test_a_pod_that_requests_no_whole_cpus_shares(world: World, cpu: str) -> None:
    with world.agent():
        world.node.run_pod(pod_with("web", cpu, asking("a")))
        right(world)


def test_without_the_setting_a_pod_with_resources_of_its_own_shares(world: World) -> None:
    world.mount.show(worker=STATIC)
    with world.agent():
        world.node.run_pod(pod_with("web", "4", asking("db", "2"), asking("a")))
        right(world)


def test_with_the_scope_container_whole_containers_own_cpus_and_the_others_share(
    world: World,
) -> None:
    world.mount.show(worker=WHOLES)
    with world.agent():
        half = asking("half", "500m")
        pod = world.node.run_pod(pod_with("web", "4", asking("db", "2"), half, asking("a")))
        right(world, "0-1,4-7", web__db="2-3")
        world.node.restart_container(pod.uid, "db")
        right(world, "0-1,4-7", web__db="2-3")


def test_switches_while_pods_run_and_a_restart_take_no_cpus_from_a_bubble(world: World) -> None:
    world.mount.show(worker=STATIC)
    with world.agent(end=signal.SIGKILL):
        first = world.node.run_pod(pod_with("first", "3", asking("db", "2"), asking("a")))
        right(world)
        # As with a switch from none to static, also a pod that runs gets its bubble.
        world.mount.show(worker=BUBBLES)
        own = {"first__": "4", "first__db": "2-3", "first__a": "4"}
        right(world, "0-1,5-7", **own)
        for switched in (WHOLES, STATIC):
            world.mount.show(worker=switched)
            right(world, "0-1,5-7", **own)
        world.node.run_pod(pod_with("second", "2", asking("a")))
        for name in ("db", "a"):
            world.node.restart_container(first.uid, name)
        right(world, "0-1,5-7", **own)
    world.overwrite(world.path("first", "a"), EVERYTHING)
    with world.agent():
        right(world, "0-1,5-7", **own)
        world.node.delete_pod(first.uid)
        right(world)


def _wanting(body: Body, cpu: str) -> Body:
    """Let a pod request other cpu as a whole, as an in-place resize."""
    return {**body, "spec": {**body["spec"], "resources": of_pod(cpu)}}


def test_a_pod_that_is_resized_as_a_whole_keeps_its_bubble(world: World) -> None:
    with world.agent():
        pod = world.node.run_pod(pod_with("web", "3", asking("db", "2"), asking("a")))
        own = {"web__": "4", "web__db": "2-3", "web__a": "4"}
        right(world, "0-1,5-7", **own)
        world.node.edit_pod(pod.uid, lambda body: _wanting(body, "4"))
        told = "its pod requests cpu 4 since a resize, and keeps CPUs 2-4 until the pod ends"
        eventually(lambda: told in str(world.events("CPUResizeIgnored", "web")), told)
        right(world, "0-1,5-7", **own)


@pytest.fixture
def resizing(folder: Path) -> Iterator[test_embedded_node.World]:
    """Give a node with NRI whose policy resizes."""
    with test_embedded_node.plugged(folder, RESIZING) as made:
        yield made


def test_dynamic_refuses_to_resize_a_part_of_a_bubble(resizing: test_embedded_node.World) -> None:
    node = resizing.node
    pod = node.run_pod(pod_with("web", "4", asking("db", "2"), asking("half", "500m")))
    own = {"": "3-4", "db": "1-2", "half": "3-4"}
    assert resizing.cpus("web") == own
    assert resizing.environment("web", "db")["EXCLUSIVE_CPUS"] == "1-2"
    node.resize(pod.uid, {"db": "1"})
    why = "it has CPUs 1-2 of 1-4, which its pod owns as a whole"
    assert why in node.resizing()[pod.uid]
    assert resizing.cpus("web") == own
    node.resize(pod.uid, {"db": "2"})
    # What shares the rest goes on sharing it.
    node.resize(pod.uid, {"half": "1500m"})
    assert node.resizing() == {}
    assert resizing.cpus("web") == own


def test_no_container_of_a_bubble_starts_elsewhere(resizing: test_embedded_node.World) -> None:
    node = resizing.node
    first = node.run_pod(pod_with("first", "5", asking("a")))
    late = node.run_pod(pod_with("late", "4", asking("db", "2"), asking("a")))
    assert "not enough cpus available" in node.held()[late.uid]
    assert resizing.cpus("late").keys() <= {""}
    node.delete_pod(first.uid)

    def starts() -> dict[str, str]:
        node.try_again()
        return resizing.cpus("late")

    eventually(lambda: starts() == {"": "3-4", "db": "1-2", "a": "3-4"}, lambda: str(node.held()))
