"""The plugins of `cpupool demo --qrm`: our own, as a process, with two pools by role.

The first example of the QoS Resource Manager's proposal, in the shares of its machine of 80 CPUs:
the pool of offline work has 4 CPUs by day, and 52 by night.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Final, Self

from cpupool.core.resources import CPU, MEMORY
from cpupool.host.files import write_atomically
from cpupool.plugins.nic import BANDWIDTH, NEAR_NIC

ONLINE: Final = "online-micro_service"
OFFLINE: Final = "ETL"
RESOURCES: Final = (CPU, MEMORY, NEAR_NIC, BANDWIDTH)
_CONFIG: Final = """\
pools:
  online: {{cpus: {online}}}
  offline: {{cpus: {offline}}}
roles:
  {online_role}: {{pool: online}}
  {offline_role}: {{pool: offline}}
"""
_WHOLE: Final = 80
_BY_DAY: Final = 4
_BY_NIGHT: Final = 52


class DemoPlugins:
    """The process; runs from `with` to its end.

    Args:
        folder: an empty place of its own.
        cpus: how many CPUs the machine has, two at the least.
        sysfs: the machine.
        verbose: whether their log goes to stderr.

    Attributes:
        sockets: the folder of their sockets.
        offline: how many CPUs the pool of offline work has.
    """

    def __init__(
        self, folder: Path, cpus: int, sysfs: Path = Path("/sys"), *, verbose: bool = False
    ) -> None:
        self.sockets: Final = folder / "s"
        self._folder = folder
        self._cpus = cpus
        self._sysfs = sysfs
        self._verbose = verbose
        self.offline = self._share(_BY_DAY)
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self._folder.mkdir()
        for there in (self._sysfs, Path("/proc")):
            (self._folder / there.name).symlink_to(there)
        self._configure()
        self._process = subprocess.Popen(  # noqa: S603 - our own program
            (
                *(sys.executable, "-m", "cpupool", "resource-plugin", "cpu", "memory", "nic"),
                *("--config", self._file, "--host-root", self._folder),
                *("--socket-folder", self.sockets.name),
            ),
            stdin=subprocess.DEVNULL,
            stderr=None if self._verbose else subprocess.DEVNULL,
            # A signal for the demo is not one for them: the pods' end comes first.
            start_new_session=True,
        )
        return self

    def __exit__(self, *_error: object) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait()

    @property
    def online(self) -> int:
        """How many CPUs the pool of online work has."""
        return self._cpus - self.offline

    def becomes_night(self) -> bool:
        """Let offline work have more CPUs; return whether the machine has enough for that."""
        before, self.offline = self.offline, self._share(_BY_NIGHT)
        self._configure()
        return self.offline != before

    @property
    def _file(self) -> Path:
        return self._folder / "config/plugins.yaml"

    def _share(self, of_whole: int) -> int:
        return min(max(1, self._cpus * of_whole // _WHOLE), self._cpus - 1)

    def _configure(self) -> None:
        self._file.parent.mkdir(exist_ok=True)
        text = _CONFIG.format(
            online=self.online,
            offline=self.offline,
            online_role=ONLINE,
            offline_role=OFFLINE,
        )
        write_atomically(self._file, text.encode())
