"""One look at every container of the node: what it has is compared with what it must have.

Level-triggered: a sweep repairs every difference from any program. The facts come first,
then the CPUs of containers, then the other goals, then what pods' owners must know.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from cpupool.core.assignments import Placement
from cpupool.core.cpuset import CPUSet
from cpupool.core.workloads import ContainerID
from cpupool.enforce import notices
from cpupool.enforce.notices import Notices
from cpupool.enforce.repair import Keeper
from cpupool.manager.learner import POOL_FILE, Sources
from cpupool.manager.ports import POD_ITSELF
from cpupool.telemetry import log as logs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from collections.abc import Set as AbstractSet

    from cpupool.enforce.mover import Mover, Repair
    from cpupool.enforce.notices import Notice, NoticeKey
    from cpupool.enforce.repair import Goal
    from cpupool.enforce.writers import Writers
    from cpupool.manager.learner import Learner
    from cpupool.manager.manager import Manager
    from cpupool.manager.ports import CgroupTree, EventSink, FoundContainer
    from cpupool.manager.resolve import Resolution
    from cpupool.telemetry.metrics import Metrics
    from cpupool.wire.cpu_manager_state import State

log = logs.get(__name__)

_PASSES: Final = 3
"""A repair may widen an ancestor, and with it a container that inherits (cgroup v2), so a sweep
that repaired something looks again; more often only if another program keeps writing."""


@dataclass(frozen=True, slots=True)
class SweepReport:
    """What one sweep saw and did.

    Attributes:
        repairs: containers that were wrong.
        found: every container directory, as it was seen last.
        waiting_for: what must be known before any container is touched; empty once it is.
        overwritten: the shared pools of containers that another program had moved, or may have
            while nothing was kept, and that are back.
    """

    repairs: tuple[Repair, ...] = ()
    found: tuple[FoundContainer, ...] = ()
    waiting_for: str = ""
    overwritten: frozenset[str] = frozenset()


class Sweep:
    """Looks at the container cgroups; only one thread calls it.

    Args:
        manager: decides where each container belongs.
        tree: the cgroups.
        writers: who writes each container.
        learner: brings the facts.
        mover: moves containers onto their CPUs.
        goals: what is kept after the CPUs, in this order.
        events: where notices for pods' owners go.
        metrics: where the states of containers are counted.
        now_s: a monotonic clock.
        cpu_s: the CPU time of the sweeping thread.
        recorded: returns what an earlier agent has recorded of its choices; None for no record.
        take_over: called before the first move, once the pods are known, with every directory that
            was found and what an earlier agent has recorded of its choices.

    Attributes:
        writers: as given.
        due_s: when to look again without an event, by `now_s`; infinite for never.
    """

    def __init__(
        self,
        *,
        manager: Manager,
        tree: CgroupTree,
        writers: Writers,
        learner: Learner,
        mover: Mover,
        goals: Iterable[Goal[Any, Any]],
        events: EventSink,
        metrics: Metrics,
        now_s: Callable[[], float],
        cpu_s: Callable[[], float],
        recorded: Callable[[], State | None] = lambda: None,
        take_over: Callable[[Sequence[FoundContainer], State | None], None] = lambda _f, _r: None,
    ) -> None:
        self.due_s = math.inf
        self._recorded, self._take_over = recorded, take_over
        self._manager = manager
        self._tree = tree
        self.writers = writers
        self._learner = learner
        self._mover = mover
        self._keepers = [Keeper(goal) for goal in goals]
        self._events = events
        self._metrics = metrics
        self._now_s = now_s
        self._cpu_s = cpu_s
        self._sources = Sources()
        self._notices = Notices(events)
        self._kept: dict[NoticeKey, Notice] = {}
        # What the last sweep left: with the same input there is nothing to repair.
        self._right: tuple[FoundContainer, ...] | None = None
        self._applied: Resolution | None = None
        # What was read last, and whether all of it is where it belongs.
        self._there: tuple[FoundContainer, ...] = ()
        self._all_moved = False
        # What the metrics show.
        self._states: Counter[str] | None = None
        self._causes: Counter[str] | None = None
        self._room = CPUSet()
        self._started = self._has_waited = self._found_any = False

    def look(self, touched: AbstractSet[str] | None = None) -> SweepReport:
        """Compare every container with where it belongs, and repair what differs.

        Args:
            touched: the pods in whose cgroups anything has changed since the last look; the others
                are not read again. None for any.
        """
        self.due_s = math.inf
        now_s, cpu_s = self._now_s(), self._cpu_s()
        there = self._sources.ask("cgroups", lambda: self._walk(self._known(touched)))
        if there is None:
            return SweepReport(waiting_for="the cgroups")
        # One that the runtime is starting is there, too: it is not forgotten.
        self._learner.learn(there, now_s)
        found = self._without_starting(there)
        self._look_at(self._learner.due_s)
        self._publish_conflict()
        waiting_for = self._learner.waiting_for(now_s)
        facts, _ = self._manager.snapshot()
        # Pods may own CPUs of an earlier pool file.
        unread = waiting_for == POOL_FILE and facts.configured and not facts.recovered
        if not self._started and (unread or not waiting_for):
            self._learner.recall_choices(found)
            recorded = self._recorded()
            self._take_over(found, recorded)
            self._manager.adopt(found, recorded)
            waiting_for = self._learner.waiting_for(now_s)
        if waiting_for:
            self._has_waited = self._started
            return SweepReport(waiting_for=waiting_for)
        resolution = self._mover.current()
        self._make_room(resolution)
        self._check_root(found, resolution)
        repairs: tuple[Repair, ...] = ()
        changed = found != self._right or resolution is not self._applied
        if changed:
            found, repairs = self._put_right(found, cpu_s)
        kept = self._keep(found, now_s, touched)
        if changed or kept != self._kept or now_s >= self._notices.due_s:
            self._kept = kept
            self._publish_notices(now_s)
        overwritten = self._overwritten(repairs, resolution)
        self._started, self._has_waited, self._mover.kubelet_places = True, False, False
        return SweepReport(repairs, found, overwritten=overwritten)

    def _look_at(self, due_s: float) -> None:
        self.due_s = min(self.due_s, due_s)

    def _walk(self, known: Mapping[str, list[FoundContainer]]) -> tuple[FoundContainer, ...]:
        self._there = ()
        self._there = tuple(self._tree.containers(known))
        return self._there

    def _known(self, touched: AbstractSet[str] | None) -> Mapping[str, list[FoundContainer]]:
        """Return the directories of the pods that are not touched, with what was found there."""
        known: defaultdict[str, list[FoundContainer]] = defaultdict(list)
        # What could not be moved is read again: another program may have written it last.
        if touched is not None and self._all_moved:
            for found in self._there:
                if found.pod not in touched:
                    itself = found.id == POD_ITSELF
                    known[found.path if itself else found.path.rpartition("/")[0]].append(found)
        return known

    def _without_starting(self, there: Iterable[FoundContainer]) -> tuple[FoundContainer, ...]:
        return tuple(
            container for container in there if not self.writers.starting(ContainerID(container.id))
        )

    def _make_room(self, resolution: Resolution) -> None:
        """Let the cgroups above containers have the CPUs that have come online."""
        if resolution.online <= self._room:
            self._room = resolution.online
            return

        def widened() -> bool:
            self._tree.make_room(
                resolution.online, lambda pod: resolution.assignment((pod, POD_ITSELF)).cpus
            )
            return True

        if self._sources.ask("room for CPUs", widened):
            self._room = resolution.online

    def _check_root(self, found: tuple[FoundContainer, ...], resolution: Resolution) -> None:
        """Complain where the runtime has containers, and no cgroup of any has ever been found."""
        self._found_any |= bool(found)
        if resolution.containers and not self._found_any:
            self._sources.complain(
                "kubepods", "no pod has a cgroup here; set --cgroup-root as the kubelet has it"
            )

    def _put_right(
        self, found: tuple[FoundContainer, ...], cpu_s: float
    ) -> tuple[tuple[FoundContainer, ...], tuple[Repair, ...]]:
        """Repair what differs, and return what is found then.

        Args:
            found: every container directory.
            cpu_s: the CPU time when the sweep began.
        """
        self._mover.begin()
        repairs: list[Repair] = []
        # A container that comes meanwhile is the next sweep's: its facts have not been asked for.
        asked_for = {container.path for container in found}
        for _ in range(_PASSES):
            # A container that ran before the agent did has not waited for the agent.
            made = self._mover.put_right(found, new=self._started)
            repairs += made
            if all(repair.error for repair in made):
                break
            there = self._sources.ask("cgroups", lambda: self._walk({}))
            walked = found if there is None else self._without_starting(there)
            found = tuple(container for container in walked if container.path in asked_for)
            if len(found) < len(walked):
                self._look_at(self._now_s())
        self._mover.end(found, self._cpu_s() - cpu_s)
        self._look_at(self._mover.due_s)
        repaired = {repair.path for repair in repairs if not repair.error}
        # What is decided from here on is the next sweep's.
        self._applied = self._mover.current()
        failed = self._count(found, self._applied, repaired)
        self._right = None if repairs or failed else found
        self._all_moved = not failed
        return found, tuple(repairs)

    def _keep(
        self, found: tuple[FoundContainer, ...], now_s: float, touched: AbstractSet[str] | None
    ) -> dict[NoticeKey, Notice]:
        """Put the goals right, and return what pods' owners must know of them."""
        kept: dict[NoticeKey, Notice] = {}
        for keeper in self._keepers:
            kept.update(keeper.keep(found, self._mover.current(), now_s, touched))
            self._look_at(keeper.due_s)
        return kept

    def _count(
        self, found: tuple[FoundContainer, ...], resolution: Resolution, repaired: set[str]
    ) -> int:
        """Count the containers by state and by cause, and return how many are on wrong CPUs."""
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
        if states != self._states:
            self._states = states
            self._metrics.containers(states)
        if causes != self._causes:
            self._causes = causes
            self._metrics.confined(causes)
        return states["failed"]

    def _overwritten(self, repairs: tuple[Repair, ...], resolution: Resolution) -> frozenset[str]:
        """Return the shared pools of containers that another program has moved, or may have."""
        pools = [repair.overwritten for repair in repairs]
        if self._has_waited:
            # The runtime may have put containers back before a sweep found them wrong (NRI).
            pools += [self._mover.shared_pools(key) for key in resolution.containers]
        return frozenset().union(*pools)

    def _publish_notices(self, now_s: float) -> None:
        placement = dict(notices.about_placement(self._mover.current()))
        mirrors = dict(notices.about_mirrors(self._manager.snapshot().facts))
        self._notices.publish(
            {**self._kept, **placement, **mirrors, **self._mover.notices()}, now_s
        )

    def _publish_conflict(self) -> None:
        conflict = self._learner.conflict
        self._metrics.cpu_manager_conflict(found=bool(conflict))
        if conflict and not self._mover.kubelet_places:
            self._mover.kubelet_places = True
            log.error("kubelet places containers itself", waiting_for=conflict)
            self._events.node(
                "KubeletCPUManagerStatic", f"nothing is placed; waiting for {conflict}"
            )
