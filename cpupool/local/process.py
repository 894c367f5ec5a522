"""A process of this machine that stands for a container of the embedded node."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

from cpupool.core.cpuset import CPUSet

if TYPE_CHECKING:
    from collections.abc import Mapping

_WAIT_S: Final = 10.0
_SCRIPT: Final = "read -r _ && read -r _"
"""The first line releases the process. The second line never comes, so the process lives until it
is killed or its parent has ended. `read` is a shell builtin: no other process starts."""


class Process:
    """A process that waits to be released, and then does nothing.

    It has its own session, so Ctrl-C does not reach it.

    Args:
        label: for ps(1).
        environment: its whole environment.
    """

    def __init__(self, label: str, environment: Mapping[str, str]) -> None:
        self._popen = subprocess.Popen(  # noqa: S603 - a fixed command; the label is only shown
            ["/bin/sh", "-c", _SCRIPT, label],
            env=dict(environment),
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        self.pid = self._popen.pid

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def release(self) -> None:
        """Release the process: it runs its own first instruction."""
        if self._popen.stdin:
            self._popen.stdin.write(b"\n")
            self._popen.stdin.flush()

    def kill(self) -> None:
        """Kill the process and wait for its end."""
        self._popen.kill()
        self._popen.wait(_WAIT_S)
        if self._popen.stdin:
            self._popen.stdin.close()


def cpus_allowed(pid: int, proc: Path = Path("/proc")) -> CPUSet:
    """Read the CPUs on which a process may run (proc_pid_status(5)).

    Raises:
        FileNotFoundError: the process has ended.
    """
    status = (proc / str(pid) / "status").read_text()
    fields = dict(line.split(":", 1) for line in status.splitlines())
    return CPUSet.parse(fields["Cpus_allowed_list"])
