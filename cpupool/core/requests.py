"""Requests of containers: amounts of resources that come with CPUs.

A resource is a pool's, OpenShift's for shared CPUs, or the native cpu of a container that gets CPUs
of its own. Its kind says how a container uses the CPUs, also after the pool has gone.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Final, Self

if TYPE_CHECKING:
    from collections.abc import Mapping


class ResourceKind(Enum):
    """The kind of CPUs that come with a resource."""

    EXCLUSIVE = "exclusive"
    """CPUs of an exclusive pool; each device is a CPU."""
    SHARED = "shared"
    """A shared pool's CPUs; a device is a milli-CPU."""
    ADDITIONAL = "additional"
    """A shared pool's CPUs in addition to exclusive CPUs, by OpenShift's resource."""
    KUBELET = "kubelet"
    """CPUs that the kubelet's static CPU manager gives out, for a whole native request."""
    POLICY = "policy"
    """CPUs of the default pool that cpupool's CPU manager policy gives out."""

    @property
    def exclusive(self) -> bool:
        """Whether the CPUs are the container's own."""
        return self is ResourceKind.EXCLUSIVE or self.native

    @property
    def native(self) -> bool:
        """Whether a container requests the CPUs by its native cpu request, not by a pool's name."""
        return self is ResourceKind.KUBELET or self is ResourceKind.POLICY


class Resource(str):
    """The name of a resource that comes with CPUs, most often a pool's, with its kind.

    It compares as its name, and has the kind also where its pool is no longer configured.

    Attributes:
        kind: which CPUs come with it.
    """

    __slots__ = ("kind",)
    kind: ResourceKind

    def __new__(cls, name: str, kind: ResourceKind) -> Self:
        """Return the reference; `names.resource_named` parses a name."""
        made = super().__new__(cls, name)
        made.kind = kind
        return made


@dataclass(frozen=True, slots=True)
class CPURequest:
    """The part of a container's request that cpupool serves.

    Attributes:
        amounts: resource → devices, or CPUs of the kubelet's CPU manager.
    """

    amounts: Mapping[Resource, int] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.amounts)

    @property
    def exclusive(self) -> bool:
        """Whether the container requests CPUs of an exclusive pool."""
        return any(resource.kind is ResourceKind.EXCLUSIVE for resource in self.amounts)


NO_REQUEST: Final = CPURequest()
