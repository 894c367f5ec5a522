from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from cpupool.core.cpuset import CPUSet
from cpupool.core.errors import RemoteProtocolError, RuntimeBusy
from cpupool.core.pools import NodePools, Pool
from cpupool.core.workloads import ContainerID
from cpupool.enforce.notices import Notice
from tests import builders
from tests.setters import MACHINE, Node, ids, running
from tests.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from cpupool.core.cgroups import FoundContainer
    from cpupool.enforce.notices import NoticeKey
    from cpupool.manager.resolve import Resolution


@dataclass
class RecordingGoal:
    """Remembers each look, and tells what it is given to tell."""

    problem: str = "nothing"
    pause_s: float = 0.1
    busy: bool = False
    announced: dict[NoticeKey, Notice] = field(default_factory=dict)
    calls: list[tuple[list[str], Resolution]] = field(default_factory=list)

    def wants(
        self, found: Sequence[FoundContainer], resolution: Resolution
    ) -> dict[str, tuple[list[str], Resolution]]:
        return {"everything": ([one.cpus for one in found], resolution)}

    def put_right(
        self,
        _key: str,
        want: tuple[list[str], Resolution],
        _now_s: float,
        /,
        *,
        was_right: bool,
    ) -> None:
        self.calls.append(want)
        if self.busy:
            raise RuntimeBusy("main-id", "something", "it waits itself")

    def stays(self, _key: str, _changed: object, /) -> bool:
        return False

    def notices(self, _targets: object, /) -> Iterator[tuple[NoticeKey, Notice]]:
        yield from self.announced.items()


def test_goals_come_after_the_cpus_in_every_sweep_and_are_heard() -> None:
    goal = RecordingGoal()
    node = Node(goals=(goal,))
    node.run("owner", builders.container(exclusive_a=1))
    node.source.failing["checkpoint"] = node.source.failing["podresources"] = RemoteProtocolError(
        "the kubelet does not answer"
    )
    node.setter.sweep()
    assert goal.calls == [], "nobody writes before the facts are known"

    node.source.failing.clear()
    node.source.saved = {"owner": {"exclusive_a": ids("2")}}
    node.now_s += 1
    node.setter.sweep()
    node.setter.sweep()
    resolution = node.manager.snapshot().resolution
    assert goal.calls == [(["2"], resolution)] * 2

    pod = node.source.listed[0] if node.source.listed else builders.pod("none")
    key = ("owner-uid", ContainerID("main-id"))
    notice = Notice("QuotaOdd", "quota is odd", pod, "main", "it is odd", "make it even")
    goal.announced = {(key, notice.event): notice}
    for _ in range(2):
        node.setter.sweep()
    assert node.events.pods == [("owner", "QuotaOdd", "container main: it is odd; make it even")]


def test_pools_that_change_while_a_sweep_ends_are_the_next_sweeps() -> None:
    class Editor(RecordingGoal):
        def wants(
            self, found: Sequence[FoundContainer], resolution: Resolution
        ) -> dict[str, tuple[list[str], Resolution]]:
            if self.calls:
                node.manager.reconfigure(edited, MACHINE.topology())
            return super().wants(found, resolution)

    edited = NodePools.of(Pool.named("exclusive_a", "2,4"), Pool.named("default", "6-7"))
    node = Node(goals=(Editor(),))
    node.run("plain")
    node.setter.sweep()
    # What comes is right already: the sweep has something to look at, and nothing to repair.
    node.run("late")
    node.kernel.write(node.path("late"), CPUSet.of(1))
    assert node.setter.sweep().repairs == ()
    node.setter.sweep()
    assert (node.cpus("plain"), node.cpus("late")) == ("6-7", "6-7")


def test_a_sweep_comes_when_a_goal_wants_it() -> None:
    goal = RecordingGoal()
    node = Node(goals=(goal,), clock=time.monotonic)
    with running(node):
        eventually(lambda: goal.calls, "the first sweep")
        goal.busy = True
        node.setter.wake()
        eventually(lambda: len(goal.calls) > 5, "it is called again and again")
