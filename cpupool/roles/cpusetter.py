"""The cpusetter: brings every container of the node onto its CPUs and keeps it there.

Level-triggered: a sweep compares what is with what should be and repairs any difference, whoever
made it. Events only say *look now*. The thread that runs `CPUSetter.run` is the only one that
writes cgroups, itself or through the container runtime.
"""

from __future__ import annotations

import math
import threading
import time
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from cpupool.core.assignments import Placement
from cpupool.core.cpuset import CPUSet
from cpupool.core.workloads import ContainerID
from cpupool.enforce import notices
from cpupool.enforce.mover import Mover
from cpupool.enforce.notices import Notices
from cpupool.manager import learner
from cpupool.manager.learner import Learner, Sources
from cpupool.manager.ports import POD_ITSELF
from cpupool.telemetry import log as logs

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from cpupool.enforce.keeper import Keeper
    from cpupool.enforce.mover import Repair
    from cpupool.enforce.notices import Notice, NoticeKey
    from cpupool.enforce.ways import Ways
    from cpupool.manager.manager import Manager
    from cpupool.manager.ports import (
        CgroupTree,
        CheckpointSource,
        ContainerSource,
        DeviceSource,
        EventSink,
        FoundContainer,
        PodSource,
    )
    from cpupool.manager.resolve import Resolution
    from cpupool.telemetry.health import Health
    from cpupool.telemetry.metrics import Metrics

log = logs.get(__name__)

NAME: Final = "cpusetter"
_SETTLE_S: Final = 0.02
"""Events come in bursts, a pod start is dozens: the first is served at once, the rest together."""
_STORM_S: Final = 0.2
_PASSES: Final = 3
"""A repair may widen an ancestor, and with it a container that inherits (cgroup v2), so a sweep
that repaired something looks again; more often only if somebody else keeps writing."""


@dataclass(frozen=True, slots=True)
class SweepReport:
    """What one sweep saw and did.

    Attributes:
        repairs: containers that were wrong.
        found: every container directory, as it was seen last.
        waiting_for: what must be known before any container is touched; empty once it is.
        overwritten: the shared pools of containers that somebody else had moved, or may have while
            nothing was kept, and that are back.
    """

    repairs: tuple[Repair, ...] = ()
    found: tuple[FoundContainer, ...] = ()
    waiting_for: str = ""
    overwritten: frozenset[str] = frozenset()


class CPUSetter:
    """Sweeps the container cgroups.

    Args:
        manager: decides where each container belongs.
        tree: the cgroups.
        pods: where the pods come from.
        devices: podresources.
        checkpoint: the kubelet's checkpoint file.
        containers: the container runtime, which knows a container by its id.
        ways: by which way a container is written.
        events: where pods' owners are told.
        metrics: where repairs, states and durations are counted.
        health: hears that the loop turns, and whether containers can be placed.
        keepers: called at the end of each sweep that may write.
        interval_s: a sweep happens at least this often.
        swept: called after each sweep, on the sweeping thread.
        refused: called when a container does not get its CPUs; one of them may be offline.
        now_s: a monotonic clock.
        cpu_s: the CPU time of the sweeping thread.
    """

    def __init__(
        self,
        *,
        manager: Manager,
        tree: CgroupTree,
        pods: PodSource,
        devices: DeviceSource,
        checkpoint: CheckpointSource,
        containers: ContainerSource,
        ways: Ways,
        events: EventSink,
        metrics: Metrics,
        health: Health,
        keepers: Sequence[Keeper],
        interval_s: float,
        swept: Callable[[SweepReport], None],
        refused: Callable[[], None] = lambda: None,
        now_s: Callable[[], float] = time.monotonic,
        cpu_s: Callable[[], float] = time.thread_time,
    ) -> None:
        self._manager = manager
        self._tree = tree
        self._ways = ways
        self._events = events
        self._metrics = metrics
        self._health = health
        self._keepers = keepers
        self._interval_s = interval_s
        self._swept = swept
        self._now_s = now_s
        self._cpu_s = cpu_s
        self._sources = Sources()
        self._learner = Learner(
            manager,
            self._sources,
            pods=pods,
            devices=devices,
            checkpoint=checkpoint,
            containers=containers,
            nri=ways.asks,
        )
        self._notices = Notices(events)
        self._kept: dict[NoticeKey, Notice] = {}
        self._mover = Mover(
            manager,
            tree,
            ways,
            metrics,
            beat=lambda: health.beat(NAME),
            refused=refused,
            now_s=now_s,
        )
        self._calm: tuple[FoundContainer, ...] | None = None
        self._heeded: Resolution | None = None
        self._due_s = math.inf
        self._started = False
        self._idle = False
        self._met = False
        self._roomy = CPUSet()
        self._settle_s = _SETTLE_S
        self._informed = threading.Event()
        self._ready = threading.Event()
        self._look = threading.Event()
        self._news = threading.Event()

    @property
    def ready(self) -> bool:
        """Whether it is known who owns which CPU, and nobody else places containers.

        A node without pools can be ready: pods may hold devices of pools that are gone.
        """
        # Pools may have come since the last sweep, and made a conflict of a static CPU manager.
        return self._ready.is_set() and not self._learner.conflict

    @property
    def informed(self) -> bool:
        """Whether it is known who owns which CPU; it is ready once nothing else is lacking."""
        return self._informed.is_set() and not self._learner.conflict

    def wake(self) -> None:
        """Ask for a sweep now."""
        self._look.set()

    def tell_news(self) -> None:
        """Say that pods or pools are known that were not before: look, however much is going on."""
        self._news.set()
        self.wake()

    def kubelet_changed(self) -> None:
        """Say that another kubelet runs now, and ask for a sweep."""
        self._learner.kubelet_changed()
        self.wake()

    def run(self, stop: threading.Event) -> None:
        """Sweep until `stop` is set; `wake` once more after setting it returns at once."""
        while not stop.is_set():
            self._health.beat(NAME)
            self._look.clear()
            report = self.sweep()
            self._swept(report)
            if stop.wait(_SETTLE_S):
                return
            self._news.wait(self._settle_s - _SETTLE_S)
            self._news.clear()
            # Events that come on and on without moving anybody are answered ever more slowly.
            idle = not self._look.wait(self._pause_s())
            calm = idle or report.repairs
            self._settle_s = _SETTLE_S if calm else min(2 * self._settle_s, _STORM_S)

    def sweep(self) -> SweepReport:
        """Compare every container with where it belongs, and repair what differs."""
        started_s = self._now_s()
        with logs.operation("sweep"):
            report = self._sweep(started_s)
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

    def _sweep(self, now_s: float) -> SweepReport:
        self._due_s = math.inf
        cpu_s = self._cpu_s()
        found = self._sources.ask("cgroups", self._walk)
        if found is None:
            return SweepReport(waiting_for="the cgroups")
        self._learner.learn(found, now_s)
        self._due_s = self._learner.due_s
        self._tell_conflict()
        waiting_for = self._learner.waiting_for(now_s)
        if waiting_for:
            self._idle = self._started
            return SweepReport(waiting_for=waiting_for)
        if not self._started:
            self._manager.adopt(found)
        resolution = self._mover.current()
        self._make_room(resolution)
        self._met |= bool(found)
        if resolution.containers and not self._met:
            self._sources.complain(
                "kubepods", "no pod has a cgroup here; set --cgroup-root as the kubelet has it"
            )
        repairs: tuple[Repair, ...] = ()
        changed = found != self._calm or resolution is not self._heeded
        if changed:
            found, repairs = self._put_right(found, cpu_s)
        kept = self._keep(found, now_s)
        if changed or kept != self._kept or now_s >= self._notices.due_s:
            self._kept = kept
            self._tell_pods(now_s)
        overwritten = frozenset[str]().union(*(repair.overwritten for repair in repairs))
        if self._idle:
            # The runtime may have put containers back before anybody looked (NRI).
            everyone = (self._mover.shared_pools(key) for key in resolution.containers)
            overwritten = overwritten.union(*everyone)
        self._started, self._idle, self._mover.rival = True, False, False
        return SweepReport(repairs, found, overwritten=overwritten)

    def _pause_s(self) -> float:
        return min(self._interval_s, max(0.0, self._due_s - self._now_s()))

    def _walk(self) -> tuple[FoundContainer, ...]:
        return tuple(
            container
            for container in self._tree.containers()
            if not self._ways.starting(ContainerID(container.id))
        )

    def _make_room(self, resolution: Resolution) -> None:
        """Let what lies above containers have the CPUs that have come online."""
        if resolution.online <= self._roomy:
            self._roomy = resolution.online
            return

        def widened() -> bool:
            self._tree.make_room(
                resolution.online, lambda pod: resolution.assignment((pod, POD_ITSELF)).cpus
            )
            return True

        if self._sources.ask("room for CPUs", widened):
            self._roomy = resolution.online

    def _put_right(
        self, found: tuple[FoundContainer, ...], cpu_s: float
    ) -> tuple[tuple[FoundContainer, ...], tuple[Repair, ...]]:
        """Repair what differs, and give what is found then.

        Args:
            found: every container directory.
            cpu_s: the CPU time when the sweep began.
        """
        self._mover.begin()
        repairs: list[Repair] = []
        # What comes meanwhile is the next sweep's: nobody has been asked yet whose it is.
        asked_for = {container.path for container in found}
        for _ in range(_PASSES):
            # What ran before the agent did has waited for no one.
            made = self._mover.put_right(found, new=self._started)
            repairs += made
            if all(repair.error for repair in made):
                break
            walked = self._sources.ask("cgroups", self._walk) or found
            found = tuple(container for container in walked if container.path in asked_for)
            if len(found) < len(walked):
                self._due_s = min(self._due_s, self._now_s())
        self._mover.end(found, self._cpu_s() - cpu_s)
        self._due_s = min(self._due_s, self._mover.due_s)
        repaired = {repair.path for repair in repairs if not repair.error}
        # What is decided from here on is the next sweep's.
        self._heeded = self._mover.current()
        failed = self._count(found, self._heeded, repaired)
        self._calm = None if repairs or failed else found
        return found, tuple(repairs)

    def _keep(self, found: tuple[FoundContainer, ...], now_s: float) -> dict[NoticeKey, Notice]:
        """Let keep what is kept beside CPUs, and give what pods' owners must know of it."""
        kept: dict[NoticeKey, Notice] = {}
        for keeper in self._keepers:
            kept.update(keeper.keep(found, self._mover.current(), now_s))
            self._due_s = min(self._due_s, keeper.due_s)
        return kept

    def _count(
        self, found: tuple[FoundContainer, ...], resolution: Resolution, repaired: set[str]
    ) -> int:
        """Count the containers by state and by cause, and give how many are on wrong CPUs."""
        states: Counter[str] = Counter()
        causes: Counter[str] = Counter()
        for container in found:
            key = (container.pod, ContainerID(container.id))
            assignment = resolution.assignment(key)
            cause = assignment.cause
            if cause is not None:
                causes[cause.value] += 1
            kubelets = assignment.placement is Placement.KUBELET
            if not kubelets and container.cpus != self._mover.wanted(key, resolution):
                states["failed"] += 1
            elif container.path in repaired:
                states["repaired"] += 1
            else:
                states["unknown" if cause else "right"] += 1
        self._metrics.containers(states)
        self._metrics.confined(causes)
        return states["failed"]

    def _tell_pods(self, now_s: float) -> None:
        placement = dict(notices.about_placement(self._mover.current()))
        mirrors = dict(notices.about_mirrors(self._manager.snapshot().facts))
        self._notices.tell({**self._kept, **placement, **mirrors, **self._mover.notices()}, now_s)

    def _tell_conflict(self) -> None:
        conflict = self._learner.conflict
        self._metrics.cpu_manager_conflict(found=bool(conflict))
        if conflict:
            self._ready.clear()
            self._informed.clear()
        if conflict and not self._mover.rival:
            self._mover.rival = True
            log.error("kubelet places containers itself", waiting_for=conflict)
            self._events.node(
                "KubeletCPUManagerStatic", f"nothing is placed; waiting for {conflict}"
            )
