"""A sweep: one look at every container of the node, which repairs each difference.

It is level-triggered: a sweep compares the cgroups with the decisions. It is not important which
program has changed the cgroups. First the sweep asks for the facts that are missing. Then it
repairs the CPUs of containers. Then it repairs the other values that it keeps (*goals*), for
example quotas. At the end it sends Events for pods' authors.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from cpupool.core.assignments import Placement
from cpupool.core.workloads import ContainerID
from cpupool.enforce import notices
from cpupool.enforce.repair import Keeper
from cpupool.manager import resizing
from cpupool.manager.readiness import POOL_FILE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from collections.abc import Set as AbstractSet

    from cpupool.core.cgroups import FoundContainer
    from cpupool.enforce.announcer import Announcer
    from cpupool.enforce.directories import Directories
    from cpupool.enforce.mover import Mover, Repair
    from cpupool.enforce.notices import Notice, NoticeKey
    from cpupool.enforce.repair import Goal
    from cpupool.manager.learner import Learner
    from cpupool.manager.manager import Manager
    from cpupool.manager.resolve import Resolution

_PASSES: Final = 3
"""A repair may widen an ancestor, and with it a container that inherits (cgroup v2). So a sweep
looks again after a repair; more looks only help against a program that keeps writing."""


@dataclass(frozen=True, slots=True)
class SweepReport:
    """The report of one sweep.

    Attributes:
        repairs: containers that were wrong.
        found: every container directory, as the sweep saw it last.
        waiting_for: the fact that the agent awaits before it touches containers; empty for none.
        overwritten: the shared pools of containers that another program had moved, or may have
            moved while no agent ran, and that are back.
        uncertain: whether the runtime may have changed a cgroup after the sweep had read it: it had
            not answered a request of the agent.
    """

    repairs: tuple[Repair, ...] = ()
    found: tuple[FoundContainer, ...] = ()
    waiting_for: str = ""
    overwritten: frozenset[str] = frozenset()
    uncertain: bool = False


class Sweep:
    """Looks at the container cgroups; only one thread calls it.

    Args:
        manager: decides where each container belongs.
        directories: reads the cgroups of containers.
        learner: brings the facts.
        mover: moves containers onto their CPUs.
        goals: the values that are kept after the CPUs, in this order.
        announcer: publishes the states of containers.
        now_s: a monotonic clock.
        cpu_s: the CPU time of the sweeping thread.
        take_over: takes over the decisions of an earlier agent. It is called before the first move,
            once the pods are known, with every directory; None if only the cgroups have them.

    Attributes:
        rereads_s: when to read the cgroups of all pods again without an event, by `now_s`; infinite
            for never.
    """

    def __init__(
        self,
        *,
        manager: Manager,
        directories: Directories,
        learner: Learner,
        mover: Mover,
        goals: Iterable[Goal[Any, Any]],
        announcer: Announcer,
        now_s: Callable[[], float],
        cpu_s: Callable[[], float],
        take_over: Callable[[Sequence[FoundContainer]], None] | None = None,
    ) -> None:
        self.rereads_s = math.inf
        self._take_over = take_over or manager.adopt
        self._manager = manager
        self._directories = directories
        self._learner = learner
        self._mover = mover
        self._keepers = [Keeper(goal) for goal in goals]
        self._announcer = announcer
        self._now_s = now_s
        self._cpu_s = cpu_s
        # What the last sweep left: with the same input there is nothing to repair.
        self._right: tuple[FoundContainer, ...] | None = None
        self._applied: Resolution | None = None
        # What was read last is where it belongs.
        self._all_moved = False
        self._learned = False
        self._started = self._has_waited = False

    @property
    def due_s(self) -> float:
        """When to look again without an event, by `now_s`; infinite for never."""
        return min(self.rereads_s, self._learner.due_s) if self._learned else self.rereads_s

    def look(self, touched: AbstractSet[str] | None = None) -> SweepReport:
        """Compare every container with where it belongs, and repair what differs.

        Args:
            touched: the pods in whose cgroups anything has changed since the last look; the sweep
                does not read the others again. None for any.
        """
        self.rereads_s = math.inf
        now_s, cpu_s = self._now_s(), self._cpu_s()
        uncertain = self._mover.unanswered
        # What could not be moved is read again: another program may have written it last.
        there = self._directories.read(touched if self._all_moved else None)
        self._learned = there is not None
        if there is None:
            return SweepReport(waiting_for="the cgroups")
        # One that the runtime is starting is there, too: it is not forgotten.
        self._learner.learn(there, now_s)
        found = self._directories.started(there)
        self._publish_conflict()
        waiting_for = self._learner.waiting_for(now_s)
        facts, _ = self._manager.snapshot()
        # Pods may own CPUs of an earlier pool file.
        unread = waiting_for == POOL_FILE and facts.configured and not facts.recovered
        if not self._started and (unread or not waiting_for):
            self._learner.recall_choices(found)
            self._take_over(found)
            waiting_for = self._learner.waiting_for(now_s)
        if waiting_for:
            self._has_waited = self._started
            return SweepReport(waiting_for=waiting_for)
        resolution = self._mover.current()
        self._directories.make_room(resolution)
        self._directories.check_root(found, resolution)
        repairs: tuple[Repair, ...] = ()
        changed = found != self._right or resolution is not self._applied
        if changed:
            found, repairs = self._put_right(found, cpu_s, reported=touched is not None)
        if uncertain := uncertain or self._mover.unanswered:
            self._all_moved = False
        else:
            self._settle(found)
        kept = self._keep(found, now_s, touched)
        self._announcer.notices(kept, self._other_notices, now_s, changed=changed)
        overwritten = self._overwritten(repairs, resolution)
        self._started, self._has_waited, self._mover.kubelet_places = True, False, False
        return SweepReport(repairs, found, overwritten=overwritten, uncertain=uncertain)

    def _reread_at(self, due_s: float) -> None:
        self.rereads_s = min(self.rereads_s, due_s)

    def _put_right(
        self, found: tuple[FoundContainer, ...], cpu_s: float, *, reported: bool
    ) -> tuple[tuple[FoundContainer, ...], tuple[Repair, ...]]:
        """Repair the differences; return the directories as they are then.

        Args:
            found: every container directory.
            cpu_s: the CPU time when the sweep began.
            reported: whether the kernel reports each write (`Mover.put_right`).
        """
        self._mover.begin()
        repairs: list[Repair] = []
        # A container that comes meanwhile is the next sweep's: its facts have not been asked for.
        asked_for = {container.path for container in found}
        for _ in range(_PASSES):
            decided = self._mover.current()
            # A container that ran before the agent did has not waited for the agent.
            made = self._mover.put_right(found, new=self._started, reported=reported)
            repairs += made
            stuck = all(repair.error for repair in made)
            if not made or (stuck and self._mover.current() is decided):
                break
            # What other pods have is as it was a moment ago, or is reported; but a program that has
            # moved one container often moves others with it.
            alone = reported and not any(repair.widened or repair.overwritten for repair in made)
            there = self._directories.read({repair.pod for repair in made} if alone else None)
            walked = found if there is None else self._directories.started(there)
            found = tuple(container for container in walked if container.path in asked_for)
            if len(found) < len(walked):
                self._reread_at(self._now_s())
        self._mover.end(found, self._cpu_s() - cpu_s)
        self._reread_at(self._mover.due_s)
        repaired = {repair.path for repair in repairs if not repair.error}
        # What is decided from here on is the next sweep's.
        self._applied = self._mover.current()
        failed = self._count(found, self._applied, repaired)
        self._right = None if repairs or failed else found
        self._all_moved = not failed
        return found, tuple(repairs)

    def _settle(self, found: tuple[FoundContainer, ...]) -> None:
        """Free the CPUs that containers have given back, as far as the kernel says so."""
        resolution = self._mover.current()
        if not any(grant.leaving for grant in resolution.view.chosen.values()):
            return
        if self._manager.settle(resizing.runs_on(resolution, found)):
            # Containers that wait for the CPUs can have them now.
            self._reread_at(self._now_s())

    def _keep(
        self, found: tuple[FoundContainer, ...], now_s: float, touched: AbstractSet[str] | None
    ) -> dict[NoticeKey, Notice]:
        """Repair the other goals; return their notices for pods' owners."""
        kept: dict[NoticeKey, Notice] = {}
        for keeper in self._keepers:
            kept.update(keeper.keep(found, self._mover.current(), now_s, touched))
            self._reread_at(keeper.due_s)
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
        self._announcer.containers(states, causes)
        return states["failed"]

    def _overwritten(self, repairs: tuple[Repair, ...], resolution: Resolution) -> frozenset[str]:
        """Return the shared pools of containers that another program has moved, or may have."""
        pools = [repair.overwritten for repair in repairs]
        if self._has_waited:
            # The runtime may have put containers back before a sweep found them wrong (NRI).
            pools += [self._mover.shared_pools(key) for key in resolution.containers]
        return frozenset().union(*pools)

    def _other_notices(self) -> dict[NoticeKey, Notice]:
        """Return the notices for pods' owners about CPUs."""
        placement = dict(notices.about_placement(self._mover.current()))
        mirrors = dict(notices.about_mirrors(self._manager.snapshot().facts))
        return {**placement, **mirrors, **self._mover.notices()}

    def _publish_conflict(self) -> None:
        conflict = self._learner.conflict
        self._announcer.conflict(conflict, known=self._mover.kubelet_places)
        self._mover.kubelet_places |= bool(conflict)
