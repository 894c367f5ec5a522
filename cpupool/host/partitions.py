"""CPUs without the scheduler's load balancing: isolated partitions of cgroup version 2.

Source: Documentation/admin-guide/cgroup-v2.rst, section "Cpuset". A partition far from the root is
a *remote* one (Linux 6.7). Its CPUs are handed down to it: every cgroup on the way lists them in
its `cpuset.cpus.exclusive`, and it names its own there before `isolated` is written into its
`cpuset.cpus.partition`. From then on

* its `cpuset.cpus.effective` is what it lists as exclusive, as far as that is online. Its
  `cpuset.cpus` counts no more, so whoever writes that does not move it, neither does cpupool;
* the CPUs leave the `cpuset.cpus.effective` of all others, those above it and the root included,
  and come back when it is a member again or its cgroup is removed. What lists other CPUs, or none,
  goes on as before;
* it outlives its CPUs going offline as long as one is left. Without any it is invalid, and stays
  so when they come back, until `isolated` is written again.

The kernel asks for the capability SYS_ADMIN where `isolated` is written, beside the file's owner.

What the document does not say, seen with Linux 6.12: a cgroup beside it, in the same pod, whose
`cpuset.cpus` overlaps stands in its way. A sibling that is *written* so later makes it
`isolated invalid`; the kernel then goes on to hold its CPUs back until `member` is written, and
until the next boot if its cgroup is removed before. So `member` is always written first, also into
one that is invalid.
"""

from __future__ import annotations

import errno
from contextlib import suppress
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Final

from cpupool.core.errors import (
    CgroupNotFound,
    CgroupWriteRejected,
    HostError,
)
from cpupool.host import cgroup_names, kernel
from cpupool.host.cgroup_files import CgroupFiles, above
from cpupool.host.cgroupfs import CgroupVersion, hierarchy
from cpupool.manager.ports import ISOLATED, Partition
from cpupool.telemetry import log as logs

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from cpupool.core.cpuset import CPUSet

log = logs.get(__name__)

_EXCLUSIVE: Final = "cpuset.cpus.exclusive"
_GRANTED: Final = "cpuset.cpus.exclusive.effective"
_PARTITION: Final = "cpuset.cpus.partition"
FILES: Final = frozenset({_EXCLUSIVE, _PARTITION})
"""The names of the files that make a partition."""
_MEMBER: Final = "member"
_FORBIDDEN: Final = "not permitted"
_PERMIT: Final = "give the agent the capability SYS_ADMIN"
_FREE: Final = "see that no cgroup beside it has some of these CPUs"
_HINTS: Final = {
    errno.EACCES: "run cpupool as root",
    errno.EINVAL: _FREE,
    errno.EROFS: "give cpupool the host's cgroups mounted writable",
}


class Partitions:
    """The isolated partitions of this node's containers; satisfies `manager.ports.PartitionTree`.

    Args:
        cgroup: what plays `/sys/fs/cgroup`.
        release: the kernel's, as `uname -r` prints it.
        cgroup_root: the kubelet's `--cgroup-root`; empty looks in the usual places.

    Attributes:
        obstacle: why there can be no such partition here; empty where there can.

    Raises:
        HostFileError: no hierarchy has the cpuset controller.
    """

    def __init__(self, cgroup: Path, release: str, cgroup_root: str = "") -> None:
        base, version = hierarchy(cgroup)
        self._files = CgroupFiles(base, _HINTS, "see cgroups(7)")
        self._kubepods = cgroup_names.kubepods(cgroup_root)
        self.obstacle = ""
        if version is CgroupVersion.V1:
            self.obstacle = "this node has cgroup version 1"
        elif not kernel.isolates_remotely(release):
            self.obstacle = f"this node's kernel {release} is older than 6.7"

    def reserved(self) -> Iterator[tuple[str, CPUSet]]:
        """Walk the cgroups that have exclusive CPUs which no cgroup below them has.

        Those are containers, and what lies above containers that have ended.

        Raises:
            HostFileError: a file cannot be read or holds no CPU list.
        """
        for place in self._kubepods:
            yield from self._reserved(place)

    def partition(self, path: str) -> Partition:
        """Read what a cgroup is.

        Raises:
            CgroupNotFound: it has ended.
            HostFileError: a file cannot be read or holds no CPU list.
        """
        return Partition(self._files.read(path, _PARTITION), self._files.cpus(path, _EXCLUSIVE))

    def isolate(self, path: str, cpus: CPUSet) -> None:
        """Make a cgroup an isolated partition of exactly these CPUs, or leave all as it was.

        Args:
            path: the cgroup; it runs on these CPUs already.
            cpus: they may be offline, but for one.

        Raises:
            CgroupNotFound: it has ended.
            CgroupWriteRejected: the kernel refuses; `errno` is 0 where only the state tells why.
            HostFileError: a file cannot be read or holds no CPU list.
        """
        undo: list[tuple[str, CPUSet]] = []
        try:
            self._files.write(path, _PARTITION, _MEMBER)
            for one in (*reversed(above(path)), path):
                before = self._files.cpus(one, _EXCLUSIVE)
                after = cpus if one == path else before | cpus
                if after != before:
                    self._files.write(one, _EXCLUSIVE, str(after))
                    undo.append((one, before))
            self._files.write(path, _PARTITION, ISOLATED)
            self._verify(path, cpus)
        except HostError:
            self._put_back(path, undo)
            raise

    def release(self, path: str, cpus: CPUSet) -> None:
        """Make a cgroup an ordinary one again, if it is there, and take its CPUs from those above.

        Args:
            path: the cgroup.
            cpus: what it has for itself.

        Raises:
            CgroupWriteRejected: the kernel refuses.
            HostFileError: a file cannot be read or holds no CPU list.
        """
        with suppress(CgroupNotFound):
            self._files.write(path, _PARTITION, _MEMBER)
        # From the leaf up, so that no partition lacks for a moment what it lists.
        for one in (path, *above(path)):
            with suppress(CgroupNotFound):
                before = self._files.cpus(one, _EXCLUSIVE)
                if not before.isdisjoint(cpus):
                    self._files.write(one, _EXCLUSIVE, str(before - cpus))

    def _reserved(self, path: str) -> Iterator[tuple[str, CPUSet]]:
        container = cgroup_names.pod_id(PurePosixPath(path).parent.name) is not None
        try:
            left = self._files.cpus(path, _EXCLUSIVE)
            # A partition above containers is the administrator's.
            if left and not container and self._files.read(path, _PARTITION) != _MEMBER:
                return
        except CgroupNotFound:
            return
        # What is nested in a container is its own affair.
        if left and not container:
            for name in self._files.directories(path):
                for below, cpus in self._reserved(f"{path}/{name}"):
                    yield below, cpus
                    left -= cpus
        if left:
            yield path, left

    def _verify(self, path: str, cpus: CPUSet) -> None:
        state = self._files.read(path, _PARTITION)
        granted = self._files.cpus(path, _GRANTED)
        # Of CPUs of which another has some the kernel grants the rest.
        if state == ISOLATED and granted == cpus:
            return
        hint = _PERMIT if _FORBIDDEN in state else _FREE
        why = f"{_PARTITION} is {state!r} then, with {granted or 'none'} of {cpus}; {hint}"
        raise CgroupWriteRejected(path, ISOLATED, 0, why)

    def _put_back(self, path: str, undo: list[tuple[str, CPUSet]]) -> None:
        try:
            with suppress(CgroupNotFound):
                self._files.write(path, _PARTITION, _MEMBER)
            for one, before in reversed(undo):
                with suppress(CgroupNotFound):
                    self._files.write(one, _EXCLUSIVE, str(before))
        except HostError as error:
            log.warning("partition not put back", cgroup=path, error=error)
