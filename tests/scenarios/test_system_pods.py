"""`cpuManager.systemPods`: pods of some namespaces run on CPUs where nobody else runs."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Any

import pytest

from cpupool import cli
from cpupool.core.cpuset import CPUSet
from tests.scenarios.test_agent_process import living
from tests.scenarios.test_static_policy import LAPTOP, WORKER, right, run
from tests.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from cpupool.core.workloads import Pod
    from tests.scenarios.test_agent_process import World

POOLS = f"""
pools: {{exclusive_a: {{cpus: "6-6"}}, default: {{cpus: "0-5"}}}}
cpuManager:
  policy: static
  reserved: "0-0"
  systemPods: {{namespaces: [kube-system, monitoring], cpus: "1-2"}}
{WORKER}"""
STATIC_POD = {"kubernetes.io/config.hash": "f00d", "kubernetes.io/config.mirror": "f00d"}


@pytest.fixture
def world(folder: Path) -> Iterator[World]:
    with living(folder, LAPTOP.write(folder), {"role": "worker"}) as world:
        world.mount.show(worker=POOLS)
        yield world


def start(
    world: World,
    name: str,
    namespace: str = "kube-system",
    limits: Mapping[str, str] | None = None,
    **metadata: Any,
) -> Pod:
    """Start a pod of one container."""
    metadata = {"name": name, "namespace": namespace, **metadata}
    containers = [{"name": "main", "resources": {"limits": limits or {}}}]
    return world.node.run_pod({"metadata": metadata, "spec": {"containers": containers}})


def explained(world: World, capsys: pytest.CaptureFixture[str]) -> str:
    cli.main(["explain", "kube-system/dns/main", "--file", str(world.node.root.status)])
    return capsys.readouterr().out


def test_system_pods_run_on_their_cpus_and_nobody_else_does(world: World) -> None:
    with world.agent():
        world.await_pool("exclusive_a", 1)
        start(world, "dns")
        start(world, "scraper", "monitoring")
        # Their requests give them no CPUs of their own.
        start(world, "guaranteed", limits={"cpu": "1", "memory": "1Gi"})
        # These keep their rules.
        start(world, "static", annotations=STATIC_POD)
        start(world, "pooled", limits={"nokia.k8s.io/exclusive_a": "1"})
        run(world, "web", a="500m")
        run(world, "owner", a="2")
        system = {
            f"{pod}__{part}": "1-2"
            for pod in ("dns", "scraper", "guaranteed")
            for part in ("", "main")
        }
        right(world, "0,3", owner__a="4-5", pooled__main="6", **system)
        run(world, "late", a="1")
        right(world, "0", owner__a="4-5", late__a="3", pooled__main="6", **system)
        # The last of the others' CPUs is theirs.
        run(world, "later", a="1")
        world.await_event("UnexpectedAdmissionError", "later")


def test_cpus_that_go_offline_leave_the_others_and_at_last_the_default_pool(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    with world.agent():
        start(world, "dns")
        run(world, "web", a="500m")
        right(world, "0,3-5", dns__="1-2", dns__main="1-2")
        world.machine.switch_off(CPUSet.of(1))
        right(world, "0,3-5", dns__="2", dns__main="2")
        world.machine.switch_off(CPUSet.of(1, 2))
        right(world, "0,3-5")
        told = world.await_event("CPUOffline", "dns")
        fact = "the CPUs 1-2 are offline, all of cpuManager.systemPods.cpus"
        assert told == f"container main: {fact}; bring them online, or name others"
        eventually(lambda: f"confined: {fact}" in explained(world, capsys), fact)
        world.machine.switch_on(CPUSet.of(1, 2))
        right(world, "0,3-5", dns__="1-2", dns__main="1-2")


def test_an_edit_moves_system_pods_and_takes_nothing_from_an_owner(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    with world.agent(end=signal.SIGKILL):
        dns = start(world, "dns")
        owner = run(world, "owner", a="2")
        right(world, "0,3", owner__a="4-5", dns__="1-2", dns__main="1-2")
        world.mount.show(worker=POOLS.replace('"1-2"', '"4-5"'))
        right(world, "0-3", owner__a="4-5")
        run(world, "second", a="2")
        right(world, "0-1", owner__a="4-5", second__a="2-3")
    with world.agent():
        right(world, "0-1", owner__a="4-5", second__a="2-3")
        told = "pods own the CPUs 4-5 of cpuManager.systemPods.cpus"
        eventually(lambda: told in explained(world, capsys), told)
        world.node.delete_pod(owner.uid)
        own = {"second__a": "2-3", "dns__": "4-5", "dns__main": "4-5"}
        right(world, "0-1", **own)
        world.node.restart_container(dns.uid, "main")
        right(world, "0-1", **own)
        told = "systemPods: pods of kube-system and monitoring run on"
        eventually(lambda: told in explained(world, capsys), told)
        world.mount.show(worker=POOLS.replace("  systemPods", "  # systemPods"))
        right(world, "0-1,4-5", second__a="2-3")
