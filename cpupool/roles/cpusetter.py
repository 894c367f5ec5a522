"""The cpusetter: brings every container of the node onto its CPUs and keeps it there.

Level-triggered: a sweep compares what is with what should be and repairs any difference, whoever
made it. Events only say *look now*. The thread that runs `CPUSetter.run` is the only one that
writes cgroups, itself or through the container runtime.

One long class, since all of it is one sweep over what that thread alone remembers of containers.
"""

from __future__ import annotations

import math
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from cpupool.core.assignments import Placement
from cpupool.core.cpuset import CPUSet
from cpupool.core.errors import CgroupNotFound, CPUPoolError, RuntimeBusy
from cpupool.core.names import ENABLE_SHARED_CPUS
from cpupool.core.pools import PoolKind
from cpupool.core.workloads import ContainerID
from cpupool.manager import apply, drift, learner, notices
from cpupool.manager.drift import Backoff, Reason
from cpupool.manager.learner import Learner, Sources
from cpupool.manager.notices import Notices
from cpupool.manager.ports import POD_ITSELF
from cpupool.manager.ways import Way
from cpupool.telemetry import log as logs

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from cpupool.manager.manager import Manager
    from cpupool.manager.notices import Notice, NoticeKey
    from cpupool.manager.ports import (
        CgroupTree,
        CheckpointSource,
        ContainerSource,
        DeviceSource,
        EventSink,
        FoundContainer,
        Keeper,
        PodSource,
    )
    from cpupool.manager.resolve import ContainerKey, Resolution
    from cpupool.manager.ways import Ways
    from cpupool.telemetry.health import Health
    from cpupool.telemetry.metrics import Metrics

log = logs.get(__name__)

NAME: Final = "cpusetter"
_SETTLE_S: Final = 0.02
"""Events come in bursts, a pod start is dozens: the first is served at once, the rest together."""
_STORM_S: Final = 0.2
_SECOND_LOOK_S: Final = 1.0
"""Whoever watches directories begins to watch a new one a moment after it was made: what was
written meanwhile is found by looking once more."""
_TRY_AGAIN_S: Final = 0.1
"""A runtime that has just begun to start a container may refuse it other CPUs for a moment."""
_PASSES: Final = 3
"""A repair may widen an ancestor, and with it a container that inherits (cgroup v2), so a sweep
that repaired something looks again; more often only if somebody else keeps writing."""


@dataclass(frozen=True, slots=True)
class Repair:
    """One container that was on the wrong CPUs.

    Attributes:
        path: its cgroup.
        found: the CPUs it ran on.
        wanted: the CPUs it belongs on.
        error: why it is still wrong; empty where it is right now.
        overwritten: its shared pools, where somebody else had moved it from its CPUs, or may have
            before the agent started.
    """

    path: str
    found: str
    wanted: CPUSet
    error: str = ""
    overwritten: frozenset[str] = frozenset()


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


@dataclass(slots=True)
class _Seen:
    """What is remembered of one container directory while it is there.

    Attributes:
        key: the ids in its path.
        since_s: when it was seen first.
        created: the CPUs that it ran on then.
        new: it has come since the first sweep.
        measured: whether the time until it ran on its final CPUs has been counted.
        way: by which way it was written last; None while it has not been written.
        right: the CPUs on which it was right last; empty if never.
        tried: the CPUs that the repairs in `backoff` were to bring it to.
        backoff: how patient to be with it.
        writer: who overwrote it; None if nobody did.
        stuck: why it could not be put right.
    """

    key: ContainerKey
    since_s: float
    created: str
    new: bool
    measured: bool
    way: Way | None = None
    right: str = ""
    tried: str = ""
    backoff: Backoff = field(default_factory=Backoff)
    writer: Reason | None = None
    stuck: str = ""


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
        now_s: a monotonic clock.
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
        now_s: Callable[[], float] = time.monotonic,
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
        self._seen: dict[str, _Seen] = {}
        self._resolution: Resolution | None = None
        self._texts: dict[ContainerKey, str] = {}
        self._calm: tuple[FoundContainer, ...] | None = None
        self._heeded: Resolution | None = None
        self._due_s = math.inf
        self._started = False
        self._idle = False
        self._met = False
        self._roomy = CPUSet()
        self._rival = False
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
        resolution = self._current()
        self._make_room(resolution)
        self._met |= bool(found)
        if resolution.containers and not self._met:
            self._sources.complain(
                "kubepods", "no pod has a cgroup here; set --cgroup-root as the kubelet has it"
            )
        repairs: tuple[Repair, ...] = ()
        changed = found != self._calm or resolution is not self._heeded
        if changed:
            found, repairs = self._put_right(found)
        kept = self._keep(found, now_s)
        if changed or kept != self._kept or now_s >= self._notices.due_s:
            self._kept = kept
            self._tell_pods(self._current(), now_s)
        overwritten = frozenset[str]().union(*(repair.overwritten for repair in repairs))
        if self._idle:
            # The runtime may have put containers back before anybody looked (NRI).
            everyone = (self._shared_pools(key, resolution) for key in resolution.containers)
            overwritten = overwritten.union(*everyone)
        self._started, self._idle, self._rival = True, False, False
        return SweepReport(repairs, found, overwritten=overwritten)

    def _pause_s(self) -> float:
        return min(self._interval_s, max(0.0, self._due_s - self._now_s()))

    def _walk(self) -> tuple[FoundContainer, ...]:
        return tuple(
            container
            for container in self._tree.containers()
            if not self._ways.starting(ContainerID(container.id))
        )

    def _current(self) -> Resolution:
        """Give where everything belongs now: NRI decides while a sweep repairs."""
        _, resolution = self._manager.state()
        if self._resolution is not resolution:
            self._resolution, self._texts = resolution, {}
        return resolution

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
        self, found: tuple[FoundContainer, ...]
    ) -> tuple[tuple[FoundContainer, ...], tuple[Repair, ...]]:
        """Repair what differs, and give what is found then."""
        repairs: list[Repair] = []
        # What comes meanwhile is the next sweep's: nobody has been asked yet whose it is.
        asked_for = {container.path for container in found}
        for _ in range(_PASSES):
            looked_at = (self._look_at(container, self._current()) for container in found)
            made = [repair for repair in looked_at if repair is not None]
            repairs += made
            if all(repair.error for repair in made):
                break
            walked = self._sources.ask("cgroups", self._walk) or found
            found = tuple(container for container in walked if container.path in asked_for)
            if len(found) < len(walked):
                self._due_s = min(self._due_s, self._now_s())
        for gone in self._seen.keys() - {container.path for container in found}:
            self._texts.pop(self._seen.pop(gone).key, None)
        repaired = {repair.path for repair in repairs if not repair.error}
        # What is decided from here on is the next sweep's.
        self._heeded = self._current()
        failed = self._count(found, self._heeded, repaired)
        self._calm = None if repairs or failed else found
        return found, tuple(repairs)

    def _keep(self, found: tuple[FoundContainer, ...], now_s: float) -> dict[NoticeKey, Notice]:
        """Let keep what is kept beside CPUs, and give what pods' owners must know of it."""
        kept: dict[NoticeKey, Notice] = {}
        for keeper in self._keepers:
            kept.update(keeper.keep(found, self._current(), now_s))
            self._due_s = min(self._due_s, keeper.due_s)
        return kept

    def _look_at(self, container: FoundContainer, resolution: Resolution) -> Repair | None:
        key = (container.pod, ContainerID(container.id))
        now_s = self._now_s()
        seen = self._seen.get(container.path)
        if seen is None:
            # What ran before the agent did has waited for no one.
            new = self._started
            seen = _Seen(key, now_s, container.cpus, new=new, measured=not new)
            self._seen[container.path] = seen
            self._due_s = min(self._due_s, now_s + _SECOND_LOOK_S)
        text = self._wanted_text(key, resolution)
        if container.cpus == text:
            self._arrived(seen, text, resolution)
            return None
        assignment = resolution.assignment(key)
        if assignment.placement is Placement.KUBELET:
            return None
        wanted = assignment.cpus
        if not wanted:
            self._tell_stuck(container, seen, "no CPU of its pool is online and free")
            return None
        if seen.tried != text:
            seen.tried, seen.backoff, seen.writer = text, Backoff(), None
        if now_s < seen.backoff.due_s:
            self._due_s = min(self._due_s, seen.backoff.due_s)
            return None
        return self._repair(container, seen, wanted, resolution)

    def _repair(
        self, container: FoundContainer, seen: _Seen, wanted: CPUSet, resolution: Resolution
    ) -> Repair | None:
        started_s = self._now_s()
        try:
            reason = self._reason(container.path, seen)
            way = self._way(seen)
            tree = self._ways.through(way, self._tree, container.path, seen.key[1])
            apply.repair(tree, container.path, wanted)
            seen.way = way
        except CgroupNotFound:
            return None
        except RuntimeBusy as error:
            self._due_s = min(self._due_s, started_s + _TRY_AGAIN_S)
            return Repair(container.path, container.cpus, wanted, str(error))
        except CPUPoolError as error:
            seen.backoff = seen.backoff.after(started_s)
            self._due_s = min(self._due_s, max(seen.backoff.due_s, started_s + _TRY_AGAIN_S))
            self._tell_stuck(container, seen, str(error))
            return Repair(container.path, container.cpus, wanted, str(error))
        if reason.foreign:
            # Who began a fight is named while it lasts.
            seen.writer = seen.writer if seen.backoff.delay_s else reason
            seen.backoff = seen.backoff.after(started_s)
        self._metrics.repaired(reason.value)
        log.info(
            "cpuset repaired",
            cgroup=container.path,
            found=container.cpus or "none",
            cpus=wanted,
            by=reason.value,
            way=way.value,
            ms=f"{(self._now_s() - started_s) * 1000:.1f}",
        )
        self._arrived(seen, seen.tried, resolution)
        # Who has moved a container that is older than the agent nobody knows.
        foreign = reason.foreign or (reason is Reason.NEW and not seen.new)
        overwritten = self._shared_pools(seen.key, resolution) if foreign else frozenset()
        return Repair(container.path, container.cpus, wanted, overwritten=overwritten)

    def _shared_pools(self, key: ContainerKey, resolution: Resolution) -> frozenset[str]:
        """Name the shared pools of a container, each as it stands in the pool file."""
        pools = set(resolution.assignment(key).pools)
        mixed = self._manager.state()[0].pools.mixed
        if ENABLE_SHARED_CPUS in pools and mixed is not None:
            pools.add(mixed.pool)
        pools.discard(ENABLE_SHARED_CPUS)
        return frozenset(pool for pool in pools if PoolKind.of_name(pool) is PoolKind.SHARED)

    def _way(self, seen: _Seen) -> Way:
        identifier = seen.key[1]
        if identifier == POD_ITSELF:
            return Way.CGROUP
        sighted = self._manager.state()[0].sighted.get(identifier)
        if sighted is not None and not sighted.name:
            # No runtime changes a sandbox.
            return Way.CGROUP
        return self._ways.of(identifier, seen.way, new=seen.new)

    def _reason(self, path: str, seen: _Seen) -> Reason:
        if not seen.right:
            return Reason.NEW
        if seen.right != seen.tried:
            return Reason.MOVED
        _, node = self._tree.read(path)
        return drift.foreign_writer(
            path,
            node.cpus,
            created=seen.created,
            online=self._manager.state()[0].topology.online,
            static_kubelet=self._rival,
        )

    def _arrived(self, seen: _Seen, text: str, resolution: Resolution) -> None:
        seen.right, seen.stuck = text, ""
        placed = resolution.containers.get(seen.key)
        confined = placed is None or placed.assignment.placement is Placement.CONFINED
        if not seen.measured and not confined:
            seen.measured = True
            self._metrics.placed(self._now_s() - seen.since_s)

    def _wanted_text(self, key: ContainerKey, resolution: Resolution) -> str:
        # Rendered once per resolution: a sweep compares texts and parses nothing.
        text = self._texts.get(key)
        if text is None:
            text = self._texts[key] = str(resolution.assignment(key).cpus)
        return text

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
            if not kubelets and container.cpus != self._wanted_text(key, resolution):
                states["failed"] += 1
            elif container.path in repaired:
                states["repaired"] += 1
            else:
                states["unknown" if cause else "right"] += 1
        self._metrics.containers(states)
        self._metrics.confined(causes)
        return states["failed"]

    def _tell_pods(self, resolution: Resolution, now_s: float) -> None:
        told = {**self._kept, **dict(notices.about_placement(resolution))}
        for seen in self._seen.values():
            if seen.writer is not None and seen.backoff.delay_s:
                told.update(notices.about_fight(resolution, seen.key, seen.writer))
            if seen.key[1] == POD_ITSELF:
                told.update(notices.about_moved(resolution, seen.key))
        self._notices.tell(told, now_s)

    def _tell_conflict(self) -> None:
        conflict = self._learner.conflict
        self._metrics.cpu_manager_conflict(found=bool(conflict))
        if conflict:
            self._ready.clear()
            self._informed.clear()
        if conflict and not self._rival:
            self._rival = True
            log.error("kubelet places containers itself", waiting_for=conflict)
            self._events.node(
                "KubeletCPUManagerStatic", f"nothing is placed; waiting for {conflict}"
            )

    def _tell_stuck(self, container: FoundContainer, seen: _Seen, why: str) -> None:
        """Say once that a container is not where it belongs."""
        if seen.stuck != why:
            seen.stuck = why
            log.warning("container stays on wrong CPUs", cgroup=container.path, error=why)
