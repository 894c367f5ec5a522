"""What containers ask for: amounts of resources that come with CPUs."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Final, Self

if TYPE_CHECKING:
    from collections.abc import Mapping


class ResourceKind(Enum):
    """What CPUs come with a resource."""

    EXCLUSIVE = "exclusive"
    """CPUs of an exclusive pool, one a device."""
    SHARED = "shared"
    """A shared pool's CPUs; a device is a milli-CPU."""
    BESIDE = "beside"
    """A shared pool's CPUs beside CPUs of its own, by OpenShift's resource; one device each."""
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
        """Whether a container asks for them by its native cpu request, and so by no pool's name."""
        return self is ResourceKind.KUBELET or self is ResourceKind.POLICY


class Resource(str):
    """The name of a resource that comes with CPUs, a pool's most often, which knows its kind.

    It compares as its name, and knows the kind also where its pool is configured no longer.

    Attributes:
        kind: what CPUs come with it.
    """

    __slots__ = ("kind",)
    kind: ResourceKind

    def __new__(cls, name: str, kind: ResourceKind) -> Self:
        """Make the reference; `names.resource_named` parses a name."""
        made = super().__new__(cls, name)
        made.kind = kind
        return made


@dataclass(frozen=True, slots=True)
class CPURequest:
    """What counts of what a container asks for.

    Attributes:
        amounts: resource → devices, or CPUs of the kubelet's.
    """

    amounts: Mapping[Resource, int] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.amounts)

    @property
    def exclusive(self) -> bool:
        """Whether it asks for CPUs of an exclusive pool."""
        return any(resource.kind is ResourceKind.EXCLUSIVE for resource in self.amounts)


NO_REQUEST: Final = CPURequest()
