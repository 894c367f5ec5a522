from __future__ import annotations

from dataclasses import replace

import pytest

from cpupool.config import pool_rules
from cpupool.core.cpu_manager import CPUManager, StaticOptions
from cpupool.core.cpuset import CPUSet
from cpupool.core.errors import ConfigError, errors_in
from cpupool.core.pools import NodePools, Pool
from cpupool.manager.pools_in_force import in_force, of_edit, of_restart
from cpupool.policies.none.policy import NonePolicy
from tests.machines import Machine

SMT = Machine(cores=8, threads=2)
SPLIT = NodePools.of(Pool.named("exclusive_a", "2-7"), Pool.named("shared_b", "10-11,1"))


def test_cpus_that_contradict_pools_in_force_are_blocked() -> None:
    assert of_edit(SPLIT, SMT.without("8-15").topology()).blocked == CPUSet()
    fit = in_force(SPLIT, SMT.topology())
    assert fit.blocked == CPUSet.parse("2-3,10-11")
    assert fit == of_restart(SPLIT, SMT.topology())
    with pytest.raises(ConfigError) as raised:
        of_edit(SPLIT, SMT.topology())
    assert errors_in(fit.problems) == errors_in(raised.value.problems)


def test_what_the_agent_remembers_of_offline_cpus_changes_no_answer() -> None:
    lost = SMT.having_lost(CPUSet.parse("8-15"))
    assert in_force(SPLIT, lost).blocked == CPUSet()
    assert of_edit(SPLIT, lost) == of_edit(SPLIT, replace(lost, offline={}))


def test_without_a_lawful_policy_no_further_container_gets_cpus_of_its_own() -> None:
    one_node = Machine(sockets=2, cores=4, node_ids=(0, 0))
    options = StaticOptions(align_by_socket=True)
    pools = NodePools.of(cpu_manager=CPUManager("static", 1, options))
    of_edit(pools, one_node.without("4-7").topology())

    fit = in_force(pools, one_node.topology())

    assert fit.policy == NonePolicy()
    assert "2 sockets and only 1 NUMA nodes" in str(fit.problems)


def test_pools_of_another_machine_do_not_return() -> None:
    with pytest.raises(ConfigError, match="has no CPUs 99"):
        of_restart(NodePools.of(Pool.named("exclusive_a", "99")), SMT.topology())


def test_pools_stay_where_a_virtual_machine_has_lost_all_cpus_of_one() -> None:
    pools = NodePools.of(Pool.named("exclusive_a", "1-3"), Pool.named("exclusive_b", "6-7"))
    unplugged = Machine(cores=8).unplugged("6-7")
    assert unplugged.present == CPUSet.parse("0-5")

    fit = of_restart(pools, unplugged)

    assert fit == in_force(pools, unplugged)
    assert fit.blocked == CPUSet.parse("6-7")


def test_a_list_without_an_end_stays_where_a_virtual_machine_has_lost_its_cpus() -> None:
    default = replace(Pool.named("default", ""), open_from=6)
    pools = NodePools.of(Pool.named("exclusive_a", "1-3"), default)
    unplugged = Machine(cores=8).unplugged("6-7")

    assert of_restart(pools, unplugged) == in_force(pools, unplugged)
    with pytest.raises(ConfigError, match="has no CPU from 8 on"):
        of_restart(NodePools.of(replace(default, open_from=8)), unplugged)


@pytest.mark.parametrize(
    ("pools", "known", "told"),
    [
        pytest.param(SPLIT, False, True, id="an exclusive pool beside it"),
        pytest.param(SPLIT, True, False, id="its core is known"),
        pytest.param(NodePools.of(Pool.named("shared_b", "10")), False, False, id="alone"),
    ],
)
def test_offline_cpus_on_unknown_cores_are_pointed_out(
    pools: NodePools, *, known: bool, told: bool
) -> None:
    off = CPUSet.parse("8-15")
    topology = SMT.having_lost(off) if known else SMT.without(str(off)).topology()
    found = [str(one) for one in pool_rules.validate(pools, topology) if "offline" in one.what]
    assert len(found) == 1
    assert ("share a core with another pool" in found[0]) is told
