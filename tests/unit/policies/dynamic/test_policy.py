"""The policy `dynamic`: what distinguishes it from the policy `static`."""

from __future__ import annotations

from cpupool.core.cpu_manager import DYNAMIC, CPUManager
from cpupool.core.pools import NodePools, Pool
from cpupool.policies.built_in import BUILT_IN, made
from cpupool.policies.dynamic.policy import DynamicPolicy
from cpupool.policies.static.policy import StaticPolicy
from tests.machines import MACHINES

MACHINE = MACHINES["telco_2s_2n_16c32t"].topology()
POOLS = NodePools.of(Pool.named("default", "0-7"), cpu_manager=CPUManager(DYNAMIC, reserved=1))


def test_a_pool_file_can_choose_it() -> None:
    policy, static = made(POOLS, MACHINE), StaticPolicy.of_pools(POOLS, MACHINE)
    assert isinstance(policy, DynamicPolicy)
    assert policy.floor() == static.floor()
    assert DynamicPolicy.settings - StaticPolicy.settings == {"maxNoticeSeconds", "compaction"}


def test_its_containers_alone_get_other_cpus_at_a_resize() -> None:
    assert [name for name, policy in BUILT_IN.items() if policy.resizes] == [DYNAMIC]
