"""The memory keeper keeps the memory of containers on the NUMA nodes that they must have.

A write of memory nodes may take seconds, so the cpusetter does not make it. Each turn follows a
sweep, so that the CPUs are right before memory moves. The write itself runs in a thread, which the
role leaves behind when it ends: the kernel ends no write before the pages have moved.
"""

from __future__ import annotations

import math
import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Final

from cpupool.core.errors import CPUPoolError
from cpupool.enforce.memory_nodes import MemoryGoal
from cpupool.enforce.notices import Notices
from cpupool.enforce.repair import Keeper, Postponed
from cpupool.loops.step_loop import StepLoop
from cpupool.loops.threads import OwnedThread
from cpupool.telemetry import log as logs

if TYPE_CHECKING:
    from collections.abc import Callable, MutableMapping

    from cpupool.core.cgroups import FoundContainer
    from cpupool.core.cpuset import CPUSet
    from cpupool.core.workloads import ContainerID
    from cpupool.enforce.memory_nodes import MemoryTree
    from cpupool.enforce.sweep import SweepReport
    from cpupool.loops.telemetry import Telemetry
    from cpupool.manager.resolve import Resolution, Snapshot

log = logs.get(__name__)

NAME: Final = "memory keeper"
_IDLE_S: Final = 60.0
_BEAT_S: Final = 1.0
_LONG_S: Final = 30.0
"""A write that takes longer is worth a line in the log."""


class MemoryKeeper(StepLoop):
    """The role that keeps memory nodes. One thread runs it; any thread may call `wake`.

    Args:
        decided: returns the decisions, once their choices are recorded.
        tree: the memory nodes of the cgroups.
        placed: container → its memory nodes, which the runtime repeats in each of its updates.
        look: asks for a sweep.
        telemetry: takes notices for pods' owners, the number of writes, and the beats of the loop.
        now_s: a monotonic clock.
    """

    def __init__(
        self,
        decided: Callable[[], Snapshot],
        tree: MemoryTree,
        *,
        placed: MutableMapping[ContainerID, CPUSet],
        look: Callable[[], None],
        telemetry: Telemetry,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(partial(telemetry.health.beat, NAME))
        self._decided = decided
        self._look = look
        self._now_s = now_s
        self._keeper = Keeper(MemoryGoal(tree, self._carry_out, placed, telemetry.metrics, now_s))
        self._notices = Notices(telemetry.events)
        self._seen: tuple[tuple[FoundContainer, ...], Resolution] | None = None
        self._concerned = False
        self._writing: OwnedThread | None = None
        self._turn = threading.Event()
        self._due_s = math.inf

    def swept(self, report: SweepReport) -> None:
        """Begin a turn after a sweep, if memory nodes may differ; called on the sweeping thread."""
        if report.waiting_for:
            return
        (facts, resolution), found = self._decided(), report.found
        before, self._seen = self._seen, (found, resolution)
        same = before is not None and before[1] is resolution
        concerned = self._concerned
        if not same:
            placements = resolution.containers.values()
            self._concerned = any(placed.assignment.memory for placed in placements)
        # Where a plugin may name memory nodes later, the goal must see a container without them,
        # too: it is not new then.
        noted = facts.plugins.enabled and (not same or before != self._seen)
        if concerned or self._concerned or noted:
            self._turn.set()
            self.wake()

    def step(self) -> float:
        """Make a turn after a sweep, or ask for a sweep; return the seconds to the next step."""
        if self._turn.is_set():
            self._turn.clear()
            self._due_s = self.turn()
        elif self._now_s() >= self._due_s:
            # The report of the sweep begins the next turn.
            self._due_s = math.inf
            self._look()
        return min(_IDLE_S, max(0.0, self._due_s - self._now_s()))

    def turn(self) -> float:
        """Repair the containers that the last sweep found; return when the next turn is due.

        Raises:
            ThreadFailed: a write has failed by a bug.
        """
        if self._seen is None:
            return math.inf
        found, resolution = self._seen
        notices = self._keeper.keep(found, resolution, self._now_s())
        if self._writing is not None:
            self._writing.check()
        self._notices.publish(notices, self._now_s())
        return min(self._keeper.due_s, self._notices.due_s)

    def _carry_out(self, write: Callable[[], None]) -> None:
        """Make a write in a thread of its own, and wait for its end, or for the end of the role.

        Raises:
            Postponed: the role ends, or the write fails by a bug.
            CPUPoolError: as the write.
        """
        if self._stop.is_set():
            raise Postponed
        failures: list[CPUPoolError] = []
        made = False
        done = threading.Event()

        def make() -> None:
            nonlocal made
            try:
                write()
            except CPUPoolError as error:
                failures.append(error)
            made = True
            done.set()

        started_s, warned = self._now_s(), False
        # The time that a write takes is the kernel's.
        self._writing = OwnedThread(
            NAME, make, ask=lambda: None, failed=done.set, silent_s=math.inf
        )
        self._writing.start()
        while not done.wait(_BEAT_S):
            self._beat()
            if self._stop.is_set():
                raise Postponed
            if not warned and self._now_s() - started_s > _LONG_S:
                warned = True
                log.warning("the kernel still moves the memory of a container", s=_LONG_S)
        if failures:
            raise failures[0]
        if not made:
            # The turn raises what has ended the thread.
            raise Postponed
