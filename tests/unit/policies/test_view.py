from __future__ import annotations

from cpupool.core import default_pool
from cpupool.core.cpuset import CPUSet
from cpupool.core.grants import Grant, Grants, PodOwner, Source
from cpupool.core.names import POLICY_CPUS
from cpupool.core.pools import NodePools, Pool
from cpupool.policies.barred import barred
from cpupool.policies.view import NodeView
from tests.machines import Machine

SMT = Machine(cores=4, threads=2).topology()
"""CPUs 0-7; the sibling of each CPU n below 4 is n + 4."""
BLOCKED = CPUSet.of(3)


def owned(*, whole_cores: bool) -> Grants:
    part = {"main": CPUSet.of(1)}
    source = Source.POLICY
    grant = Grant(PodOwner("uid"), POLICY_CPUS, source, part, whole_cores=whole_cores)
    return Grants().adding([grant])


def test_the_sibling_of_a_whole_core_is_barred_and_nobodys() -> None:
    grants = owned(whole_cores=True)
    assert barred(SMT, grants, BLOCKED) == CPUSet.parse("1,3,5")
    assert grants.cpus == CPUSet.of(1)


def test_the_sibling_of_a_cpu_alone_is_not_barred() -> None:
    assert barred(SMT, owned(whole_cores=False), BLOCKED) == CPUSet.parse("1,3")


def test_a_policy_gives_out_what_is_declared_and_not_barred() -> None:
    machine = Machine(cores=4, threads=2).without("7").topology()
    pools = NodePools.of(Pool.named("default", "0-3,7"))
    grants = owned(whole_cores=True)
    cpus = default_pool.declared(pools, machine)
    view = NodeView(machine, pools, cpus, grants, barred(machine, grants, BLOCKED))
    assert view.cpus == CPUSet.parse("0-3,7")
    assert view.common == CPUSet.parse("0,2,4,6")
    assert view.free == CPUSet.parse("0,2")
