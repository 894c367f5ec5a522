"""When the compactor looks for moves, and what it tells of one."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from cpupool.agent.compactor import Compactor
from cpupool.core.workloads import CPUMoves
from tests import builders
from tests.events import Heard
from tests.moving import AGE_S, BEGUN_S, MOVING, Node

if TYPE_CHECKING:
    from pathlib import Path


def waiting(folder: Path) -> Node:
    """Make a node on which a pod waits until `d` leaves its NUMA node."""
    node = Node(folder)
    node.run("a", 6)
    node.run("b", 8)
    node.run("d", 4, CPUMoves.ANY)
    node.settle()
    node.end("b")
    node.run("late", 12)
    return node


class Role(Compactor):
    """A compactor with a clock of the test, and what it has told."""

    def __init__(self, node: Node, *, ready: bool = True, slow_s: float = 0.0) -> None:
        self.heard, self.begun, self.at_s, self.slow_s = Heard(), 0, 0.0, slow_s
        self.searched = 0

        def now_s() -> float:
            self.at_s += self.slow_s
            return self.at_s

        def begun() -> None:
            self.begun += 1

        super().__init__(
            node.manager,
            telemetry=builders.telemetry(events=self.heard),
            ready=lambda: ready,
            begun=begun,
            unix_s=lambda: BEGUN_S + self.at_s,
            now_s=now_s,
        )


def test_it_comes_back_when_a_container_is_old_enough(folder: Path) -> None:
    role = Role(waiting(folder))
    assert role.step() == 60
    role.at_s = AGE_S - 5
    assert role.step() == 5
    role.at_s = AGE_S
    role.step()
    assert role.begun == 1
    assert [reason for _, reason, _ in role.heard.pods] == ["CPUsMoved"]


def test_nothing_moves_before_the_agent_places_containers(folder: Path) -> None:
    role = Role(waiting(folder), ready=False)
    role.at_s = AGE_S
    assert (role.step(), role.begun) == (60, 0)


def test_a_long_search_is_followed_by_a_long_pause(folder: Path) -> None:
    node = waiting(folder)
    role = Role(node, slow_s=1.0)
    role.step()
    node.run("more", 12)
    # Two readings of the clock lie in the search, and one in the next step.
    assert role.step() == 20 - 1


def test_a_sweep_wakes_it_only_where_the_admin_wants_moves(folder: Path) -> None:
    for settings, woken in ((MOVING, True), (replace(MOVING, compaction=None), False)):
        node = Node(folder / str(woken), settings)
        role = Role(node)
        role.look()
        assert role._wake.is_set() is woken
