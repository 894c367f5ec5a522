"""The kind of the machine's CPUs, from procfs and sysfs.

Sources: Documentation/filesystems/proc.rst (cpuinfo), Documentation/admin-guide/pm/intel_pstate.rst
(no_turbo), Documentation/admin-guide/pm/cpufreq.rst (boost), Documentation/filesystems/resctrl.rst
(cbm_mask) in the kernel.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from cpupool.core.node_topology import CPUModel

if TYPE_CHECKING:
    from cpupool.host.sysfs import FileTree

_NO_TURBO: Final = "devices/system/cpu/intel_pstate/no_turbo"
_BOOST: Final = "devices/system/cpu/cpufreq/boost"
_L3_MASKS: Final = ("fs/resctrl/info/L3/cbm_mask", "fs/resctrl/info/L3CODE/cbm_mask")


def read(proc: FileTree, sysfs: FileTree) -> CPUModel:
    """Return the kind of the machine's CPUs.

    Args:
        proc: the machine's procfs.
        sysfs: its sysfs.

    Raises:
        HostFileError: a file is there and cannot be read.
    """
    described = _first_cpu(proc.read("cpuinfo") or "")
    turbo = (sysfs.read(_NO_TURBO) or "1") == "0" or sysfs.read(_BOOST) == "1"
    masks = (sysfs.read(path) for path in _L3_MASKS)
    return CPUModel(
        described.get("model name", ""),
        described.get("vendor_id", ""),
        turbo,
        next((mask for mask in masks if mask), ""),
    )


def _first_cpu(cpuinfo: str) -> dict[str, str]:
    lines = (line.partition(":") for line in cpuinfo.partition("\n\n")[0].splitlines())
    return {key.strip(): value.strip() for key, _, value in lines}
