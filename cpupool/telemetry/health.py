"""Health: whether a process's loops run (live), and whether it does its work (ready)."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True, slots=True)
class Report:
    """The response to a probe.

    Attributes:
        ok: whether nothing fails.
        lines: one per loop or condition: `<name>: ok` or `<name>: failing: what; what to do`.
    """

    ok: bool
    lines: tuple[str, ...]


class Asked(Protocol):
    """A thread that answers questions (`threads.OwnedThread`)."""

    @property
    def name(self) -> str:
        """Its name."""
        ...

    @property
    def runs(self) -> bool:
        """Whether it has neither ended nor failed."""
        ...

    @property
    def open_s(self) -> float:
        """For how long it has owed an answer."""
        ...

    @property
    def late(self) -> bool:
        """Whether it owes an answer for so long that the process is not ready."""
        ...

    @property
    def hangs(self) -> bool:
        """Whether it owes an answer for too long."""
        ...

    def ask(self) -> None:
        """Ask it, unless it owes an answer; must not block."""
        ...


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
        self._asked: list[Asked] = []
        self._serving: frozenset[str] = frozenset()

    def expect(self, loop: str, within_s: float, *, serves: bool = False) -> None:
        """Report this loop as hung, from now on, if it does not call `beat` within this time.

        Args:
            loop: its name.
            within_s: the time.
            serves: whether a peer waits for it, so that the process ends when it hangs.
        """
        with self._lock:
            self._serving = self._serving | {loop} if serves else self._serving - {loop}
            self._limits_s[loop] = within_s
            self._beats_s[loop] = self._clock_s()

    def watch(self, thread: Asked) -> None:
        """Let each look of a probe, and of the supervisor, ask a thread that runs now."""
        with self._lock:
            self._asked = [*(other for other in self._asked if other.runs), thread]

    def beat(self, loop: str) -> None:
        """Record that this loop runs."""
        with self._lock:
            self._beats_s[loop] = self._clock_s()

    def set(self, condition: str, *, ok: bool, message: str = "") -> None:
        """Record whether a condition holds that the process needs for its work.

        Args:
            condition: its name.
            ok: whether it holds.
            message: the fact and the remedy, if it does not hold.
        """
        with self._lock:
            self._failures[condition] = "" if ok else message or "no reason was given"

    def live(self) -> Report:
        """Return whether every expected loop runs, and every thread answers."""
        with self._lock:
            silent_s = self._silent_s()
            loops = {
                loop: ""
                if loop not in silent_s
                else f"silent for {silent_s[loop]:.0f} s, {limit_s:g} s are allowed;"
                " the kubelet restarts this container"
                for loop, limit_s in self._limits_s.items()
            }
            return _report(loops | {each.name: _owes(each) for each in self._all() if each.hangs})

    def hung(self) -> str:
        """Return the name of a loop that is silent for too long, or ""."""
        with self._lock:
            return next(iter(self._silent_s()), "")

    def stuck(self) -> str:
        """Return the name of a loop or thread that hangs while peers wait for it, or ""."""
        with self._lock:
            hanging = [each.name for each in self._all() if each.hangs]
            return next(iter((*hanging, *sorted(self._silent_s().keys() & self._serving))), "")

    def ready(self) -> Report:
        """Return whether every condition holds, and every thread and serving loop is in time."""
        with self._lock:
            found = dict(self._failures or {"agent": "it is starting; wait"})
            silent_s = self._silent_s()
            found |= {
                loop: f"silent for {silent_s[loop]:.0f} s"
                for loop in silent_s.keys() & self._serving
            }
            found |= {each.name: _owes(each) for each in self._all() if each.late}
            return _report(found)

    def _all(self) -> list[Asked]:
        """Ask every thread, and return them; a question of an earlier look may still be open."""
        for each in self._asked:
            each.ask()
        return self._asked

    def _silent_s(self) -> dict[str, float]:
        """Return loop → how long it has been silent, for loops that are silent for too long."""
        now_s = self._clock_s()
        return {
            loop: now_s - self._beats_s[loop]
            for loop, limit_s in self._limits_s.items()
            if now_s - self._beats_s[loop] > limit_s
        }


def _owes(thread: Asked) -> str:
    return f"it has not answered for {thread.open_s:.0f} s; if this lasts, the process ends"


def _report(failures: dict[str, str]) -> Report:
    lines = tuple(
        # A message may quote the name of a file or a pod, line ends included.
        f"{name}: failing: {' '.join(failure.split())}" if failure else f"{name}: ok"
        for name, failure in sorted(failures.items())
    )
    return Report(ok=not any(failures.values()), lines=lines)
