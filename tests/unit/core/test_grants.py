from __future__ import annotations

import pytest

from cpupool.core.cpuset import CPUSet
from cpupool.core.grants import (
    Grant,
    GrantConflict,
    Grants,
    PastResize,
    PodOwner,
    RecordedChange,
    Source,
)
from tests.builders import resource
from tests.machines import MACHINES

MACHINE = MACHINES["laptop_4c8t"].topology()
WEB, DB = PodOwner("web"), PodOwner("db")


def grant(owner: PodOwner, *, shares_cores: bool = False, **parts: str) -> Grant:
    cpus = {container: CPUSet.parse(text) for container, text in parts.items()}
    pool = resource("exclusive_a")
    return Grant(owner, pool, Source.DEVICES, cpus, shares_cores=shares_cores)


def test_the_earlier_owner_keeps_what_a_later_one_claims() -> None:
    grants = Grants().adding([grant(WEB, main="0-1"), grant(DB, main="1-2", side="1")])

    web, db = grants
    assert (web.cpus, db.cpus, db.parts) == (
        CPUSet.parse("0-1"),
        CPUSet.of(2),
        {"main": CPUSet.of(2)},
    )
    assert (grants.cpus, bool(grants), bool(Grants())) == (CPUSet.parse("0-2"), True, False)


def test_an_owner_claims_more_for_each_container() -> None:
    first = Grants().adding([grant(WEB, main="0", side="1")])
    (joined,) = first.adding([grant(WEB, main="2", late="3")])

    assert joined.part("main") == CPUSet.of(0, 2)
    assert (joined.part("side"), joined.part("late")) == (CPUSet.of(1), CPUSet.of(3))
    assert joined.part("other") == CPUSet()


@pytest.mark.parametrize("shares_cores", [False, True])
def test_a_core_has_one_owner_unless_both_may_share_it(shares_cores: bool) -> None:
    sibling = MACHINE.core_of(0) - CPUSet.of(0)
    claims = [
        grant(WEB, shares_cores=shares_cores, main="0"),
        grant(DB, shares_cores=shares_cores, main=str(sibling)),
    ]
    grants = Grants().adding(claims, MACHINE)

    assert grants.cpus == (MACHINE.core_of(0) if shares_cores else CPUSet.of(0))


def test_a_container_that_shrinks_has_its_cpus_until_the_kernel_has_moved_it() -> None:
    grants = Grants().adding([grant(WEB, main="0-3", side="5"), grant(DB, main="4")])
    web = grants.of(WEB)[resource("exclusive_a")].changing("main", CPUSet.parse("0-1"))
    for step, in_force in ((web, "0-3"), (web.narrowed("main"), "0-1")):
        assert (str(step.part("main")), str(step.in_force("main"))) == ("0-1", in_force)
        assert str(step.cpus) == "0-3,5"
        assert str(grants.replacing(step).cpus) == "0-5"
        assert str(grants.replacing(step).relieved().cpus) == "0-1,4-5"
    assert web.settled("main", CPUSet()) == web
    partly = web.narrowed("main").settled("main", CPUSet.parse("0-2"))
    assert str(partly.cpus) == "0-2,5"
    assert str(partly.settled("main", CPUSet.parse("0-1")).cpus) == "0-1,5"
    assert web.settled("side", CPUSet()) == web


def test_a_container_that_grows_keeps_its_baseline() -> None:
    web = grant(WEB, main="2", side="5").changing("main", CPUSet.parse("2-4"), 7)
    assert (str(web.baseline("main")), str(web.baseline("side"))) == ("2", "5")
    grown = PastResize(CPUSet.of(2), CPUSet.parse("2-4"), 7)
    assert (web.leaving, web.changes) == (
        {},
        {"main": RecordedChange(CPUSet.of(2), resizes=(grown,))},
    )
    back = web.changing("main", CPUSet.parse("2-3"))
    shrunk = PastResize(CPUSet.parse("2-4"), CPUSet.parse("2-3"))
    assert back.changes == {"main": RecordedChange(CPUSet.of(2), CPUSet.of(4), (grown, shrunk))}
    cut = back.cut(CPUSet.parse("2-3,5"))
    assert (cut.leaving, str(cut.cpus)) == ({}, "2-3,5")
    with pytest.raises(GrantConflict):
        Grants().adding([grant(DB, main="4"), grant(WEB, main="2")]).replacing(web)


def test_a_container_that_moves_has_its_old_and_its_new_cpus_and_another_baseline() -> None:
    web = grant(WEB, main="2-3").changing("main", CPUSet.parse("2-5"), 7)
    moved = web.moving("main", CPUSet.parse("6-9"), CPUSet.parse("6-7"), 9, "so that it fits")
    assert (str(moved.part("main")), str(moved.in_force("main"))) == ("6-9", "2-9")
    assert str(moved.baseline("main")) == "6-7"
    assert str(moved.narrowed("main").settled("main", CPUSet.parse("6-9")).cpus) == "6-9"
    resize, move = moved.resizes["main"]
    assert (resize.rule, move.rule, move.unix_s) == ("resize", "compaction", 9)
    assert move.what == "it moved from CPUs 2-5 to 6-9, so that it fits"


def test_the_last_eight_resizes_are_remembered() -> None:
    web = grant(WEB, main="0")
    for number in range(10):
        web = web.changing("main", CPUSet.parse(f"0-{10 - number}"), number)
    resizes = web.changes["main"].resizes
    assert [resize.unix_s for resize in resizes] == list(range(2, 10))
    assert resizes[0].what == "from cpu 10 to 9: it gave CPUs 9 back"
    assert resizes[-1].what == "from cpu 3 to 2: it gave CPUs 2 back"
    moved = PastResize(CPUSet.parse("0-1"), CPUSet.parse("1-3"))
    assert moved.what == "from cpu 2 to 3: it got CPUs 2-3 and it gave CPUs 0 back"


def test_a_cpu_with_two_owners_is_a_defect() -> None:
    grants = [grant(WEB, main="0-1"), grant(DB, main="1")]

    with pytest.raises(GrantConflict, match="CPUs 1 have two owners"):
        Grants({(has.owner, has.resource): has for has in grants})
