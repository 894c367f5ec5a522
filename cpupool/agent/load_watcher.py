"""The load watcher measures the use of CPUs and pods, for shared sets whose size follows the load.

It reads nothing while no set follows the load. A measurement that fails changes nothing.
"""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Final

from cpupool.core.errors import CPUPoolError
from cpupool.loops.step_loop import StepLoop
from cpupool.telemetry import log as logs
from cpupool.telemetry.failures import Failures

if TYPE_CHECKING:
    from collections.abc import Callable

    from cpupool.core.cpu_time import CPUTime
    from cpupool.manager.manager import Manager
    from cpupool.telemetry.health import Health

log = logs.get(__name__)

NAME: Final = "load watcher"
_PERIOD_S: Final = 1.0
"""Best-effort pods give way to a load within this time."""
_IDLE_S: Final = 60.0


class LoadWatcher(StepLoop):
    """The role that measures the load. One thread runs it; any thread may call `wake`.

    Args:
        manager: takes each measurement.
        read: reads the CPU time.
        health: takes the beats of the loop.
        changed: called when a shared set has another size.
        period_s: the time between two readings.
        now_s: a monotonic clock.
    """

    def __init__(
        self,
        manager: Manager,
        read: Callable[[], CPUTime],
        *,
        health: Health,
        changed: Callable[[], None],
        period_s: float = _PERIOD_S,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(partial(health.beat, NAME))
        self._manager = manager
        self._read = read
        self._changed = changed
        self._period_s = period_s
        self._now_s = now_s
        self._last: tuple[float, CPUTime] | None = None
        self._due_s = 0.0
        self._failures = Failures()

    def step(self) -> float:
        """Measure the load once in a period; return the seconds to the next step."""
        if not self._manager.pools().cpu_manager.follows_load:
            self._last, self._due_s = None, 0.0
            return _IDLE_S
        now_s = self._now_s()
        if now_s < self._due_s:
            return self._due_s - now_s
        self._due_s = now_s + self._period_s
        last, self._last = self._last, None
        try:
            time_now = self._read()
            self._last = (now_s, time_now)
            if last:
                self._measured(last, now_s, time_now)
        except CPUPoolError as error:
            if self._failures.begins(error):
                log.warning("load not measured, shared sets keep their sizes", reason=error)
        return self._period_s

    def _measured(self, last: tuple[float, CPUTime], now_s: float, time_now: CPUTime) -> None:
        then_s, earlier = last
        use = time_now.since(earlier, now_s - then_s)
        self._failures.ends()
        before = self._manager.snapshot().resolution.view.extents
        if not self._manager.measure(use):
            return
        view = self._manager.snapshot().resolution.view
        for name, size in view.sizes.items():
            log.info(
                "shared set follows the load",
                set=name,
                cpus=view.extents[name],
                before=before[name],
                why=size,
            )
        self._changed()
