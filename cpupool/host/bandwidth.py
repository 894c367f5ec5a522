"""The CPU time of cgroups, version 1 or 2: read and write.

Paths are those of the cpuset hierarchy. Version 1 has a separate hierarchy for CPU time, in which
the kubelet and the runtime make the same directories. The rules are the kernel's:
Documentation/scheduler/sched-bwc.rst, and Documentation/admin-guide/cgroup-v2.rst, section "CPU".
"""

from __future__ import annotations

import errno
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from cpupool.core.bandwidth import UNLIMITED_US, Bandwidth
from cpupool.core.errors import CgroupNotFound, HostFileError
from cpupool.host import cgroup_names
from cpupool.host.cgroup_files import CgroupFiles
from cpupool.host.cgroupfs import CgroupVersion, hierarchy

if TYPE_CHECKING:
    from pathlib import Path

FILES: Final = frozenset({"cpu.max", "cpu.cfs_quota_us", "cpu.cfs_period_us"})
"""The names of the files that say how long a cgroup may run."""
_MAX, _QUOTA, _PERIOD = "cpu.max", "cpu.cfs_quota_us", "cpu.cfs_period_us"
_V1_HIERARCHIES: Final = ("cpu,cpuacct", "cpu")
_HINTS: Final = {
    errno.EACCES: "run cpupool as root",
    errno.EINVAL: "the cgroup above it has less, or one below it has more, or a burst of its own",
    errno.EROFS: "give cpupool the host's cgroups mounted writable",
}


def v1_hierarchy(cgroup: Path) -> Path:
    """Return the base of version 1's hierarchy for CPU time, whether it is there or not.

    Args:
        cgroup: the folder that stands for `/sys/fs/cgroup`.
    """
    mounted = (cgroup / name for name in _V1_HIERARCHIES)
    return next((folder for folder in mounted if folder.is_dir()), cgroup / _V1_HIERARCHIES[-1])


class CFSBandwidth:
    """The CPU time of this node's cgroups; satisfies `enforce.ports.BandwidthTree`.

    Where no hierarchy has the cpu controller there is nothing to limit.

    Args:
        cgroup: the folder that stands for `/sys/fs/cgroup`.
        cgroup_root: the kubelet's `--cgroup-root`; empty for the usual places.

    Raises:
        HostFileError: no hierarchy has the cpuset controller.
    """

    def __init__(self, cgroup: Path, cgroup_root: str = "") -> None:
        base, version = hierarchy(cgroup)
        self._v1 = version is CgroupVersion.V1
        if self._v1:
            base = v1_hierarchy(cgroup)
        self._base = base
        self._files = CgroupFiles(base, _HINTS, "see sched-bwc.rst")
        self._kubepods = cgroup_names.kubepods(cgroup_root)

    def places(self) -> tuple[Path, ...]:
        """Return the directories where pods can be, if they differ from those of `CgroupFS`."""
        return tuple(self._base / place for place in self._kubepods) if self._v1 else ()

    def bandwidth(self, path: str) -> Bandwidth | None:
        """Read how long a cgroup may run; None where there is no such cgroup, or no controller.

        Raises:
            HostFileError: a file cannot be read, or has unexpected content.
        """
        names = (_QUOTA, _PERIOD) if self._v1 else (_MAX,)
        try:
            texts = [self._files.read(path, name) for name in names]
        except CgroupNotFound:
            return None
        text = " ".join(texts)
        with suppress(ValueError):
            quota, period = text.split()
            quota_us = UNLIMITED_US if quota == "max" else int(quota)
            if int(period) > 0:
                return Bandwidth(quota_us, int(period))
        raise HostFileError(
            str(self._base / path / names[0]),
            f"{text[:40]!r} is not how long a cgroup may run",
            "write a quota and a period in microseconds there",
        )

    def limit(self, path: str, bandwidth: Bandwidth) -> None:
        """Write how long a cgroup may run.

        Raises:
            CgroupNotFound: it has ended.
            CgroupWriteRejected: the kernel refuses the value.
            HostFileError: a file cannot be read.
        """
        if not self._v1:
            self._files.write(path, _MAX, str(bandwidth))
            return
        if self._files.read(path, _PERIOD) != str(bandwidth.period_us):
            # The kernel accepts any period for a cgroup without a limit.
            self._files.write(path, _QUOTA, str(UNLIMITED_US))
            self._files.write(path, _PERIOD, str(bandwidth.period_us))
        self._files.write(path, _QUOTA, str(bandwidth.quota_us))
