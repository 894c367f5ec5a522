"""The node's container cgroups, version 1 or 2: find, read, write.

Paths are relative to the base of the cpuset hierarchy, as `kubepods/burstable/pod.../<id>`. The
rules are the kernel's: Documentation/admin-guide/cgroup-v1/cpusets.rst and
Documentation/admin-guide/cgroup-v2.rst, section "Cpuset".
"""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from enum import Enum
from itertools import accumulate, dropwhile
from pathlib import Path
from typing import TYPE_CHECKING, Final

from cpupool.core.cpuset import CPUSet
from cpupool.core.errors import (
    CgroupNotFound,
    CgroupWriteRejected,
    CPUSetParseError,
    HostError,
    HostFileError,
)
from cpupool.host import cgroup_names
from cpupool.manager.enforce import CgroupNode
from cpupool.manager.ports import FoundContainer

if TYPE_CHECKING:
    from collections.abc import Iterator

_GONE: Final = frozenset({errno.ENOENT, errno.ENODEV})
"""A cgroup that is removed answers ENODEV through a file that is open already."""

_DEEPEST: Final = 64
"""A container that may make cgroups can nest them without end; sane ones stay below ten."""

_LONGEST_LIST_BYTES: Final = 32 * 1024
"""Every second one of 8192 CPUs takes 20 KiB; the kernel gives it in one read."""

_LACKING: Final = "the machine lacks some of these CPUs, or they are offline or exclusive elsewhere"
_HINTS: Final = {
    errno.EACCES: "the cgroup above lacks some of these CPUs, or cpupool may not write here",
    errno.EBUSY: "a cgroup below holds CPUs outside this set",
    errno.EINVAL: _LACKING,
    errno.ERANGE: _LACKING,
    errno.EROFS: "give cpupool the host's cgroups mounted writable",
}


class CgroupVersion(Enum):
    """Which of the kernel's two cgroup interfaces has the cpuset controller."""

    V1 = 1
    V2 = 2


def hierarchy(cgroup: Path) -> tuple[Path, CgroupVersion]:
    """Find the hierarchy that has the cpuset controller: its base and its version.

    Args:
        cgroup: what plays `/sys/fs/cgroup`.

    Raises:
        HostFileError: there is none.
    """
    with suppress(OSError):
        if "cpuset" in (cgroup / "cgroup.controllers").read_text().split():
            return cgroup, CgroupVersion.V2
    if (cgroup / "cpuset" / "cpuset.cpus").exists():
        return cgroup / "cpuset", CgroupVersion.V1
    raise HostFileError(
        str(cgroup),
        "no cgroup v2 with the cpuset controller here, and no cpuset hierarchy of v1 below it",
        "mount one (mount -t cgroup2 none DIR, or mount -t cgroup -o cpuset none DIR/cpuset), "
        "give cpupool the host's /sys/fs/cgroup, and boot without cgroup_disable=cpuset",
    )


class CgroupFS:
    """The cgroup tree of this node's containers; satisfies `manager.ports.CgroupTree`.

    Args:
        cgroup: what plays `/sys/fs/cgroup`.
        cgroup_root: the kubelet's `--cgroup-root`; empty looks in the usual places.

    Raises:
        HostFileError: no hierarchy has the cpuset controller.
    """

    def __init__(self, cgroup: Path, cgroup_root: str = "") -> None:
        base, self._version = hierarchy(cgroup)
        self._base = str(base)
        self._kubepods = cgroup_names.kubepods(cgroup_root)
        # On version 1 a cgroup runs on its own set; on version 2 on what its ancestors leave of it.
        v1 = self._version is CgroupVersion.V1
        self._runs_on = "cpuset.cpus" if v1 else "cpuset.cpus.effective"

    def places(self) -> tuple[Path, ...]:
        """Give the directories where the cgroup of all pods can be, for whoever watches them."""
        return tuple(Path(self._base, place) for place in self._kubepods)

    def containers(self) -> Iterator[FoundContainer]:
        """Walk every directory of every pod, with the CPUs that it runs on now.

        The list is the kernel's text, unread: whoever compares it with a set that prints alike
        needs no parsing. It is empty where no cpuset applies yet. What vanishes meanwhile is left
        out.

        Raises:
            HostFileError: a directory or file is there and cannot be read.
        """
        for place in self._kubepods:
            yield from self._pods_below(place)

    def read(self, path: str) -> tuple[tuple[CgroupNode, ...], CgroupNode]:
        """Read a container's ancestors from kubepods down, and its subtree.

        Raises:
            CgroupNotFound: it has ended.
            HostFileError: a file cannot be read or holds no CPU list.
        """
        below_kubepods = dropwhile(lambda above: above not in self._kubepods, _above(path))
        ancestors = tuple(CgroupNode(above, self._own_set(above)) for above in below_kubepods)
        return ancestors, self._subtree(path, _DEEPEST)

    def effective(self, path: str) -> CPUSet:
        """Read the CPUs that a cgroup runs on.

        Raises:
            CgroupNotFound: it has ended.
            HostFileError: the file cannot be read or holds no CPU list.
        """
        return self._parsed(path, self._runs_on)

    def write(self, path: str, cpus: CPUSet) -> None:
        """Write one cgroup's cpuset, and whatever it needs before it can have one.

        Raises:
            CgroupNotFound: it has ended.
            CgroupWriteRejected: the kernel refuses the value.
            HostFileError: what it needs cannot be read.
            ValueError: `cpus` is empty: the kernel would take "no CPU" or "all of the parent's".
        """
        if not cpus:
            raise ValueError(f"{path}: an empty CPU set is never written")
        if self._version is CgroupVersion.V1:
            self._provide_memory(path)
        else:
            self._provide_controller(path)
        self._put(path, "cpuset.cpus", str(cpus))

    def _pods_below(self, level: str) -> Iterator[FoundContainer]:
        for name in self._directories(level):
            pod = cgroup_names.pod_id(name)
            if pod is not None:
                yield from self._containers_of(pod, f"{level}/{name}")
            elif cgroup_names.is_qos_level(name):
                yield from self._pods_below(f"{level}/{name}")

    def _containers_of(self, pod: str, directory: str) -> Iterator[FoundContainer]:
        for name in self._directories(directory):
            path = f"{directory}/{name}"
            try:
                cpus = self._text(path, self._runs_on)
            except CgroupNotFound:
                continue
            yield FoundContainer(pod, cgroup_names.container_id(name), path, cpus)

    def _subtree(self, path: str, levels: int) -> CgroupNode:
        if not levels:
            raise HostFileError(
                path, f"nested deeper than {_DEEPEST} cgroups", "end the container that nests them"
            )
        children: list[CgroupNode] = []
        for name in self._directories(path):
            with suppress(CgroupNotFound):
                children.append(self._subtree(f"{path}/{name}", levels - 1))
        return CgroupNode(path, self._own_set(path), tuple(children))

    def _directories(self, path: str) -> list[str]:
        try:
            with os.scandir(f"{self._base}/{path}") as entries:
                return [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
        except OSError as error:
            if error.errno in _GONE:
                return []
            raise _unreadable(self._file(path, ""), error) from error

    def _own_set(self, path: str) -> CPUSet:
        return self._parsed(path, "cpuset.cpus")

    def _parsed(self, path: str, name: str) -> CPUSet:
        text = self._text(path, name)
        try:
            return CPUSet.parse(text)
        except CPUSetParseError as error:
            raise HostFileError(
                self._file(path, name), str(error), "write a list of CPUs there, as 0-3"
            ) from error

    def _text(self, path: str, name: str) -> str:
        """Read a file of a cgroup; the cgroups of version 2 need not have any of the cpuset's."""
        try:
            descriptor = os.open(f"{self._base}/{path}/{name}", os.O_RDONLY)
            try:
                return os.read(descriptor, _LONGEST_LIST_BYTES).decode("ascii", "replace").strip()
            finally:
                os.close(descriptor)
        except OSError as error:
            if error.errno not in _GONE:
                raise _unreadable(self._file(path, name), error) from error
            if self._version is CgroupVersion.V2 and Path(self._base, path).is_dir():
                return ""
            raise CgroupNotFound(path) from error

    def _provide_memory(self, path: str) -> str:
        """Fill an empty `cpuset.mems` from the parent's: no task can enter before.

        See Documentation/admin-guide/cgroup-v1/cpusets.rst, section 2.1.
        """
        mems = self._text(path, "cpuset.mems")
        if not mems and path:
            mems = self._provide_memory(path.rpartition("/")[0])
            self._put(path, "cpuset.mems", mems)
        return mems

    def _provide_controller(self, path: str) -> None:
        """Enable the cpuset controller for a cgroup that has none, from the base down.

        See Documentation/admin-guide/cgroup-v2.rst, section "Controlling Controllers".
        """
        directory = Path(self._base, path)
        if directory.is_dir() and not (directory / "cpuset.cpus").exists():
            for above in ("", *_above(path)):
                self._put(above, "cgroup.subtree_control", "+cpuset")

    def _put(self, path: str, name: str, text: str) -> None:
        try:
            # Not created: a cgroup's files come with it. Cut for the sake of ordinary files.
            descriptor = os.open(f"{self._base}/{path}/{name}", os.O_WRONLY | os.O_TRUNC)
            try:
                os.write(descriptor, text.encode())
            finally:
                os.close(descriptor)
        except OSError as error:
            if error.errno in _GONE:
                raise CgroupNotFound(path) from error
            number = error.errno or errno.EIO
            raise CgroupWriteRejected(path, text, number, _explained(name, number)) from error

    def _file(self, path: str, name: str) -> str:
        return f"{self._base}/{path}/{name}"


def _above(path: str) -> Iterator[str]:
    return accumulate(path.split("/")[:-1], "{}/{}".format)


def _unreadable(file: str, error: OSError) -> HostError:
    return HostFileError(
        file, error.strerror or str(error), "run cpupool as root with the host's cgroups"
    )


def _explained(name: str, number: int) -> str:
    if name == "cgroup.subtree_control":
        hint = "this cgroup must not hold processes of its own to pass the controller on"
    else:
        hint = _HINTS.get(number, "see cpuset(7)")
    return f"{name}: {os.strerror(number)}; {hint}"
