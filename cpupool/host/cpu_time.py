"""The CPU time of this node's CPUs and pods, from /proc/stat and the cgroups, version 1 or 2.

Source: Documentation/filesystems/proc.rst, section 1.7; Documentation/admin-guide/cgroup-v1/
cpuacct.rst, Documentation/admin-guide/cgroup-v2.rst, section "CPU", and Documentation/accounting/
psi.rst in the kernel.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from cpupool.core.cpu_time import CPUTime, Waited
from cpupool.core.errors import CgroupNotFound, HostFileError
from cpupool.host import cgroup_names
from cpupool.host.cgroup_files import CgroupFiles, pods_below
from cpupool.host.cgroupfs import CgroupVersion, hierarchy
from cpupool.host.sysfs import FolderTree

if TYPE_CHECKING:
    from pathlib import Path

_STAT: Final = "stat"
_CPU: Final = re.compile(r"^cpu(\d{1,6}) ((?:\d{1,20} ){7})", re.MULTILINE | re.ASCII)
_BUSY: Final = (0, 1, 2, 5, 6)
"""user, nice, system, irq and softirq; guests are in user, and the others are times of no work."""
_V1_HIERARCHIES: Final = ("cpuacct", "cpu,cpuacct")
_V1_FILE, _V2_FILE = "cpuacct.usage", "cpu.stat"
_V1_USED: Final = re.compile(r"(\d{1,20})", re.ASCII)
_V2_USED: Final = re.compile(r"^usage_usec (\d{1,20})$", re.MULTILINE | re.ASCII)
_THROTTLED: Final = re.compile(r"^nr_throttled (\d{1,20})$", re.MULTILINE | re.ASCII)
_PRESSURE: Final = "cpu.pressure"
_WAITED: Final = re.compile(r"^some .*total=(\d{1,20})$", re.MULTILINE | re.ASCII)
_NS_PER_US: Final = 1000
_US_PER_S: Final = 1_000_000


class CPUTimes:
    """The files with the CPU time of CPUs and pods.

    Args:
        proc: the machine's procfs.
        cgroup: the folder that stands for `/sys/fs/cgroup`.
        cgroup_root: the kubelet's `--cgroup-root`; empty for the usual places.

    Raises:
        HostFileError: no hierarchy has the cpuset controller.
    """

    def __init__(self, proc: Path, cgroup: Path, cgroup_root: str = "") -> None:
        self._proc = FolderTree(proc)
        base, version = hierarchy(cgroup)
        self._v1 = version is CgroupVersion.V1
        if self._v1:
            mounted = (cgroup / name for name in _V1_HIERARCHIES)
            base = next((each for each in mounted if each.is_dir()), cgroup / _V1_HIERARCHIES[0])
        self._base = base
        self._files = CgroupFiles(base, {}, "")
        self._kubepods = cgroup_names.kubepods(cgroup_root)
        self._tick_us = _US_PER_S // os.sysconf("SC_CLK_TCK")

    def read(self, *, waited: bool = False) -> CPUTime:
        """Read the CPU time of every CPU that is online, and of every pod.

        Args:
            waited: whether to read how long each pod waited, too; version 1 does not say it.

        Raises:
            HostFileError: a file is missing, cannot be read, or has unexpected content.
        """
        return CPUTime(self._of_cpus(), self._of_pods(), self._waited() if waited else {})

    def _of_cpus(self) -> dict[int, int]:
        found = _CPU.findall(self._proc.read(_STAT) or "")
        if not found:
            raise HostFileError(
                f"{self._proc.name}/{_STAT}", "has no CPU time", "give cpupool the host's /proc"
            )
        return {
            int(cpu): sum(int(ticks.split()[field]) for field in _BUSY) * self._tick_us
            for cpu, ticks in found
        }

    def _of_pods(self) -> dict[str, int]:
        if not self._base.is_dir():
            raise HostFileError(
                str(self._base), "no hierarchy has the CPU time of pods", "mount cpuacct there"
            )
        times_us = {}
        for place in self._kubepods:
            for pod, path in pods_below(self._files, place):
                # A pod that ends meanwhile does not count.
                with suppress(CgroupNotFound):
                    times_us[pod] = self._of_pod(path)
        return times_us

    def _waited(self) -> dict[str, Waited]:
        waited = {}
        for place in self._kubepods if not self._v1 else ():
            for pod, path in pods_below(self._files, place):
                # A kernel that does not count pressure has no such file, or refuses to read it.
                with suppress(CgroupNotFound, HostFileError):
                    found = _WAITED.search(self._files.read(path, _PRESSURE))
                    if found is not None:
                        waited[pod] = Waited(int(found[1]), self._throttled(path))
        return waited

    def _throttled(self, pod: str) -> int:
        """Return how often a pod and its containers were throttled: a cgroup counts only itself."""
        paths = [pod, *(f"{pod}/{name}" for name in self._files.directories(pod))]
        counts = (_THROTTLED.search(self._files.read(path, _V2_FILE)) for path in paths)
        return sum(int(count[1]) for count in counts if count)

    def _of_pod(self, path: str) -> int:
        name, used = (_V1_FILE, _V1_USED) if self._v1 else (_V2_FILE, _V2_USED)
        text = self._files.read(path, name)
        found = used.search(text)
        if found is None:
            file = str(self._base / path / name)
            raise HostFileError(file, f"{text[:40]!r} is no CPU time", "report it")
        return int(found[1]) // (_NS_PER_US if self._v1 else 1)
