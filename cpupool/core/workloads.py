"""Pods and containers: the facts that their placement on CPUs needs."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Final, NamedTuple, NewType

from cpupool.core.cpuset import CPUSet

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from cpupool.core.koordinator import Orchestration
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
    """What plugins for resources learn of a pod.

    Attributes:
        labels: its labels.
        annotations: its annotations.
        of_daemon_set: a DaemonSet made it.
        unclear: why the annotation with requests does not count; empty if it does.
    """

    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    of_daemon_set: bool = False
    unclear: str = ""


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
    balanced: bool = True
    lasting: frozenset[str] = frozenset()
    quantities: Mapping[str, float] = field(default_factory=dict)


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
        ending: the API server has been asked to delete it.
        ends_s: when its grace period is over, as Unix time; None where that is not known.
        orchestration: what Koordinator's labels and annotations say; None where it has none.
        description: what plugins for resources learn of it; None where no plugin is asked, and
            where only the container runtime has reported the pod.
        memory_migrates: whether the agent may move the memory of its running containers; None
            where its annotation says neither yes nor no.
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
    ending: bool = False
    ends_s: float | None = None
    orchestration: Orchestration | None = None
    description: PodDescription | None = None
    memory_migrates: bool | None = False

    def __post_init__(self) -> None:
        if not self.cgroup_uid:
            object.__setattr__(self, "cgroup_uid", self.uid)

    @property
    def whole_cpus(self) -> int:
        """Its native cpu request in CPUs; 0 if that is no whole number."""
        requests = ((container.kind, container.request_milli) for container in self.containers)
        whole, rest = divmod(pod_request_milli(requests), 1000)
        return 0 if rest else whole

    @property
    def essential(self) -> bool:
        """Whether the node may need the pod to work, so that its containers start in any case."""
        return self.node_critical or self.cgroup_uid != self.uid


def pod_request_milli(requests: Iterable[tuple[ContainerKind, int]]) -> int:
    """Return the milli-CPUs that a pod requests, from those of its containers in their order.

    An init container that ends uses the CPUs before the others do (PodRequests in
    k8s.io/component-helpers, resource).
    """
    lasting = most = 0
    for kind, milli in requests:
        if kind is ContainerKind.INIT:
            most = max(most, lasting + milli)
        elif kind is not ContainerKind.EPHEMERAL:
            lasting += milli
    return max(lasting, most)


@dataclass(frozen=True, slots=True)
class NodeAmount:
    """How much of an extended resource a node's status names.

    Attributes:
        capacity: all of it; None for no entry, or for one that is no whole number.
        allocatable: what pods can have; None as for `capacity`.
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
        annotations: those that cpupool reads.
        resources: the extended resources in its status.
    """

    uid: str
    labels: Mapping[str, str]
    annotations: Mapping[str, str] = field(default_factory=dict)
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
        devices: resource → device ids, from the annotations that Allocate's answer wrote.
        chosen: the CPUs that the CPU manager policy chose for it, from the annotation of an agent.
        answered: the CPUs that a plugin named for it alone, likewise.
        narrowed: those of `answered` that the runtime's CPU list lacks: they are offline, or
            the plugin has taken them since.
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
