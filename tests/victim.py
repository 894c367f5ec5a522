"""A command of cpupool whose threads can be ended: `python -m tests.victim agent ...`.

A line on stdin that names a thread ends that thread by an exception that no code expects, and wakes
the loops. An empty line lists the threads on stdout. An empty line there ends each answer.

It must run without coverage: CPython 3.11 hangs where such an exception meets a tracer in C.
"""

from __future__ import annotations

import ctypes
import sys
import threading
from typing import TYPE_CHECKING

from cpupool import app, cli, supervisor
from cpupool.commands import certs, webhook
from cpupool.telemetry.server import TelemetryServer

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from cpupool.telemetry.health import Health
    from cpupool.telemetry.metrics import ProcessMetrics

CONTROLLER = "controller"


class Ended(BaseException):
    """What ends a thread."""


class Controller:
    """Obeys stdin, from a thread of its own."""

    def __init__(self) -> None:
        self._wake: Callable[[], None] = lambda: None
        self._probes: TelemetryServer | None = None

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

    def anywhere(
        self, address: str, _port: int, metrics: ProcessMetrics, health: Health
    ) -> TelemetryServer:
        """Make the server of the probes at a port that is free, whichever was asked for."""
        self._probes = TelemetryServer(address, 0, metrics, health)
        return self._probes

    def run(self) -> None:
        """Obey until stdin ends."""
        for line in sys.stdin:
            names = []
            if name := line.strip():
                self._end(name)
            else:
                names = sorted(thread.name for thread in threading.enumerate())
            sys.stdout.write("\n".join([*names, "", ""]))
            sys.stdout.flush()

    def _end(self, name: str) -> None:
        number = next(one.ident for one in threading.enumerate() if one.name == name)
        assert number is not None
        set_exception = ctypes.pythonapi.PyThreadState_SetAsyncExc
        assert set_exception(ctypes.c_ulong(number), ctypes.py_object(Ended)) == 1
        # What is blocked in C takes it when it returns.
        self._wake()
        if self._probes and name == "telemetry":
            self._probes.wake()


def main() -> None:
    """Run the command line with a controller."""
    controller = Controller()
    for module in (app, webhook, certs):
        module.supervise = controller.supervise  # type: ignore[attr-defined]
    for module in (app, webhook):
        module.TelemetryServer = controller.anywhere  # type: ignore[attr-defined]
    threading.Thread(target=controller.run, name=CONTROLLER, daemon=True).start()
    cli.run()


if __name__ == "__main__":
    main()
