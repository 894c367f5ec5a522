"""Pools of a laptop, and what a manager has made of them."""

from __future__ import annotations

from cpupool.core.names import Names
from cpupool.core.pools import NodePools, Pool
from cpupool.core.workloads import ContainerID
from cpupool.manager.manager import Manager
from tests.machines import MACHINES

MACHINE = MACHINES["laptop_4c8t"]  # cores 0-1, 2-3, 4-5, 6-7
POOLS = NodePools.of(
    Pool.named("exclusive_a", "2,4"),
    Pool.named("exclusive_b", "6", multi_threaded=True),
    Pool.named("shared_a", "0"),
    Pool.named("default", "1"),
)


def manager(pools: NodePools = POOLS, offline: str = "") -> Manager:
    made = Manager(Names())
    made.reconfigure(pools, MACHINE.without(offline).topology())
    return made


def cpus_of(node: Manager, pod: str, container: str = "main") -> str:
    _, resolution = node.snapshot()
    return str(resolution.assignment((f"{pod}-uid", ContainerID(f"{container}-id"))).cpus)


def health(node: Manager, pool: str) -> dict[str, bool]:
    return {device.id: device.healthy for device in node.devices(pool).offer}
