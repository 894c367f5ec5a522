"""Which containers move, on a machine of two NUMA nodes with two L3 caches of two cores each.

CPUs 0-7 are node 0, with the caches of CPUs 0-3 and 4-7; CPUs 8-15 are node 1, with those of 8-11
and 12-15. Siblings have adjacent ids.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from cpupool.core.cpu_manager import StaticOptions
from cpupool.core.cpuset import CPUSet
from cpupool.core.workloads import ContainerRef
from cpupool.policies.dynamic import compaction
from cpupool.policies.dynamic.compaction import Arrangement, Gain, Movable, Move, Plan
from cpupool.policies.layout import Layout, Level
from tests.machines import Machine

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

MACHINE = Machine(sockets=2, l3=2, cores=2, threads=2, adjacent=True).topology()
LAYOUT = Layout.of_topology(MACHINE)
EVERYWHERE = LAYOUT.cpus
RESERVED = CPUSet.of(len(LAYOUT.cpus))
"""A CPU for containers without any of their own."""


def ref(name: str) -> ContainerRef:
    return ContainerRef(f"{name}-uid", name)


def nobody(_moves: tuple[Move, ...]) -> int:
    return 0


def arranged(
    owners: Mapping[str, str],
    *,
    movable: str = "",
    reach: CPUSet = EVERYWHERE,
    waiting: Callable[[tuple[Move, ...]], int] = nobody,
    options: StaticOptions = StaticOptions(),  # noqa: B008
) -> Arrangement:
    """Arrange containers with these CPUs; those whose names are in `movable` may move."""
    has = {ref(name): CPUSet.parse(cpus) for name, cpus in owners.items()}
    return Arrangement(
        LAYOUT,
        options,
        compaction.spread(LAYOUT, has.values()),
        LAYOUT.cpus - CPUSet.union(has.values()),
        RESERVED,
        {one: Movable(cpus, reach) for one, cpus in has.items() if one.name in movable},
        waiting,
    )


def needs_node(count: int, owners: Mapping[str, str]) -> Callable[[tuple[Move, ...]], int]:
    """Let a pod wait until so many CPUs are free on one NUMA node."""

    def waiting(moves: tuple[Move, ...]) -> int:
        has = {ref(name): CPUSet.parse(cpus) for name, cpus in owners.items()}
        has |= {move.ref: move.after for move in moves}
        free = LAYOUT.cpus - CPUSet.union(has.values())
        return int(max(map(len, LAYOUT.free(Level.NODE, free).values())) < count)

    return waiting


def said(plan: Plan | None) -> list[tuple[str, str, str]]:
    moves = plan.moves if plan else ()
    return [(move.ref.name, str(move.before), str(move.after)) for move in moves]


def test_one_move_lets_a_waiting_pod_fit() -> None:
    owners = {"a": "0-1", "b": "8-11"}
    start = arranged(owners, movable="ab", waiting=needs_node(8, owners))
    plan = compaction.plan(start, 2, for_waiting=True)
    # Of the plans that serve the pod, this one moves the fewest CPUs.
    assert said(plan) == [("a", "0-1", "12-13")]
    assert plan is not None
    assert plan.gain is Gain.WAITING


def test_two_moves_let_a_waiting_pod_fit_where_one_cannot() -> None:
    owners = {"a": "0-1", "b": "4-5", "c": "8-11"}
    start = arranged(owners, movable="ab", waiting=needs_node(8, owners))
    assert compaction.plan(start, 1, for_waiting=True) is None
    plan = compaction.plan(start, 2, for_waiting=True)
    assert sorted(said(plan)) == [("a", "0-1", "12-13"), ("b", "4-5", "14-15")]


def test_the_first_of_two_moves_may_scatter_free_cpus_for_a_waiting_pod_alone() -> None:
    owners = {"a": "0-1", "b": "2-3", "c": "8"}
    start = arranged(owners, movable="ab", waiting=needs_node(8, owners))
    plan = compaction.plan(start, 2, for_waiting=True)
    assert len(said(plan)) == 2
    # Without a pod that waits, both would have to gain.
    assert compaction.plan(arranged(owners, movable="ab"), 2, for_waiting=False) is None


def test_the_first_of_two_moves_costs_no_other_waiting_pod_its_room() -> None:
    owners = {"a": "0-1", "b": "2-3", "c": "8"}
    start = arranged(owners, movable="ab", waiting=lambda moves: (1, 2, 0)[len(moves)])
    assert compaction.plan(start, 2, for_waiting=True) is None


def test_three_moves_are_never_a_plan() -> None:
    owners = {"a": "0-1", "b": "2-3", "c": "4-5", "d": "8-9"}
    start = arranged(owners, movable="abc", waiting=needs_node(8, owners))
    assert compaction.plan(start, 2, for_waiting=True) is None


def test_nobody_moves_if_no_pod_waits_or_fits_after_it() -> None:
    owners = {"a": "0-1", "b": "8-9"}
    for waiting in (nobody, lambda _moves: 1):
        start = arranged(owners, movable="ab", waiting=waiting)
        assert compaction.plan(start, 2, for_waiting=True) is None


def test_a_container_stays_in_its_reach() -> None:
    owners = {"a": "0-1", "b": "8-11"}
    near = compaction.reach(LAYOUT, CPUSet.parse("0-1"), Level.NODE)
    assert str(near) == "0-7"
    start = arranged(owners, movable="a", reach=near, waiting=needs_node(8, owners))
    assert compaction.plan(start, 2, for_waiting=True) is None
    assert str(compaction.reach(LAYOUT, CPUSet.parse("3-4"), Level.UNCORE)) == "0-7"
    assert str(compaction.reach(LAYOUT, CPUSet.parse("3"), Level.UNCORE)) == "0-3"


@pytest.mark.parametrize(
    ("has", "others", "after", "gain"),
    [
        pytest.param("6-9", "10-15", "4-7", Gain.NODES, id="it lies on one node"),
        pytest.param("2-5", "6-15", "0-3", Gain.CACHES, id="it lies behind one cache"),
        pytest.param("1-2", "8-15", "0-1", Gain.CORES, id="it has a whole core"),
        pytest.param("4-5", "2-3,8-15", "0-1", Gain.SCATTERED, id="the free CPUs are together"),
    ],
)
def test_a_move_after_a_release_improves_the_most_important_part(
    has: str, others: str, after: str, gain: Gain
) -> None:
    start = arranged({"a": has, "b": others}, movable="a")
    plan = compaction.plan(start, 2, for_waiting=False)
    assert plan == Plan((Move(ref("a"), CPUSet.parse(has), CPUSet.parse(after)),), gain)


def test_a_container_with_a_broken_core_keeps_its_whole_ones() -> None:
    start = arranged({"a": "0-1,4,6", "b": "2,5,7-15"}, movable="a")
    assert compaction.plan(start, 2, for_waiting=False) is None
    start = arranged({"a": "0-1,4,6", "b": "5,7-15"}, movable="a")
    assert said(compaction.plan(start, 2, for_waiting=False)) == [("a", "0-1,4,6", "0-3")]


def test_no_container_is_worse_off_itself() -> None:
    # On halves of cores, the container would leave node 0 to the pod that waits.
    owners = {"a": "0-1", "b": "9,11-15"}
    start = arranged(owners, movable="a", waiting=needs_node(8, owners))
    assert compaction.plan(start, 2, for_waiting=True) is None


def test_an_owner_of_whole_cores_moves_to_whole_cores() -> None:
    owners = {"a": "0-1", "b": "9-11,14-15"}
    start = arranged(
        owners,
        movable="a",
        waiting=needs_node(8, owners),
        options=StaticOptions(full_pcpus_only=True),
    )
    assert said(compaction.plan(start, 2, for_waiting=True)) == [("a", "0-1", "12-13")]


def test_nothing_moves_where_nothing_can_be_better() -> None:
    start = arranged({"a": "0-1", "b": "2-3"}, movable="ab")
    assert compaction.plan(start, 2, for_waiting=False) is None
    assert compaction.plan(arranged({}), 2, for_waiting=False) is None
