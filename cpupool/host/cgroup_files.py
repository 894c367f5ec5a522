"""Reads and writes the files of cgroups, and turns the kernel's errors into ours with a remedy."""

from __future__ import annotations

import errno
import os
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Final

from cpupool.core.cpuset import CPUSet
from cpupool.core.errors import (
    CgroupNotFound,
    CgroupWriteRejected,
    CPUPoolError,
    CPUSetParseError,
    HostFileError,
)
from cpupool.host import cgroup_names

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

_GONE: Final = frozenset({errno.ENOENT, errno.ENODEV})
"""An open file of a removed cgroup answers ENODEV."""
_LONGEST_BYTES: Final = 32 * 1024
"""A list of every second of 8192 CPUs takes 20 KiB; the kernel returns it in one read."""


class CgroupFiles:
    """The files below one base.

    Args:
        base: the base of a cgroup hierarchy; paths are relative to it.
        hints: errno of a refused write → what to do.
        otherwise: what to do after any other errno.
    """

    def __init__(self, base: Path, hints: Mapping[int, str], otherwise: str) -> None:
        self._base = str(base)
        self._hints = hints
        self._otherwise = otherwise

    def read(self, path: str, name: str) -> str:
        """Read a file, without the space around its text.

        Raises:
            CgroupNotFound: it is not there.
            HostFileError: it cannot be read.
        """
        try:
            descriptor = os.open(f"{self._base}/{path}/{name}", os.O_RDONLY)
            try:
                return os.read(descriptor, _LONGEST_BYTES).decode("ascii", "replace").strip()
            finally:
                os.close(descriptor)
        except OSError as error:
            raise self._unreadable(error, path, name) from error

    def cpus(self, path: str, name: str) -> CPUSet:
        """Read a file that holds a list of CPUs.

        Raises:
            CgroupNotFound: it is not there.
            HostFileError: it cannot be read or holds no CPU list.
        """
        try:
            return CPUSet.parse(self.read(path, name))
        except CPUSetParseError as error:
            raise HostFileError(
                f"{self._base}/{path}/{name}", str(error), "write a list of CPUs there, as 0-3"
            ) from error

    def write(self, path: str, name: str, text: str) -> None:
        """Write a file; an empty text clears it.

        Raises:
            CgroupNotFound: it is not there.
            CgroupWriteRejected: the kernel refuses the text.
        """
        try:
            # No O_CREAT: the kernel creates a cgroup's files. O_TRUNC is for emulated cgroups.
            descriptor = os.open(f"{self._base}/{path}/{name}", os.O_WRONLY | os.O_TRUNC)
            try:
                # The kernel ignores an empty write.
                os.write(descriptor, text.encode() or b"\n")
            finally:
                os.close(descriptor)
        except OSError as error:
            if error.errno in _GONE:
                raise CgroupNotFound(path) from error
            number = error.errno or errno.EIO
            hint = self._hints.get(number, self._otherwise)
            why = f"{name}: {os.strerror(number)}; {hint}"
            raise CgroupWriteRejected(path, text, number, why) from error

    def directories(self, path: str) -> list[str]:
        """Return the names of the cgroups in a cgroup; none where it no longer exists.

        Raises:
            HostFileError: they cannot be read.
        """
        try:
            with os.scandir(f"{self._base}/{path}") as entries:
                return [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
        except OSError as error:
            if error.errno in _GONE:
                return []
            raise self._unreadable(error, path) from error

    def _unreadable(self, error: OSError, *below: str) -> CPUPoolError:
        if error.errno in _GONE:
            return CgroupNotFound(below[0])
        return HostFileError(
            "/".join((self._base, *below)),
            error.strerror or str(error),
            "run cpupool as root with the host's cgroups",
        )


def above(path: str) -> tuple[str, ...]:
    """Return the cgroups above a cgroup, the nearest first, without the base."""
    return tuple(str(parent) for parent in PurePosixPath(path).parents)[:-1]


def levels(files: CgroupFiles, level: str) -> Iterator[tuple[str, str]]:
    """Walk the directories of QoS classes and pods; yield the parent and the name of each."""
    for name in files.directories(level):
        qos = cgroup_names.is_qos_level(name)
        if qos or cgroup_names.pod_id(name) is not None:
            yield level, name
        if qos:
            yield from levels(files, f"{level}/{name}")


def pods_below(files: CgroupFiles, level: str) -> Iterator[tuple[str, str]]:
    """Walk the directories of pods; yield the id in the name, and the path, of each."""
    for parent, name in levels(files, level):
        pod = cgroup_names.pod_id(name)
        if pod is not None:
            yield pod, f"{parent}/{name}"
