"""The cpusetter brings every container of the node onto its CPUs and keeps it there.

An event only says *look now*. The thread that runs `CPUSetter.run` is the only one that writes
cgroups, itself or through the container runtime. Its loop is no `StepLoop`: it has a wait for each
kind of event, so that a burst is one sweep.
"""

from __future__ import annotations

import math
import threading
import time
from typing import TYPE_CHECKING, Final

from cpupool.agent.cgroup_news import Look
from cpupool.manager import readiness
from cpupool.telemetry import log as logs

if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Set as AbstractSet

    from cpupool.agent.cgroup_news import CgroupNews
    from cpupool.core.workloads import ContainerID
    from cpupool.enforce.sweep import Sweep, SweepReport
    from cpupool.loops.telemetry import Telemetry
    from cpupool.manager.learner import Learner

NAME: Final = "cpusetter"
_SETTLE_S: Final = 0.02
"""A pod start is dozens of events: a sweep serves the first at once, and the others together."""
_CALM_S: Final = 0.1
"""After a sweep, events that put no container on wrong CPUs wait so long, and share a sweep."""
_STORM_S: Final = 0.2
_LATER_S: Final = 2.0
"""Events that leave every container where it is wait so long: the start of a pod and its end take
about a second, because the kubelet looks each second. The status may be as old."""


class CPUSetter:
    """Sweeps the container cgroups, at least as often as the interval says.

    Args:
        sweep: looks at every container once.
        learner: brings the facts about the node.
        news: follows the cgroups of pods.
        telemetry: takes the duration of sweeps, the beats of the loop, and whether containers can
            be placed.
        interval_s: a sweep happens at least this often.
        swept: called after each sweep, on the sweeping thread.
        readiness_changed: called on the sweeping thread when `informed` or `ready` has changed.
        now_s: a monotonic clock.
    """

    def __init__(
        self,
        sweep: Sweep,
        learner: Learner,
        news: CgroupNews,
        *,
        telemetry: Telemetry,
        interval_s: float,
        swept: Callable[[SweepReport], None] = lambda _report: None,
        readiness_changed: Callable[[], None] = lambda: None,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._sweep = sweep
        self._learner = learner
        self._news = news
        self._everything_s = -math.inf
        self._metrics = telemetry.metrics
        self._health = telemetry.health
        self._interval_s = interval_s
        self._swept = swept
        self._readiness_changed = readiness_changed
        self._readiness = (False, False, False)
        # Whether the last sweep has found nothing to place.
        self._unplaced = False
        self._now_s = now_s
        self._settle_s = _CALM_S
        self._informed = threading.Event()
        self._ready = threading.Event()
        self._look = threading.Event()
        self._urgent = threading.Event()
        self._woken = threading.Event()
        self._later_s = math.inf

    @property
    def ready(self) -> bool:
        """Whether the owner of each CPU is known, and only cpupool places containers.

        A node without pools can be ready: pods may hold devices of pools that are gone.
        """
        return self._ready.is_set() and self._still

    @property
    def informed(self) -> bool:
        """Whether the owner of each CPU is known; it is ready once nothing else is lacking."""
        return self._informed.is_set() and self._still

    @property
    def _still(self) -> bool:
        """Whether the last sweep still says something.

        Pools may have come since: they may make a conflict of a static CPU manager, and the first
        sweep with pools recognises the CPUs that containers own.
        """
        unseen = self._unplaced and self._learner.places
        return not unseen and not self._learner.conflict

    def wake(self) -> None:
        """Ask for a sweep of everything now."""
        self._news.anything()
        self._look_soon()

    def wake_at_once(self) -> None:
        """Ask for a sweep that does not wait for a burst of events to end.

        A container may be on wrong CPUs.
        """
        self._urgent.set()
        self.wake()

    def facts_changed(self) -> None:
        """Ask for a sweep at once of the cgroups that events name: facts have changed."""
        self._urgent.set()
        self._look_soon()

    def pods_changed(self) -> None:
        """Ask for a sweep because the list of pods has changed."""
        if self._learner.can_wait():
            self._look_later()
        else:
            self.facts_changed()

    def container_started(self, container: ContainerID) -> None:
        """Ask for a sweep because the runtime has started a container, named by NRI.

        It is urgent unless the container is where it belongs: facts may have changed since the
        runtime asked.
        """
        if self._news.starts_right(container):
            self._look_later()
        else:
            self.facts_changed()

    def kubelet_changed(self) -> None:
        """Note that another kubelet runs now, and ask for a sweep."""
        self._learner.kubelet_changed()
        self.wake()

    def run(self, stop: threading.Event) -> None:
        """Sweep until `stop` is set; `wake` once more after setting it returns at once."""
        with self._news.followed(self._changed):
            while not stop.is_set():
                self._health.beat(NAME)
                self._look.clear()
                self._urgent.clear()
                self._later_s = math.inf
                report = self.sweep(self._due())
                if self._news.ensure():
                    self._look_soon()
                self._tell(report)
                self._rest(stop)

    def _rest(self, stop: threading.Event) -> None:
        """Wait until something is due; soon after a sweep also for what comes with it."""
        ended_s = self._now_s()
        asked = self._asked()
        since_s = self._now_s() - ended_s
        if since_s < _SETTLE_S and stop.wait(_SETTLE_S - since_s):
            return
        if asked and since_s < self._settle_s:
            left_s = self._settle_s - max(since_s, _SETTLE_S)
            self._urgent.wait(min(left_s, self._pause_s()))
        # The wait grows while events come without a pause.
        self._settle_s = _STORM_S if asked else _CALM_S

    def _asked(self) -> bool:
        """Wait until something is due, and return whether it is an event that does not wait."""
        while not self._look.is_set():
            due_s = min(self._pause_s(), max(0.0, self._later_s - self._now_s()))
            if not due_s:
                return False
            self._woken.wait(due_s)
            self._woken.clear()
        return True

    def _look_soon(self) -> None:
        self._look.set()
        self._woken.set()

    def _look_later(self) -> None:
        if self._later_s == math.inf:
            self._later_s = self._now_s() + _LATER_S
            self._woken.set()

    def _due(self) -> frozenset[str] | None:
        """Return the pods whose cgroups are to be read; None for all."""
        touched, now_s = self._news.take(), self._now_s()
        if now_s >= min(self._sweep.rereads_s, self._everything_s + self._interval_s):
            touched = None
        if touched is None:
            self._everything_s = now_s
        return touched

    def sweep(self, touched: AbstractSet[str] | None = None) -> SweepReport:
        """Compare every container with where it belongs, and repair what differs.

        Args:
            touched: the pods whose cgroups have changed since the last sweep; None for any.
        """
        started_s = self._now_s()
        with logs.operation("sweep"):
            report = self._sweep.look(touched)
        self._unplaced = report.waiting_for == readiness.POOL_FILE
        if self._learner.conflict:
            self._ready.clear()
            self._informed.clear()
        # A node without pools is healthy, although no container is kept on CPUs.
        able = readiness.offers(report.waiting_for)
        if readiness.knows_owners(report.waiting_for):
            self._informed.set()
        if able:
            self._ready.set()
        self._health.set(
            NAME,
            ok=able,
            message=f"waiting for {report.waiting_for}; look at the log for why it does not come",
        )
        self._metrics.swept(self._now_s() - started_s)
        return report

    def _tell(self, report: SweepReport) -> None:
        self._swept(report)
        readiness = (self.informed, self.ready, self._unplaced)
        if readiness != self._readiness:
            self._readiness = readiness
            self._readiness_changed()

    def _pause_s(self) -> float:
        due_s = min(self._sweep.due_s, self._everything_s + self._interval_s)
        return max(0.0, due_s - self._now_s())

    def _changed(self, look: Look) -> None:
        if look is Look.AT_ONCE:
            self._urgent.set()
        if look is Look.LATER:
            self._look_later()
        elif look is not Look.NOT:
            self._look_soon()
