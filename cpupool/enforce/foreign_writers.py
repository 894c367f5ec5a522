"""The program that probably overwrote a cgroup, and moved a container away from its CPUs.

No cgroup names its writer. So this module judges by the cgroup as the sweep found it, and by the
cgroup before. It does no I/O.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from cpupool.core.cpuset import CPUSet


class Reason(Enum):
    """The reason why a container was not on its CPUs; for a foreign write, the probable program."""

    NEW = "new"
    """It has not been put there yet."""
    MOVED = "moved"
    """It belongs elsewhere now: pools, CPUs or devices have changed."""
    KUBELET_STATIC = "kubelet-static"
    SYSTEMD = "systemd"
    RUNTIME = "runtime"
    UNKNOWN = "unknown"

    @property
    def foreign(self) -> bool:
        """Whether another program wrote."""
        return self not in {Reason.NEW, Reason.MOVED}

    @property
    def culprit(self) -> str:
        """The foreign writer, in words."""
        return _CULPRITS.get(self, "an unknown program")

    @property
    def remedy(self) -> str:
        """The remedy against the foreign writer."""
        return _REMEDIES.get(self, "find the program that writes this cgroup too")


_CULPRITS: Final = {
    Reason.KUBELET_STATIC: "the kubelet's static CPU manager",
    Reason.SYSTEMD: "systemd",
    Reason.RUNTIME: "the container runtime",
}
_REMEDIES: Final = {
    Reason.KUBELET_STATIC: "set the kubelet's cpuManagerPolicy to none",
    Reason.SYSTEMD: "find what reloads systemd again and again (journalctl -t systemd)",
    Reason.RUNTIME: "find what updates the container through its runtime (CRI, NRI or docker)",
}


def reason(*, new: bool, was_right: bool) -> Reason:
    """Return why a cgroup is not as it must be, as far as its history shows.

    Args:
        new: its container has just started.
        was_right: the cgroup had been right, so another program has written.
    """
    if new:
        return Reason.NEW
    return Reason.UNKNOWN if was_right else Reason.MOVED


def foreign_writer(
    path: str, found: CPUSet, *, created: str, online: CPUSet, static_kubelet: bool
) -> Reason:
    """Return the program that probably wrote the set of a container that had been right.

    Args:
        path: the container's cgroup.
        found: its own set now; empty where it inherits the parent's (cgroup v2).
        created: the CPUs that it ran on when it was first seen, as the kernel writes them.
        online: every CPU that is online.
        static_kubelet: the kubelet's static CPU manager has been at work since it was right.
    """
    if static_kubelet:
        return Reason.KUBELET_STATIC
    # A reload of systemd writes the properties of a unit again, and the AllowedCPUs= of a
    # container's scope is empty unless the runtime has set it (systemd issue 40438).
    if not found and path.endswith((".scope", ".slice")):
        return Reason.SYSTEMD
    # A runtime remembers the CPUs that it created a container with, and each update writes them.
    if str(found) == created or found == online:
        return Reason.RUNTIME
    return Reason.UNKNOWN
