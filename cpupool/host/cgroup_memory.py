"""Reads and writes the NUMA nodes from which cgroups take their memory, version 1 or 2.

The rules are those of CPU sets (`host/cgroupfs.py`), for the file `cpuset.mems`. A write also moves
the pages that lie on other nodes, if version 2 (Linux 5.16) or `cpuset.memory_migrate` says so, and
returns when they have moved: Documentation/admin-guide/cgroup-v1/cpusets.rst, section 1.4, and
Documentation/admin-guide/cgroup-v2.rst, section "Cpuset".

The documents do not say this: while pages move, the kernel carries out every other write of a
cpuset at once, but lets none return before the pages have moved, and lets no process into a cgroup
(kernel/cgroup/cpuset.c, `cpuset_migrate_mm_wq`).
"""

from __future__ import annotations

import errno
from contextlib import suppress
from typing import TYPE_CHECKING, ClassVar, Final

from cpupool.core.errors import CgroupNotFound
from cpupool.host.cgroupfs import CgroupFS, CgroupVersion

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from cpupool.core.cpuset import CPUSet

_MIGRATE: Final = "cpuset.memory_migrate"
FILES: Final = frozenset({"cpuset.mems", _MIGRATE})
"""The names of the files that say where the memory of a cgroup lies."""


class CgroupMemory(CgroupFS):
    """The memory nodes of this node's containers; satisfies `enforce.memory_nodes.MemoryTree`.

    Its sets hold NUMA nodes.
    """

    _list: ClassVar[str] = "cpuset.mems"
    _hints: ClassVar[Mapping[int, str]] = {
        errno.EACCES: "the cgroup above lacks some of these nodes, or cpupool may not write here",
        errno.EBUSY: "a cgroup below has nodes outside this set",
        errno.EINVAL: "the machine lacks some of these nodes, or they have no memory",
        errno.EROFS: "give cpupool the host's cgroups mounted writable",
    }

    def with_memory(self) -> CPUSet:
        """Read the nodes that have memory.

        Raises:
            HostFileError: the file cannot be read or is not a list of nodes.
        """
        return self.effective("")

    def migrating(self, path: str) -> bool:
        """Return whether a switch of the cgroup lets writes move pages; version 2 has no switch.

        Raises:
            HostFileError: the file cannot be read.
        """
        with suppress(CgroupNotFound):
            return self._files.read(path, _MIGRATE) == "1"
        return False

    def let_migrate(self, path: str, *, on: bool) -> None:
        """Switch on or off that writes of a cgroup, and of those below it, move pages (version 1).

        Raises:
            CgroupWriteRejected: the kernel refuses.
            HostFileError: a file cannot be read.
        """
        if self._version is CgroupVersion.V1:
            for cgroup in self._with_those_below(path):
                with suppress(CgroupNotFound):
                    if self.migrating(cgroup) is not on:
                        self._files.write(cgroup, _MIGRATE, str(int(on)))

    def _with_those_below(self, path: str) -> Iterator[str]:
        # A container can nest cgroups deeper than calls may be nested.
        left = [path]
        while left:
            cgroup = left.pop()
            yield cgroup
            left += (f"{cgroup}/{name}" for name in self._files.directories(cgroup))

    def _note(self, path: str, cpus: str | CPUSet) -> None:
        """Note nothing: a cgroup that loses its last node keeps its processes."""
