"""The host's processes and the CPUs on which they may run, from procfs.

`Cpus_allowed_list` is what the kernel uses: the process's own affinity, cut to its cpuset.

Kernel document: Documentation/filesystems/proc.rst; cgroups(7) for /proc/PID/cgroup.
"""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Final

from cpupool.core.cpuset import CPUSet
from cpupool.host.cgroupfs import CgroupVersion, hierarchy

if TYPE_CHECKING:
    from collections.abc import Iterator

SYSTEM_SLICE: Final = "system.slice"
"""The cgroup in which systemd starts services."""
NAME: Final = "Name"
ALLOWED: Final = "Cpus_allowed_list"
_THREADS: Final = frozenset({"cgroup.threads", "tasks"})
"""The names of version 2 and of version 1."""
_RUNTIMES: Final = frozenset(
    {"containerd", "containerd-shim", "crio", "conmon", "conmonrs", "dockerd", "kubelet"}
)
"""The kernel's names of these programs, which it cuts to 15 characters."""


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


@dataclass(frozen=True, slots=True)
class RuntimeProcess:
    """One process that starts containers, or the kubelet.

    Attributes:
        pid: its id.
        name: the kernel's name of the process.
        cpus: the CPUs that its main thread may run on.
        cpuset: the CPUs of its cgroup.
    """

    pid: int
    name: str
    cpus: CPUSet
    cpuset: CPUSet


def runtimes(proc: Path, cgroup: Path) -> Iterator[RuntimeProcess]:
    """Yield the processes of container runtimes and the kubelet that are in sight.

    Args:
        proc: the folder that stands for /proc.
        cgroup: the folder that stands for /sys/fs/cgroup.

    Raises:
        HostFileError: no hierarchy has the cpuset controller.
    """
    base, version = hierarchy(cgroup)
    for folder in proc.glob("[0-9]*"):
        with suppress(OSError, KeyError, ValueError):
            status = _status((folder / "status").read_text("utf-8", "replace"))
            if status[NAME] in _RUNTIMES:
                cgroups = (folder / "cgroup").read_text("utf-8", "replace")
                cpuset = _cpuset(base, version, cgroups)
                cpus = CPUSet.parse(status[ALLOWED])
                yield RuntimeProcess(int(folder.name), status[NAME], cpus, cpuset)


def threads(proc: Path, cgroup: Path) -> CPUSet:
    """Return the CPUs on which threads of a cgroup and of those below may run; none if it is empty.

    Args:
        proc: the folder that stands for /proc.
        cgroup: the cgroup's folder.
    """
    return CPUSet.union(affinities(proc, cgroup))


def affinities(proc: Path, cgroup: Path) -> Iterator[CPUSet]:
    """Yield the CPUs on which each thread of a cgroup and of those below may run.

    The set is empty for a thread that is not in sight, as in a container without the host's
    processes, where its id is 0. It is also empty for a thread that ends meanwhile: it may have
    started another one, which is not in the list.

    Args:
        proc: the folder that stands for /proc.
        cgroup: the cgroup's folder.
    """
    for folder, _, names in os.walk(cgroup):
        for name in _THREADS.intersection(names):
            for thread in _listed(Path(folder, name)):
                allowed = CPUSet()
                with suppress(OSError, KeyError, ValueError):
                    text = (proc / thread / "status").read_text("utf-8", "replace")
                    allowed = CPUSet.parse(_status(text)[ALLOWED])
                yield allowed


def _listed(file: Path) -> list[str]:
    with suppress(OSError):
        return file.read_text().split()
    return []


def command_lines(proc: Path, *programs: str) -> Iterator[tuple[str, ...]]:
    """Yield the command line of each process of some programs, whatever their folders.

    Args:
        proc: the folder that stands for /proc.
        programs: the names of the programs' files.
    """
    for folder in proc.glob("[0-9]*"):
        with suppress(OSError):
            text = (folder / "cmdline").read_text("utf-8", "replace")
            first, *words = text.rstrip("\0").split("\0")
            if first.rpartition("/")[2] in programs:
                yield (first, *words)


def _unit(cgroups: str) -> str:
    """Find the service in the lines `hierarchy:controllers:path` of /proc/PID/cgroup."""
    for line in cgroups.splitlines():
        _, top, *below = line.split(":", 2)[-1].split("/")
        # A runtime without the systemd driver may keep pods below its own service.
        if top == SYSTEM_SLICE and below and not any("kubepods" in part for part in below):
            return next((part for part in below if part.endswith(".service")), below[-1])
    return ""


def _cpuset(base: Path, version: CgroupVersion, cgroups: str) -> CPUSet:
    """Find the CPUs of a process's cgroup, from the lines of /proc/PID/cgroup.

    On version 2 a cgroup without the controller has the CPUs of the next one above.
    """
    v1 = version is CgroupVersion.V1
    for line in cgroups.splitlines():
        _, controllers, path = line.split(":", 2)
        if ("cpuset" in controllers.split(",")) if v1 else not controllers:
            for place in (path, *map(str, PurePosixPath(path).parents)):
                with suppress(FileNotFoundError):
                    name = "cpuset.cpus" if v1 else "cpuset.cpus.effective"
                    return CPUSet.parse((base / place.lstrip("/") / name).read_text())
    return CPUSet()


def _status(text: str) -> dict[str, str]:
    pairs = (line.partition(":") for line in text.splitlines())
    return {key: value.strip() for key, _, value in pairs}
