"""Which containers may move, when, and what a move leaves as it is.

The machine is that of `tests/moving.py`; a pod of 12 CPUs waits, and fits if one container moves.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from cpupool.core.cpu_manager import Compaction, Misfit, Scope, StaticOptions, TopologyHint
from cpupool.core.cpuset import CPUSet
from cpupool.core.plugin_facts import RecordedAnswer
from cpupool.core.workloads import ContainerRef, CPUMoves
from cpupool.manager import compacting
from cpupool.policies.layout import Layout, Level
from tests.machines import Machine
from tests.moving import AGE_S, BEGUN_S, MOVING, NOTICE_S, Node

if TYPE_CHECKING:
    from pathlib import Path

    from cpupool.core.cpu_manager import CPUManager
    from cpupool.manager.compacting import PlannedMove
    from cpupool.policies.view import NodeView

REF = ContainerRef("d-uid", "d")


def waiting(
    folder: Path,
    moves: CPUMoves = CPUMoves.ANY,
    *,
    settings: CPUManager = MOVING,
    notice_s: int | None = None,
    near: frozenset[int] = frozenset(),
    balanced: bool = True,
) -> Node:
    """Make a node on which `late` waits until `d` leaves its NUMA node."""
    node = Node(folder, settings)
    node.run("a", 6)
    node.run("b", 8)
    node.settle()
    node.run("d", 4, moves, notice_s=notice_s, near=near, balanced=balanced)
    node.settle()
    node.end("b")
    node.run("late", 12)
    node.settle()
    assert (node.cpus("a"), node.cpus("d"), node.cpus("late")) == (
        "1-3,17-19",
        "9-10,25-26",
        "",
    )
    return node


def planned(node: Node, at_s: float) -> list[tuple[str, str, str]]:
    """Give what would move at a time."""
    facts, resolution = node.manager.snapshot()
    found = compacting.outlook(facts, resolution.view, BEGUN_S + at_s, released=False)
    return [(each.move.ref.name, str(each.move.after), each.why) for each in found.moves]


def the_move(node: Node) -> PlannedMove:
    facts, resolution = node.manager.snapshot()
    (move,) = compacting.outlook(facts, resolution.view, BEGUN_S + AGE_S, released=False).moves
    return move


def test_a_container_moves_so_that_a_pod_fits_once_it_has_its_cpus_long_enough(
    folder: Path,
) -> None:
    node = waiting(folder)
    assert planned(node, AGE_S - 1) == []
    assert planned(node, AGE_S) == [
        ("d", "4-5,20-21", "so that pod default/late can have its CPUs")
    ]
    facts, resolution = node.manager.snapshot()
    found = compacting.outlook(facts, resolution.view, BEGUN_S + 1, released=False)
    assert found.again_unix_s == BEGUN_S + AGE_S


@pytest.mark.parametrize("word", [CPUMoves.NEVER, CPUMoves.SAME_L3, CPUMoves.SAME_NUMA])
def test_a_container_moves_no_further_than_its_pod_says(folder: Path, word: CPUMoves) -> None:
    assert planned(waiting(folder, word), AGE_S) == []


def test_a_container_does_not_leave_the_numa_nodes_of_its_devices(folder: Path) -> None:
    node = waiting(folder, near=frozenset({1}))
    assert planned(node, AGE_S) == []


def test_a_container_stays_on_its_nodes_until_the_kubelet_has_named_its_devices(
    folder: Path,
) -> None:
    node = waiting(folder)
    del node.device_nodes["d-uid"]
    node.kill()
    facts, resolution = node.manager.snapshot()
    assert planned(node, AGE_S) == []
    assert compacting.unnamed(facts, resolution.view) == {"d-uid"}
    node.manager.observe(device_nodes={"d-uid": {}})
    assert planned(node, AGE_S) != []
    facts, resolution = node.manager.snapshot()
    assert compacting.unnamed(facts, resolution.view) == frozenset()


@pytest.mark.parametrize(("nodes", "moves"), [({1}, False), (None, True), ({0, 1}, True)])
def test_a_container_does_not_leave_the_numa_nodes_that_a_plugin_prefers(
    folder: Path, nodes: set[int] | None, *, moves: bool
) -> None:
    node = waiting(folder)
    hint = None if nodes is None else TopologyHint(frozenset(nodes), preferred=True)
    answers = {REF: {"example.com/nic": RecordedAnswer(1.0, hint=hint)}}
    facts, resolution = node.manager.snapshot()
    facts = replace(facts, plugins=replace(facts.plugins, answers=answers))
    found = compacting.outlook(facts, resolution.view, BEGUN_S + AGE_S, released=False)
    assert bool(found.moves) == moves


def scattered(
    folder: Path, moves: CPUMoves, *, balanced: bool = True, settings: CPUManager = MOVING
) -> Node:
    """Make a node on which a move would bring free CPUs behind one of two L3 caches."""
    topology = Machine(sockets=2, l3=2, cores=4, threads=2).topology()
    node = Node(folder, settings, topology)
    for name in "abcdefg":
        node.run(name, 2, moves, balanced=balanced)
    node.settle()
    node.end("b")
    node.end("d")
    return node


def after_release(node: Node, view: NodeView) -> tuple[PlannedMove, ...]:
    facts = node.manager.snapshot().facts
    return compacting.outlook(facts, view, BEGUN_S + AGE_S, released=True).moves


@pytest.mark.parametrize(
    ("word", "balanced", "moves"),
    [
        (CPUMoves.SAME_NUMA, True, 1),
        (CPUMoves.SAME_NUMA, False, 0),
        (CPUMoves.ANY, False, 1),
        (CPUMoves.SAME_L3, True, 0),
    ],
)
def test_a_container_without_load_balancing_moves_only_with_the_word_any(
    folder: Path, word: CPUMoves, balanced: bool, moves: int
) -> None:
    node = scattered(folder, word, balanced=balanced)
    assert len(after_release(node, node.manager.snapshot().resolution.view)) == moves


def test_a_container_whose_cpus_an_init_container_had_stays(folder: Path) -> None:
    node = scattered(folder, CPUMoves.ANY)
    view = node.manager.snapshot().resolution.view
    grants = view.grants
    for name in "acefg":
        grant = grants.chosen[f"{name}-uid"]
        shared = replace(grant, parts={**grant.parts, "init": grant.parts[name]})
        grants = grants.replacing(shared)
    assert after_release(node, replace(view, grants=grants)) == ()


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param(replace(MOVING, compaction=None), id="off"),
        pytest.param(replace(MOVING, policy="static"), id="static"),
        pytest.param(replace(MOVING, on_misfit=Misfit.FAIL), id="such pods fail"),
        pytest.param(replace(MOVING, compaction=Compaction(0, AGE_S)), id="no budget"),
        pytest.param(
            replace(MOVING, options=StaticOptions(distribute_cpus_across_cores=True)), id="spread"
        ),
    ],
)
def test_nobody_moves_where_the_admin_wants_none(folder: Path, settings: CPUManager) -> None:
    node = Node(folder, settings)
    node.run("d", 4, CPUMoves.ANY)
    node.run("late", 26)
    node.settle()
    assert planned(node, AGE_S) == []


def test_while_a_container_leaves_cpus_no_other_moves(folder: Path) -> None:
    node = waiting(folder)
    move = the_move(node)
    assert node.manager.move(move, int(BEGUN_S + AGE_S))
    assert planned(node, AGE_S + 1) == []
    before = node.manager.snapshot()
    assert not node.manager.move(move, int(BEGUN_S + AGE_S))
    assert node.manager.snapshot() is before


def test_a_plan_for_a_node_that_has_changed_changes_nothing(folder: Path) -> None:
    node = waiting(folder)
    move = the_move(node)
    node.run("small", 2)
    before = node.manager.snapshot()
    taken = before.resolution.grants.chosen["small-uid"].cpus
    assert not taken.isdisjoint(move.move.after)
    assert not node.manager.move(move, int(BEGUN_S + AGE_S))
    assert node.manager.snapshot() is before


def test_the_baseline_moves_with_the_container(folder: Path) -> None:
    node = waiting(folder)
    node.manager.resize(REF, 6)
    node.settle()
    own = node.own_cpus()[REF]
    assert (str(own.assigned), str(own.baseline)) == ("9-11,25-27", "9-10,25-26")
    node.until(AGE_S + NOTICE_S + 1)
    own = node.own_cpus()[REF]
    assert (str(own.assigned), str(own.baseline)) == ("4-6,20-22", "4-5,20-21")
    # As before the move, a resize takes the others first.
    node.manager.resize(REF, 4)
    assert str(node.own_cpus()[REF].assigned) == "4-5,20-21"


def test_a_container_without_a_notice_leaves_at_once(folder: Path) -> None:
    node = waiting(folder, notice_s=0)
    assert node.manager.move(the_move(node), int(BEGUN_S + AGE_S))
    own = node.own_cpus()[REF]
    assert (str(own.assigned), str(own.in_force)) == ("4-5,20-21", "4-5,20-21")
    owned = node.manager.snapshot().resolution.grants.cpus
    assert owned >= CPUSet.parse("9-10,25-26"), "they are its own until it has left them"
    node.settle()
    assert node.cpus("late") == "9-14,25-30"


def test_moves_of_an_hour_are_counted_also_over_a_restart_and_after_the_pod_has_ended(
    folder: Path,
) -> None:
    node = waiting(folder, settings=replace(MOVING, compaction=Compaction(1, AGE_S)))
    node.until(AGE_S + 2 * NOTICE_S)
    assert (node.begun, node.cpus("d")) == (1, "4-5,20-21")
    for name in ("late", "d", "a"):
        node.end(name)
    node.kill()
    assert node.manager.snapshot().facts.moved_unix_s == (int(BEGUN_S + AGE_S),)


YEAR_S = 365 * 24 * 3600


@pytest.mark.parametrize("back_s", [YEAR_S, 3600, 1800])
def test_a_clock_that_is_set_back_stops_no_move_for_longer_than_two_hours(
    folder: Path, back_s: int
) -> None:
    node = waiting(folder, settings=replace(MOVING, compaction=Compaction(1, AGE_S)))
    facts, resolution = node.manager.snapshot()
    moved = replace(facts, moved_unix_s=(int(BEGUN_S + AGE_S + back_s),))

    def moves(at_s: float) -> bool:
        now_s = BEGUN_S + AGE_S + at_s
        return bool(compacting.outlook(moved, resolution.view, now_s, released=False).moves)

    assert moves(0) is (back_s >= 3600)
    assert moves(back_s + 3600)
    assert not moves(back_s + 3599)


def test_a_container_that_got_its_cpus_in_the_future_can_move(folder: Path) -> None:
    node = waiting(folder)
    assert planned(node, -YEAR_S) != []
    assert planned(node, 1 - AGE_S) == []


def test_a_planner_looks_again_when_the_clock_has_been_set_back(folder: Path) -> None:
    node = waiting(folder)
    facts, resolution = node.manager.snapshot()
    planner = compacting.Planner()
    assert planner.look(facts, resolution.view, BEGUN_S + 1) == ()
    assert planner.look(facts, resolution.view, BEGUN_S - YEAR_S) != ()


@pytest.mark.parametrize(("budget", "begun"), [(1, 1), (2, 1), (4, 2)])
def test_moves_after_a_release_leave_half_of_the_hour_to_pods_that_wait(
    folder: Path, budget: int, begun: int
) -> None:
    node = scattered(
        folder, CPUMoves.SAME_NUMA, settings=replace(MOVING, compaction=Compaction(budget, 0))
    )
    for name in "fc":
        node.until(node.now_s + 3 * NOTICE_S)
        node.end(name)
    node.until(node.now_s + 3 * NOTICE_S)
    assert node.begun == begun
    told = {message.partition(", so ")[2] for _, reason, message in node.heard.pods}
    assert {each.partition(";")[0] for each in told} == {"that the free CPUs lie closer together"}


@pytest.mark.parametrize(("scope", "moves"), [(Scope.CONTAINER, 1), (Scope.POD, 0)])
def test_a_container_does_not_leave_the_numa_nodes_of_a_pod_that_is_aligned_as_a_whole(
    folder: Path, scope: Scope, moves: int
) -> None:
    node = waiting(folder, settings=replace(MOVING, topology_scope=scope))
    move = the_move(node)
    facts, resolution = node.manager.snapshot()
    grant = resolution.view.chosen["d-uid"]
    beside = replace(grant, parts={**grant.parts, "side": CPUSet.parse("11,27")})
    view = replace(resolution.view, grants=resolution.grants.replacing(beside))
    found = compacting.outlook(facts, view, BEGUN_S + AGE_S, released=False)
    assert len(found.moves) == moves
    assert (compacting.moved(facts, view, move, int(BEGUN_S + AGE_S)) is not None) is bool(moves)


def test_no_move_is_planned_that_would_leave_others_no_cpu(folder: Path) -> None:
    topology = Machine(sockets=2, l3=2, cores=4, threads=2).topology()
    node = Node(folder, MOVING, topology)
    for number in range(14):
        node.run(f"p{number}", 2)
    node.settle()
    caches = Layout.of_topology(topology, topology.online).groups[Level.UNCORE].values()
    *_, third, last = ([name for name in node.pods if has(node, name) <= each] for each in caches)
    node.end(third[0])
    node.end(last[0])
    node.run("far", 4, CPUMoves.ANY)
    node.settle()
    free = has(node, last[1])
    assert has(node, "far").isdisjoint(free)
    node.end(last[1])
    facts, resolution = node.manager.snapshot()
    view = resolution.view

    def moves(settings: CPUManager) -> tuple[PlannedMove, ...]:
        pools = replace(facts.pools, cpu_manager=settings)
        policy = type(facts.policy).of_pools(pools, topology)
        now = replace(facts, pools=pools, policy=policy)
        return compacting.outlook(now, view, BEGUN_S + AGE_S, released=True).moves

    (planned,) = moves(MOVING)
    assert planned.move.after - planned.move.before == free
    assert moves(replace(MOVING, options=StaticOptions(strict_cpu_reservation=True))) == ()


def has(node: Node, name: str) -> CPUSet:
    return CPUSet.parse(node.cpus(name))


def test_a_part_of_a_bubble_stays(folder: Path) -> None:
    node = waiting(folder)
    facts, resolution = node.manager.snapshot()
    bubble = replace(resolution.view.chosen["d-uid"], bubble=True)
    view = replace(resolution.view, grants=resolution.grants.replacing(bubble))
    found = compacting.outlook(facts, view, BEGUN_S + AGE_S, released=False)
    assert found.moves == ()
