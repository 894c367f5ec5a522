"""Health: whether a process's loops run (live), and whether it does its work (ready)."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True, slots=True)
class Report:
    """An answer to a probe.

    Attributes:
        ok: whether nothing fails.
        lines: one per loop or condition: `<name>: ok` or `<name>: failing: what; what to do`.
    """

    ok: bool
    lines: tuple[str, ...]


class Health:
    """The health reports of the loops. Any thread may call any method.

    A process without expected loops is live; a process without conditions is not ready.

    Args:
        clock_s: a monotonic clock.
    """

    def __init__(self, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._clock_s = clock_s
        self._lock = threading.Lock()
        self._limits_s: dict[str, float] = {}
        self._beats_s: dict[str, float] = {}
        self._failures: dict[str, str] = {}

    def expect(self, loop: str, within_s: float) -> None:
        """Count this loop as hung, from now on, whenever it has not called `beat` for this time."""
        with self._lock:
            self._limits_s[loop] = within_s
            self._beats_s[loop] = self._clock_s()

    def beat(self, loop: str) -> None:
        """Record that this loop runs."""
        with self._lock:
            self._beats_s[loop] = self._clock_s()

    def set(self, condition: str, *, ok: bool, message: str = "") -> None:
        """Record whether a condition holds that the process needs for its work.

        Args:
            condition: its name.
            ok: whether it holds.
            message: what is wrong and what to do, if it does not hold.
        """
        with self._lock:
            self._failures[condition] = "" if ok else message or "no reason was given"

    def live(self) -> Report:
        """Return whether every expected loop runs."""
        with self._lock:
            silent_s = self._silent_s()
            return _report(
                {
                    loop: ""
                    if loop not in silent_s
                    else f"silent for {silent_s[loop]:.0f} s, {limit_s:g} s are allowed;"
                    " the kubelet restarts this container"
                    for loop, limit_s in self._limits_s.items()
                }
            )

    def hung(self) -> str:
        """Return the name of a loop that is silent for too long, or ""."""
        with self._lock:
            return next(iter(self._silent_s()), "")

    def ready(self) -> Report:
        """Return whether every condition holds."""
        with self._lock:
            return _report(self._failures or {"agent": "it is starting; wait"})

    def _silent_s(self) -> dict[str, float]:
        """Return loop → how long it has been silent, for loops that are silent for too long."""
        now_s = self._clock_s()
        return {
            loop: now_s - self._beats_s[loop]
            for loop, limit_s in self._limits_s.items()
            if now_s - self._beats_s[loop] > limit_s
        }


def _report(failures: dict[str, str]) -> Report:
    lines = tuple(
        # A message may quote the name of a file or a pod, line ends included.
        f"{name}: failing: {' '.join(failure.split())}" if failure else f"{name}: ok"
        for name, failure in sorted(failures.items())
    )
    return Report(ok=not any(failures.values()), lines=lines)
