"""A model of the kernel's rules for CFS bandwidth, at the manager's port."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

from cpupool.core.bandwidth import Bandwidth
from cpupool.core.errors import CgroupNotFound, CgroupWriteRejected
from cpupool.host.cgroupfs import CgroupVersion

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_RATIO_BITS = 20
_INFINITE = 1 << 60


class QuotaModel:
    """Cgroups in memory that take a quota as the kernel does, and can be interfered with.

    Source: kernel/sched/core.c, `tg_set_cfs_bandwidth` and `tg_cfs_schedulable_down`: on version 1
    no child may have more than its parent, each as a share with 20 binary digits.

    Args:
        version: whose rules apply.
        given: path → quota and period in microseconds, -1 for no limit.

    Attributes:
        given: path → what it has.
        writes: the paths of the writes that were accepted, in order.
        reads: how many reads there were.
        refusing: paths whose writes are refused with EIO.
        ignoring: paths whose writes are accepted without effect.
        before_write: called before each write.
    """

    def __init__(
        self,
        given: Mapping[str, tuple[int, int]],
        version: CgroupVersion = CgroupVersion.V1,
    ) -> None:
        self.version = version
        self.given = {path: Bandwidth(*one) for path, one in given.items()}
        self.writes: list[str] = []
        self.reads = 0
        self.refusing: set[str] = set()
        self.ignoring: set[str] = set()
        self.before_write: Callable[[], None] = lambda: None

    def bandwidth(self, path: str) -> Bandwidth | None:
        self.reads += 1
        return self.given.get(path)

    def limit(self, path: str, bandwidth: Bandwidth) -> None:
        self.before_write()
        if path not in self.given:
            raise CgroupNotFound(path)
        if path in self.refusing:
            raise CgroupWriteRejected(path, str(bandwidth), errno.EIO, "it will not")
        before = self.given[path]
        self.given[path] = bandwidth
        if self.version is CgroupVersion.V1 and not self.lawful():
            self.given[path] = before
            raise CgroupWriteRejected(path, str(bandwidth), errno.EINVAL, "Invalid argument")
        if path in self.ignoring:
            self.given[path] = before
        self.writes.append(path)

    def lawful(self) -> bool:
        """Tell whether version 1 would have come to what there is."""
        return all(
            self._share(path) <= self._effective(path.rpartition("/")[0]) for path in self.given
        )

    def _effective(self, path: str) -> int:
        """Give the share of a cgroup, its parent's where it has no limit of its own."""
        if path not in self.given:
            return _INFINITE
        own = self.given[path]
        if own.quota_us < 0:
            return self._effective(path.rpartition("/")[0])
        return self._share(path)

    def _share(self, path: str) -> int:
        own = self.given[path]
        return 0 if own.quota_us < 0 else (own.quota_us << _RATIO_BITS) // own.period_us
