"""The plugins of `cpupool demo --qrm`: our own, as a process with two pools by role, or others.

The first example of the QoS Resource Manager's proposal, in the shares of its machine of 80 CPUs:
the pool of offline work has 4 CPUs by day, and 52 by night.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, Self

from cpupool.core.cpuset import CPUSet
from cpupool.core.pod_resources import CPU, MEMORY
from cpupool.host.files import write_atomically
from cpupool.plugins.nic import BANDWIDTH, NEAR_NIC
from cpupool.policies.qrm.katalyst import PROPOSED_ROLE, QOS_LEVEL, QoSLevel

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

ONLINE: Final = "online-micro_service"
OFFLINE: Final = "ETL"
RESOURCES: Final = (CPU, MEMORY, NEAR_NIC, BANDWIDTH)
_CONFIG: Final = """\
reserved: "{reserved}"
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


class SamplePod(NamedTuple):
    """The part of a demo pod that plugins see.

    Attributes:
        annotations: its annotations.
        cpus: how many whole CPUs it requests; 0 for a share.
    """

    annotations: Mapping[str, str]
    cpus: int = 0


BY_LEVEL: Final = {
    "shared": SamplePod({QOS_LEVEL: QoSLevel.SHARED.value}),
    "dedicated": SamplePod({QOS_LEVEL: QoSLevel.DEDICATED.value}, 1),
}
"""Pods for the plugins of others, which know Katalyst's levels."""


def by_role(roles: Mapping[str, str]) -> Mapping[str, SamplePod]:
    """Return pods for our plugins: pod → its role."""
    return {name: SamplePod({PROPOSED_ROLE: role}) for name, role in roles.items()}


class ForeignPlugins:
    """The plugins of others, which run already.

    Attributes:
        sockets: the folder of their sockets.
        resources: the resources that they must serve; empty if any resource will do.
        title: their name for the user.
    """

    def __init__(self, sockets: Path, resources: Collection[str]) -> None:
        self.sockets: Final = sockets
        self.resources: Final = resources
        self.title: Final = f"The plugins in {sockets}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        """Leave them running."""


class DemoPlugins:
    """The process; runs from `with` to its end.

    Args:
        folder: an empty place of its own.
        cpus: how many CPUs they share out, two at the least.
        sysfs: the machine.
        reserved: its other online CPUs.
        verbose: whether their log goes to stderr.

    Attributes:
        sockets: the folder of their sockets.
        resources: the resources that they serve.
        title: their name for the user.
        offline: how many CPUs the pool of offline work has.
    """

    def __init__(
        self,
        folder: Path,
        cpus: int,
        sysfs: Path = Path("/sys"),
        *,
        reserved: CPUSet | None = None,
        verbose: bool = False,
    ) -> None:
        self.sockets: Final = folder / "s"
        self.resources: Final = RESOURCES
        self.title: Final = "Plugins in another process"
        self._folder = folder
        self._cpus = cpus
        self._reserved = reserved or CPUSet()
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
        """The number of CPUs in the pool of online work."""
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
            reserved=self._reserved,
            online=self.online,
            offline=self.offline,
            online_role=ONLINE,
            offline_role=OFFLINE,
        )
        write_atomically(self._file, text.encode())
