"""Pools of a laptop, and containers that the runtime has reported to its manager."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cpupool.core.cpuset import CPUSet
from cpupool.core.names import Names
from cpupool.core.pools import NodePools, Pool
from cpupool.core.workloads import ContainerID
from cpupool.manager.manager import Manager
from tests import builders
from tests.machines import MACHINES

if TYPE_CHECKING:
    from cpupool.core.assignments import CPUAssignment
    from cpupool.core.workloads import RuntimeContainer

MACHINE = MACHINES["laptop_4c8t"]  # cores 0-1, 2-3, 4-5, 6-7
POOLS = NodePools.of(
    Pool.named("exclusive_a", "2,4"),
    Pool.named("exclusive_b", "6", multi_threaded=True),
    Pool.named("shared_a", "0"),
    Pool.named("default", "1"),
)
OTHER_POLICIES = NodePools.of(
    Pool.named("exclusive_a", "2,4", multi_threaded=True),
    Pool.named("exclusive_b", "6"),
    Pool.named("default", "1"),
)
SHRUNK = NodePools.of(Pool.named("exclusive_a", "4"), Pool.named("default", "0-3"))


def manager(pools: NodePools = POOLS) -> Manager:
    made = Manager(Names())
    made.reconfigure(pools, MACHINE.topology())
    made.observe(pods=[])
    return made


def observe_containers(node: Manager, *found: RuntimeContainer, every: bool = False) -> None:
    """Let the kubelet ask for the devices of these containers, and the runtime tell of them."""
    for one in found:
        for pool, ids in one.devices.items():
            node.promise(pool, ids)
    node.observe_containers(found, every=every)


def placed(node: Manager, pod: str, container: str = "main-id") -> CPUAssignment:
    return node.snapshot().resolution.assignment((pod, ContainerID(container)))


def cpus_of(node: Manager, pod: str, container: str = "main-id") -> str:
    return str(placed(node, pod, container).cpus)


def owned(node: Manager) -> dict[str, str]:
    by_pod = builders.owned(node)
    return {pod: str(CPUSet.union(by_pool.values())) for pod, by_pool in by_pod.items()}


def listed(node: Manager, pool: str = "exclusive_a") -> set[str]:
    return {device.id for device in node.devices(pool).offer}
