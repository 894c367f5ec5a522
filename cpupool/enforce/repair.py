"""The repair machine: it keeps values as they must be, though other programs write them, too.

A target is one kept value, as the CPUs of a container or the quotas of a pod. Its state says what
it must have, when it was right last, which program overwrote it, and when the next try is due. Each
kind of value is a `Goal` in one file, which `_goals` of `agent/enforcement.py` lists, and `Keeper`
runs it. Memory nodes have a keeper in a thread of its own (`agent/memory_keeper.py`). Only the CPUs
have a loop of their own (`mover.py`), because the order between containers matters there.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Generic, Protocol, TypeVar

from cpupool.core.errors import CgroupNotFound, CPUPoolError, RuntimeBusy
from cpupool.enforce.patience import Backoff
from cpupool.telemetry import log as logs

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator, Mapping, Sequence
    from collections.abc import Set as AbstractSet

    from cpupool.core.cgroups import FoundContainer
    from cpupool.enforce.foreign_writers import Reason
    from cpupool.enforce.notices import Notice, NoticeKey
    from cpupool.manager.resolve import Resolution

log = logs.get(__name__)

PAUSE_S: Final = 0.1
"""A runtime that has just begun to start a container may refuse a change of it for a moment."""


class Postponed(CPUPoolError):
    """A target that is put right in a later turn."""


K = TypeVar("K", bound="Hashable")
W = TypeVar("W")


@dataclass(slots=True)
class Target(Generic[W]):
    """The repair state of one thing, as the CPUs of a container or the quotas of a pod.

    Attributes:
        want: what it must have; None before the first look. The tries of `backoff` were for it.
        right: what it had to have when it was right last; None for never.
        backoff: the time of the next try.
        culprit: the program that overwrote it; None if no foreign write is known.
        stuck: why the last try has failed; empty if it has not.
    """

    want: W | None = None
    right: W | None = None
    backoff: Backoff = field(default_factory=Backoff)
    culprit: Reason | None = None
    stuck: str = ""

    @property
    def was_right(self) -> bool:
        """Whether it has been right with what it must have now: a difference is a foreign write."""
        return self.right is not None and self.right == self.want

    @property
    def contested(self) -> Reason | None:
        """The program that overwrites it again and again; None if there is none."""
        return self.culprit if self.backoff.delay_s else None

    def aim(self, want: W) -> None:
        """Set the wanted value; a value that has changed is tried at once."""
        if self.want != want:
            self.want, self.backoff, self.culprit = want, Backoff(), None

    def repaired(self, reason: Reason, now_s: float) -> None:
        """Count a repair of something that differed for this reason."""
        # The program that began a fight is named while the fight lasts.
        if reason.foreign and not self.contested:
            self.culprit = reason
        self.backoff = self.backoff.after(now_s)

    def arrived(self) -> None:
        """Note that it has the wanted value."""
        self.right, self.stuck = self.want, ""

    def failed(self, now_s: float, pause_s: float = PAUSE_S) -> float:
        """Count a try that failed, and return when the next try is due."""
        self.backoff = self.backoff.after(now_s)
        return max(self.backoff.due_s, now_s + pause_s)

    def sticks(self, why: str) -> bool:
        """Note why it cannot be put right, and return whether that is another reason."""
        new, self.stuck = self.stuck != why, why
        return new


class Goal(Protocol[K, W]):
    """A kind of value of containers, pods or cgroups that the agent keeps.

    Attributes:
        problem: the log's words for a target that cannot be put right.
        pause_s: the shortest time between two tries that fail.
    """

    problem: str
    pause_s: float

    def wants(self, found: Sequence[FoundContainer], resolution: Resolution) -> Mapping[K, W]:
        """Return target → wanted value, in the order of the repairs.

        The keeper forgets a target that is missing here a minute after its last repair.

        Args:
            found: every container directory, each on its CPUs if that was possible.
            resolution: where everything belongs.
        """
        ...

    def put_right(self, key: K, want: W, now_s: float, /, *, was_right: bool) -> Reason | None:
        """Compare a target with its wanted value, and write the difference.

        Args:
            key: the target.
            want: the wanted value.
            now_s: the time on a monotonic clock.
            was_right: it had this before, so that a difference is a foreign write.

        Returns:
            Why it differed; None if it did not.

        Raises:
            CgroupNotFound: the target has ended.
            RuntimeBusy: the container runtime may be asked again in a moment.
            Postponed: the target has to wait for a moment.
            CPUPoolError: the target cannot be put right.
        """
        ...

    def stays(self, key: K, changed: AbstractSet[str], /) -> bool:
        """Return whether no program can have overwritten a target since the last look.

        Args:
            key: the target.
            changed: the pods in whose cgroups anything has changed since then.
        """
        ...

    def notices(self, targets: Mapping[K, Target[W]]) -> Iterator[tuple[NoticeKey, Notice]]:
        """Yield the notices for pods' owners, as long as they are true."""
        ...


class Keeper(Generic[K, W]):
    """Runs one goal: looks at each target once in a sweep, and repairs those that are due.

    Args:
        goal: the kept values.

    Attributes:
        due_s: when to look again without an event, by the clock of `keep`; infinite for never.
    """

    def __init__(self, goal: Goal[K, W]) -> None:
        self.due_s = math.inf
        self._goal = goal
        self._targets: dict[K, Target[W]] = {}

    def keep(
        self,
        found: Sequence[FoundContainer],
        resolution: Resolution,
        now_s: float,
        changed: AbstractSet[str] | None = None,
    ) -> Mapping[NoticeKey, Notice]:
        """Repair the targets that differ and are due; an error of one does not stop the others.

        Args:
            found: every container directory.
            resolution: where everything belongs.
            now_s: the time on a monotonic clock.
            changed: the pods in whose cgroups anything has changed; None for any.

        Returns:
            The notices for pods' owners, as long as they are true.
        """
        self.due_s = math.inf
        wants = self._goal.wants(found, resolution)
        # A target that comes and goes keeps its back-off.
        kept = {key: target for key, target in self._targets.items() if target.backoff.lasts(now_s)}
        targets = {key: self._targets.get(key) or Target() for key in wants}
        self._targets = {**kept, **targets}
        for key, want in wants.items():
            target = targets[key]
            target.aim(want)
            due_s = target.backoff.due_s
            if now_s < due_s:
                self._look_at(due_s)
            elif changed is None or not (target.was_right and self._goal.stays(key, changed)):
                self._look_at(self._put_right(key, want, now_s))
        return dict(self._goal.notices(targets))

    def _put_right(self, key: K, want: W, now_s: float) -> float:
        """Return when to look at the target again without an event."""
        target = self._targets[key]
        try:
            reason = self._goal.put_right(key, want, now_s, was_right=target.was_right)
        except (RuntimeBusy, Postponed):
            return now_s + PAUSE_S
        except CPUPoolError as error:
            # A target that has ended needs no repair, however long its directory stays.
            if not isinstance(error, CgroupNotFound) and target.sticks(str(error)):
                log.warning(self._goal.problem, error=error)
            return target.failed(now_s, self._goal.pause_s)
        if reason is not None:
            target.repaired(reason, now_s)
        target.arrived()
        return math.inf

    def _look_at(self, due_s: float) -> None:
        self.due_s = min(self.due_s, due_s)
