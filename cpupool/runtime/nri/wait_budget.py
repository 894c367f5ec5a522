"""The time for which the container runtime may wait for answers.

containerd serves NRI under one lock: while it waits for a container, every other container of the
node waits. So all waits together have a budget. The time is a value here.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Hashable

SPENT_S: Final = 1.0
"""The longest wait of the runtime for all containers together..."""
WITHIN_S: Final = 10.0
"""...in each period of this length."""
SOON_S: Final = 0.1
"""...and the wait for the agent alone, also after that: its own threads take some ms."""
_DEADLINE_S: Final = 2.0
"""The usual time in which a runtime needs a response."""
_REMEMBERED: Final = 1000
"""The most containers that are remembered as having waited: the kubelet retries for minutes."""


def longest_s(deadline_s: float | None) -> float:
    """Return how long one container may wait: half the time in which its runtime needs a response.

    Args:
        deadline_s: that time, as the runtime says; None where that is not known.
    """
    return min(deadline_s or _DEADLINE_S, _DEADLINE_S) / 2


class WaitBudget:
    """Counts the time in which the runtime waits for at least one answer."""

    def __init__(self) -> None:
        self._over: deque[tuple[float, float]] = deque()
        self._since_s: float | None = None
        self._waited: dict[Hashable, None] = {}

    def until_s(
        self, container: Hashable, latest_s: float, now_s: float, *, soon: bool = False
    ) -> float:
        """Return until when the runtime may wait for a container; a container waits only once.

        Args:
            container: the key that stays the same when the kubelet tries again.
            latest_s: the latest time of the response.
            now_s: the time on a monotonic clock.
            soon: whether it waits for the agent alone, and may have waited before.

        Returns:
            `now_s` where it may not wait.
        """
        left_s = SPENT_S - self._spent_s(now_s)
        until_s = min(latest_s, now_s + (max(left_s, SOON_S) if soon else left_s))
        if until_s <= now_s or (container in self._waited and not soon):
            return now_s
        self._waited[container] = None
        if len(self._waited) > _REMEMBERED:
            del self._waited[next(iter(self._waited))]
        return until_s

    def served(self, container: Hashable) -> None:
        """Note that a container no longer waits: its next start may wait again."""
        self._waited.pop(container, None)

    def count(self, now_s: float, *, waits: bool) -> None:
        """Count the time until now, and whether the runtime waits from now on."""
        if waits and self._since_s is None:
            self._since_s = now_s
        elif self._since_s is not None and not waits:
            self._over.append((self._since_s, now_s))
            self._since_s = None

    def _spent_s(self, now_s: float) -> float:
        begin_s = now_s - WITHIN_S
        while self._over and self._over[0][1] <= begin_s:
            self._over.popleft()
        over_s = sum(end_s - max(since_s, begin_s) for since_s, end_s in self._over)
        return over_s + (0.0 if self._since_s is None else now_s - self._since_s)
