"""CPUs without the scheduler's load balancing: isolated partitions of cgroup version 2.

Source: Documentation/admin-guide/cgroup-v2.rst, section "Cpuset". A partition below other cgroups
is a *remote* partition (Linux 6.7). Every cgroup above it lists its CPUs in
`cpuset.cpus.exclusive`, and the partition lists its own CPUs there before the agent writes
`isolated` into its `cpuset.cpus.partition`. Then

* its `cpuset.cpus.effective` has the online CPUs that it lists as exclusive. Its `cpuset.cpus` has
  no effect any more: a write there, also by cpupool, does not move it;
* the CPUs leave the `cpuset.cpus.effective` of all other cgroups, also of those above it and of the
  root, and come back when it is a member again or its cgroup is removed. Cgroups that list other
  CPUs, or none, do not change;
* it stays valid while one of its CPUs is online. Without an online CPU it is invalid, and stays
  invalid when they come back, until the agent writes `isolated` again.

For a write of `isolated` the kernel requires the capability SYS_ADMIN and the right to the file.

The document does not say this, seen with Linux 6.12: a sibling cgroup in the same pod with an
overlapping `cpuset.cpus` prevents the partition. If a later write makes a sibling overlap, the
partition becomes `isolated invalid`; the kernel then withholds its CPUs until `member` is written,
or until the next boot if its cgroup is removed before. So the agent always writes `member` first,
also into an invalid partition.

Linux 6.12 blocks for ever if a partition changes the CPUs of unbound workqueues while a process
moves to another cgroup. The writer of the partition holds the lock of cpusets and waits for a new
kernel thread; kthreadd waits for the lock of forks; the mover holds that one and waits for the lock
of cpusets. No process can start any more. So the agent makes no partition of CPUs on which unbound
workqueues may run (Documentation/core-api/workqueue.rst, `workqueue.unbound_cpus`).
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
    PartitionUnsafe,
)
from cpupool.enforce.ports import ISOLATED, Partition
from cpupool.host import cgroup_names, kernel
from cpupool.host.cgroup_files import CgroupFiles, above
from cpupool.host.cgroupfs import CgroupVersion, hierarchy
from cpupool.host.sysfs import Sysfs
from cpupool.telemetry import log as logs

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cpupool.core.cpuset import CPUSet
    from cpupool.host.root import HostRoot

log = logs.get(__name__)

_EXCLUSIVE: Final = "cpuset.cpus.exclusive"
_GRANTED: Final = "cpuset.cpus.exclusive.effective"
_PARTITION: Final = "cpuset.cpus.partition"
FILES: Final = frozenset({_EXCLUSIVE, _PARTITION})
"""The names of the files that make a partition."""
_MEMBER: Final = "member"
_FORBIDDEN: Final = "not permitted"
_PERMIT: Final = "give the agent the capability SYS_ADMIN"
_FREE: Final = "check that no sibling cgroup has some of these CPUs"
_HINTS: Final = {
    errno.EACCES: "run cpupool as root",
    errno.EINVAL: _FREE,
    errno.EROFS: "give cpupool the host's cgroups mounted writable",
}


class Partitions:
    """The isolated partitions of this node's containers; satisfies `enforce.ports.PartitionTree`.

    Args:
        root: where `/sys` and `/sys/fs/cgroup` are.
        release: the kernel's release, as `uname -r` prints it.
        cgroup_root: the kubelet's `--cgroup-root`; empty for the usual places.

    Attributes:
        obstacle: why this node cannot have such partitions; empty where it can.

    Raises:
        HostFileError: no hierarchy has the cpuset controller.
    """

    def __init__(self, root: HostRoot, release: str, cgroup_root: str = "") -> None:
        base, version = hierarchy(root.cgroup)
        self._files = CgroupFiles(base, _HINTS, "see cgroups(7)")
        self._sysfs = Sysfs.at(root.sysfs)
        self._kubepods = cgroup_names.kubepods(cgroup_root)
        self.obstacle = ""
        if version is CgroupVersion.V1:
            self.obstacle = "this node has cgroup version 1"
        elif not kernel.isolates_remotely(release):
            self.obstacle = f"this node's kernel {release} is older than 6.7"

    def reserved(self) -> Iterator[tuple[str, CPUSet]]:
        """Walk the cgroups that have exclusive CPUs which no cgroup below them has.

        These are containers, and cgroups above containers that have ended.

        Raises:
            HostFileError: a file cannot be read or holds no CPU list.
        """
        for place in self._kubepods:
            yield from self._reserved(place)

    def partition(self, path: str) -> Partition:
        """Read a cgroup's partition state.

        Raises:
            CgroupNotFound: it has ended.
            HostFileError: a file cannot be read or holds no CPU list.
        """
        return Partition(self._files.read(path, _PARTITION), self._files.cpus(path, _EXCLUSIVE))

    def isolate(self, path: str, cpus: CPUSet) -> None:
        """Make a cgroup an isolated partition of exactly these CPUs, or change nothing.

        Args:
            path: the cgroup; it runs on these CPUs already.
            cpus: the CPUs; at least one is online.

        Raises:
            CgroupNotFound: it has ended.
            CgroupWriteRejected: the kernel refuses; `errno` is 0 where only the state says why.
            PartitionUnsafe: unbound workqueues may run on some of the CPUs.
            HostFileError: a file cannot be read or holds no CPU list.
        """
        undo: list[tuple[str, CPUSet]] = []
        try:
            self._files.write(path, _PARTITION, _MEMBER)
            self._check_safe(path, cpus)
            for cgroup in (*reversed(above(path)), path):
                before = self._files.cpus(cgroup, _EXCLUSIVE)
                after = cpus if cgroup == path else before | cpus
                if after != before:
                    self._files.write(cgroup, _EXCLUSIVE, str(after))
                    undo.append((cgroup, before))
            self._files.write(path, _PARTITION, ISOLATED)
            self._verify(path, cpus)
        except HostError:
            self._put_back(path, undo)
            raise

    def release(self, path: str, cpus: CPUSet) -> None:
        """Make a cgroup a member again, if it exists, and remove its CPUs from those above it.

        Args:
            path: the cgroup.
            cpus: its exclusive CPUs.

        Raises:
            CgroupWriteRejected: the kernel refuses.
            HostFileError: a file cannot be read or holds no CPU list.
        """
        with suppress(CgroupNotFound):
            self._files.write(path, _PARTITION, _MEMBER)
        # From the leaf up: a partition must never list CPUs that its parent lacks.
        for cgroup in (path, *above(path)):
            with suppress(CgroupNotFound):
                before = self._files.cpus(cgroup, _EXCLUSIVE)
                if not before.isdisjoint(cpus):
                    self._files.write(cgroup, _EXCLUSIVE, str(before - cpus))

    def _check_safe(self, path: str, cpus: CPUSet) -> None:
        """Raise where unbound workqueues may run on the CPUs of a new partition."""
        if unbound := cpus & self._sysfs.unbound_workqueues():
            raise PartitionUnsafe(path, unbound)

    def _reserved(self, path: str) -> Iterator[tuple[str, CPUSet]]:
        container = cgroup_names.pod_id(PurePosixPath(path).parent.name) is not None
        try:
            left = self._files.cpus(path, _EXCLUSIVE)
            # A partition above containers is the admin's.
            if left and not container and self._files.read(path, _PARTITION) != _MEMBER:
                return
        except CgroupNotFound:
            return
        # The cgroups in a container are the container's own.
        if left and not container:
            for name in self._files.directories(path):
                below = f"{path}/{name}"
                # An administrator's partition below needs its CPUs in the lists above it, too.
                with suppress(CgroupNotFound):
                    left -= self._files.cpus(below, _EXCLUSIVE)
                yield from self._reserved(below)
        if left:
            yield path, left

    def _verify(self, path: str, cpus: CPUSet) -> None:
        state = self._files.read(path, _PARTITION)
        granted = self._files.cpus(path, _GRANTED)
        # If another cgroup has some of the CPUs, the kernel grants only the rest.
        if state == ISOLATED and granted == cpus:
            return
        hint = _PERMIT if _FORBIDDEN in state else _FREE
        why = f"{_PARTITION} is {state!r} then, with {granted or 'none'} of {cpus}; {hint}"
        raise CgroupWriteRejected(path, ISOLATED, 0, why)

    def _put_back(self, path: str, undo: list[tuple[str, CPUSet]]) -> None:
        try:
            with suppress(CgroupNotFound):
                self._files.write(path, _PARTITION, _MEMBER)
            for cgroup, before in reversed(undo):
                with suppress(CgroupNotFound):
                    self._files.write(cgroup, _EXCLUSIVE, str(before))
        except HostError as error:
            log.warning("partition not put back", cgroup=path, error=error)
