"""Koordinator's words for pods and nodes: classes, wishes, reservations, shared sets."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any

from cpupool.core.cpuset import CPUSet
from cpupool.core.pool_policy import ExclusivePolicy, NUMAPolicy

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cpupool.core.cpu_manager import TopologyPolicy


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
        scheduled: whether koord-scheduler has assigned them, and so keeps its own books of them.
    """

    namespace: str
    name: str
    uid: str
    cpus: CPUSet
    scheduled: bool = False


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


class QoS(Enum):
    """Koordinator's class of a pod."""

    LSE = "LSE"
    """Latency sensitive, exclusive: its CPUs are its own."""
    LSR = "LSR"
    """Latency sensitive, reserved: only best-effort pods may use its CPUs, too."""
    LS = "LS"
    """Latency sensitive: on the shared CPUs."""
    BE = "BE"
    """Best effort."""
    SYSTEM = "SYSTEM"


class BindPolicy(Enum):
    """How a pod's own CPUs lie on cores."""

    FULL_PCPUS = "FullPCPUs"
    SPREAD_BY_PCPUS = "SpreadByPCPUs"
    CONSTRAINED_BURST = "ConstrainedBurst"
    """No own CPUs: the shared CPUs of a NUMA node that has as many as the pod's limit."""


@dataclass(frozen=True, slots=True)
class Orchestration:
    """What labels and annotations of Koordinator say of a pod.

    Attributes:
        qos: its class; None where the label names none.
        prod: whether its priority class is koord-prod, without which no pod owns CPUs.
        cpus: the CPUs that a scheduler has assigned; empty for none.
        nodes: the NUMA nodes whose shared CPUs a scheduler has assigned; empty for all.
        bind: how its CPUs are to lie on cores; None for the node's way.
        required: whether it must not start with CPUs that lie otherwise.
        exclusive: what it prefers not to share with pods of the same wish.
        topology: how strictly its CPUs lie on NUMA nodes; None for the node's policy.
        split: whether each container has a part of its CPUs, by cpupool's annotation.
        fault: why an annotation does not count; empty if all count.
        scheduled: whether a scheduler has written `resource-status`.
        published: the CPUs that an agent has written there, as its own choice; no assignment.
    """

    qos: QoS | None = None
    prod: bool = False
    cpus: CPUSet = field(default_factory=CPUSet)
    nodes: frozenset[int] = frozenset()
    bind: BindPolicy | None = None
    required: bool = False
    exclusive: ExclusivePolicy = ExclusivePolicy.NONE
    topology: TopologyPolicy | None = None
    split: bool = False
    fault: str = ""
    scheduled: bool = False
    published: CPUSet = field(default_factory=CPUSet)

    @property
    def owns(self) -> bool:
        """Whether the pod owns CPUs, if it requests whole CPUs.

        koord-scheduler assigns CPUs to pods of every class where the Node demands whole cores.
        """
        owner = self.qos in {QoS.LSE, QoS.LSR} and self.prod
        return bool(self.cpus) or (owner and self.bind is not BindPolicy.CONSTRAINED_BURST)

    @property
    def bursts(self) -> bool:
        """Whether the pod is to share the CPUs of one NUMA node that the node chooses."""
        shares = not (self.cpus or self.nodes or self.fault or self.qos in {QoS.BE, QoS.SYSTEM})
        return shares and self.bind is BindPolicy.CONSTRAINED_BURST


@dataclass(frozen=True, slots=True)
class NodeRules:
    """What labels and annotations of Koordinator say of a node.

    Attributes:
        reservation: CPUs for what is no pod.
        system: CPUs for pods of the class SYSTEM.
        bind: how the CPUs of all pods lie on cores; None where each pod says it.
        full_cores_only: whether pods must have whole cores.
        strategy: on which NUMA nodes to begin; None for the kubelet's option, or the emptiest.
        topology: how strictly a pod's CPUs lie on NUMA nodes; None for the pool file's policy.
        arm: whether the machine is arm64, where CPUs are bound by whole cores only.
        faults: why labels or annotations do not count.
    """

    reservation: Reservation = field(default_factory=Reservation)
    system: SystemCPUs = field(default_factory=SystemCPUs)
    bind: BindPolicy | None = None
    full_cores_only: bool = False
    strategy: NUMAPolicy | None = None
    topology: TopologyPolicy | None = None
    arm: bool = False
    faults: tuple[str, ...] = ()

    @property
    def withheld(self) -> CPUSet:
        """The CPUs that no ordinary pod may use."""
        return self.reservation.cpus | self.system.withheld
