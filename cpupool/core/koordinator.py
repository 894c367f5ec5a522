"""A node as Koordinator's scheduler reads it, beside the resources of its NUMA nodes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from cpupool.core.cpuset import CPUSet

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class CPUModel:
    """The kind of a machine's CPUs.

    Attributes:
        name: the model's name; empty where the kernel does not say.
        vendor: the vendor's id, as GenuineIntel.
        turbo: whether the CPUs may exceed their base frequency.
        l3_mask: the bits of an L3 cache that resctrl can give out, in hexadecimal; empty without
            cache allocation.
    """

    name: str = ""
    vendor: str = ""
    turbo: bool = False
    l3_mask: str = ""


@dataclass(frozen=True, slots=True)
class Reservation:
    """An admin's reservation of a node's CPUs for what is no pod.

    Attributes:
        cpus: the CPUs.
        count: how many CPUs where `cpus` names none.
        written: the annotation's value, with fields that cpupool does not read.
    """

    cpus: CPUSet = field(default_factory=CPUSet)
    count: int = 0
    written: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SystemCPUs:
    """An admin's CPUs for pods of the class SYSTEM.

    Attributes:
        cpus: the CPUs.
        exclusive: whether other pods must not run there.
        written: the annotation's value.
    """

    cpus: CPUSet = field(default_factory=CPUSet)
    exclusive: bool = True
    written: Mapping[str, Any] = field(default_factory=dict)

    @property
    def withheld(self) -> CPUSet:
        """The CPUs that no other pod may use."""
        return self.cpus if self.exclusive else CPUSet()


@dataclass(frozen=True, slots=True)
class EffectiveCPUManager:
    """What gives containers CPUs of their own on a node: the kubelet, or cpupool in its place.

    Attributes:
        policy: the name of its policy, as the kubelet has it.
        options: the options of the policy: name → value.
        reserved: CPUs that it never gives to a container.
    """

    policy: str
    options: Mapping[str, str]
    reserved: CPUSet


@dataclass(frozen=True, slots=True)
class PodCPUs:
    """CPUs that a pod owns.

    Attributes:
        namespace: the pod's namespace.
        name: its name.
        uid: its UID in the API.
        cpus: the CPUs.
    """

    namespace: str
    name: str
    uid: str
    cpus: CPUSet


@dataclass(frozen=True, slots=True)
class SharedPool:
    """The part of a shared set of CPUs that lies on one NUMA node.

    Attributes:
        socket: the number of the socket, in the order of the sockets' lowest CPUs.
        node: the NUMA node's id.
        cpus: the CPUs.
    """

    socket: int
    node: int
    cpus: CPUSet


@dataclass(frozen=True, slots=True)
class SharedPools:
    """The shared sets of a node.

    Attributes:
        shared: for pods without CPUs of their own.
        best_effort: for best-effort pods.
    """

    shared: tuple[SharedPool, ...]
    best_effort: tuple[SharedPool, ...]
