"""Which CPUs a container must run on, and the facts that this follows from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from cpupool.core.cpuset import CPUSet
from cpupool.core.workloads import ContainerRef

DeviceAssignments = Mapping[ContainerRef, Mapping[str, frozenset[str]]]
"""Container → pool name → device ids that the kubelet gave it."""
PodDevices = Mapping[str, Mapping[str, frozenset[str]]]
"""One pod, as the kubelet tells it: container name → resource name → device ids."""


class Placement(Enum):
    """Why a container is where it is."""

    POOLS = "pools"
    DEFAULT = "default"
    CONFINED = "confined"


@dataclass(frozen=True, slots=True)
class CPUAssignment:
    """The CPUs of one container.

    Attributes:
        placement: as requested; default because it requests nothing; or confined to the default
            pool because a fact is missing or contradicts another.
        exclusive: CPUs of its own, siblings under multiThreaded included.
        shared: CPUs of its shared pools.
        default: CPUs of the default pool.
        reason: what is missing, for a confined container.
    """

    placement: Placement
    exclusive: CPUSet = field(default_factory=CPUSet)
    shared: CPUSet = field(default_factory=CPUSet)
    default: CPUSet = field(default_factory=CPUSet)
    reason: str = ""

    @property
    def cpus(self) -> CPUSet:
        """The cpuset to write; empty means: leave the container alone."""
        return self.exclusive | self.shared | self.default
