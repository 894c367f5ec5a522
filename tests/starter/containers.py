"""Runs the starter as a container's first process would be: its CPUs, its environment, its files.

The pools' files are mounted at /run/cpupool in a mount namespace of its own, which needs no
privilege where user namespaces are allowed.
"""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Self

import pytest

from cpupool.core.cpuset import CPUSet
from tests import guard
from tests.waiting import DEADLINE_S, eventually

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_NAMESPACE = ("unshare", "--user", "--map-root-user", "--mount")
_MOUNTED = (
    'mount -t tmpfs none /run && mkdir /run/cpupool && mount --bind "$0" /run/cpupool && exec "$@"'
)


@functools.cache
def why_no_namespaces() -> str:
    """Say why this user cannot make namespaces, or nothing."""
    if shutil.which("unshare") is None:
        return "no unshare(1)"
    tried = subprocess.run([*_NAMESPACE, "true"], capture_output=True, text=True, check=False)
    return tried.stderr


needs_namespaces = pytest.mark.skipif(bool(why_no_namespaces()), reason=why_no_namespaces())


@dataclass(frozen=True, slots=True)
class Started:
    """One process that was started: its CPUs at its first instruction, and its arguments."""

    cpus: CPUSet
    argv: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Ended:
    """What a container left.

    Attributes:
        status: its exit status, negative where a signal ended it.
        started: what the program `report` told, in any order.
        stderr: the starter's line, or nothing.
    """

    status: int
    started: tuple[Started, ...]
    stderr: str


@dataclass
class Containers:
    """Runs containers and ends those that are left."""

    starter: Path
    folder: Path
    emulator: tuple[str, ...] = ()
    _running: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def pools(self) -> Path:
        """What is mounted at /run/cpupool."""
        return self.folder / "pools"

    def share(self, **pools: str) -> None:
        """Write the files of shared pools, as the agent does."""
        for name, text in pools.items():
            (self.pools / name).mkdir(parents=True, exist_ok=True)
            fresh = self.pools / name / "fresh"
            fresh.write_text(text)
            fresh.replace(self.pools / name / "cpus")

    def start(
        self,
        argv: Sequence[str | Path],
        environment: Mapping[str, str],
        *,
        cpus: str = "0-1",
        before: Sequence[str | Path] = (),
        timeout_s: int = 30,
    ) -> subprocess.Popen[bytes]:
        """Start the starter with these arguments on these CPUs.

        Args:
            argv: its arguments, without its name.
            environment: its variables; PATH is added.
            cpus: its CPUs in the beginning.
            before: a command that runs it, as unshare(1).
            timeout_s: how long it waits for its CPUs.
        """
        taskset = shutil.which("taskset") or pytest.skip("no taskset(1)")
        command = [taskset, "-c", cpus, *before, *self.emulator, self.starter, *argv]
        if self.pools.exists():
            if why_no_namespaces():
                pytest.skip(f"no namespace to mount /run/cpupool in: {why_no_namespaces()}")
            command = [*_NAMESPACE, "sh", "-c", _MOUNTED, self.pools, *command]
        process = subprocess.Popen(
            command,
            env={
                "PATH": os.environ["PATH"],
                "CPUPOOL_START_TIMEOUT": str(timeout_s),
                **environment,
                **guard.mark(),
            },
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self._running.append(process)
        return process

    def run(
        self,
        argv: Sequence[str | Path],
        environment: Mapping[str, str],
        *,
        cpus: str = "0-1",
        timeout_s: int = 0,
    ) -> Ended:
        """Start a container that is on its CPUs, or fails at once, and wait until all has ended."""
        return ended(self.start(argv, environment, cpus=cpus, timeout_s=timeout_s))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._running:
            with process:
                process.kill()


def await_starter(process: subprocess.Popen[bytes], starter: Path) -> None:
    """Wait until a process that was started is a starter that waits, after taskset(1)."""
    eventually(lambda: is_waiting(process.pid, starter), "the starter waits")


def is_waiting(pid: int, starter: Path) -> bool:
    """Tell whether a process is the starter and sleeps: only for signals does it ever."""
    status = Path(f"/proc/{pid}/status").read_text()
    fields = dict(line.split(":\t", 1) for line in status.splitlines())
    return (fields["Name"], fields["State"][:1]) == (starter.name[:15], "S")


def ended(process: subprocess.Popen[bytes]) -> Ended:
    """Wait until a container and everything that holds its output has ended."""
    stdout, stderr = process.communicate(timeout=DEADLINE_S)
    return Ended(process.returncode, _reports(stdout), stderr.decode(errors="replace"))


def _reports(output: bytes) -> tuple[Started, ...]:
    fields = output.decode(errors="surrogateescape").split("\0")
    reports = []
    while len(fields) > 1:
        cpus, count, *fields = fields
        reports.append(Started(CPUSet.parse(cpus), tuple(fields[: int(count)])))
        fields = fields[int(count) :]
    return tuple(reports)
