"""Grants: whatever happens to them, in any order, a CPU has one owner, and the earlier one wins."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from cpupool.core.cpuset import CPUSet
from cpupool.core.grants import Grant, GrantConflict, Grants, Owner, PodOwner, PromiseOwner, Source
from tests.builders import resource
from tests.machines import MACHINES
from tests.searching import examples

if TYPE_CHECKING:
    from cpupool.core.requests import Resource

CPUS = 8
MACHINE = MACHINES["laptop_4c8t"].topology()
OWNERS: tuple[Owner, ...] = (PodOwner("a"), PodOwner("b"), PromiseOwner(1))
RESOURCES = (resource("exclusive_a"), resource("exclusive_b"))

owners = st.sampled_from(OWNERS)
resources = st.sampled_from(RESOURCES)
some_cpus = st.builds(CPUSet, st.sets(st.integers(0, CPUS - 1)))
names = st.sampled_from(["main", "side"])
parts = st.dictionaries(names, some_cpus, max_size=2)


@st.composite
def claims(draw: st.DrawFn) -> Grant:
    return Grant(
        draw(owners),
        draw(resources),
        Source.DEVICES,
        draw(parts),
        shares_cores=draw(st.booleans()),
    )


class History(RuleBasedStateMachine):
    """Owners come, change and go; beside it a model that knows only which CPU is whose."""

    def __init__(self) -> None:
        super().__init__()
        self.grants = Grants()
        self.model: dict[int, set[tuple[Owner, Resource]]] = {}

    def takes(self, claim: Grant, cpus: CPUSet) -> None:
        for cpu in cpus:
            holders = self.model.setdefault(cpu, set())
            if all(owner == claim.owner for owner, _ in holders):
                holders.add((claim.owner, claim.resource))

    @rule(asked=st.lists(claims(), max_size=3))
    def add(self, asked: list[Grant]) -> None:
        before = self.grants
        self.grants = before.adding(asked)
        for claim in asked:
            self.takes(claim, claim.cpus)
        for key, grant in before.all.items():
            assert grant.cpus <= self.grants.all[key].cpus, "earlier owners win"

    @rule(asked=st.lists(claims(), max_size=3))
    def would_add_with_a_look_at_cores(self, asked: list[Grant]) -> None:
        """It gives no more than without, and no core to two owners but beside each other."""
        found = self.grants.adding(asked, MACHINE)
        plain = self.grants.adding(asked)
        for grant in found:
            assert grant.cpus <= plain.cpus
        new = [one for one in found if one not in self.grants.all.values()]
        for one in new:
            for other in found:
                if other.owner != one.owner and other in new:
                    apart = MACHINE.with_siblings(one.cpus).isdisjoint(other.cpus)
                    assert apart or (one.shares_cores or other.shares_cores)

    @rule(owner=owners, resource=resources, container=names, cpus=some_cpus)
    def change(self, owner: Owner, resource: Resource, container: str, cpus: CPUSet) -> None:
        had = self.grants.all.get((owner, resource))
        if had is None or not had.parts.get(container) or not cpus:
            return
        new = had.changing(container, cpus)
        assert had.in_force(container) | cpus == new.in_force(container) | new.part(container)
        others = CPUSet.union(g.cpus for g in self.grants if g.owner != owner)
        if others.isdisjoint(new.cpus):
            self.grants = self.grants.replacing(new)
            self.model_is(new)
        else:
            with pytest.raises(GrantConflict):
                self.grants.replacing(new)

    @rule(owner=owners, resource=resources, container=names, found=some_cpus)
    def end_notice(self, owner: Owner, resource: Resource, container: str, found: CPUSet) -> None:
        had = self.grants.all.get((owner, resource))
        if had is None or container not in had.leaving:
            return
        narrowed = had.narrowed(container)
        assert (narrowed.cpus, narrowed.in_force(container)) == (had.cpus, had.part(container))
        left = narrowed.settled(container, found)
        assert had.assigned <= left.cpus
        assert left.cpus <= had.assigned | found | CPUSet.union(
            each.cpus for name, each in had.leaving.items() if name != container
        )
        self.grants = self.grants.replacing(left)
        self.model_is(left)

    def model_is(self, grant: Grant) -> None:
        key = (grant.owner, grant.resource)
        for cpu in range(CPUS):
            self.model.setdefault(cpu, set()).discard(key)
            if cpu in grant.cpus:
                self.model[cpu].add(key)

    @rule(gone=st.sets(owners))
    def end(self, gone: set[Owner]) -> None:
        self.grants = self.grants.without(gone)
        for holders in self.model.values():
            holders.difference_update({key for key in holders if key[0] in gone})

    @invariant()
    def is_what_the_model_says(self) -> None:
        found: dict[int, set[tuple[Owner, Resource]]] = {}
        for key, grant in self.grants.all.items():
            for cpu in grant.cpus:
                found.setdefault(cpu, set()).add(key)
        assert found == {cpu: holders for cpu, holders in self.model.items() if holders}


TestHistory = History.TestCase
TestHistory.settings = examples(100, stateful_step_count=30)


@examples(100)
@given(some_cpus, some_cpus)
def test_two_owners_of_a_cpu_cannot_be_written_down(one: CPUSet, other: CPUSet) -> None:
    found = {
        (owner, RESOURCES[0]): Grant(owner, RESOURCES[0], Source.DEVICES, {"main": cpus})
        for owner, cpus in ((OWNERS[0], one), (OWNERS[1], other))
    }
    if one.isdisjoint(other):
        assert Grants(found).cpus == one | other
    else:
        with pytest.raises(GrantConflict) as conflict:
            Grants(found)
        assert conflict.value.cpus == one & other


@examples(60)
@given(st.lists(claims(), max_size=6))
def test_one_after_the_other_is_the_same_as_all_at_once(asked: list[Grant]) -> None:
    step_by_step = Grants()
    for claim in asked:
        step_by_step = step_by_step.adding([claim])
    assert step_by_step == Grants().adding(asked)
