"""The interfaces that the manager and the roles need; adapters satisfy them structurally."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Final, Protocol

from cpupool.core.workloads import ContainerID

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    from cpupool.core.cpuset import CPUSet
    from cpupool.core.devices import PodDevices
    from cpupool.core.properties import Properties
    from cpupool.core.quota import Bandwidth
    from cpupool.core.topology import CPUTopology
    from cpupool.core.workloads import Pod, RuntimeContainer
    from cpupool.wire.node_topology import Observed, Values

POD_ITSELF: Final = ContainerID("")
"""The id of a pod's own directory; no container has this id."""


class Writer(Enum):
    """Which program writes a container's cgroup."""

    NRI = "nri"
    """The runtime, which asks cpupool's NRI plugin: right before the first instruction."""
    CRI = "cri"
    """The runtime, through CRI as the kubelet: right after the agent sees the container."""
    CGROUP = "cgroup"
    """cpupool itself: right after the agent sees the container, and sooner than through CRI."""


@dataclass(frozen=True, slots=True)
class CgroupNode:
    """The present state of one cgroup.

    Attributes:
        path: relative to the cgroup tree.
        cpus: its own set; empty where it inherits the parent's (cgroup v2) or has none yet (v1).
        children: the cgroups below; empty for an ancestor.
    """

    path: str
    cpus: CPUSet
    children: tuple[CgroupNode, ...] = ()


class PodSource(Protocol):
    """The source of this node's pods."""

    def pods(self) -> tuple[Pod, ...] | None:
        """Return every pod of this node, or None until a first complete list is known.

        Raises:
            CPUPoolError: the source cannot be read now.
        """
        ...


class NodeLabels(Protocol):
    """The source of this node's labels."""

    def labels(self) -> Mapping[str, str] | None:
        """Return the labels, or None until they are known."""
        ...


class ConfigMapSource(Protocol):
    """The source of the ConfigMap with the pool files."""

    def entries(self) -> Mapping[str, bytes] | None:
        """Return key → content from the API server's last answer, or None before the first."""
        ...

    def wait(self, timeout_s: float) -> None:
        """Wait for the API server's first answer, at most this time."""
        ...


class EventSink(Protocol):
    """The sink of Events for a pod's author or a node's admin; never blocks, never raises."""

    def pod(self, pod: Pod, reason: str, message: str, *, warning: bool = True) -> None:
        """Send an Event about a pod.

        Args:
            pod: the pod.
            reason: one word in CamelCase, for programs.
            message: the fact and what to do about it.
            warning: whether something is wrong.
        """
        ...

    def node(self, reason: str, message: str, *, warning: bool = True) -> None:
        """Send an Event about this node."""
        ...


class PodStatusSink(Protocol):
    """The status of pods, where the agent writes that a pod has failed."""

    def fail(self, pod: Pod, reason: str, message: str) -> None:
        """Set the phase of a pending pod to Failed; never that of a successor with its name.

        Args:
            pod: the pod.
            reason: one word in CamelCase, for programs.
            message: the fact.

        Raises:
            APIError: the API server does not answer, or refuses.
        """
        ...

    def interrupt(self) -> None:
        """End the request that is going on, and every later one."""
        ...


class PodAnnotationSink(Protocol):
    """The annotations of pods, where the agent writes which CPUs it chose."""

    def annotate(self, pod: Pod, key: str, value: str) -> None:
        """Set an annotation of a pod; never that of a successor with its name.

        Args:
            pod: the pod.
            key: the annotation.
            value: its value.

        Raises:
            APIError: the API server does not answer, or refuses.
        """
        ...

    def interrupt(self) -> None:
        """End the request that is going on, and every later one."""
        ...


class NodeTopologySink(Protocol):
    """The object in which schedulers read this node's topology."""

    @property
    def version(self) -> str:
        """The version of the API in which the object is written; empty until it is known."""
        ...

    def observed(self) -> tuple[Observed, ...] | None:
        """Return the object, or nothing where there is none; None until that is known."""
        ...

    def wakes(self, changed: Callable[[], None]) -> None:
        """Call this at each change of the object; it must not block."""
        ...

    def apply(self, node_uid: str, values: Values) -> None:
        """Set these fields of the object, and give up every other field.

        Args:
            node_uid: the UID of the Node, which owns the object.
            values: the fields.

        Raises:
            APIError: the API server does not answer, or refuses.
        """
        ...


class DeviceSource(Protocol):
    """The kubelet's podresources: which devices it gave to which container."""

    def by_pod_name(self) -> Mapping[tuple[str, str], PodDevices]:
        """Return (namespace, pod name) → container name → resource name → devices.

        Raises:
            RemoteProtocolError: the kubelet does not answer.
        """
        ...

    def allocatable_cpus(self) -> CPUSet:
        """Return the CPUs that the kubelet's CPU manager gives out; empty under its policy none.

        Raises:
            RemoteProtocolError: the kubelet does not answer.
        """
        ...


class CheckpointSource(Protocol):
    """The kubelet's checkpoint file, which also has init containers."""

    def by_pod_uid(self) -> Mapping[str, PodDevices]:
        """Return pod UID → container name → resource name → devices.

        Raises:
            CPUPoolError: the file is missing or damaged.
        """
        ...


class TopologySource(Protocol):
    """The source of the machine's CPUs."""

    def online(self) -> CPUSet:
        """Return the CPUs that are online now; cheap enough for 20 calls a second."""
        ...

    def topology(self) -> CPUTopology:
        """Read the whole topology.

        Raises:
            HostFileError: sysfs does not have the content that the kernel documents.
        """
        ...


class ContainerSource(Protocol):
    """The container runtime, which recognises containers and sandboxes by their ids."""

    def connected(self) -> bool:
        """Return whether the runtime can answer now; makes no call, or a short one."""
        ...

    def recognise(self, ids: Collection[str]) -> tuple[RuntimeContainer, ...]:
        """Return the containers and sandboxes with these ids that the runtime knows.

        Raises:
            CPUPoolError: the runtime does not answer.
        """
        ...

    def chosen(self, ids: Collection[str]) -> tuple[RuntimeContainer, ...]:
        """Return those of these containers for which an agent has chosen CPUs.

        Raises:
            CPUPoolError: the runtime does not answer.
        """
        ...


class ContainerRuntime(Protocol):
    """A container runtime that sets a container's CPUs, and remembers them."""

    def connected(self) -> bool:
        """Return whether the runtime can be reached now; makes no call, or a short one."""
        ...

    def cpu_list(self, container: ContainerID) -> str | None:
        """Return the CPU list that the runtime has for a container.

        It is empty if the runtime has none, and None if the runtime does not know the container.

        Raises:
            CPUPoolError: the runtime does not answer.
        """
        ...

    def starting(self, container: ContainerID) -> bool:
        """Return whether the runtime has a starting container's CPUs but has not applied them."""
        ...

    def update(self, container: ContainerID, cpus: CPUSet) -> None:
        """Set a container's CPUs through the runtime.

        Raises:
            ContainerNotFound: the container has ended.
            RuntimeBusy: the agent may repeat the call in a moment.
            RuntimeSilent: the runtime does not answer.
            RuntimeRefused: the runtime did not set them.
        """
        ...

    def adjust(self, container: ContainerID, properties: Properties) -> None:
        """Set properties of a container through the runtime, without the OOM score.

        Raises:
            ContainerNotFound: the container has ended.
            RuntimeBusy: the agent may repeat the call in a moment.
            RuntimeSilent: the runtime does not answer.
            RuntimeRefused: the runtime did not set them.
        """
        ...


class BatchingRuntime(ContainerRuntime, Protocol):
    """The container runtime through its NRI plugin: a call can change several containers.

    The runtime asks the plugin about changes that others make over CRI, cpupool itself included.
    """

    @property
    def may_lock_up(self) -> bool:
        """Whether such a change can lock up the runtime for ever."""
        ...

    @property
    def delays(self) -> bool:
        """Whether the start of a container waits until others have left its CPUs.

        The runtime takes no change before that is answered.
        """
        ...

    def expecting(self, container: ContainerID, cpus: CPUSet) -> AbstractContextManager[None]:
        """Accept, inside the context, a change that cpupool makes over CRI.

        Args:
            container: the changed container.
            cpus: its new CPUs; empty where they stay.

        Raises:
            RuntimeBusy: the agent may make the change in a moment.
        """
        ...

    def update_all(self, wanted: Mapping[ContainerID, CPUSet]) -> None:
        """Set containers' CPUs through the runtime; a refused container does not affect others.

        Raises:
            RuntimeBusy: the agent may repeat the call in a moment.
            RuntimeSilent: the runtime does not answer.
            RuntimeRefused: the runtime has changed nothing.
        """
        ...


@dataclass(frozen=True, slots=True)
class FoundContainer:
    """A directory below a pod's cgroup: a container, a sandbox, or something unknown.

    It may be the pod's own directory, if the kernel has moved a container's processes into it.

    Attributes:
        pod: the id in the pod's cgroup name: UID or static pod hash.
        id: the container id in the directory's name, or the whole name where it has none;
            `POD_ITSELF` for the pod's own directory.
        path: the directory, relative to the cgroup tree.
        cpus: the CPUs that it runs on now, in the kernel's text.
    """

    pod: str
    id: str
    path: str
    cpus: str


@dataclass(frozen=True, slots=True)
class Mount:
    """A file or folder that is mounted read-only into a container.

    `host_path` is its path for the kubelet and the container runtime.
    """

    container_path: str
    host_path: str


class CgroupAccess(Protocol):
    """Read and write access to container cgroups. Only one thread writes."""

    def read(self, path: str) -> tuple[tuple[CgroupNode, ...], CgroupNode]:
        """Read a directory's subtree, and the ancestors that may be widened for it, root first.

        Raises:
            CgroupNotFound: it has ended.
        """
        ...

    def write(self, path: str, cpus: CPUSet) -> None:
        """Write one cgroup's cpuset.

        Raises:
            CgroupNotFound: it has ended.
            CgroupWriteRejected: the kernel refuses the value.
        """
        ...

    def effective(self, path: str) -> CPUSet:
        """Read the CPUs that a cgroup runs on.

        Raises:
            CgroupNotFound: it has ended.
        """
        ...


class CgroupTree(CgroupAccess, Protocol):
    """The node's container cgroups."""

    def containers(
        self, known: Mapping[str, Sequence[FoundContainer]] | None = None
    ) -> Iterator[FoundContainer]:
        """Walk every directory of every pod, with the CPUs that it runs on now.

        A pod's own directory comes after those below it, and only while the kernel has moved
        processes there. What is `known` of a pod's directory is not read again.
        """
        ...

    def make_room(self, online: CPUSet, of_pod: Callable[[str], CPUSet]) -> None:
        """Add CPUs that came back online to the cgroups above containers.

        Args:
            online: the CPUs for the cgroups above pods.
            of_pod: the id in a pod's cgroup name → the CPUs for the pod's cgroup.

        Raises:
            HostError: a cgroup cannot be read or written.
        """
        ...


class BandwidthTree(Protocol):
    """The CPU time of the cgroups in a `CgroupTree`, under the same paths."""

    def bandwidth(self, path: str) -> Bandwidth | None:
        """Read how long a cgroup may run; None without the cgroup or its controller.

        Raises:
            HostError: it cannot be read.
        """
        ...

    def limit(self, path: str, bandwidth: Bandwidth) -> None:
        """Write how long a cgroup may run.

        Raises:
            CgroupNotFound: it has ended.
            CgroupWriteRejected: the kernel refuses the value.
        """
        ...


ISOLATED: Final = "isolated"
"""The kernel's word for a cgroup on whose CPUs the scheduler does not balance load."""


@dataclass(frozen=True, slots=True)
class Partition:
    """The partition state of a cgroup, and its exclusive CPUs.

    Attributes:
        state: in the kernel's words: `member`, `isolated`, `isolated invalid (why)`...
        cpus: the CPUs that it lists as exclusive; they count while it is isolated.
    """

    state: str
    cpus: CPUSet


class PartitionTree(Protocol):
    """The isolated partitions in a `CgroupTree`, under the same paths."""

    @property
    def obstacle(self) -> str:
        """Why this node cannot have isolated partitions; empty where it can."""
        ...

    def reserved(self) -> Iterator[tuple[str, CPUSet]]:
        """Walk the cgroups that list exclusive CPUs which no cgroup below them lists.

        These are containers, and cgroups above containers that have ended.

        Raises:
            HostError: a cgroup cannot be read.
        """
        ...

    def partition(self, path: str) -> Partition:
        """Read a cgroup's partition state.

        Raises:
            CgroupNotFound: it has ended.
            HostError: it cannot be read.
        """
        ...

    def isolate(self, path: str, cpus: CPUSet) -> None:
        """Make a cgroup an isolated partition of exactly these CPUs, or change nothing.

        Raises:
            CgroupNotFound: it has ended.
            CgroupWriteRejected: the kernel refuses.
            HostError: a cgroup above it cannot be read.
        """
        ...

    def release(self, path: str, cpus: CPUSet) -> None:
        """Make a cgroup a member again, if it exists, and remove its CPUs from those above it.

        Raises:
            HostError: a cgroup cannot be read or written.
        """
        ...
