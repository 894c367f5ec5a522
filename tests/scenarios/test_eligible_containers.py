"""`cpuManager.eligible: container`: a container of a Burstable pod owns the CPUs of its limit."""

from __future__ import annotations

import signal
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from cpupool import cli
from cpupool.core.workloads import QoSClass
from tests.scenarios import test_agent_process, test_embedded_node
from tests.scenarios.test_static_policy import EVERYTHING, LAPTOP, STATIC, right
from tests.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from cpupool.core.workloads import Pod
    from cpupool.kube.views import Body
    from tests.scenarios.test_agent_process import World

CONTAINER = STATIC.replace("policy: static", "policy: static, eligible: container")
DYNAMIC = 'pools: {default: {cpus: "0-7"}}\ncpuManager: {policy: dynamic, reserved: "0-0", '


@pytest.fixture
def world(folder: Path) -> Iterator[World]:
    with test_agent_process.living(folder, LAPTOP.write(folder), {"role": "worker"}) as world:
        world.mount.show(worker=CONTAINER)
        yield world


def asking(name: str, request: str = "", limit: str = "", **fields: str) -> dict[str, Any]:
    """Make a container that requests cpu, and is limited to some."""
    amounts = {"requests": request, "limits": limit}
    resources = {part: {"cpu": cpu} for part, cpu in amounts.items() if cpu}
    return {"name": name, "resources": resources, **fields}


def database(pod: str, cpu: str = "2", **spec: list[dict[str, Any]]) -> dict[str, Any]:
    """Make a pod with a database and a sidecar that requests less than its limit."""
    logs = asking("logs", "100m", "1")
    return {
        "metadata": {"name": pod},
        "spec": {"containers": [asking("db", cpu, cpu), logs], **spec},
    }


def test_a_database_owns_cpus_beside_containers_that_share(world: World) -> None:
    proxy = asking("proxy", "100m", "1", restartPolicy="Always")
    inits = [asking("prepare", "3", "3"), proxy, asking("copy", "1", "2")]
    shared = {"prepare": "0-1,5-7", "copy": "0-1,5-7"}

    def during(pod: Pod, name: str) -> None:
        # The pod owns as many CPUs as it requests at one time.
        own = {"web__prepare": "2-4"} if name == "prepare" else {}
        right(world, shared[name], **own)
        assert pod.qos is QoSClass.BURSTABLE

    with world.agent():
        pod = world.node.run_pod(database("web", initContainers=inits), during)
        right(world, "0-1,5-7", web__db="2-3")
        world.node.add_ephemeral(pod.uid, {"name": "debug"})
        world.node.restart_container(pod.uid, "db")
        right(world, "0-1,5-7", web__db="2-3")
        world.node.restart_container(pod.uid, "proxy")
        right(world, "0-1,5-7", web__db="2-3")
        world.node.delete_pod(pod.uid)
        world.node.run_pod(database("large", "4"))
        right(world, "0-1,6-7", large__db="2-5")


@pytest.mark.parametrize(
    "container",
    [asking("a", "2"), asking("a", "2", "3"), asking("a", "1500m", "1500m"), asking("a")],
    ids=["no limit", "another limit", "no whole number", "nothing"],
)
def test_other_containers_share(world: World, container: dict[str, Any]) -> None:
    with world.agent():
        world.node.run_pod({"metadata": {"name": "web"}, "spec": {"containers": [container]}})
        right(world)


def test_a_switch_while_pods_run_takes_no_cpus_from_an_owner(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    def explained() -> str:
        cli.main(["explain", "default/first/db", "--file", str(world.node.root.status)])
        return capsys.readouterr().out

    world.mount.show(worker=STATIC)
    with world.agent(end=signal.SIGKILL):
        first = world.node.run_pod(database("first"))
        right(world)
        # As with a switch from none to static, also a container that runs gets its CPUs.
        world.mount.show(worker=CONTAINER)
        right(world, "0-1,4-7", first__db="2-3")
        world.mount.show(worker=STATIC)
        switched = "cpuManager.eligible from container to pod"
        eventually(lambda: switched in str(world.event("CPUPoolConfigApplied")), switched)
        world.node.run_pod(database("second"))
        right(world, "0-1,4-7", first__db="2-3")
        world.node.restart_container(first.uid, "db")
        right(world, "0-1,4-7", first__db="2-3")
    with world.agent():
        large = world.node.run_pod(
            {
                "metadata": {"name": "large"},
                "spec": {"containers": [_guaranteed("a", "4")]},
            }
        )
        right(world, "0-1", first__db="2-3", large__a="4-7")
        assert large.qos is QoSClass.GUARANTEED
        # It has what it requests.
        said = "request: it requests 2 whole CPUs, with an equal limit, in a Burstable pod => 2-3"
        eventually(lambda: said in explained(), explained)
        assert "resize" not in explained()
        world.node.delete_pod(first.uid)
        right(world, "0-3", large__a="4-7")


def _guaranteed(name: str, cpu: str) -> dict[str, Any]:
    return {"name": name, "resources": {"limits": {"cpu": cpu, "memory": "1Gi"}}}


def _limited(body: Body, cpu: str) -> Body:
    """Give the database another limit than its request, as an in-place resize."""
    db, logs = body["spec"]["containers"]
    resources = {**db["resources"], "limits": {"cpu": cpu}}
    return {
        **body,
        "spec": {**body["spec"], "containers": [{**db, "resources": resources}, logs]},
    }


def test_an_owner_that_gets_another_limit_keeps_its_cpus_also_over_a_restart(world: World) -> None:
    with world.agent(end=signal.SIGKILL):
        pod = world.node.run_pod(database("web"))
        right(world, "0-1,4-7", web__db="2-3")
        world.node.edit_pod(pod.uid, partial(_limited, cpu="3"))
        told = world.await_event("CPUResizeIgnored", "web")
        fact = "it requests no whole number of CPUs with an equal limit since a resize"
        assert told.startswith(f"container db: {fact}, and keeps CPUs 2-3 until the pod ends;")
    world.overwrite(world.path("web", "db"), EVERYTHING)
    with world.agent():
        right(world, "0-1,4-7", web__db="2-3")


@pytest.fixture
def resizing(folder: Path) -> Iterator[test_embedded_node.World]:
    """Give a node with NRI whose policy resizes."""
    pools = DYNAMIC + "eligible: container, maxNoticeSeconds: 0}\n"
    with test_embedded_node.plugged(folder, pools) as made:
        yield made


def test_its_cpus_follow_a_resize_under_dynamic(resizing: test_embedded_node.World) -> None:
    node = resizing.node
    pod = node.run_pod(database("web"))
    own, shared = "1-2", "0,3-7"
    assert resizing.cpus("web") == {"": shared, "db": own, "logs": shared}
    assert resizing.environment("web", "db")["EXCLUSIVE_CPUS"] == own
    for cpu, own, shared in (("4", "1-4", "0,5-7"), ("3", "1-3", "0,4-7")):
        node.resize(pod.uid, {"db": cpu})
        resizing.eventually("web", db=own, logs=shared)
    node.resize(pod.uid, {"db": "2500m"})
    assert "whole" in node.resizing()[pod.uid]
    node.resize(pod.uid, {"db": "3"})
    # The sidecar asks for a CPU of its own from now on.
    node.resize(pod.uid, {"logs": "1"})
    resizing.eventually("web", db="1-3", logs="4")


def test_the_pod_that_does_not_fit_waits(resizing: test_embedded_node.World) -> None:
    node = resizing.node
    first, late = node.run_pod(database("first", "5")), node.run_pod(database("late", "4"))
    assert "not enough cpus available" in node.held()[late.uid]
    node.delete_pod(first.uid)

    def starts() -> Mapping[str, str]:
        node.try_again()
        return resizing.cpus("late")

    eventually(lambda: starts().get("db") == "1-4", lambda: str(node.held()))
