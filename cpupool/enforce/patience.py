"""When a container that was moved away, or could not be moved, is tried again.

Pure: the time and the CPU time that was spent are values.
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
"""The share of a CPU that repairs may use which do not wait for their back-off."""
_SAVED_S: Final = 1.0
"""The most CPU time of that share that is saved up."""
_REFUSED_S: Final = 1.0
"""The longest wait of a container that trespasses, after a repair of it has failed."""


@dataclass(frozen=True, slots=True)
class Backoff:
    """When to repair a target again that another program overwrites, or the kernel refuses.

    Attributes:
        tries_s: when it was last tried to put it right.
        delay_s: the wait from try to try; 0 while the next try is made at once.
    """

    tries_s: tuple[float, ...] = ()
    delay_s: float = 0.0

    @property
    def due_s(self) -> float:
        """When it may be tried again."""
        return self.tries_s[-1] + self.delay_s if self.tries_s else 0.0

    def counts(self, now_s: float) -> bool:
        """Return whether the last try still makes the next one wait longer."""
        return bool(self.tries_s) and now_s - self.tries_s[-1] < _QUIET_S

    def after(self, now_s: float) -> Backoff:
        """Count a try now; a try after a minute without any is the first again."""
        if not self.counts(now_s):
            return Backoff((now_s,))
        recent = (*(try_s for try_s in self.tries_s if now_s - try_s < _WITHIN_S), now_s)
        recent = recent[-_AT_ONCE - 1 :]
        if not self.delay_s and len(recent) <= _AT_ONCE:
            return Backoff(recent)
        return Backoff(recent, min(max(2 * self.delay_s, _FIRST_DELAY_S), _LAST_DELAY_S))


class Haste:
    """Decides when a trespasser is repaired: a container on CPUs that are another pod's own.

    It does not wait for its back-off. What bounds such repairs is the CPU time that they cost.
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
