"""Which CPUs a container must run on, and why."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Final

from cpupool.core.cpuset import CPUSet
from cpupool.core.names import (
    EXCLUSIVE_CPUS,
    OPENSHIFT_ISOLATED_CPUS,
    SHARED_CPUS,
    pool_variable,
)
from cpupool.core.requests import Resource, ResourceKind

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cpupool.core.quota import Limit
    from cpupool.core.requests import Resource

_NO_CPUS: Final = CPUSet()


class Placement(Enum):
    """Why a container is where it is."""

    POOLS = "pools"
    POLICY = "policy"
    """It owns CPUs that the node's CPU manager policy has chosen."""
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
        placement: by its pools, or by the CPU manager policy; default because it requests nothing;
            or confined to the default pool because a fact is missing or contradicts another.
        exclusive: CPUs of its own, siblings under multiThreaded included, that are online.
        shared: CPUs of its shared pools.
        default: CPUs of the default pool.
        reason: what is missing, for a confined container.
        cause: the same for programs; None for one that is not confined.
        offline: CPUs of its own that are offline.
        stale: `shared` is what its shared pools were before they changed.
        resources: resource → which of these CPUs come with it, for a container that is as
            requested.
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
    resources: Mapping[Resource, CPUSet] = field(default_factory=dict)
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
        if self.placement not in {Placement.POOLS, Placement.POLICY}:
            return {}
        isolated = any(resource.kind is ResourceKind.BESIDE for resource in self.resources)
        return environment(self.exclusive, self.shared, self.resources, isolated=isolated)


def environment(
    exclusive: CPUSet,
    shared: CPUSet,
    by_resource: Mapping[Resource, CPUSet],
    *,
    isolated: bool,
) -> dict[str, str]:
    """Return the variables that tell a container its CPUs; none for an empty set.

    Args:
        exclusive: its own CPUs.
        shared: those of its shared pools.
        by_resource: what comes with each resource.
        isolated: whether OpenShift's name for its own CPUs is set, too.
    """
    joined = {EXCLUSIVE_CPUS: exclusive, SHARED_CPUS: shared}
    if isolated:
        joined[OPENSHIFT_ISOLATED_CPUS] = exclusive
    for resource, cpus in by_resource.items():
        if not resource.kind.native:
            joined[pool_variable(resource)] = cpus
    return {name: str(joined[name]) for name in sorted(joined) if joined[name]}
