"""The repair machine, by a toy goal: what a new kept thing costs."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

from cpupool.core.cgroups import POD_ITSELF, FoundContainer
from cpupool.core.errors import CgroupNotFound, CgroupWriteRejected, RuntimeBusy
from cpupool.core.pools import NodePools, Pool
from cpupool.enforce.foreign_writers import Reason
from cpupool.enforce.notices import Notice
from cpupool.enforce.repair import Keeper
from cpupool.manager.manager import Manager
from tests import builders
from tests.machines import MACHINES

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from collections.abc import Set as AbstractSet

    from cpupool.core.errors import CPUPoolError
    from cpupool.enforce.notices import NoticeKey
    from cpupool.enforce.repair import Target
    from cpupool.manager.resolve import Resolution


@dataclass
class WeightGoal:
    """The toy: every container has a CPU weight of 100, in a model of `cpu.weight`."""

    weights: dict[str, int]
    problem: str = "weight stays wrong"
    pause_s: float = 0.5
    wanted: int = 100
    failing: dict[str, CPUPoolError] = field(default_factory=dict)
    writes: list[str] = field(default_factory=list)

    def wants(
        self, found: Sequence[FoundContainer], _resolution: Resolution, /
    ) -> Mapping[str, int]:
        return {container.path: self.wanted for container in found}

    def put_right(self, key: str, want: int, _now_s: float, /, *, was_right: bool) -> Reason | None:
        if self.weights[key] == want:
            return None
        if key in self.failing:
            raise self.failing[key]
        self.writes.append(key)
        self.weights[key] = want
        return Reason.UNKNOWN if was_right else Reason.NEW

    def stays(self, key: str, changed: AbstractSet[str], /) -> bool:
        return key not in changed

    def notices(self, targets: Mapping[str, Target[int]], /) -> Iterator[tuple[NoticeKey, Notice]]:
        for path, target in targets.items():
            if target.contested or target.stuck:
                why = target.stuck or "its weight is overwritten again and again"
                notice = Notice("CPUWeightWrong", "weight is wrong", POD, "", why, "look")
                yield ((path, POD_ITSELF), notice.event), notice


POD = builders.pod("web")


class Node:
    """Two containers whose weights the toy keeps."""

    def __init__(self) -> None:
        self.goal = WeightGoal({"a": 1, "b": 1})
        self.keeper = Keeper(self.goal)
        self.now_s = 1_000.0
        manager = Manager()
        manager.reconfigure(
            NodePools.of(Pool.named("default", "0")), MACHINES["single_cpu"].topology()
        )
        self._resolution = manager.snapshot().resolution

    def keep(self, changed: AbstractSet[str] | None = None) -> list[str]:
        """Look at what there is; return what pods' owners must know."""
        found = [FoundContainer("web-uid", path, path, "0") for path in self.goal.weights]
        kept = self.keeper.keep(found, self._resolution, self.now_s, changed)
        return [notice.why for notice in kept.values()]


@pytest.fixture
def node() -> Node:
    return Node()


def test_a_goal_is_reached_once_and_then_only_looked_at(node: Node) -> None:
    assert (node.keep(), node.keep()) == ([], [])
    assert (node.goal.writes, node.keeper.due_s) == (["a", "b"], math.inf)


def test_what_is_right_is_looked_at_again_where_something_has_changed(node: Node) -> None:
    node.keep(changed=frozenset())
    assert node.goal.writes == ["a", "b"], "before they have been right"
    node.goal.weights = {"a": 5, "b": 5}
    node.now_s += 60.0
    node.keep(changed={"b"})
    assert node.goal.writes[2:] == ["b"]
    node.goal.wanted = 7
    node.keep(changed=frozenset())
    assert node.goal.writes[3:] == ["a", "b"], "another want"
    node.goal.weights = {"a": 5, "b": 5}
    node.now_s += 60.0
    node.keep()
    assert node.goal.writes[5:] == ["a", "b"], "anything may have changed"


def test_another_want_is_put_right_at_once(node: Node) -> None:
    for node.goal.wanted in range(100, 120):
        node.keep()
        assert set(node.goal.weights.values()) == {node.goal.wanted}
    assert node.keep() == []


def test_a_fight_is_fought_ever_more_patiently_and_named(node: Node) -> None:
    node.keep()
    told: list[str] = []
    for _ in range(20):
        node.goal.weights["a"] = 7
        told = node.keep()
    assert told == ["its weight is overwritten again and again"]
    assert node.goal.weights == {"a": 7, "b": 100}
    assert node.keeper.due_s > node.now_s
    node.now_s = node.keeper.due_s
    node.keep()
    assert node.goal.weights == {"a": 100, "b": 100}
    node.now_s += 61
    node.goal.weights["a"] = 7
    assert node.keep() == [], "a minute of quiet ends a fight"


def test_a_target_that_fails_keeps_no_other_from_its_repair(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    node.goal.failing["a"] = CgroupWriteRejected("a", "100", 22, "look")
    for _ in range(3):
        assert len(node.keep()) == 1
    assert node.goal.weights == {"a": 1, "b": 100}
    assert node.keeper.due_s == node.now_s + node.goal.pause_s
    assert [record.message for record in caplog.records].count("weight stays wrong") <= 1
    assert len(caplog.records) == 1, "a reason is logged once"
    node.goal.failing.clear()
    assert node.keep() == []
    assert node.goal.weights["a"] == 100


def test_what_is_busy_is_tried_in_a_moment_and_what_has_ended_is_no_complaint(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    node.goal.failing["a"] = RuntimeBusy("a", "a weight", "it waits itself")
    assert node.keep() == []
    assert node.keeper.due_s == pytest.approx(node.now_s + 0.1)
    node.goal.failing["a"] = CgroupNotFound("a")
    assert node.keep() == []
    assert not caplog.records


def test_a_target_that_is_gone_is_forgotten(node: Node) -> None:
    node.goal.failing["a"] = CgroupWriteRejected("a", "100", 22, "look")
    for _ in range(20):
        node.keep()
    assert node.keeper.due_s > node.now_s
    del node.goal.weights["a"]
    assert (node.keep(), node.keeper.due_s) == ([], math.inf)
    node.goal.weights["a"] = 1
    node.goal.failing.clear()
    node.keep()
    assert node.goal.weights["a"] == 1, "one that comes and goes keeps its patience"
    del node.goal.weights["a"]
    node.now_s += 61
    node.keep()
    node.goal.weights["a"] = 1
    assert node.keep() == []
    assert node.goal.weights["a"] == 100, "after a minute nothing is known of it"
