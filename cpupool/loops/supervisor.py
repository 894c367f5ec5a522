"""The supervisor runs each loop of a process in a thread, and ends all loops together.

A loop that has ended or hangs leaves a process that looks alive and does only a part of its work.
So the first loop that fails ends the process, and Kubernetes starts it again.
"""

from __future__ import annotations

import signal
import threading
from typing import TYPE_CHECKING, Final

from cpupool.core.errors import CPUPoolError
from cpupool.loops.threads import name_in_kernel
from cpupool.telemetry import log as logs

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    Loop = Callable[[threading.Event], None]

log = logs.get(__name__)

_LOOK_S: Final = 5.0
"""The time between two looks for a loop that hangs. Two looks must find it: after a stop of the
whole process, as by a freezer, every loop is silent until its next turn."""
_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
_END_S: Final = 30.0


class LoopFailed(CPUPoolError):
    """A loop of the process ended with an error; the process must be started again."""


def supervise(
    loops: Mapping[str, Loop],
    stop: threading.Event,
    wake: Callable[[], None],
    hung: Callable[[], str] | None = None,
) -> None:
    """Run each loop in a thread until `stop`; if a loop ends earlier, all loops end.

    Args:
        loops: name → loop.
        stop: ends the loops.
        wake: makes each loop notice `stop`.
        hung: returns the name of a loop or thread that hangs, or ""; None where only probes look.

    Raises:
        LoopFailed: names the loop that failed or hung first.
    """
    failures: list[tuple[str, str]] = []

    def guarded(name: str, loop: Loop) -> None:
        name_in_kernel(name)
        try:
            loop(stop)
            if not stop.is_set():
                failures.append((name, "it has ended by itself"))
        except BaseException as error:  # whatever ends a loop must end the process
            failures.append((name, str(error) or type(error).__name__))
            log.exception("loop failed", name=name)
        finally:
            stop.set()

    threads = [
        threading.Thread(target=guarded, args=item, name=item[0], daemon=True)
        for item in loops.items()
    ]
    # New threads inherit this: the kernel would hand them a signal, which ends no wait of this one.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    for thread in threads:
        thread.start()
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    try:
        if hung is None:
            stop.wait()
        elif name := _hanging(hung, stop):
            failures.append((name, "it hangs"))
    finally:
        stop.set()
        wake()
        for thread in threads:
            thread.join(_END_S)
    if failures:
        name, error = failures[0]
        raise LoopFailed(f"the {name} stopped: {error}; this process must be started again")
    hanging = [thread.name for thread in threads if thread.is_alive()]
    if hanging:
        raise LoopFailed(f"the {hanging[0]} did not end within {_END_S:g} s; look at its log")


def _hanging(hung: Callable[[], str], stop: threading.Event) -> str:
    """Return the name of a loop that two looks have found silent; "" once `stop` is set."""
    suspect = ""
    while not stop.wait(_LOOK_S):
        name = hung()
        if name and name == suspect:
            return name
        suspect = name
    return ""
