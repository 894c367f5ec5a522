"""The cpusetter: brings every container of the node onto its CPUs and keeps it there.

Events only say *look now*. The thread that runs `CPUSetter.run` is the only one that writes
cgroups, itself or through the container runtime.
"""

from __future__ import annotations

import math
import threading
import time
from contextlib import ExitStack
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from cpupool.host.files import DirectoryWatch
from cpupool.manager import learner
from cpupool.roles import cgroup_news
from cpupool.roles.cgroup_news import Look
from cpupool.telemetry import log as logs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from collections.abc import Set as AbstractSet
    from pathlib import Path

    from cpupool.enforce.sweep import Sweep, SweepReport
    from cpupool.manager.learner import Learner
    from cpupool.telemetry.health import Health
    from cpupool.telemetry.metrics import Metrics

NAME: Final = "cpusetter"
_SETTLE_S: Final = 0.02
"""Events come in bursts, a pod start is dozens: the first is served at once, the rest together."""
_CALM_S: Final = 0.1
"""After a sweep, what puts no container on wrong CPUs waits for so long, to be served together."""
_STORM_S: Final = 0.2
_CGROUP_LEVELS: Final = 5
"""Below kubepods: QoS class, pod, and three that a runtime and a container may make."""


class CPUSetter:
    """Sweeps the container cgroups, at least as often as the interval says.

    Args:
        sweep: looks at every container once.
        learner: what is known of the node.
        places: the folders below which the cgroups of pods are, and whether they have the CPUs of
            containers there.
        stays: returns whether the container with this cgroup is where it belongs; any thread calls
            it.
        metrics: where durations are counted.
        health: hears that the loop turns, and whether containers can be placed.
        interval_s: a sweep happens at least this often.
        swept: called after each sweep, on the sweeping thread.
        readiness_changed: called on the sweeping thread when `informed` or `ready` has changed.
        now_s: a monotonic clock.
    """

    def __init__(
        self,
        sweep: Sweep,
        learner: Learner,
        *,
        places: Mapping[Path, bool] = MappingProxyType({}),
        stays: Callable[[Path], bool] = lambda _cgroup: False,
        metrics: Metrics,
        health: Health,
        interval_s: float,
        swept: Callable[[SweepReport], None] = lambda _report: None,
        readiness_changed: Callable[[], None] = lambda: None,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._sweep = sweep
        self._learner = learner
        self._places, self._stays = places, stays
        self._touched = _Touched()
        self._everything_s = -math.inf
        self._metrics = metrics
        self._health = health
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
        self._touched.anything()
        self._look.set()

    def wake_at_once(self) -> None:
        """Ask for a sweep that does not wait for a burst of events to end.

        A container may be on wrong CPUs.
        """
        self._urgent.set()
        self.wake()

    def facts_changed(self) -> None:
        """Ask for a sweep at once: facts are others, and the cgroups as their events say."""
        self._urgent.set()
        self._look.set()

    def kubelet_changed(self) -> None:
        """Note that another kubelet runs now, and ask for a sweep."""
        self._learner.kubelet_changed()
        self.wake()

    def run(self, stop: threading.Event) -> None:
        """Sweep until `stop` is set; `wake` once more after setting it returns at once."""
        watches = [
            DirectoryWatch(
                place, partial(self._changed, sets=sets), depth=_CGROUP_LEVELS, writes=True
            )
            for place, sets in self._places.items()
        ]
        with ExitStack() as ending:
            for watch in watches:
                ending.callback(watch.stop)
            while not stop.is_set():
                self._health.beat(NAME)
                self._look.clear()
                self._urgent.clear()
                report = self.sweep(self._due(watches))
                for watch in watches:
                    if watch.ensure():
                        self._touched.anything()
                self._tell(report)
                if stop.wait(_SETTLE_S):
                    return
                self._urgent.wait(min(self._settle_s - _SETTLE_S, self._pause_s()))
                # Events that come on and on are answered ever more slowly.
                quiet = not self._look.wait(self._pause_s())
                self._settle_s = _CALM_S if quiet else _STORM_S

    def _due(self, watches: Iterable[DirectoryWatch]) -> frozenset[str] | None:
        """Return the pods whose cgroups are to be read; None for all."""
        touched, now_s = self._touched.take(), self._now_s()
        watched = all(watch.complete for watch in watches)
        # What keeps a start waiting may have come without an event, as from a CPU that went.
        if not watched or not self._pause_s() or self._sweep.writers.delays:
            touched = None
        if touched is None:
            self._everything_s = now_s
        return touched

    def sweep(self, touched: AbstractSet[str] | None = None) -> SweepReport:
        """Compare every container with where it belongs, and repair what differs.

        Args:
            touched: as for `Sweep.look`.
        """
        started_s = self._now_s()
        with logs.operation("sweep"):
            report = self._sweep.look(touched)
        self._unplaced = report.waiting_for == learner.POOL_FILE
        if self._learner.conflict:
            self._ready.clear()
            self._informed.clear()
        # A node without pools has nothing to be kept on its CPUs: that is healthy.
        able = report.waiting_for in {"", learner.POOL_FILE}
        if able or report.waiting_for == learner.NRI:
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

    def _changed(self, path: Path, *, sets: bool) -> None:
        look = cgroup_news.of(path, self._sweep.writers, self._stays, sets=sets)
        self._touched.add(cgroup_news.pod(path))
        if look is Look.AT_ONCE:
            self._urgent.set()
        if look is not Look.NOT:
            self._look.set()


class _Touched:
    """The pods in whose cgroups anything has changed since a sweep; any thread may call it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pods: set[str] = set()
        self._anything = True

    def add(self, pod: str | None) -> None:
        """Note a change in the cgroups of a pod; None for any pod."""
        with self._lock:
            if pod is None:
                self._anything = True
            else:
                self._pods.add(pod)

    def anything(self) -> None:
        """Note that anything may have changed."""
        self.add(None)

    def take(self) -> frozenset[str] | None:
        """Return the pods, None for any, and begin anew."""
        with self._lock:
            pods = None if self._anything else frozenset(self._pods)
            self._pods, self._anything = set(), False
        return pods
