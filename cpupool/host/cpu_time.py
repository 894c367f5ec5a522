"""The CPU time of this node's CPUs and pods, from /proc/stat and the cgroups, version 1 or 2.

Source: Documentation/filesystems/proc.rst, section 1.7; Documentation/admin-guide/cgroup-v1/
cpuacct.rst, Documentation/admin-guide/cgroup-v2.rst, section "CPU", Documentation/accounting/
psi.rst and Documentation/scheduler/sched-stats.rst in the kernel.
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
    from collections.abc import Iterable, Iterator, Sequence
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
_PROCESSES: Final = "cgroup.procs"
_RUN_DELAY: Final = re.compile(r"\d{1,20} (\d{1,20}) ", re.ASCII)
"""The time on CPUs, the time in their queues, and how often a thread ran."""
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
            waited: whether to read how long each pod waited, too: its pressure, or how long its
                threads waited together where the kernel measures no pressure. The kernel tells the
                latter only for processes that this process sees.

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
                # A pod that ends meanwhile is left out.
                with suppress(CgroupNotFound):
                    times_us[pod] = self._of_pod(path)
        return times_us

    def _waited(self) -> dict[str, Waited]:
        waited = {}
        for place in self._kubepods:
            for pod, path in pods_below(self._files, place):
                us = self._pressure_us(path)
                below = self._below(path)
                if us is None:
                    us = self._run_delay_us(below)
                if us is not None:
                    waited[pod] = Waited(us, sum(map(self._throttled, below)))
        return waited

    def _pressure_us(self, pod: str) -> int | None:
        # A kernel that does not measure pressure has no such file, or refuses to read it.
        with suppress(CgroupNotFound, HostFileError):
            found = _WAITED.search(self._files.read(pod, _PRESSURE))
            return int(found[1]) if found else None
        return None

    def _run_delay_us(self, cgroups: Iterable[str]) -> int | None:
        """Return how long the threads in cgroups waited; None if this process sees none of them."""
        delays_us = [
            delay_us
            for cgroup in cgroups
            for process in self._processes(cgroup)
            for delay_us in self._delays_us(process)
        ]
        return sum(delays_us) if delays_us else None

    def _delays_us(self, process: str) -> Iterator[int]:
        # A process or a thread that ends meanwhile is left out.
        with suppress(HostFileError):
            for thread in self._proc.names(f"{process}/task"):
                text = self._proc.read(f"{process}/task/{thread}/schedstat") or ""
                if found := _RUN_DELAY.match(text):
                    yield int(found[1]) // _NS_PER_US

    def _processes(self, cgroup: str) -> Sequence[str]:
        with suppress(CgroupNotFound):
            return self._files.read(cgroup, _PROCESSES).split()
        return ()

    def _below(self, path: str) -> Sequence[str]:
        """Return a cgroup and all cgroups in it."""
        names = self._files.directories(path)
        return [path, *(each for name in names for each in self._below(f"{path}/{name}"))]

    def _throttled(self, cgroup: str) -> int:
        """Return how often a cgroup was throttled itself, not one in it; version 1 may not say."""
        with suppress(CgroupNotFound):
            found = _THROTTLED.search(self._files.read(cgroup, _V2_FILE))
            return int(found[1]) if found else 0
        return 0

    def _of_pod(self, path: str) -> int:
        name, used = (_V1_FILE, _V1_USED) if self._v1 else (_V2_FILE, _V2_USED)
        text = self._files.read(path, name)
        found = used.search(text)
        if found is None:
            file = str(self._base / path / name)
            raise HostFileError(file, f"{text[:40]!r} is no CPU time", "report it")
        return int(found[1]) // (_NS_PER_US if self._v1 else 1)
