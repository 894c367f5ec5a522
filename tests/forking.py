"""Processes of cpupool that begin with its modules in memory: importing them takes most of a start.

`python -m tests.forking` imports what the agent and our plugins import, and forks for each command
line that it is told: `Forked` is such a process. Nothing else is shared; the program runs as
`python -W error -m` runs it.
"""

from __future__ import annotations

import atexit
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import NoReturn

_IMPORTED: Final = ("cpupool.commands.agent", "cpupool.commands.resource_plugin")
_LONGEST_BYTES: Final = 1 << 16


class Forked(subprocess.Popen[str]):
    """A command whose process is forked; what it writes to stderr can be read.

    Args:
        program: the module that is run.
        arguments: those of its command line.
        environment: variables beside this process's own.
    """

    def __init__(
        self,
        program: str,
        arguments: Sequence[str | os.PathLike[str]],
        environment: Mapping[str, str] | None = None,
    ) -> None:
        variables = {**os.environ, **(environment or {})}
        request = json.dumps([program, variables, *map(str, arguments)])
        self.args = [program, *arguments]
        self.stdin = self.stdout = None
        self.returncode: int | None = None
        told, tells = os.pipe()
        read, write = os.pipe()
        self.pid = _server().fork(request.encode(), (0, 1, write, tells))
        for theirs in (tells, write):
            os.close(theirs)
        self._told = os.fdopen(told, "rb", buffering=0)
        self.stderr = os.fdopen(read, encoding="utf-8")

    def poll(self) -> int | None:
        """Return the exit code, if the process has ended."""
        if self.returncode is None and select.select([self._told], [], [], 0)[0]:
            self.returncode = int(self._told.read())
            self._told.close()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit code once the process has ended."""
        if self.returncode is None and not select.select([self._told], [], [], timeout)[0]:
            raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
        code = self.poll()
        assert code is not None
        return code


class _Server:
    """The process that forks, as its parent has it."""

    def __init__(self) -> None:
        self._door, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-W", "error", "-m", __name__, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )
        self.pid = self._process.pid
        atexit.register(self._end)

    def fork(self, request: bytes, files: Sequence[int]) -> int:
        """Return the id of a new process."""
        socket.send_fds(self._door, [request], files)
        return int(self._door.recv(_LONGEST_BYTES))

    def _end(self) -> None:
        self._door.close()
        self._process.wait()


@cache
def _server() -> _Server:
    return _Server()


def server_pid() -> int | None:
    """Return the process that forks for this one, if there is one."""
    return _server().pid if _server.cache_info().currsize else None


class _Child(NamedTuple):
    pid: int
    tells: int


def main(door: socket.socket) -> None:
    """Fork for each request until there are no more; a process that is forked leaves by `_run`."""
    for module in _IMPORTED:
        importlib.import_module(module)
    children = dict[int, _Child]()
    poll = select.poll()
    poll.register(door, select.POLLIN)
    while True:
        for file, _ in poll.poll():
            if file in children:
                poll.unregister(file)
                _tell_end(file, children.pop(file))
                continue
            request, files, _, _ = socket.recv_fds(door, _LONGEST_BYTES, 4)
            if not request:
                return
            *standard, tells = files
            pid = os.fork()
            if not pid:
                door.close()
                for inherited in (tells, *children, *(one.tells for one in children.values())):
                    os.close(inherited)
                _run(standard, *json.loads(request))
            for one in standard:
                os.close(one)
            watched = os.pidfd_open(pid)
            children[watched] = _Child(pid, tells)
            poll.register(watched, select.POLLIN)
            door.send(str(pid).encode())


def _tell_end(file: int, child: _Child) -> None:
    _, status = os.waitpid(child.pid, 0)
    with suppress(BrokenPipeError):  # nobody waits for it any more
        os.write(child.tells, str(os.waitstatus_to_exitcode(status)).encode())
    for one in (file, child.tells):
        os.close(one)


def _run(
    standard: Sequence[int], program: str, environment: dict[str, str], *arguments: str
) -> NoReturn:
    for number, file in enumerate(standard):
        os.dup2(file, number)
        os.close(file)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # Those that Python has made were made for other files.
    sys.stdin = open(0, closefd=False)  # noqa: SIM115
    sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", 1, errors="backslashreplace", closefd=False)  # noqa: SIM115
    os.environ.clear()
    os.environ.update(environment)
    # Behind the working folder, as Python does at its start.
    sys.path[1:1] = filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))
    sys.argv[1:] = arguments
    runpy.run_module(program, run_name="__main__", alter_sys=True)
    sys.exit()


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C ends this process's parent
    with socket.socket(fileno=int(sys.argv[1])) as given:
        main(given)
