"""Stops what the starter starts between its exec and its first instruction: ptrace(2)."""

from __future__ import annotations

import ctypes
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from cpupool.core.cpuset import CPUSet

if TYPE_CHECKING:
    from collections.abc import Iterator

_CONT: Final = 7
_DETACH: Final = 17
_GETEVENTMSG: Final = 0x4201
_SEIZE: Final = 0x4206
_EVENT_VFORK: Final = 2
_EVENT_EXEC: Final = 4
_EVENT_STOP: Final = 128
_OPTIONS: Final = 1 << _EVENT_VFORK | 1 << _EVENT_EXEC
_WALL: Final = 0x40000000


@dataclass(frozen=True, slots=True)
class Tracer:
    """Follows a starter that waits; only the thread that made it may use it."""

    starter: int

    @classmethod
    def attach(cls, starter: int) -> Tracer:
        """Follow a process; the test is skipped where the machine does not allow it."""
        try:
            _ptrace(_SEIZE, starter, _OPTIONS)
        except PermissionError as error:
            pytest.skip(f"ptrace(2) is not allowed here: {error}")
        return cls(starter)

    def is_waiting(self) -> bool:
        """Tell whether the starter has started nothing yet, and has not ended."""
        return os.waitpid(self.starter, os.WNOHANG | _WALL) == (0, 0)

    def cpus_at_exec(self) -> Iterator[CPUSet]:
        """Give the CPUs of each process, in the order of their starts, before it has run.

        Raises:
            AssertionError: one was last seen on another CPU than these.
        """
        while _next_event(self.starter) == _EVENT_VFORK:
            message = ctypes.c_ulong()
            _ptrace(_GETEVENTMSG, self.starter, ctypes.addressof(message))
            child = message.value
            _ptrace(_CONT, self.starter)
            assert _next_event(child) == _EVENT_STOP
            _ptrace(_CONT, child)
            assert _next_event(child) == _EVENT_EXEC
            yield _cpus(child)
            _ptrace(_DETACH, child)
        yield _cpus(self.starter)
        _ptrace(_DETACH, self.starter)


def _ptrace(request: int, pid: int, data: int = 0) -> None:
    arguments = (ctypes.c_long(request), ctypes.c_long(pid), None, ctypes.c_void_p(data))
    if ctypes.CDLL(None, use_errno=True).ptrace(*arguments) != 0:
        raise OSError(ctypes.get_errno(), f"ptrace({request:#x}, {pid})")


def _next_event(pid: int) -> int:
    """Wait for an event, and hand on the signals that come before it."""
    while True:
        _, status = os.waitpid(pid, _WALL)
        assert os.WIFSTOPPED(status), f"{pid} ended with {status}"
        if status >> 16:
            return status >> 16
        _ptrace(_CONT, pid, os.WSTOPSIG(status))


def _cpus(pid: int) -> CPUSet:
    status = Path(f"/proc/{pid}/status").read_text()
    found = re.search(r"^Cpus_allowed_list:\s*(\S+)$", status, re.MULTILINE)
    assert found
    cpus = CPUSet.parse(found[1])
    # The fields after the name, which may hold anything; the 39th is where it ran last (proc(5)).
    last = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[39 - 3])
    assert last in cpus, f"{pid} is on CPU {last}"
    return cpus
