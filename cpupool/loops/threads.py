"""Threads that each serve one loop of the process; the loop checks at every turn that they run.

A supervised loop has a heartbeat (`supervisor.py`). A thread that a loop starts for itself has an
owner instead: if the thread has ended or does not answer, the owner fails, and the process ends.
docs/dev/decisions/0019-the-process-checks-that-each-thread-runs.md lists what this does not cover.
"""

from __future__ import annotations

import math
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from cpupool.core.errors import CPUPoolError
from cpupool.telemetry import log as logs

if TYPE_CHECKING:
    from collections.abc import Callable

log = logs.get(__name__)

SILENT_S: Final = 30.0
"""With three looks of the supervisor, one that asks and two that find it, a thread that hangs ends
the process within 50 s."""
LATE_S: Final = 3.0
_ASK_S: Final = 1.0
"""The time between two questions: a question wakes the thread, and some loops turn often."""
_END_S: Final = 10.0
_THIS_THREAD: Final = Path("/proc/thread-self/comm")


def name_in_kernel(name: str) -> None:
    """Give the calling thread its name in the kernel, which `top -H` shows; it cuts a long one.

    Source: proc_pid_comm(5).
    """
    # A name is for people: nothing depends on it.
    with suppress(OSError):
        _THIS_THREAD.write_text(name)


class ThreadFailed(CPUPoolError):
    """A thread that a loop needs has ended, or hangs.

    Attributes:
        name: the thread's name.
    """

    def __init__(self, name: str, what: str) -> None:
        self.name = name
        super().__init__(f"the thread {name!r} {what}; this process must be started again")


class OwnedThread:
    """A thread whose owner checks that it runs.

    Args:
        name: the thread's name.
        run: the thread's function; calls `answer` each time after `ask`.
        ask: makes the thread call `answer`; the owner calls it; must not block.
        failed: called in the thread when `run` has raised; the owner then checks.
        silent_s: the time for an answer; the owner fails after it.
        late_s: the time for an answer after which the process is not ready.
        every_s: the time between two questions of the owner.

    Attributes:
        name: the thread's name.
    """

    def __init__(
        self,
        name: str,
        run: Callable[[], None],
        *,
        ask: Callable[[], None],
        failed: Callable[[], None],
        silent_s: float = SILENT_S,
        late_s: float = LATE_S,
        every_s: float = _ASK_S,
    ) -> None:
        self.name: Final = name
        self._run = run
        self._ask = ask
        self._failed = failed
        self._silent_s = silent_s
        self._late_s = late_s
        self._every_s = every_s
        self._asking = threading.Lock()
        self._asked_s: float | None = None
        self._ask_at_s = -math.inf
        self._failure = ""
        self._thread = threading.Thread(target=self._guarded, name=name, daemon=True)

    @property
    def runs(self) -> bool:
        """Whether the thread has started, and has neither ended nor failed."""
        return self._thread.is_alive() and not self._failure

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def answer(self) -> None:
        """Record that the thread runs; called by `run`."""
        self._asked_s = None

    def check(self) -> None:
        """Ask the thread now and then, and check whether it answered an earlier question.

        A thread that has ended without an error has done its work.

        Raises:
            ThreadFailed: the thread has raised, or has not answered for too long.
        """
        if self._failure:
            raise ThreadFailed(self.name, f"has ended: {self._failure}")
        if self.hangs:
            raise ThreadFailed(self.name, f"has not answered for {self._silent_s:g} s")
        if time.monotonic() >= self._ask_at_s:
            self.ask()

    def ask(self) -> None:
        """Ask the thread, unless a question is open; any thread may call it."""
        with self._asking:
            if not self.runs or self._asked_s is not None:
                return
            self._asked_s = time.monotonic()
            self._ask_at_s = self._asked_s + self._every_s
        self._ask()

    @property
    def open_s(self) -> float:
        """For how long a question has been open; 0 without one."""
        asked_s = self._asked_s
        return 0.0 if asked_s is None or not self.runs else time.monotonic() - asked_s

    @property
    def late(self) -> bool:
        """Whether the thread owes an answer for so long that the process is not ready."""
        return self.open_s > self._late_s

    @property
    def hangs(self) -> bool:
        """Whether the thread owes an answer for too long."""
        return self.open_s > self._silent_s

    def join(self) -> None:
        """Wait until the thread has ended; a thread that hangs ends with the process."""
        self._thread.join(_END_S)

    def _guarded(self) -> None:
        name_in_kernel(self.name)
        try:
            self._run()
        except BaseException as error:  # whatever ends the thread must end the process
            self._failure = str(error) or type(error).__name__
            log.exception("thread failed", name=self.name)
            self._failed()
