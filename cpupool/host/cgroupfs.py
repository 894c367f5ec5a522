"""The node's container cgroups, version 1 or 2: find, read, write.

Paths are relative to the base of the cpuset hierarchy, as `kubepods/burstable/pod.../<id>`. The
rules are the kernel's: Documentation/admin-guide/cgroup-v1/cpusets.rst and
Documentation/admin-guide/cgroup-v2.rst, section "Cpuset".
"""

from __future__ import annotations

import errno
import threading
from contextlib import suppress
from enum import Enum
from itertools import dropwhile
from typing import TYPE_CHECKING, ClassVar, Final

from cpupool.core.cgroups import POD_ITSELF, CgroupNode, FoundContainer
from cpupool.core.cpuset import CPUSet
from cpupool.core.errors import CgroupNotFound, CgroupWriteRejected, HostFileError
from cpupool.host import cgroup_names
from cpupool.host.cgroup_files import CgroupFiles, above, levels, pods_below

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

_DEEPEST: Final = 64
"""A limit: a container that may make cgroups can nest them without end; ten levels are many."""

_LACKING: Final = "the machine lacks some of these CPUs, or they are offline or exclusive elsewhere"
_HINTS: Final = {
    errno.EACCES: "the cgroup above lacks some of these CPUs, or cpupool may not write here",
    errno.EBUSY: "a cgroup below holds CPUs outside this set",
    errno.EINVAL: _LACKING,
    errno.ERANGE: _LACKING,
    errno.EROFS: "give cpupool the host's cgroups mounted writable",
}
_NO_PROCESSES: Final = "this cgroup must not hold processes of its own to pass the controller on"


class CgroupVersion(Enum):
    """The one of the kernel's two cgroup interfaces that has the cpuset controller."""

    V1 = 1
    V2 = 2


def hierarchy(cgroup: Path) -> tuple[Path, CgroupVersion]:
    """Find the hierarchy that has the cpuset controller: its base and its version.

    Args:
        cgroup: the folder that stands for `/sys/fs/cgroup`.

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


class _Lost(Enum):
    """The loss of a container since it had a set."""

    NOTHING = "nothing"
    CPUS = "CPUs"
    """Its set is empty. The kernel moves its processes a moment later; an emulated file is empty
    during a write, which moves nothing."""
    PROCESSES = "processes"


class CgroupFS:
    """The cgroup tree of this node's containers; satisfies `enforce.ports.CgroupTree`.

    Any thread may call it; all threads share what one has seen of a container.

    Args:
        cgroup: the folder that stands for `/sys/fs/cgroup`.
        cgroup_root: the kubelet's `--cgroup-root`; empty for the usual places.

    Raises:
        HostFileError: no hierarchy has the cpuset controller.
    """

    _list: ClassVar[str] = "cpuset.cpus"
    _hints: ClassVar[Mapping[int, str]] = _HINTS

    def __init__(self, cgroup: Path, cgroup_root: str = "") -> None:
        base, self._version = hierarchy(cgroup)
        self._base = base
        self._files = CgroupFiles(base, self._hints, "see cpuset(7)")
        self._controllers = CgroupFiles(base, {}, _NO_PROCESSES)
        self._kubepods = cgroup_names.kubepods(cgroup_root)
        # On version 1 a cgroup runs on its own set; on version 2 its ancestors may reduce the set.
        v1 = self._version is CgroupVersion.V1
        self._runs_on = self._list if v1 else f"{self._list}.effective"
        # Container that had a set → what it has lost since. Version 1 only.
        self._lost: dict[str, _Lost] = {}
        self._lock = threading.Lock()

    def places(self) -> tuple[Path, ...]:
        """Return the directories where the cgroup of all pods can be, to watch them."""
        return tuple(self._base / place for place in self._kubepods)

    def relative(self, directory: Path) -> str:
        """Return the path of a directory as the other methods take it."""
        return str(directory.relative_to(self._base))

    def directory(self, path: str) -> Path:
        """Return the directory of a path as the other methods take it."""
        return self._base / path

    def containers(
        self, known: Mapping[str, Sequence[FoundContainer]] | None = None
    ) -> Iterator[FoundContainer]:
        """Walk every directory of every pod, with the CPUs that it runs on now.

        The list is the kernel's unparsed text, which a caller can compare with the text of a set.
        It is empty where no cpuset applies yet. Directories that vanish meanwhile are left out.

        On version 1 the kernel moves the processes of a container that has lost its last CPU into
        the pod's own directory, a moment later, and never back. So the pod's directory comes, too,
        after the pod's containers, while such a container exists. The `cgroup.procs` of the pod
        cannot show this: it leaves out processes of other PID namespaces.

        Args:
            known: the directory of a pod → its content, which this method does not read again.

        Raises:
            HostFileError: a directory or file is there and cannot be read.
        """
        with self._lock:
            gone = set(self._lost)
        for place in self._kubepods:
            for pod, directory in pods_below(self._files, place):
                there = known and known.get(directory)
                for found in there or self._containers_of(pod, directory):
                    gone.discard(found.path)
                    yield found
        with self._lock:
            for path in gone:
                self._lost.pop(path, None)

    def read(self, path: str) -> tuple[tuple[CgroupNode, ...], CgroupNode]:
        """Read a container's ancestors, and its subtree.

        On version 2 the ancestors start at kubepods: the cgroups above are the admin's. On version
        1 they are all cgroups below the base, because the kernel gives a CPU that comes back only
        to the base.

        Raises:
            CgroupNotFound: it has ended.
            HostFileError: a file cannot be read or is not a CPU list.
        """
        counted = reversed(above(path))
        if self._version is CgroupVersion.V2:
            counted = dropwhile(lambda cgroup: cgroup not in self._kubepods, counted)
        ancestors = tuple(CgroupNode(cgroup, self._own_set(cgroup)) for cgroup in counted)
        node = self._subtree(path, _DEEPEST)
        self._note(path, node.cpus)
        return ancestors, node

    def effective(self, path: str) -> CPUSet:
        """Read the CPUs that a cgroup runs on.

        Raises:
            CgroupNotFound: it has ended.
            HostFileError: the file cannot be read or is not a CPU list.
        """
        return self._cpus(path, self._runs_on)

    def write(self, path: str, cpus: CPUSet) -> None:
        """Write one cgroup's cpuset, and first the controller or memory nodes that it needs.

        Raises:
            CgroupNotFound: it has ended.
            CgroupWriteRejected: the kernel refuses the value, or the cgroup is kubepods on version
                2: only the admin limits that one.
            HostFileError: a file that it needs cannot be read.
            ValueError: `cpus` is empty, which means "no CPU" or "all of the parent's CPUs".
        """
        if not cpus:
            raise ValueError(f"{path}: an empty set is never written")
        if self._version is CgroupVersion.V2 and path in self._kubepods:
            why = f"{self._list}: only its admin widens it; add these CPUs there"
            raise CgroupWriteRejected(path, str(cpus), errno.EPERM, why)
        if self._version is CgroupVersion.V1:
            self._provide_memory(path)
        else:
            self._provide_controller(path)
        self._files.write(path, self._list, str(cpus))

    def make_room(self, online: CPUSet, of_pod: Callable[[str], CPUSet]) -> None:
        """Add CPUs that came back online to the cgroups above containers.

        On version 1 the kernel removes an offline CPU from every set, and returns it only to the
        base: a runtime could not create a container on it. CPUs that the base lacks are left out.

        Args:
            online: the CPUs for the cgroups above pods.
            of_pod: the id in a pod's cgroup name → the CPUs for the pod's cgroup.

        Raises:
            CgroupWriteRejected: the kernel refuses a value.
            HostFileError: a file cannot be read or is not a CPU list.
        """
        if self._version is CgroupVersion.V2:
            return
        online &= self._own_set("")
        for place in self._kubepods:
            for cgroup in (*reversed(above(place)), place):
                self._widen(cgroup, online)
            for level, name in levels(self._files, place):
                pod = cgroup_names.pod_id(name)
                self._widen(f"{level}/{name}", online if pod is None else of_pod(pod) & online)

    def _widen(self, path: str, cpus: CPUSet) -> None:
        with suppress(CgroupNotFound):
            own = self._own_set(path)
            if own and not cpus <= own:
                self.write(path, own | cpus)

    def _containers_of(self, pod: str, directory: str) -> Iterator[FoundContainer]:
        moved = False
        for name in self._files.directories(directory):
            path = f"{directory}/{name}"
            try:
                cpus = self._text(path, self._runs_on)
                self._note(path, cpus)
            except CgroupNotFound:
                continue
            moved |= self._lost.get(path) is _Lost.PROCESSES
            yield FoundContainer(pod, cgroup_names.container_id(name), path, cpus)
        if moved:
            with suppress(CgroupNotFound):
                cpus = self._text(directory, self._runs_on)
                yield FoundContainer(pod, POD_ITSELF, directory, cpus)

    def _note(self, path: str, cpus: str | CPUSet) -> None:
        if self._version is CgroupVersion.V2:
            return
        with self._lock:
            lost = self._lost.get(path)
            # A directory that never had a set is new: the runtime has not filled it yet.
            if lost is None and cpus:
                self._lost[path] = _Lost.NOTHING
            if lost is _Lost.NOTHING and not cpus:
                lost = self._lost[path] = _Lost.CPUS
            if lost is _Lost.CPUS and not self._has_processes(path):
                self._lost[path] = _Lost.PROCESSES

    def _has_processes(self, path: str) -> bool:
        try:
            return bool(self._files.read(path, "cgroup.procs"))
        except CgroupNotFound:
            return False

    def _subtree(self, path: str, levels: int) -> CgroupNode:
        if not levels:
            raise HostFileError(
                path, f"nested deeper than {_DEEPEST} cgroups", "end the container that nests them"
            )
        children: list[CgroupNode] = []
        for name in self._files.directories(path):
            with suppress(CgroupNotFound):
                children.append(self._subtree(f"{path}/{name}", levels - 1))
        return CgroupNode(path, self._own_set(path), tuple(children))

    def _own_set(self, path: str) -> CPUSet:
        return self._cpus(path, self._list)

    def _cpus(self, path: str, name: str) -> CPUSet:
        try:
            return self._files.cpus(path, name)
        except CgroupNotFound:
            if self._has_no_cpusets(path):
                return CPUSet()
            raise

    def _text(self, path: str, name: str) -> str:
        try:
            return self._files.read(path, name)
        except CgroupNotFound:
            if self._has_no_cpusets(path):
                return ""
            raise

    def _has_no_cpusets(self, path: str) -> bool:
        """Return whether a cgroup exists without the cpuset's files, which version 2 allows."""
        return self._version is CgroupVersion.V2 and (self._base / path).is_dir()

    def _provide_memory(self, path: str) -> str:
        """Fill an empty `cpuset.mems` from the parent's: otherwise no task can enter.

        See Documentation/admin-guide/cgroup-v1/cpusets.rst, section 2.1.
        """
        mems = self._text(path, "cpuset.mems")
        if not mems and path:
            mems = self._provide_memory(path.rpartition("/")[0])
            self._files.write(path, "cpuset.mems", mems)
        return mems

    def _provide_controller(self, path: str) -> None:
        """Enable the cpuset controller for a cgroup without it, from the base down.

        See Documentation/admin-guide/cgroup-v2.rst, section "Controlling Controllers".
        """
        directory = self._base / path
        if directory.is_dir() and not (directory / "cpuset.cpus").exists():
            for cgroup in ("", *reversed(above(path))):
                self._controllers.write(cgroup, "cgroup.subtree_control", "+cpuset")
