"""CPUs of the policy `static` lie near devices of another plugin, by the real protocols."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from cpupool.core.cpu_manager import CPUManager, TopologyPolicy
from cpupool.core.cpuset import CPUSet
from cpupool.core.pools import NodePools, Pool
from tests.machines import MACHINES
from tests.plugins import AnyPlugin
from tests.scenarios.test_agent_process import living
from tests.waiting import DEADLINE_S

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from cpupool.core.workloads import Pod
    from tests.scenarios.test_agent_process import World

MACHINE = MACHINES["arm_no_smt"]
"""CPUs 0-7 and 8-15."""
NIC = "example.com/nic"
POOLS = """
pools:
  default: {cpus: "0-15"}
nodeSelector: {role: worker}
"""
STATIC = CPUManager("static", CPUSet.of(0), topology_policy=TopologyPolicy.RESTRICTED)


@pytest.fixture
def world(folder: Path) -> Iterator[World]:
    with living(folder, MACHINE.write(folder), {"role": "worker"}) as world:
        world.mount.show(worker=POOLS)
        yield world


@pytest.fixture
def plugin(world: World) -> Iterator[AnyPlugin]:
    """A network card on each node, whose plugin the kubelet knows."""
    plugin = AnyPlugin(NIC)
    plugin.list({"a": 1, "b": 0})
    sockets = world.node.root.device_plugins
    with plugin.serving(sockets / "nic.sock"):
        plugin.register(sockets / "kubelet.sock", "nic.sock")
        world.node.kubelet.wait_for(NIC, lambda listing: listing.allocatable == 2, DEADLINE_S)
        yield plugin


def guaranteed(world: World, name: str, **others: str) -> Pod:
    limits = {"cpu": "2", "memory": "1Gi", **others}
    containers = [{"name": "main", "resources": {"limits": limits}}]
    return world.node.run_pod(
        {"kind": "Pod", "metadata": {"name": name}, "spec": {"containers": containers}}
    )


@pytest.mark.usefixtures("plugin")
def test_cpus_lie_on_the_node_of_a_device(world: World) -> None:
    with world.agent_here() as agent:
        world.await_event("CPUPoolConfigApplied")
        pools = NodePools.of(Pool.named("default", "0-15"), cpu_manager=STATIC)
        agent.manager.reconfigure(pools, MACHINE.topology())
        agent.wake()

        # The kubelet takes the lowest node, and then the other.
        # Pods of the same second have no order, so that each is awaited.
        guaranteed(world, "plain")
        world.await_cpus(plain="1-2")
        guaranteed(world, "first", **{NIC: "1"})
        world.await_cpus(plain="1-2", first="3-4")
        guaranteed(world, "second", **{NIC: "1"})
        placed = {"plain": "1-2", "first": "3-4", "second": "8-9"}
        world.await_cpus(**placed)

        # The agent asks the kubelet again only for pods that are new.
        guaranteed(world, "late")
        world.await_cpus(**placed, late="5-6")
