"""A command of cpupool whose threads can be ended: `python -m tests.victim agent ...`.

A line on stdin that names a thread ends that thread by an exception that no code expects, and wakes
the loops; a thread that it has ended may be named again. An empty line lists the threads on stdout.
An empty line there ends each answer.

It must run without coverage: CPython 3.11 hangs where such an exception meets a tracer in C.
"""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import sys
import threading
import traceback
from contextlib import nullcontext
from typing import TYPE_CHECKING

from cpupool import cli
from cpupool.agent import app
from cpupool.commands import agent, certs, webhook
from cpupool.loops import supervisor
from cpupool.manager.manager import Manager
from cpupool.telemetry.server import TelemetryServer

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from cpupool.core.names import Names
    from cpupool.telemetry.health import Health
    from cpupool.telemetry.metrics import ProcessMetrics

CONTROLLER = "controller"


class Ended(BaseException):
    """What ends a thread."""


class NoLock(nullcontext[None]):
    """Stands in for a lock of `logging`: a thread that is ended between two lines would keep it."""

    def acquire(self) -> bool:
        return True

    def release(self) -> None:
        pass


class Controller:
    """Obeys stdin, from a thread of its own."""

    def __init__(self) -> None:
        self._wake: Callable[[], None] = lambda: None
        self._probes: TelemetryServer | None = None
        self._manager = Manager()
        self._ended = set[str]()

    def supervise(
        self,
        loops: Mapping[str, supervisor.Loop],
        stop: threading.Event,
        wake: Callable[[], None],
        hung: Callable[[], str] = lambda: "",
    ) -> None:
        """Stand in for `supervisor.supervise`, to know how loops are woken."""
        self._wake = wake
        supervisor.supervise(loops, stop, wake, hung)

    def managed(self, names: Names, *, moves_pinned: bool) -> Manager:
        """Make the agent's manager, to wake who waits for another list of devices."""
        self._manager = Manager(names, moves_pinned=moves_pinned)
        return self._manager

    def anywhere(
        self, address: str, _port: int, metrics: ProcessMetrics, health: Health
    ) -> TelemetryServer:
        """Make the server of the probes at a port that is free, whichever was asked for."""
        self._probes = TelemetryServer(address, 0, metrics, health)
        return self._probes

    def run(self) -> None:
        """Obey until stdin ends; a name that no thread has ends the process."""
        try:
            self._obey()
        except (KeyError, AssertionError):
            traceback.print_exc()
            # A test that waits for an answer gets the end of the output.
            os._exit(os.EX_SOFTWARE)

    def _obey(self) -> None:
        for line in sys.stdin:
            names = []
            if name := line.strip():
                self._end(name)
            else:
                # A thread that is being started has no number yet.
                names = sorted(each.name for each in threading.enumerate() if each.ident)
            sys.stdout.write("\n".join([*names, "", ""]))
            sys.stdout.flush()

    def _end(self, name: str) -> None:
        alive = {one.name: one.ident for one in threading.enumerate()}
        if name in self._ended and name not in alive:
            return
        self._ended.add(name)
        number = alive[name]
        assert number is not None
        set_exception = ctypes.pythonapi.PyThreadState_SetAsyncExc
        assert set_exception(ctypes.c_ulong(number), ctypes.py_object(Ended)) == 1
        # What is blocked in C takes it when it returns.
        self._wake()
        self._manager.notify()
        if number == threading.main_thread().ident:
            signal.pthread_kill(number, signal.SIGUSR1)
        if self._probes and name == "telemetry":
            self._probes.wake()


def unlocked(handler: logging.Handler) -> None:
    """Stand in for `logging.Handler.createLock`."""
    handler.lock = NoLock()  # type: ignore[assignment]


def main() -> None:
    """Run the command line with a controller."""
    controller = Controller()
    for module in (app, webhook, certs):
        module.supervise = controller.supervise  # type: ignore[attr-defined]
    for module in (app, webhook):
        module.TelemetryServer = controller.anywhere  # type: ignore[attr-defined]
    agent.Manager = controller.managed  # type: ignore[assignment, attr-defined]
    logging._lock = NoLock()  # type: ignore[attr-defined]
    logging.Handler.createLock = unlocked  # type: ignore[method-assign, assignment]
    # Its handler is the Python code in which a thread that waits takes the exception.
    signal.signal(signal.SIGUSR1, lambda _number, _frame: None)
    threading.Thread(target=controller.run, name=CONTROLLER, daemon=True).start()
    cli.run()


if __name__ == "__main__":
    main()
