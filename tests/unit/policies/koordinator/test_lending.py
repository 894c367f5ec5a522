"""Which owners lend their CPUs to best-effort pods, and which CPUs these pods then have."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cpupool.core.cpuset import CPUSet
from cpupool.core.grants import WHOLE_POD, Grants, Sharing
from cpupool.core.orchestration import NodeRules, Orchestration, QoS, Reservation, SystemCPUs
from cpupool.policies.koordinator import lending
from cpupool.policies.view import BEST_EFFORT, NodeView, Size
from tests import builders
from tests.machines import MACHINES

MACHINE = MACHINES["telco_2s_2n_16c32t"].topology()  # core n is n,n+16; cores 0-7 on node 0
ASSIGNED = CPUSet.parse("4-5")


@pytest.mark.parametrize(
    ("told", "lends"),
    [
        pytest.param(Orchestration(QoS.LSR, prod=True), True, id="an LSR pod"),
        pytest.param(Orchestration(QoS.LSE, prod=True), False, id="an LSE pod"),
        pytest.param(Orchestration(QoS.LS, cpus=ASSIGNED), True, id="an LS pod with assigned CPUs"),
        pytest.param(Orchestration(QoS.LS), False, id="a pod that owns nothing"),
        pytest.param(None, False, id="a pod without a class"),
    ],
)
def test_who_lends(told: Orchestration | None, *, lends: bool) -> None:
    pod = replace(builders.pod("web"), orchestration=told)
    assert lending.sharing(pod) is (Sharing.BEST_EFFORT if lends else Sharing.NONE)


def view(size: Size | None = None, rules: NodeRules | None = None) -> NodeView:
    """Give a node with CPUs 0 to 7, where an LSR pod owns 2-3 and an LSE pod 4-5."""
    lsr, lse = (
        builders.chosen(uid, WHOLE_POD, CPUSet.parse(cpus))
        for uid, cpus in (("lsr", "2-3"), ("lse", "4-5"))
    )
    grants = Grants().adding((replace(lsr, sharing=Sharing.BEST_EFFORT), lse))
    sizes = {BEST_EFFORT: size} if size else {}
    return NodeView(
        MACHINE,
        cpus=CPUSet.parse("0-7"),
        grants=grants,
        barred=grants.cpus,
        rules=rules or NodeRules(),
        sizes=sizes,
    )


def test_best_effort_pods_have_the_lent_and_the_shared_cpus() -> None:
    assert [str(cpus) for cpus in lending.lent_and_shared(view())] == ["2-3", "0-1,6-7"]
    assert str(lending.borrowed(view(), CPUSet.of(0))) == "0-3,6-7"


def test_withheld_cpus_are_neither_lent_nor_shared() -> None:
    rules = NodeRules(Reservation(CPUSet.parse("0,2")), SystemCPUs(CPUSet.of(7)))
    lent, shared = lending.lent_and_shared(view(rules=rules))
    assert (str(lent), str(shared)) == ("3", "1,6")


def test_under_a_load_they_have_fewer_and_of_both_the_same_part() -> None:
    found = lending.borrowed(view(Size(3, 6, "load")), CPUSet())
    assert len(found & CPUSet.parse("2-3")) == 1
    assert len(found & CPUSet.parse("0-1,6-7")) == 2


def test_under_a_load_they_get_the_first_cpus_before_others_but_no_owned_one() -> None:
    first = CPUSet.parse("4,7")
    assert str(lending.borrowed(view(Size(1, 6, "load")), first)) == "7"
