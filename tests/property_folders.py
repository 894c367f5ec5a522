"""Written folders with the files of a container's cgroup, as a kernel makes them.

Without root's rights over the controllers of CPU time, memory and I/O no real cgroup has them: the
folders obey no rule of the kernel.
"""

from __future__ import annotations

import shutil
from mmap import PAGESIZE
from typing import TYPE_CHECKING, Final

from cpupool.host.cgroup_properties import CgroupProperties
from cpupool.host.cgroupfs import CgroupVersion

if TYPE_CHECKING:
    from pathlib import Path

MAIN: Final = "kubepods/podweb-uid/main-id"
GIB: Final = 1 << 30
NO_LIMIT_V1: Final = str((2**63 - 1) // PAGESIZE * PAGESIZE)
"""What version 1 has for no limit."""

_V1: Final = {
    "cpuset": {"cpuset.cpus": "0"},
    "cpu": {"cpu.shares": "1024", "cpu.cfs_quota_us": "-1", "cpu.cfs_period_us": "100000"},
    "memory": {"memory.limit_in_bytes": NO_LIMIT_V1, "memory.memsw.limit_in_bytes": NO_LIMIT_V1},
}
_V2: Final = {
    "": {
        "cpuset.cpus": "0",
        "cpu.weight": "100",
        "cpu.max": "max 100000",
        "memory.max": "max",
        "memory.swap.max": "max",
        "memory.current": "4096",
        "memory.high": "max",
        "memory.low": "0",
        "memory.min": "0",
        "io.weight": "default 100\n8:0 300",
    }
}


class PropertyFolder:
    """The cgroups of one container in a folder.

    Args:
        cgroup: the folder that stands for `/sys/fs/cgroup`.
        version: which of the kernel's interfaces.

    Attributes:
        tree: what reads and writes them.
    """

    def __init__(self, cgroup: Path, version: CgroupVersion) -> None:
        self._cgroup = cgroup
        self._hierarchies: dict[str, str] = {}
        hierarchies = _V1 if version is CgroupVersion.V1 else _V2
        if version is CgroupVersion.V1:
            (cgroup / "cpuset").mkdir()
            (cgroup / "cpuset/cpuset.cpus").write_text("0\n")
        else:
            (cgroup / "cgroup.controllers").write_text("cpuset cpu io memory\n")
        for hierarchy, files in hierarchies.items():
            (cgroup / hierarchy / MAIN).mkdir(parents=True)
            for name, text in files.items():
                self._hierarchies[name] = hierarchy
                self.put(name, text)
        self.tree = CgroupProperties(cgroup)

    def file(self, name: str) -> Path:
        """Return a file of the container's cgroup."""
        return self._cgroup / self._hierarchies[name] / MAIN / name

    def put(self, name: str, text: str) -> None:
        """Let another program write a file."""
        self.file(name).write_text(f"{text}\n")

    def has(self, *names: str) -> list[str]:
        """Return the content of files."""
        return [self.file(name).read_text().strip() for name in names]

    def end(self) -> None:
        """Remove the container's cgroups."""
        for hierarchy in set(self._hierarchies.values()):
            shutil.rmtree(self._cgroup / hierarchy / MAIN)
