"""Sees that nothing outlives a test, and no process a run of tests that is killed."""

from __future__ import annotations

import os
import secrets
import select
import signal
import subprocess
import sys
import threading
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

RUN: Final = "CPUPOOL_TEST_RUN"
"""A variable that all processes of a run inherit: the run's own random word."""


@contextmanager
def guarding() -> Iterator[None]:
    """Mark what this process starts, and end what is left of that when it ends or is killed."""
    run = secrets.token_hex(8)
    command = [sys.executable, __file__, str(os.getpid()), run]
    # In a session of its own, neither Ctrl-C nor the end of a terminal reaches it.
    with subprocess.Popen(command, start_new_session=True) as guard:
        os.environ[RUN] = run
        try:
            yield
        finally:
            os.environ.pop(RUN, None)
            guard.kill()
    end_all(run)


def mark() -> Mapping[str, str]:
    """Return the variable for a process that is given an environment of its own."""
    return {RUN: os.environ[RUN]} if RUN in os.environ else {}


def unmarked() -> dict[str, str]:
    """Return the environment for a process that is not of this run, and may outlive it."""
    return {name: value for name, value in os.environ.items() if name != RUN}


def children() -> dict[int, str]:
    """Return this process's children and their commands, also those that no process waited for."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return {}  # it has none, as after most tests
    return children_of("self")


def children_of(pid: int | str) -> dict[int, str]:
    """Return a process's children and their commands."""
    found = dict[int, str]()
    for task in Path(f"/proc/{pid}/task").iterdir():
        with suppress(FileNotFoundError):  # the thread has ended
            for child in (task / "children").read_text().split():
                found[int(child)] = _command(child)
    return found


def threads() -> set[threading.Thread]:
    """Return the threads for which Python waits at its end; libraries keep some others."""
    return {thread for thread in threading.enumerate() if not thread.daemon}


def _command(pid: str) -> str:
    with suppress(OSError):
        words = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ")
        return words.decode(errors="replace") or f"process {pid}, which has ended"
    return f"process {pid}"


def end_all(run: str) -> None:
    """Kill all processes with the variable of a run."""
    for environment in Path("/proc").glob("[0-9]*/environ"):
        # What is another user's is not of this run, or has dropped its rights and has ended.
        with suppress(OSError):
            if f"{RUN}={run}".encode() in environment.read_bytes().split(b"\0"):
                os.kill(int(environment.parent.name), signal.SIGKILL)


def main(pid: int, run: str) -> None:
    """Wait until a run has ended, and kill what it has left."""
    try:
        ended = select.poll()
        ended.register(os.pidfd_open(pid), select.POLLIN)
        ended.poll()
    except ProcessLookupError:
        pass
    end_all(run)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
