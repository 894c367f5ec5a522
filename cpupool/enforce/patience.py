"""The time of the next try for a container that was moved away, or could not be moved.

Another program may overwrite each repair at once, so the pauses between repairs grow. A container
on another pod's own CPUs does not wait: only the CPU time of such repairs is limited. The time and
the CPU time are values here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

_AT_ONCE: Final = 10
_WITHIN_S: Final = 10.0
_FIRST_DELAY_S: Final = 0.2
_LAST_DELAY_S: Final = 10.0
_QUIET_S: Final = 60.0
_SHARE: Final = 0.25
"""The share of a CPU for repairs that do not wait for their back-off."""
_SAVED_S: Final = 1.0
"""The most CPU time of that share that the agent saves up."""
_REFUSED_S: Final = 1.0
"""The longest pause for a container that trespasses, after its repair has failed."""


@dataclass(frozen=True, slots=True)
class Backoff:
    """The pauses between repairs of a target that a program overwrites, or the kernel refuses.

    Attributes:
        tries_s: the times of the last tries.
        delay_s: the pause between two tries; 0 while the next try comes at once.
    """

    tries_s: tuple[float, ...] = ()
    delay_s: float = 0.0

    @property
    def due_s(self) -> float:
        """The time of the next try."""
        return self.tries_s[-1] + self.delay_s if self.tries_s else 0.0

    def lasts(self, now_s: float) -> bool:
        """Return whether the last try still makes the next one wait longer."""
        return bool(self.tries_s) and now_s - self.tries_s[-1] < _QUIET_S

    def after(self, now_s: float) -> Backoff:
        """Count a try now; a try after a minute without tries is the first again."""
        if not self.lasts(now_s):
            return Backoff((now_s,))
        recent = (*(try_s for try_s in self.tries_s if now_s - try_s < _WITHIN_S), now_s)
        recent = recent[-_AT_ONCE - 1 :]
        if not self.delay_s and len(recent) <= _AT_ONCE:
            return Backoff(recent)
        return Backoff(recent, min(max(2 * self.delay_s, _FIRST_DELAY_S), _LAST_DELAY_S))


class RepairBudget:
    """The CPU time for repairs of trespassers: containers on CPUs that are another pod's own.

    It does not wait for its back-off. The CPU time of such repairs is limited instead.
    """

    def __init__(self) -> None:
        self._saved_s = _SAVED_S
        self._counted_s = -math.inf

    def due_s(self, backoff: Backoff, now_s: float, *, failed: bool) -> float:
        """Return when a trespasser may be repaired.

        Args:
            backoff: its own.
            now_s: the time on a monotonic clock.
            failed: the last repair of it has failed.
        """
        if failed:
            return min(backoff.due_s, backoff.due_s - backoff.delay_s + _REFUSED_S)
        lacking_s = max(0.0, -self._saved(now_s))
        return min(backoff.due_s, now_s + lacking_s / _SHARE)

    def spend(self, cpu_s: float, now_s: float) -> None:
        """Count the CPU time of repairs that did not wait."""
        self._saved_s, self._counted_s = self._saved(now_s) - cpu_s, now_s

    def _saved(self, now_s: float) -> float:
        return min(_SAVED_S, self._saved_s + _SHARE * (now_s - self._counted_s))
