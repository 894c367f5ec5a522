"""Pods, containers and nodes as values, with the facts that placing pods on CPUs needs.

`kube.views` makes them of the API server's objects, and `manager.sightings` of the container
runtime's records.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Final, NamedTuple, NewType

from cpupool.core.cpuset import CPUSet
from cpupool.core.orchestration import NodeRules

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from cpupool.core.cpu_manager import SystemPods
    from cpupool.core.orchestration import Orchestration
    from cpupool.core.requests import Resource

PodUID = NewType("PodUID", str)
ContainerID = NewType("ContainerID", str)
"""A runtime's id without its scheme: 64 hexadecimal digits, no `containerd://`."""


_NAME_LABEL: Final = "io.kubernetes.container.name"


class QoSClass(Enum):
    """Kubernetes' quality of service class; it names the pod's place in the cgroup tree."""

    GUARANTEED = "Guaranteed"
    BURSTABLE = "Burstable"
    BEST_EFFORT = "BestEffort"


class ContainerKind(Enum):
    """The part of a container in its pod's life."""

    APP = "container"
    INIT = "init container"
    SIDECAR = "sidecar"
    EPHEMERAL = "ephemeral container"


class CPUMoves(Enum):
    """How far the CPUs may move that a container has had since it was created."""

    NEVER = "never"
    SAME_L3 = "same-l3"
    SAME_NUMA = "same-numa"
    ANY = "any"


class ContainerRef(NamedTuple):
    """A container of a pod, the same after each restart.

    Attributes:
        pod: the kubelet's UID of the pod, `Pod.cgroup_uid`: the API server has only a copy of a
            static pod, under another UID.
        name: unique in the pod.
    """

    pod: str
    name: str


@dataclass(frozen=True, slots=True)
class PodDescription:
    """The description of a pod for plugins for resources, and whether the pod waits for them.

    Attributes:
        labels: its labels.
        annotations: its annotations.
        left_out: the agent asks no plugin for it.
        starts_early: its containers start without answers, which come when plugins list what
            containers have.
        awaits_all: its containers never start with an answer missing; otherwise those for cpu and
            memory can come later, where a plugin refuses or is silent: it shares meanwhile.
        unclear: why an annotation does not say what it requests, or its class; empty if all do.
    """

    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    left_out: bool = False
    starts_early: bool = False
    awaits_all: bool = False
    unclear: str = ""


UNDESCRIBED: Final = PodDescription(left_out=True)
"""The description of a pod that only the runtime has reported, or if the agent asks no plugin."""


@dataclass(frozen=True, slots=True)
class Container:
    """One container of a pod's spec, with its running instance.

    Attributes:
        name: unique in the pod.
        kind: app, init, sidecar or ephemeral.
        requests: resource → amount, cores of an exclusive pool and milli-CPUs of a shared pool.
        id: the running instance; None before it is reported.
        request_milli: its native cpu request.
        limit_milli: its native cpu limit; None for no limit.
        whole_cpus: how many exclusive CPUs the kubelet's static CPU manager, where it is on, gives
            the container: its native request in a Guaranteed pod, if that is a whole number.
        equal_cpus: its native request in a pod of any class, if that is a whole number and its
            limit is equal; 0 as above in a pod with resources of its own.
        level_cpus: the same in a Guaranteed pod with resources of its own, if its memory request
            and limit are equal, too; 0 in any other pod.
        balanced: whether the scheduler may balance load over its CPUs; false where its pod
            switches that off.
        lasting: the names of the resources that it holds alone while its pod runs, if they lie on
            NUMA nodes: extended resources, and in a Guaranteed pod whole cpu, memory and huge
            pages; none for an init container, which ends.
        quantities: resource → how much it requests, in the base unit of the resource, also by an
            annotation of its pod; empty where the pod has no description.
    """

    name: str
    kind: ContainerKind = ContainerKind.APP
    requests: Mapping[Resource, int] = field(default_factory=dict)
    id: ContainerID | None = None
    request_milli: int = 0
    limit_milli: int | None = None
    whole_cpus: int = 0
    equal_cpus: int = 0
    level_cpus: int = 0
    balanced: bool = True
    lasting: frozenset[str] = frozenset()
    quantities: Mapping[str, float] = field(default_factory=dict)

    @property
    def ownable_cpus(self) -> int:
        """How many CPUs of its own it gets for its native request by some setting; 0 for none."""
        return self.whole_cpus or self.equal_cpus or self.level_cpus


@dataclass(frozen=True, slots=True)
class Pod:
    """One pod of this node.

    Attributes:
        uid: as in the API.
        namespace: its namespace.
        name: its name, unique in the namespace at any time.
        qos: its QoS class; None where only the container runtime has reported the pod.
        containers: every kind, init containers first.
        cgroup_uid: the id in its cgroup's name: `uid`, or the hash of the static pod that it
            claims to mirror.
        finished: it has succeeded or failed, and no longer owns anything.
        running: its phase is Running.
        limit_milli: the kubelet's limit for the pod's cgroup; None for no limit.
        node_critical: its priority class is system-node-critical.
        created: when the API server took it, as RFC 3339 in UTC; empty where that is not known.
        created_s: the same as Unix time; None where that is not known.
        ending: a client has asked the API server to delete it.
        ends_s: when its grace period is over, as Unix time; None where that is not known.
        level_milli: the cpu request of the pod itself, which replaces those of its containers; None
            without one.
        level_cpus: the same request in CPUs, of a Guaranteed pod; 0 if that is no whole number.
        overhead_milli: the cpu of its sandbox.
        unequal: of a pod with such labels or annotations, the first limit that is not its request;
            empty if there is none.
        orchestration: the rules for its CPUs in its labels and annotations; None without such.
        description: what plugins for resources learn of it; `UNDESCRIBED` where no plugin is
            asked, and where only the container runtime has reported the pod.
        memory_migrates: whether the agent may move the memory of its running containers; None
            where its annotation says neither yes nor no.
        notice_s: the seconds that its annotation asks for before its containers lose CPUs, maybe
            more than the node allows; None without a number there.
        cpu_moves: how far the CPUs of its running containers may move; never without a known word.
        misread: the annotations whose words the last two lack, without their domain.
    """

    uid: PodUID
    namespace: str
    name: str
    qos: QoSClass | None
    containers: tuple[Container, ...]
    cgroup_uid: str = ""
    finished: bool = False
    running: bool = False
    limit_milli: int | None = None
    node_critical: bool = False
    created: str = ""
    created_s: float | None = None
    ending: bool = False
    ends_s: float | None = None
    level_milli: int | None = None
    level_cpus: int = 0
    overhead_milli: int = 0
    unequal: str = ""
    orchestration: Orchestration | None = None
    description: PodDescription = UNDESCRIBED
    memory_migrates: bool | None = False
    notice_s: int | None = None
    cpu_moves: CPUMoves = CPUMoves.NEVER
    misread: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.cgroup_uid:
            object.__setattr__(self, "cgroup_uid", self.uid)

    @property
    def request_milli(self) -> int:
        """Its native cpu request in milli-CPUs, as the scheduler counts it."""
        requests = ((container.kind, container.request_milli) for container in self.containers)
        return pod_request_milli(requests, self.level_milli, self.overhead_milli)

    @property
    def whole_cpus(self) -> int:
        """Its native cpu request in CPUs; 0 if that is no whole number."""
        whole, rest = divmod(self.request_milli, 1000)
        return 0 if rest else whole

    @property
    def essential(self) -> bool:
        """Whether the node may need the pod to work, so that its containers start in any case."""
        return self.node_critical or self.cgroup_uid != self.uid

    @property
    def static(self) -> bool:
        """Whether the kubelet has it from a file: then its id is a hash, and not a UUID.

        Without the API server's mirror only the form of the id tells.
        """
        return self.cgroup_uid != self.uid or (self.qos is None and self.uid.isalnum())

    def is_one_of(self, system: SystemPods) -> bool:
        """Return whether it is a system pod: none that requests a pool, and no static pod."""
        pools = (container.requests for container in self.containers)
        return self.namespace in system.namespaces and not (self.static or any(pools))


def pod_request_milli(
    requests: Iterable[tuple[ContainerKind, int]],
    level_milli: int | None = None,
    overhead_milli: int = 0,
) -> int:
    """Return the milli-CPUs that the scheduler counts for a pod.

    An init container that ends uses the CPUs of containers that start later, a sidecar does not. An
    ephemeral container has no request. The status of a pod that is resized has no part in it:
    schedulers that assign CPUs read the spec alone.

    Source: PodRequests in k8s.io/component-helpers, resource/helpers.go, without options.

    Args:
        requests: kind and request of each container, in their order; of any one resource.
        level_milli: the request of the pod itself, which replaces those of its containers
            (KEP-2837); None without one.
        overhead_milli: the cpu of the pod's sandbox, beside its containers (KEP-688).
    """
    lasting = most = 0
    for kind, milli in requests:
        if kind is ContainerKind.INIT:
            most = max(most, lasting + milli)
        elif kind is not ContainerKind.EPHEMERAL:
            lasting += milli
    total = max(lasting, most) if level_milli is None else level_milli
    return total + overhead_milli


@dataclass(frozen=True, slots=True)
class NodeAmount:
    """The amounts of an extended resource in a node's status.

    Attributes:
        capacity: all of it; None for no entry, or for one that is no whole number.
        allocatable: the part that pods can have; None as above.
        ours: whether cpupool has set one of them.
    """

    capacity: int | None
    allocatable: int | None
    ours: bool = False


@dataclass(frozen=True, slots=True)
class Node:
    """A node of the cluster.

    Attributes:
        uid: as in the API.
        labels: its labels.
        rules: the rules for its CPUs in its labels and annotations.
        resources: the extended resources in its status.
    """

    uid: str
    labels: Mapping[str, str]
    rules: NodeRules = field(default_factory=NodeRules)
    resources: Mapping[str, NodeAmount] = field(default_factory=dict)


def oldest_first(pods: Iterable[Pod]) -> list[Pod]:
    """Return pods by their age; the name decides between pods of one second."""
    return sorted(pods, key=lambda pod: (pod.created, pod.namespace, pod.name))


@dataclass(frozen=True, slots=True)
class RuntimeContainer:
    """A container, or a pod's sandbox, in the container runtime's records.

    Attributes:
        id: the runtime's id.
        pod: the id in its pod's cgroup name: the UID, or a static pod's config hash.
        namespace: the pod's namespace.
        pod_name: the pod's name.
        name: the container's name in the pod; empty for the sandbox.
        devices: resource → device ids, from the annotations that Allocate's response wrote.
        chosen: the CPUs that the CPU manager policy chose for it, from the annotation of an agent.
        answered: the CPUs that a plugin named for it alone, likewise.
        narrowed: those of `answered` that the runtime's CPU list lacks: they are offline, or
            the plugin has taken them since.
        owns: how many CPUs it requests by the kubelet's numbers, which an in-place resize changes;
            0 for no whole number, None where the numbers do not say. Only an owner of CPUs has so
            many of its own.
    """

    id: ContainerID
    pod: str
    namespace: str
    pod_name: str
    name: str = ""
    devices: Mapping[Resource, frozenset[str]] = field(default_factory=dict)
    chosen: CPUSet = field(default_factory=CPUSet)
    answered: CPUSet = field(default_factory=CPUSet)
    narrowed: CPUSet = field(default_factory=CPUSet)
    owns: int | None = None

    @classmethod
    def labelled(
        cls,
        identifier: str,
        labels: Mapping[str, str],
        devices: Mapping[Resource, frozenset[str]] | None = None,
        *,
        name: str | None = None,
    ) -> RuntimeContainer | None:
        """Read the kubelet's labels; return None where another program made the container.

        Source: kubernetes pkg/kubelet/types/labels.go.

        Args:
            identifier: the runtime's id.
            labels: the labels of the container, or of its pod.
            devices: resource → ids.
            name: the container's name; None to read it from the labels.
        """
        try:
            return cls(
                ContainerID(identifier),
                labels["io.kubernetes.pod.uid"],
                labels["io.kubernetes.pod.namespace"],
                labels["io.kubernetes.pod.name"],
                labels.get(_NAME_LABEL, "") if name is None else name,
                devices or {},
            )
        except KeyError:
            return None

    @classmethod
    def sandbox(cls, identifier: str, labels: Mapping[str, str]) -> RuntimeContainer | None:
        """Read a sandbox's labels without a container's name, which only a pod's author can add."""
        return cls.labelled(identifier, labels, name="")
