"""Questions to the sources of facts: when to repeat one, and which failures to log."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeVar

from cpupool.core.errors import CPUPoolError, RuntimeAwaitsAnswer
from cpupool.telemetry import log as logs
from cpupool.telemetry.failures import Failures

if TYPE_CHECKING:
    from collections.abc import Callable

log = logs.get(__name__)

_Answer = TypeVar("_Answer")

_ASK_AGAIN_S: Final = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
"""The times to wait before the agent repeats a question that had no answer."""
SOON_S: Final = 0.5
"""The delay of a question that no container waits for: one answer then serves a burst of pods."""


class Sources:
    """A log of failing sources: each failure is logged once, and again with another reason."""

    def __init__(self) -> None:
        self._failures = Failures()

    def ask(self, source: str, question: Callable[[], _Answer]) -> _Answer | None:
        """Return the answer, or None where there is none now: known facts stay valid."""
        try:
            answer = question()
        except RuntimeAwaitsAnswer:
            # That is no failure: the agent repeats the question.
            return None
        except CPUPoolError as error:
            self.complain(source, str(error))
            return None
        self._failures.ends(source)
        return answer

    def complain(self, source: str, why: str) -> None:
        """Log once that a source gives no useful answer."""
        if not why:
            self._failures.ends(source)
        elif self._failures.begins(why, source):
            log.warning("source cannot be read", source=source, error=why)


@dataclass(frozen=True, slots=True)
class Retry:
    """The number of times that a question had no answer, and the time to ask it next."""

    times: int = 0
    due_s: float = -math.inf

    def is_due(self, now_s: float) -> bool:
        """Return whether to ask the question."""
        return now_s >= self.due_s

    def by(self, due_s: float) -> Retry:
        """Return the first try of a question that is asked at this time at the latest."""
        return Retry(due_s=min(self.due_s, due_s))

    def after(self, now_s: float, at_least_s: float = 0.0) -> Retry:
        """Return when to repeat a question that is asked now, with growing intervals."""
        wait_s = _ASK_AGAIN_S[min(self.times, len(_ASK_AGAIN_S) - 1)]
        return Retry(self.times + 1, now_s + max(wait_s, at_least_s))
