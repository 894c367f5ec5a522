"""Which CPUs a container must run on, and the facts that this follows from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Final

from cpupool.core.cpuset import CPUSet
from cpupool.core.names import (
    ENABLE_SHARED_CPUS,
    EXCLUSIVE_CPUS,
    KUBELET_CPUS,
    OPENSHIFT_ISOLATED_CPUS,
    SHARED_CPUS,
    pool_variable,
)
from cpupool.core.workloads import ContainerRef

if TYPE_CHECKING:
    from cpupool.core.quota import Limit

_NO_CPUS: Final = CPUSet()


@dataclass(frozen=True, slots=True)
class Grant:
    """What the kubelet gave one container of one resource.

    Attributes:
        ids: the device ids.
        cpus: the CPUs that the container was told when it got them, siblings included; empty where
            nobody remembers.
        hint: only the container's annotation names the devices: the kubelet's records correct it.
    """

    ids: frozenset[str]
    cpus: CPUSet = field(default_factory=CPUSet)
    hint: bool = False


DeviceAssignments = Mapping[ContainerRef, Mapping[str, Grant]]
"""Container → pool name → what the kubelet gave it."""
PodDevices = Mapping[str, Mapping[str, Grant]]
"""One pod, as the kubelet tells it: container name → resource name → what it was given."""
NATIVE_CPU: Final = "cpu"
"""The resource under which the kubelet tells the CPUs that its static CPU manager gave out."""


class Placement(Enum):
    """Why a container is where it is."""

    POOLS = "pools"
    DEFAULT = "default"
    CONFINED = "confined"
    KUBELET = "kubelet"
    """The kubelet's static CPU manager places it, and cpupool leaves it alone."""


class Cause(Enum):
    """Why a container is confined to the default pool."""

    NO_POOL = "no_pool"
    """It requests a pool that this node does not have."""
    NO_DEVICES = "no_devices"
    """The kubelet has named no devices for its request."""
    CONTESTED = "contested"
    """Another pod owns a CPU that it was given."""
    NO_CPUS = "no_cpus"
    """Its devices are no CPU ids."""
    OFFLINE = "offline"
    """Every CPU that it was given is offline."""
    UNKNOWN_POD = "unknown_pod"
    """Its pod is not known."""

    @property
    def may_pass(self) -> bool:
        """Whether it may end by itself, in a moment.

        The kubelet's records may come after the container. Of two pods with one device the earlier
        is about to end.
        """
        return self in {Cause.NO_DEVICES, Cause.CONTESTED}


@dataclass(frozen=True, slots=True)
class CPUAssignment:
    """The CPUs of one container.

    Attributes:
        placement: as requested; default because it requests nothing; or confined to the default
            pool because a fact is missing or contradicts another.
        exclusive: CPUs of its own, siblings under multiThreaded included, that are online.
        shared: CPUs of its shared pools.
        default: CPUs of the default pool.
        reason: what is missing, for a confined container.
        cause: the same for programs; None for one that is not confined.
        offline: CPUs of its own that are offline.
        stale: `shared` is what its shared pools were before they changed.
        pools: pool → which of these CPUs come from it, for a container that is as requested.
        limit: how much CPU time it is to have; None where that is not cpupool's to say.
    """

    placement: Placement
    exclusive: CPUSet = _NO_CPUS
    shared: CPUSet = _NO_CPUS
    default: CPUSet = _NO_CPUS
    reason: str = ""
    cause: Cause | None = None
    offline: CPUSet = _NO_CPUS
    stale: bool = False
    pools: Mapping[str, CPUSet] = field(default_factory=dict)
    limit: Limit | None = None

    @property
    def cpus(self) -> CPUSet:
        """The cpuset to write; empty means: leave the container alone."""
        return self.exclusive | self.shared | self.default

    @property
    def environment(self) -> Mapping[str, str]:
        """The variables that tell the application its CPUs; none unless it is as requested.

        `EXCLUSIVE_CPUS` and `SHARED_CPUS` join all pools of a kind: of the answers to several
        Allocate calls the kubelet keeps the first one's.
        """
        if self.placement is not Placement.POOLS:
            return {}
        joined = {EXCLUSIVE_CPUS: self.exclusive, SHARED_CPUS: self.shared}
        if ENABLE_SHARED_CPUS in self.pools:
            joined[OPENSHIFT_ISOLATED_CPUS] = self.exclusive
        of_pools = {
            pool_variable(pool): cpus for pool, cpus in self.pools.items() if pool != KUBELET_CPUS
        }
        return {name: str(cpus) for name, cpus in {**joined, **of_pools}.items() if cpus}
