"""The compactor begins the moves of running containers to other CPUs of their own.

It begins one move at a time, and looks again after each sweep: the next move begins only after the
kernel has reported that the container has left its old CPUs. The rest of a move is as in a resize.
The cpusetter gives the container its new CPUs beside the old ones. The keeper of own CPUs announces
which CPUs leave, and waits for the notice.
"""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Final

from cpupool.loops.step_loop import StepLoop
from cpupool.manager.compacting import Planner
from cpupool.telemetry import log as logs

if TYPE_CHECKING:
    from collections.abc import Callable

    from cpupool.loops.telemetry import Telemetry
    from cpupool.manager.compacting import PlannedMove
    from cpupool.manager.manager import Manager

log = logs.get(__name__)

NAME: Final = "compactor"
MOVED: Final = "CPUsMoved"
_IDLE_S: Final = 60.0
_SPARING: Final = 20
"""How many times as long as a search for moves the pause after it lasts: many pods may wait for
long, and each change of the node is a reason to search again."""


class Compactor(StepLoop):
    """The role that begins moves. One thread runs it; any thread may call `look` and `wake`.

    Args:
        manager: the node's state.
        telemetry: takes Events for a pod's author, the number of moves, and the beats of the loop.
        ready: returns whether the owner of each CPU is known and recorded, and the agent places
            containers.
        begun: called when a move has begun; it must not block.
        unix_s: the wall clock.
        now_s: a monotonic clock.
    """

    def __init__(
        self,
        manager: Manager,
        *,
        telemetry: Telemetry,
        ready: Callable[[], bool],
        begun: Callable[[], None],
        unix_s: Callable[[], float] = time.time,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(partial(telemetry.health.beat, NAME))
        self._manager = manager
        self._events = telemetry.events
        self._metrics = telemetry.metrics.cpu_manager
        self._ready = ready
        self._begun = begun
        self._unix_s = unix_s
        self._now_s = now_s
        self._planner = Planner()
        self._due_s = 0.0

    def look(self) -> None:
        """Look soon: a sweep has ended."""
        if self._manager.pools().cpu_manager.compaction:
            self.wake()

    def step(self) -> float:
        """Begin a move if one is worth its cost; return the seconds to the next step."""
        facts, resolution = self._manager.snapshot()
        if not (facts.pools.cpu_manager.compaction and facts.recovered and self._ready()):
            return _IDLE_S
        began_s = self._now_s()
        if began_s < self._due_s:
            return self._due_s - began_s
        unix_s = self._unix_s()
        if moves := self._planner.look(facts, resolution.view, unix_s):
            self._begin(moves[0], len(moves), int(unix_s))
        now_s = self._now_s()
        self._due_s = now_s + _SPARING * (now_s - began_s)
        return max(0.0, min(_IDLE_S, self._planner.again_unix_s - unix_s))

    def _begin(self, planned: PlannedMove, count: int, unix_s: int) -> None:
        ref, before, after = planned.move
        pod = self._manager.snapshot().resolution.pods.get(ref.pod)
        if not self._manager.move(planned, unix_s):
            log.info("move not begun: the node has changed", pod=ref.pod, container=ref.name)
            return
        log.info(
            "container moves to other CPUs",
            pod=ref.pod,
            container=ref.name,
            before=before,
            after=after,
            why=planned.why,
            planned=count,
        )
        self._metrics.moved()
        if pod:
            what = f"container {ref.name} moves from CPUs {before} to {after}, {planned.why}"
            leaves = f"CPUs {before - after} leave after its notice"
            self._events.pod(pod, MOVED, f"{what}; {leaves}", warning=False)
        self._begun()
