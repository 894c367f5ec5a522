"""The CPUs of containers whose own CPUs may change while they run."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cpupool.core.cpuset import CPUSet


class Reason(Enum):
    """Why a container's own CPUs change; the word stands in the container's folder."""

    GROW = "grow"
    SHRINK = "shrink"
    COMPACT = "compact"
    """It gives CPUs back, and gets others for them."""
    OFFLINE = "offline"
    ONLINE = "online"
    REPAIR = "repair"
    """Another program has written its CPUs, and they are right again."""
    POOL_EDIT = "pool-edit"
    PLUGIN = "plugin"


@dataclass(frozen=True, slots=True)
class OwnCPUs:
    """The own CPUs of a container whose CPUs may change.

    Attributes:
        assigned: the CPUs that it must have, offline CPUs included.
        in_force: the online CPUs on which it may run now.
        baseline: the CPUs that it got at its creation.
        leaving: the CPUs that it gives back, offline CPUs included, while the notice lasts; else
            empty.
        notice_s: how long the container knows that CPUs leave before they are taken.
        settled: whether the kernel has the CPUs in force.
        cause: who changes its CPUs, where the CPUs alone do not tell: an admin or a plugin.
    """

    assigned: CPUSet
    in_force: CPUSet
    baseline: CPUSet
    leaving: CPUSet
    notice_s: float
    settled: bool = True
    cause: Reason | None = None
