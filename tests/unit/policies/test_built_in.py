"""What the policies of a pool file can give on an empty node, on machines that are whole or not."""

from __future__ import annotations

import pytest

from cpupool.core.cpu_manager import CPUManager, StaticOptions
from cpupool.core.cpuset import CPUSet
from cpupool.core.pools import NodePools, Pool
from cpupool.policies import built_in
from tests.machines import MACHINES

MACHINE = MACHINES["telco_2s_2n_16c32t"]
TELCO = MACHINE.topology()
DEFAULT = Pool.named("default", "0-3,16-19")


@pytest.mark.parametrize(
    ("pools", "assignable"),
    [
        (NodePools.of(DEFAULT, cpu_manager=CPUManager("static", 2)), "1-3,17-19"),
        (NodePools.of(DEFAULT, cpu_manager=CPUManager("static", CPUSet.of(3))), "0-2,16-19"),
        (NodePools(cpu_manager=CPUManager("static", 30)), "15,31"),
        (
            NodePools.of(
                Pool.named("exclusive_a", "1-15"), cpu_manager=CPUManager("static", CPUSet.of(0))
            ),
            "16",
        ),
    ],
)
def test_a_policy_can_give_the_default_pool_without_its_reserved_cpus(
    pools: NodePools, assignable: str
) -> None:
    assert built_in.assignable(pools, TELCO) == CPUSet.parse(assignable)


def test_a_core_with_a_reserved_cpu_is_never_given_as_a_whole() -> None:
    whole = StaticOptions(full_pcpus_only=True)
    pools = NodePools.of(DEFAULT, cpu_manager=CPUManager("static", CPUSet.of(0), whole))
    assert built_in.assignable(pools, TELCO) == CPUSet.parse("1-3,17-19")


def test_offline_cpus_cannot_be_given() -> None:
    pools = NodePools.of(DEFAULT, cpu_manager=CPUManager("static", CPUSet.of(0)))
    topology = MACHINE.having_lost(CPUSet.of(0, 2))
    assert built_in.assignable(pools, topology) == CPUSet.parse("1,3,16-19")


@pytest.mark.parametrize("policy", ["none", "of another agent"])
def test_there_is_nothing_to_give_without_a_policy_that_is_known_here(policy: str) -> None:
    pools = NodePools.of(DEFAULT, cpu_manager=CPUManager(policy))
    assert built_in.assignable(pools, TELCO) is None
