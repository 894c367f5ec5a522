from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from cpupool.core.cpuset import CPUSet
from cpupool.core.errors import RemoteProtocolError
from cpupool.core.pools import NodePools, Pool
from cpupool.core.workloads import ContainerID
from cpupool.enforce.notices import Notice
from tests import builders
from tests.setters import MACHINE, Node, ids, running
from tests.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cpupool.enforce.notices import NoticeKey
    from cpupool.manager.ports import FoundContainer
    from cpupool.manager.resolve import Resolution


@dataclass
class RecordingKeeper:
    """Remembers what it was called with, and tells what it is given to tell."""

    due_s: float = 100.0
    notices: dict[NoticeKey, Notice] = field(default_factory=dict)
    calls: list[tuple[list[str], Resolution]] = field(default_factory=list)

    def keep(
        self, found: Sequence[FoundContainer], resolution: Resolution, now_s: float
    ) -> dict[NoticeKey, Notice]:
        assert now_s >= 0
        self.calls.append(([one.cpus for one in found], resolution))
        return self.notices


def test_keepers_come_after_the_cpus_in_every_sweep_and_are_heard() -> None:
    keeper = RecordingKeeper()
    node = Node(keepers=(keeper,))
    node.run("owner", builders.container(exclusive_a=1))
    node.source.failing["checkpoint"] = node.source.failing["podresources"] = RemoteProtocolError(
        "the kubelet does not answer"
    )
    node.setter.sweep()
    assert keeper.calls == [], "nobody writes before the facts are known"

    node.source.failing.clear()
    node.source.saved = {"owner": {"exclusive_a": ids("2")}}
    node.now_s += 1
    node.setter.sweep()
    node.setter.sweep()
    resolution = node.manager.snapshot().resolution
    assert keeper.calls == [(["2"], resolution)] * 2

    pod = node.source.listed[0] if node.source.listed else builders.pod("none")
    key = ("owner-uid", ContainerID("main-id"))
    notice = Notice("QuotaOdd", "quota is odd", pod, "main", "it is odd", "make it even")
    keeper.notices = {(key, notice.event): notice}
    for _ in range(2):
        node.setter.sweep()
    assert node.events.pods == [("owner", "QuotaOdd", "container main: it is odd; make it even")]


def test_pools_that_change_while_a_sweep_ends_are_the_next_sweeps() -> None:
    class Editor(RecordingKeeper):
        def keep(
            self, found: Sequence[FoundContainer], resolution: Resolution, now_s: float
        ) -> dict[NoticeKey, Notice]:
            if self.calls:
                node.manager.reconfigure(edited, MACHINE.topology())
            return super().keep(found, resolution, now_s)

    edited = NodePools.of(Pool.named("exclusive_a", "2,4"), Pool.named("default", "6-7"))
    node = Node(keepers=(Editor(),))
    node.run("plain")
    node.setter.sweep()
    # What comes is right already: the sweep has something to look at, and nothing to repair.
    node.run("late")
    node.kernel.write(node.path("late"), CPUSet.of(1))
    assert node.setter.sweep().repairs == ()
    node.setter.sweep()
    assert (node.cpus("plain"), node.cpus("late")) == ("6-7", "6-7")


def test_a_sweep_comes_when_a_keeper_wants_it() -> None:
    keeper = RecordingKeeper()
    node = Node(keepers=(keeper,), clock=time.monotonic)
    with running(node):
        eventually(lambda: keeper.calls, "the first sweep")
        keeper.due_s = 0.0
        node.setter.wake()
        eventually(lambda: len(keeper.calls) > 5, "it is called again and again")
