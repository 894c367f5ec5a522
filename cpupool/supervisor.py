"""Runs the loops of a process in threads of their own, and ends them together."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final

from cpupool.core.errors import CPUPoolError
from cpupool.telemetry import log as logs

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    Loop = Callable[[threading.Event], None]

log = logs.get(__name__)

_SIGNAL_S: Final = 2.0
_END_S: Final = 30.0


class LoopFailed(CPUPoolError):
    """A loop of the process ended with an error; the process must be started again."""


def supervise(
    loops: Mapping[str, Loop],
    stop: threading.Event,
    wake: Callable[[], None],
) -> None:
    """Run loops in threads of their own until `stop`; one that fails ends them all.

    Raises:
        LoopFailed: names the loop that failed first.
    """
    failures: list[tuple[str, Exception]] = []

    def guarded(name: str, loop: Loop) -> None:
        try:
            loop(stop)
        except Exception as error:  # whatever ends a loop must end the process
            log.exception("loop failed", name=name)
            failures.append((name, error))
        finally:
            stop.set()

    threads = [
        threading.Thread(target=guarded, args=item, name=item[0], daemon=True)
        for item in loops.items()
    ]
    for thread in threads:
        thread.start()
    # A signal that the kernel hands to another thread does not end an unlimited wait of this one.
    while not stop.wait(_SIGNAL_S):
        pass
    wake()
    for thread in threads:
        thread.join(_END_S)
    if failures:
        name, error = failures[0]
        raise LoopFailed(f"the {name} stopped: {error}; this process must be started again")
    hanging = [thread.name for thread in threads if thread.is_alive()]
    if hanging:
        raise LoopFailed(f"the {hanging[0]} did not end within {_END_S:g} s; look at its log")
