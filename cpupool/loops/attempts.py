"""Attempts to write into a pod, which the API server may refuse."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

PAUSE_S: Final = 1.0
"""The time between two patches: a controller may make the next pod at once."""
_LONGEST_PAUSE_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class Attempt:
    """An attempt to patch a pod.

    Attributes:
        due_s: when to patch it.
        tries: how many patches the API server has refused.
    """

    due_s: float
    tries: int = 0

    def refused(self, now_s: float) -> Attempt:
        """Return the next attempt after a refused patch."""
        pause_s = min(PAUSE_S * 2 ** min(self.tries, 20), _LONGEST_PAUSE_S)
        return Attempt(now_s + pause_s, self.tries + 1)
