from __future__ import annotations

import pytest

from cpupool.core import default_pool
from cpupool.core.cpuset import CPUSet
from cpupool.core.pools import NodePools, Pool
from tests.machines import MACHINES

TELCO = MACHINES["telco_2s_2n_16c32t"].topology()
"""CPUs 0-31; the sibling of each CPU n below 16 is n + 16."""


def node(**cpus: str) -> NodePools:
    return NodePools.of(*(Pool.named(name, listed) for name, listed in cpus.items()))


def test_the_default_pool_is_the_one_configured() -> None:
    assert str(default_pool.declared(node(default="0-1", exclusive="2"), TELCO)) == "0-1"


def test_without_a_default_pool_it_is_what_no_pool_takes() -> None:
    left = default_pool.declared(node(exclusive="2-15", shared="0"), TELCO)
    assert str(left) == "1,16-17"


def test_offline_cpus_are_declared_and_not_online() -> None:
    machine, pools = TELCO.cut_to(TELCO.online - CPUSet.of(1)), node(default="0-1")
    assert str(default_pool.declared(pools, machine)) == "0-1"
    assert str(default_pool.online(pools, machine)) == "0"


@pytest.mark.parametrize(
    ("common", "cpus"),
    [
        pytest.param("3,16-19", "16-17", id="CPUs of no pool are better"),
        pytest.param("3,18-19", "3,18-19", id="every common CPU is the last choice"),
    ],
)
def test_a_default_pool_without_a_common_cpu_has_others_instead(common: str, cpus: str) -> None:
    pools = node(default="0-1", exclusive="2-15")
    assert str(default_pool.substitute(pools, TELCO, CPUSet.parse(common))) == cpus
