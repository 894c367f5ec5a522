"""The host's own daemons and the CPUs on which they may run, from procfs.

Kernel document: Documentation/filesystems/proc.rst; cgroups(7) for /proc/PID/cgroup.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from cpupool.core.cpuset import CPUSet

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SYSTEM_SLICE: Final = "system.slice"
"""The cgroup in which systemd starts services."""
NAME: Final = "Name"
ALLOWED: Final = "Cpus_allowed_list"


@dataclass(frozen=True, slots=True)
class Daemon:
    """One process of a service.

    Attributes:
        pid: its id.
        unit: the service, as `sshd.service`.
        name: the kernel's name of the process.
        cpus: the CPUs that its main thread may run on.
    """

    pid: int
    unit: str
    name: str
    cpus: CPUSet


def daemons(proc: Path) -> Iterator[Daemon]:
    """Yield the processes of services, without those of pods and those that end meanwhile.

    There are none where the host's processes are not visible, as in a container.

    Args:
        proc: the folder that stands for /proc.
    """
    for folder in proc.glob("[0-9]*"):
        with suppress(OSError, KeyError, ValueError):
            unit = _unit((folder / "cgroup").read_text("utf-8", "replace"))
            if unit:
                status = _status((folder / "status").read_text("utf-8", "replace"))
                cpus = CPUSet.parse(status[ALLOWED])
                yield Daemon(int(folder.name), unit, status[NAME], cpus)


def command_lines(proc: Path, program: str) -> Iterator[tuple[str, ...]]:
    """Yield the command line of each process of a program, whatever its folder.

    Args:
        proc: the folder that stands for /proc.
        program: the name of the program's file.
    """
    for folder in proc.glob("[0-9]*"):
        with suppress(OSError):
            first, *words = (folder / "cmdline").read_text("utf-8", "replace").split("\0")
            if first.rpartition("/")[2] == program:
                yield (first, *filter(None, words))


def _unit(cgroups: str) -> str:
    """Find the service in the lines `hierarchy:controllers:path` of /proc/PID/cgroup."""
    for line in cgroups.splitlines():
        _, top, *below = line.split(":", 2)[-1].split("/")
        # A runtime without the systemd driver may keep pods below its own service.
        if top == SYSTEM_SLICE and below and not any("kubepods" in part for part in below):
            return next((part for part in below if part.endswith(".service")), below[-1])
    return ""


def _status(text: str) -> dict[str, str]:
    pairs = (line.partition(":") for line in text.splitlines())
    return {key: value.strip() for key, _, value in pairs}
