"""The demo's pods of Koordinator's classes, as the agent reads them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cpupool.commands.demo import koordinator_pods
from cpupool.core.cpuset import CPUSet
from cpupool.core.names import Names
from cpupool.core.orchestration import Orchestration, QoS
from cpupool.simulate import workload
from tests.machines import MACHINES

if TYPE_CHECKING:
    from cpupool.kube.views import Body

MACHINE = MACHINES["telco_2s_2n_16c32t"].topology()  # core n is n,n+16; cores 0-7 on node 0
OWN = CPUSet.parse("1-5,8-9")


def told(body: Body) -> Orchestration | None:
    """Return what a pod's labels and annotations say."""
    return workload.arrival_of(body, Names()).pod.orchestration


def test_one_pod_shares_near_the_node_of_the_shared_cpus() -> None:
    ls, near, be, burstable = map(told, koordinator_pods.sharing(MACHINE, CPUSet.parse("8,24")))
    assert (ls, be, burstable) == (
        Orchestration(QoS.LS, prod=True),
        Orchestration(QoS.BE),
        None,
    )
    assert near
    assert (near.nodes, near.owns) == (frozenset({1}), False)


def test_without_shared_cpus_no_pod_is_near_them() -> None:
    assert len(list(koordinator_pods.sharing(MACHINE, CPUSet()))) == 3


def test_a_scheduler_has_assigned_all_cpus_or_those_of_a_node_to_one_owner() -> None:
    assigned, *_ = koordinator_pods.owners(MACHINE, OWN)
    (size,) = assigned.sizes
    found = [told(form(assigned.name, size)) for form in assigned.forms]
    assert [str(each.cpus) for each in found if each] == ["1-5,8-9", "1-5", "8-9"]


def test_owners_without_assigned_cpus_ask_for_a_third_or_for_less_before_they_ask_for_more() -> (
    None
):
    _, late, sole = koordinator_pods.owners(MACHINE, OWN)
    assert [*late.sizes] == [*sole.sizes] == [2, 1, 3, 4, 5, 6, 7]
    for owner, qos in ((late, QoS.LSR), (sole, QoS.LSE)):
        (form,) = owner.forms
        assert told(form(owner.name, 2)) == Orchestration(qos, prod=True)


def test_the_forged_pod_names_a_cpu_that_no_pod_can_own() -> None:
    forged = told(koordinator_pods.forged(CPUSet.parse("8,24")))
    assert forged
    assert str(forged.cpus) == "8"
