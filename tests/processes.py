"""A command in a process of its own, and what it writes."""

from __future__ import annotations

import signal
import subprocess
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Self

from tests.forking import Forked
from tests.waiting import DEADLINE_S, eventually

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from os import PathLike


class Process:
    """A command that has been started; what it writes to stderr is collected.

    Attributes:
        process: as Python knows it.
        lines: what it has written.
    """

    def __init__(self, *command: str | PathLike[str]) -> None:
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        self.lines: list[str] = []

    @contextmanager
    def collecting(self, end: int = signal.SIGKILL) -> Iterator[Self]:
        """Collect its lines; leaving this ends it with a signal, and by force where that fails."""
        collector = threading.Thread(target=lambda: self.lines.extend(self.process.stderr or ()))
        collector.start()
        try:
            yield self
        finally:
            self.process.send_signal(end)
            try:
                self.process.wait(DEADLINE_S)
            finally:
                self.process.kill()
                collector.join(DEADLINE_S)
                assert self.process.stderr
                self.process.stderr.close()

    def await_line(self, text: str) -> str:
        """Give the first line with this text once there is one."""
        eventually(lambda: any(text in line for line in self.lines), lambda: f"{text}{self.lines}")
        return next(line for line in self.lines if text in line)

    @property
    def log(self) -> str:
        return "".join(self.lines)


class ForkedProcess(Process):
    """A command of cpupool that has been started, without the time that imports take.

    Args:
        arguments: those of the command line.
        program: the module that is run.
        environment: more variables.
    """

    def __init__(
        self,
        *arguments: str | PathLike[str],
        program: str = "cpupool",
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.process = Forked(program, arguments, environment)
        self.lines = []
