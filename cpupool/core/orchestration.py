"""Orchestration: the rules for the CPUs of a pod or a node in its labels and annotations.

Several rooms carry these values. Only the policy that orchestrates by them reads them from texts,
and knows what follows from them.
"""

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
class Reservation:
    """An admin's reservation of a node's CPUs for programs outside pods.

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


class QoS(Enum):
    """The class of a pod, which says which others may run on its CPUs."""

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
    """The way in which a pod's own CPUs lie on cores."""

    FULL_PCPUS = "FullPCPUs"
    SPREAD_BY_PCPUS = "SpreadByPCPUs"
    CONSTRAINED_BURST = "ConstrainedBurst"
    """No own CPUs: the shared CPUs of a NUMA node that has as many as the pod's limit."""


@dataclass(frozen=True, slots=True)
class Orchestration:
    """The rules in the labels and annotations of a pod.

    Attributes:
        qos: its class; None where the label names none.
        prod: whether its priority is that of production, without which no pod owns CPUs.
        cpus: the CPUs that a scheduler has assigned; empty for none.
        nodes: the NUMA nodes whose shared CPUs a scheduler has assigned; empty for all.
        bind: how its CPUs are to lie on cores; None for the node's way.
        required: whether it must not start with CPUs that lie otherwise.
        exclusive: the units that it prefers not to share with pods of the same preference.
        topology: how strictly its CPUs lie on NUMA nodes; None for the node's policy.
        split: whether each container has a part of its CPUs, by cpupool's annotation.
        unbound: it wants no CPUs of its own, whatever its class.
        fault: why its annotations do not say which CPUs are its own; empty if they do.
        ignored: why other labels or annotations have no effect, while the rest has.
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
    unbound: bool = False
    fault: str = ""
    ignored: tuple[str, ...] = ()
    scheduled: bool = False
    published: CPUSet = field(default_factory=CPUSet)

    @property
    def owns(self) -> bool:
        """Whether the pod owns CPUs, if it requests whole CPUs.

        A scheduler assigns CPUs to pods of every class where the Node demands whole cores.
        """
        owner = self.qos in {QoS.LSE, QoS.LSR} and self.prod and not self.unbound
        return bool(self.cpus) or (owner and self.bind is not BindPolicy.CONSTRAINED_BURST)

    @property
    def shares(self) -> bool:
        """Whether the pod shares CPUs, also if the kubelet gives it some of its own."""
        return self.qos in {QoS.LS, QoS.BE}

    @property
    def bursts(self) -> bool:
        """Whether the pod is to share the CPUs of one NUMA node that the node chooses."""
        shares = not (self.cpus or self.nodes or self.fault or self.qos in {QoS.BE, QoS.SYSTEM})
        return shares and self.bind is BindPolicy.CONSTRAINED_BURST


@dataclass(frozen=True, slots=True)
class NodeRules:
    """The rules in the labels and annotations of a node.

    Attributes:
        reservation: CPUs for programs outside pods.
        system: CPUs for pods of the class SYSTEM.
        bind: how the CPUs of all pods lie on cores; None where each pod says it.
        full_cores_only: whether pods must have whole cores.
        strategy: on which NUMA nodes to begin; None for the kubelet's option, or the emptiest.
        topology: how strictly a pod's CPUs lie on NUMA nodes; None for the pool file's policy.
        arm: whether the machine is arm64, where CPUs are bound by whole cores only.
        faults: why labels or annotations have no effect.
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
