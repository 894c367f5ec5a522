from __future__ import annotations

from cpupool.core.cpuset import CPUSet
from cpupool.core.pools import NodePools, Pool, PoolKind
from cpupool.manager.manager import Manager
from cpupool.manager.usage import PoolUsage, usage
from tests.builders import container, given, pod
from tests.machines import MACHINES

MACHINE = MACHINES["arm_no_smt"]
POOLS = NodePools.of(
    Pool.named("default", "0-1"), Pool.named("exclusive_a", "2-5"), Pool.named("shared_b", "6-7")
)


def test_devices_are_counted_by_pool() -> None:
    manager = Manager()
    manager.reconfigure(POOLS, MACHINE.having_lost(CPUSet.parse("5,6")))
    owner = pod("owner", container(exclusive_a=2, shared_b=3))
    manager.set_pods([owner])
    manager.record_devices(given(owner, exclusive_a="2,3", shared_b="0,1,2"))

    assert usage(manager.state()[0]) == (
        PoolUsage("exclusive_a", PoolKind.EXCLUSIVE, 4, 2, offline=1, draining=0),
        PoolUsage("shared_b", PoolKind.SHARED, 2000, 3, offline=1000, draining=0),
    )


def test_what_pods_hold_of_pools_that_shrank_or_went_is_draining() -> None:
    manager = Manager()
    manager.reconfigure(POOLS, MACHINE.topology())
    owner = pod("owner", container(exclusive_a=2, shared_b=3))
    manager.set_pods([owner])
    manager.record_devices(given(owner, exclusive_a="2,3", shared_b="0,1,2"))
    manager.reconfigure(NodePools.of(Pool.named("exclusive_a", "3-4")), MACHINE.topology())

    assert usage(manager.state()[0]) == (
        PoolUsage("exclusive_a", PoolKind.EXCLUSIVE, 2, 2, offline=0, draining=1),
        PoolUsage("shared_b", PoolKind.SHARED, 0, 3, offline=0, draining=3),
    )

    manager.set_pods([])
    assert [pool.name for pool in usage(manager.state()[0])] == ["exclusive_a"]
