"""The mover brings containers onto their CPUs: it judges each cgroup, and repairs what differs.

The cpusetter's thread calls it in each sweep. A container or a runtime that hangs does not delay
other containers: the writes of the runtime come last, and their time is limited.
"""

from __future__ import annotations

import math
from collections import defaultdict
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from cpupool.core.assignments import Placement
from cpupool.core.cgroups import POD_ITSELF, Writer
from cpupool.core.cpuset import CPUSet
from cpupool.core.errors import (
    CgroupNotFound,
    CPUPoolError,
    RuntimeBusy,
    RuntimeSilent,
    RuntimeUnreachable,
)
from cpupool.core.workloads import ContainerID
from cpupool.enforce import apply, foreign_writers, move_order, notices
from cpupool.enforce.foreign_writers import Reason
from cpupool.enforce.move_order import Move
from cpupool.enforce.patience import RepairBudget
from cpupool.enforce.repair import PAUSE_S, Target
from cpupool.telemetry import log as logs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from cpupool.core.assignments import CPUAssignment
    from cpupool.core.bandwidth import Limit
    from cpupool.core.cgroups import FoundContainer
    from cpupool.enforce.notices import Notice, NoticeKey
    from cpupool.enforce.ports import CgroupTree
    from cpupool.enforce.writer_choice import Writers
    from cpupool.manager.facts import ContainerKey
    from cpupool.manager.resolve import Reader, Resolution, Snapshot
    from cpupool.telemetry.metrics import Metrics

log = logs.get(__name__)

_SECOND_LOOK_S: Final = 1.0
"""Where the kernel does not report each write, a second look finds what was written just after a
directory was made: the runtime fills it then."""
_SILENT_S: Final = 1.0
"""The pause before the agent asks a silent runtime for a container again."""
_OTHERS_FIRST_S: Final = 5.0
"""The pause before the agent really calls a silent runtime again. A call that fails earlier says
nothing about its container."""
_TURN_S: Final = 0.5
"""The time for the runtime's writes in one sweep; the next sweep first looks again."""


@dataclass(frozen=True, slots=True)
class Repair:
    """One container that was on the wrong CPUs.

    Attributes:
        pod: the id in the name of its pod's cgroup.
        path: its cgroup.
        found: the CPUs it ran on.
        wanted: the CPUs it belongs on.
        error: why it is still wrong; empty if it is right now.
        overwritten: the container's shared pools if another program wrote its cpuset, or may have
            written it before the agent started; otherwise empty. The agent tells these pools'
            containers to look at their CPUs again.
        widened: whether a cgroup above its pod got more CPUs, which other pods in it may inherit.
        foreign: whether another program had moved it, or may have.
    """

    pod: str
    path: str
    found: str
    wanted: CPUSet
    error: str = ""
    overwritten: frozenset[str] = frozenset()
    widened: bool = False
    foreign: bool = False


@dataclass(frozen=True, slots=True)
class _FirstSight:
    """The first look at a container directory.

    Attributes:
        key: the ids in its path.
        at_s: the time of the look.
        cpus: the CPUs that it ran on.
        new: it has appeared since the first sweep.
        nri_waits: for which pod the connection to NRI waited; empty for none.
    """

    key: ContainerKey
    at_s: float
    cpus: str
    new: bool
    nri_waits: str


@dataclass(slots=True)
class _Seen:
    """The memory of one container directory while it is there.

    Attributes:
        first: the first look at it.
        measured: whether the metric of the time to its final CPUs has it, or does not need it.
        target: the repair of its CPUs.
        occupied: the CPUs of its own for which it waits, because other pods run there.
        nested: the CPUs that the cgroups in it got last; empty if they got none.
        owned: its own CPUs at the last look that found it on its CPUs, or moved it.
        silent_s: when the runtime did not answer for it last; minus infinity for never.
    """

    first: _FirstSight
    measured: bool
    target: Target[str] = field(default_factory=Target)
    occupied: CPUSet = field(default_factory=CPUSet)
    nested: str = ""
    owned: CPUSet = field(default_factory=CPUSet)
    silent_s: float = -math.inf

    @property
    def key(self) -> ContainerKey:
        """The ids in its path."""
        return self.first.key

    def bring_nested(self, tree: CgroupTree, path: str, cpus: str) -> None:
        """Move the nested cgroups that a write of the runtime to the container has left behind."""
        if not self.nested or cpus in {"", self.nested}:
            self.nested = cpus or self.nested
            return
        want, before = CPUSet.parse(cpus), CPUSet.parse(self.nested)
        if apply.bring_nested(tree, path, want, before):
            self.nested = cpus

    def stays(self, tree: CgroupTree, path: str, wants: CPUAssignment) -> bool:
        """Return whether the container is where it belongs, and cpupool keeps only its CPUs.

        A program that writes the CPUs of an exclusive container, or of one with other kept values,
        may have written a file without a watch, too.
        """
        # A runtime that has moved the container alone has left nested cgroups behind.
        return self.nested in {"", str(wants.cpus)} and _is_right(tree, path, wants)


def _is_right(tree: CgroupTree, path: str, wants: CPUAssignment) -> bool:
    """Return whether a container is where it belongs, and cpupool keeps only its CPUs."""
    kept = wants.exclusive or wants.offline or wants.limit or wants.memory or wants.properties
    if kept or not wants.cpus:
        return False
    with suppress(CPUPoolError):
        return tree.effective(path) == wants.cpus
    return False


def _is_kept_unreported(wants: CPUAssignment) -> bool:
    """Return whether a container has kept values in files without a watch, or may get some."""
    return bool(wants.exclusive or wants.memory or wants.properties or wants.cause)


@dataclass(frozen=True, slots=True)
class _Wrong:
    """A container that is not on its CPUs, with its cgroup."""

    move: Move
    found: FoundContainer
    seen: _Seen


@dataclass(frozen=True, slots=True)
class _Step:
    """The next move of a container.

    Attributes:
        wrong: the container.
        goal: the CPUs to which it is moved.
        reason: why it was not there.
        writer: the program that moves it.
    """

    wrong: _Wrong
    goal: CPUSet
    reason: Reason
    writer: Writer


class Mover:
    """Moves containers onto their CPUs.

    Args:
        manager: decides where each container belongs.
        tree: the cgroups.
        writers: choose the writer of each container.
        metrics: counts repairs.
        beat: called before each container that is moved.
        refused: called when a container does not get its CPUs; one of them may be offline.
        now_s: a monotonic clock.
        decided: returns the decisions, once their choices are recorded; None for no record.
        starts_limited: returns whether a container has the quota of its limit from its start on;
            takes its path and its limit. Any thread calls it.

    Attributes:
        due_s: when to look again without an event; infinite for never.
        kubelet_places: whether the kubelet's static CPU manager was on at a time since the last
            sweep.
    """

    def __init__(
        self,
        manager: Reader,
        tree: CgroupTree,
        writers: Writers,
        metrics: Metrics,
        *,
        beat: Callable[[], None],
        refused: Callable[[], None],
        now_s: Callable[[], float],
        decided: Callable[[], Snapshot] | None = None,
        starts_limited: Callable[[str, Limit], bool] = lambda _path, _limit: False,
    ) -> None:
        self._decided = decided or manager.snapshot
        self._starts_limited = starts_limited
        self.due_s = math.inf
        self.kubelet_places = False
        self._manager = manager
        self._tree = tree
        self._writers = writers
        self._metrics = metrics
        self._beat = beat
        self._refused = refused
        self._now_s = now_s
        self._budget = RepairBudget()
        self._hurried = False
        self._runtime_until_s = math.inf
        self._silent_s = -math.inf
        self._seen: dict[str, _Seen] = {}
        self._texts: dict[ContainerKey, tuple[CPUAssignment, str]] = {}

    @property
    def unanswered(self) -> bool:
        """Whether the runtime may still make a change that it has not answered."""
        return self._writers.unanswered

    def begin(self) -> None:
        """Begin a sweep."""
        self.due_s = math.inf
        self._hurried = False
        self._runtime_until_s = self._now_s() + _TURN_S

    def end(self, found: Iterable[FoundContainer], cpu_s: float) -> None:
        """End a sweep that wrote: forget the containers that have ended.

        Args:
            found: every container directory.
            cpu_s: the CPU time that the sweep took.
        """
        for gone in self._seen.keys() - {container.path for container in found}:
            key = self._seen.pop(gone).key
            self._texts.pop(key, None)
            self._writers.forget(key[1])
        if self._hurried:
            self._budget.spend(cpu_s, self._now_s())

    def put_right(
        self, found: Iterable[FoundContainer], *, new: bool, reported: bool = False
    ) -> list[Repair]:
        """Move each container that is wrong and due once; return the repairs.

        Args:
            found: the container directories.
            new: whether a container that the agent sees for the first time has started after the
                agent.
            reported: whether the kernel reports each write in the cgroups, also a write that came
                before its report could: a new directory is reported once its files are watched.
        """
        resolution = self.current()
        judged = (
            self._judged(container, resolution, new=new, reported=reported) for container in found
        )
        wrong = {found.move.path: found for found in judged if found is not None}
        staying = {path: found.move for path, found in wrong.items()}
        due = [found.move for found in wrong.values() if self._is_due(found, resolution)]
        repairs: list[Repair] = []
        for batch in move_order.batches(due):
            if batch[0].writer is not Writer.CGROUP and self._now_s() >= self._runtime_until_s:
                self._look_at(self._now_s())
                continue
            self._beat()
            steps: list[_Step] = []
            for move in batch:
                try:
                    steps += self._steps(wrong[move.path], staying)
                except CPUPoolError as error:
                    repairs += self._failed(wrong[move.path], error, staying)
            unset = _ask_ahead(self._tree, self._writers, steps) if len(steps) > 1 else {}
            for step in steps:
                try:
                    if why := unset.get(step.wrong.move.container):
                        raise why
                    repairs.append(self._carry_out(step, staying))
                except CPUPoolError as error:
                    repairs += self._failed(step.wrong, error, staying)
        return repairs

    def current(self) -> Resolution:
        """Return where everything belongs at this moment; NRI may decide while a sweep repairs."""
        return self._decided().resolution

    def wanted(self, key: ContainerKey, resolution: Resolution) -> str:
        """Return the CPUs of a container as the kernel writes them."""
        # Rendered once per assignment: a sweep compares texts and parses nothing.
        assignment = resolution.assignment(key)
        rendered = self._texts.get(key)
        if rendered is None or rendered[0] is not assignment:
            rendered = self._texts[key] = (assignment, str(assignment.cpus))
        return rendered[1]

    def stays(self, path: str) -> bool:
        """Return whether a container that a sweep has seen is right in every kept value."""
        # The watch of the cgroups asks, from its own thread.
        seen = self._seen.get(path)
        return seen is not None and seen.stays(
            self._tree, path, self._manager.snapshot().assignment(seen.key)
        )

    def starts_right(self, path: str, key: ContainerKey) -> bool:
        """Return whether a container that the runtime has just started is right in every value.

        Any thread may call it; no sweep has seen the container yet.
        """
        wants = self._manager.snapshot().assignment(key)
        if limit := wants.limit:
            with suppress(CPUPoolError):
                if self._starts_limited(path, limit):
                    wants = replace(wants, limit=None)
        return _is_right(self._tree, path, wants)

    def shared_pools(self, key: ContainerKey) -> frozenset[str]:
        """Return the shared pools of a container, each as it stands in the pool file."""
        pools = self._manager.snapshot().facts.pools
        resources = self.current().assignment(key).resources
        shared = (resource for resource in resources if not resource.kind.exclusive)
        behind = (pools.behind(resource) for resource in shared)
        return frozenset(pool.name for pool in behind if pool is not None)

    def notices(self) -> Mapping[NoticeKey, Notice]:
        """Return the notices for pods' owners about the moves of their containers."""
        resolution = self.current()
        gathered: dict[NoticeKey, Notice] = {}
        for seen in self._seen.values():
            if culprit := seen.target.contested:
                gathered.update(notices.about_fight(resolution, seen.key, culprit))
            if seen.occupied:
                gathered.update(notices.about_occupied(resolution, seen.key, seen.occupied))
            if seen.first.nri_waits:
                gathered.update(notices.about_unasked(resolution, seen.key, seen.first.nri_waits))
            if seen.key[1] == POD_ITSELF:
                gathered.update(notices.about_moved(resolution, seen.key))
        return gathered

    def _judged(
        self, container: FoundContainer, resolution: Resolution, *, new: bool, reported: bool
    ) -> _Wrong | None:
        key = (container.pod, ContainerID(container.id))
        seen = self._seen.get(container.path)
        if seen is None:
            now_s = self._now_s()
            waits = self._writers.nri_waits() if new else ""
            seen = _Seen(_FirstSight(key, now_s, container.cpus, new, waits), measured=not new)
            self._seen[container.path] = seen
            if not reported or _is_kept_unreported(resolution.assignment(key)):
                self._look_at(now_s + _SECOND_LOOK_S)
        text = self.wanted(key, resolution)
        seen.target.aim(text)
        if container.cpus == text:
            seen.bring_nested(self._tree, container.path, text)
            self._arrived(seen)
            seen.owned = resolution.assignment(key).exclusive
            return None
        assignment = resolution.assignment(key)
        if assignment.placement is Placement.KUBELET:
            return None
        if not assignment.cpus:
            _tell_stuck(container, seen, "no CPU of its pool is online and free")
        move = Move(
            container.path,
            *key,
            has=CPUSet.parse_or_empty(container.cpus),
            wants=assignment.cpus,
            own=assignment.exclusive,
            writer=self._unasked(seen),
            silent_s=seen.silent_s,
            owned=seen.owned,
        )
        return _Wrong(move, container, seen)

    def _is_due(self, wrong: _Wrong, resolution: Resolution) -> bool:
        move, seen = wrong.move, wrong.seen
        if not move.wants:
            return False
        now_s, due_s = self._now_s(), seen.target.backoff.due_s
        if now_s < due_s and not move.has.isdisjoint(resolution.owned_by_others(move.pod)):
            due_s = self._budget.due_s(seen.target.backoff, now_s, failed=bool(seen.target.stuck))
            self._hurried |= due_s <= now_s
        if now_s < due_s:
            self._look_at(due_s)
        return now_s >= due_s

    def _steps(self, wrong: _Wrong, staying: Mapping[str, Move]) -> Iterator[_Step]:
        """Yield the next step of a container, if one is due.

        Raises:
            CPUPoolError: its cgroup cannot be read, or the runtime does not say who writes it.
        """
        move, seen, resolution = wrong.move, wrong.seen, self.current()
        if self.wanted(seen.key, resolution) != seen.target.want:
            # It belongs elsewhere since it was judged.
            self._look_at(self._now_s())
            return
        goal = move_order.goal(move, staying.values(), resolution.view.default.cpus)
        seen.occupied = move.gains - goal
        if goal != move.has:
            reason = self._reason(move.path, seen)
            by = self._unasked(seen) or self._writers.of(move.container, new=seen.first.new)
            yield _Step(wrong, goal, reason, by)
        elif seen.occupied:
            _tell_stuck(wrong.found, seen, f"other pods still run on its CPUs {seen.occupied}")

    def _carry_out(self, step: _Step, staying: dict[str, Move]) -> Repair:
        started_s = self._now_s()
        move, seen = step.wrong.move, step.wrong.seen
        reason, writer = step.reason, step.writer
        tree = self._writers.through(writer, self._tree, move.path, move.container)
        made = apply.bring(tree, move.path, step.goal, before=CPUSet.parse(seen.nested))
        self._writers.wrote(move.container, writer)
        seen.nested, seen.owned = str(step.goal), step.goal & move.own
        del staying[move.path]
        if reason.foreign:
            seen.target.repaired(reason, started_s)
        self._metrics.repaired(reason.value)
        log.info(
            "cpuset repaired",
            cgroup=move.path,
            found=step.wrong.found.cpus or "none",
            cpus=step.goal,
            by=reason.value,
            way=writer.value,
            ms=f"{(self._now_s() - started_s) * 1000:.1f}",
        )
        if step.goal == move.wants:
            self._arrived(seen)
        # The writer is unknown where a container is older than the agent.
        foreign = reason.foreign or (reason is Reason.NEW and not seen.first.new)
        overwritten = self.shared_pools(seen.key) if foreign else frozenset[str]()
        of_pod = move.path if move.container == POD_ITSELF else move.path.rpartition("/")[0]
        return Repair(
            move.pod,
            move.path,
            step.wrong.found.cpus,
            move.wants,
            overwritten=overwritten,
            foreign=foreign,
            widened=not all(write.path.startswith(of_pod) for write in made),
        )

    def _failed(
        self, wrong: _Wrong, error: CPUPoolError, staying: dict[str, Move]
    ) -> Iterator[Repair]:
        seen, now_s = wrong.seen, self._now_s()
        match error:
            case CgroupNotFound():
                del staying[wrong.move.path]
                return
            case RuntimeSilent() | RuntimeUnreachable():
                if now_s >= self._silent_s + _OTHERS_FIRST_S:
                    # It may hang for this container alone.
                    seen.silent_s = self._silent_s = now_s
                self._look_at(now_s + _SILENT_S)
                _tell_stuck(wrong.found, seen, str(error))
            case RuntimeBusy():
                self._look_at(now_s + PAUSE_S)
            case _:
                self._refused()
                self._look_at(seen.target.failed(now_s))
                _tell_stuck(wrong.found, seen, str(error))
        move = wrong.move
        yield Repair(move.pod, move.path, wrong.found.cpus, move.wants, str(error), widened=True)

    def _unasked(self, seen: _Seen) -> Writer | None:
        """Return the writer of a container; None where only the runtime knows it."""
        identifier = seen.key[1]
        sighted = self._manager.snapshot().facts.sighted.get(identifier)
        return self._writers.unasked(identifier, new=seen.first.new, known=sighted)

    def _reason(self, path: str, seen: _Seen) -> Reason:
        new = seen.target.right is None
        reason = foreign_writers.reason(new=new, was_right=seen.target.was_right)
        if not reason.foreign:
            return reason
        _, node = self._tree.read(path)
        return foreign_writers.foreign_writer(
            path,
            node.cpus,
            created=seen.first.cpus,
            online=self._manager.snapshot().facts.topology.online,
            static_kubelet=self.kubelet_places,
        )

    def _arrived(self, seen: _Seen) -> None:
        seen.target.arrived()
        seen.occupied, seen.silent_s = CPUSet(), -math.inf
        if seen.measured:
            return
        placed = self.current().containers.get(seen.key)
        if placed is not None and placed.assignment.placement is not Placement.CONFINED:
            seen.measured = True
            self._metrics.placed(self._now_s() - seen.first.at_s)

    def _look_at(self, due_s: float) -> None:
        self.due_s = min(self.due_s, due_s)


def _tell_stuck(container: FoundContainer, seen: _Seen, why: str) -> None:
    """Log once that a container is not where it belongs."""
    if seen.target.sticks(why):
        log.warning("container stays on wrong CPUs", cgroup=container.path, error=why)


def _ask_ahead(
    tree: CgroupTree, writers: Writers, steps: Iterable[_Step]
) -> Mapping[ContainerID, CPUPoolError]:
    """Let the runtime write several containers at one time, and return those that it has not set.

    The move of each container verifies its write, and finds any other failure.
    """
    wanted: defaultdict[Writer, dict[ContainerID, CPUSet]] = defaultdict(dict)
    for step in steps:
        move = step.wrong.move
        with suppress(CPUPoolError):
            if apply.takes_one_write(tree, move.path, step.goal):
                wanted[step.writer][move.container] = step.goal
    unset: dict[ContainerID, CPUPoolError] = {}
    for writer, several in wanted.items():
        with suppress(CPUPoolError):
            unset |= writers.ask_ahead(writer, several)
    return unset
