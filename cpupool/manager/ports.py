"""What the manager and the roles need of the outside; adapters satisfy these structurally."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Final, Protocol

from cpupool.core.workloads import ContainerID

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping
    from contextlib import AbstractContextManager

    from cpupool.core.cpuset import CPUSet
    from cpupool.core.devices import PodDevices
    from cpupool.core.quota import Bandwidth
    from cpupool.core.topology import CPUTopology
    from cpupool.core.workloads import Pod, RuntimeContainer

POD_ITSELF: Final = ContainerID("")
"""The id of a pod's own directory, which no container has."""


class Writer(Enum):
    """Who writes a container's cgroup."""

    NRI = "nri"
    """The runtime, as this plugin of it answers: right before the first instruction."""
    CRI = "cri"
    """The runtime, called as the kubelet calls it: right once the container is seen."""
    CGROUP = "cgroup"
    """cpupool itself: right once the container is seen, and sooner than through CRI."""


@dataclass(frozen=True, slots=True)
class CgroupNode:
    """One cgroup as it is.

    Attributes:
        path: relative to the cgroup tree.
        cpus: its own set; empty where it inherits the parent's (cgroup v2) or has none yet (v1).
        children: the cgroups below; empty for an ancestor, whose others do not matter.
    """

    path: str
    cpus: CPUSet
    children: tuple[CgroupNode, ...] = ()


class PodSource(Protocol):
    """Where the pods of this node come from."""

    def pods(self) -> tuple[Pod, ...] | None:
        """Give every pod of this node, or None until a first complete list is known.

        Raises:
            CPUPoolError: the source cannot be read now.
        """
        ...


class NodeLabels(Protocol):
    """Where this node's labels come from."""

    def labels(self) -> Mapping[str, str] | None:
        """Give the labels, or None until they are known."""
        ...


class ConfigMapSource(Protocol):
    """Where the ConfigMap with the pool files comes from."""

    def entries(self) -> Mapping[str, bytes] | None:
        """Return key → content as the API server showed it last, or None until it has."""
        ...

    def wait(self, timeout_s: float) -> None:
        """Wait for the API server's first answer, no longer than this."""
        ...


class EventSink(Protocol):
    """Where a pod's author or a node's admin is told something; never blocks, never raises."""

    def pod(self, pod: Pod, reason: str, message: str, *, warning: bool = True) -> None:
        """Tell something about a pod.

        Args:
            pod: the pod.
            reason: one word in CamelCase, for programs.
            message: the fact and what to do about it.
            warning: whether something is wrong.
        """
        ...

    def node(self, reason: str, message: str, *, warning: bool = True) -> None:
        """Tell something about this node."""
        ...


class DeviceSource(Protocol):
    """Where the kubelet tells which devices it gave to whom: podresources."""

    def by_pod_name(self) -> Mapping[tuple[str, str], PodDevices]:
        """Give (namespace, pod name) → container name → resource name → what it was given.

        Raises:
            RemoteProtocolError: the kubelet does not answer.
        """
        ...

    def allocatable_cpus(self) -> CPUSet:
        """Give the CPUs that the kubelet's own CPU manager hands out; none under policy none.

        Raises:
            RemoteProtocolError: the kubelet does not answer.
        """
        ...


class CheckpointSource(Protocol):
    """The kubelet's checkpoint file, which also knows init containers."""

    def by_pod_uid(self) -> Mapping[str, PodDevices]:
        """Give pod UID → container name → resource name → what it was given.

        Raises:
            CPUPoolError: the file is missing or damaged.
        """
        ...


class TopologySource(Protocol):
    """Where the machine's CPUs are read from."""

    def online(self) -> CPUSet:
        """Give the CPUs that are online now; cheap enough to ask 20 times a second."""
        ...

    def topology(self) -> CPUTopology:
        """Read the whole topology.

        Raises:
            HostFileError: sysfs holds something else than the kernel documents.
        """
        ...


class ContainerSource(Protocol):
    """Where containers and sandboxes are recognised by their ids: the container runtime."""

    def connected(self) -> bool:
        """Tell whether the runtime can be asked now; asks nobody, or quickly."""
        ...

    def recognise(self, ids: Collection[str]) -> tuple[RuntimeContainer, ...]:
        """Give those of these containers and sandboxes that the runtime knows.

        Raises:
            CPUPoolError: the runtime does not answer.
        """
        ...


class ContainerRuntime(Protocol):
    """A way by which the container runtime itself sets a container's CPUs, and remembers them."""

    def connected(self) -> bool:
        """Tell whether the runtime can be reached this way now; asks nobody, or quickly."""
        ...

    def cpu_list(self, container: ContainerID) -> str | None:
        """Give the CPU list that the runtime has for a container.

        Empty where it has none, and None where it does not know the container.

        Raises:
            CPUPoolError: the runtime does not answer.
        """
        ...

    def starting(self, container: ContainerID) -> bool:
        """Tell whether the runtime has been told its CPUs and is still bringing it onto them."""
        ...

    def update(self, container: ContainerID, cpus: CPUSet) -> None:
        """Let the runtime set a container's CPUs.

        Raises:
            ContainerNotFound: it has ended.
            RuntimeBusy: it may be asked again in a moment.
            RuntimeSilent: it does not answer.
            RuntimeRefused: it did not.
        """
        ...

    def limit(self, container: ContainerID, bandwidth: Bandwidth) -> None:
        """Let the runtime set how long a container may run in each period.

        Raises:
            ContainerNotFound: it has ended.
            RuntimeBusy: it may be asked again in a moment.
            RuntimeSilent: it does not answer.
            RuntimeRefused: it did not.
        """
        ...


class BatchingRuntime(ContainerRuntime, Protocol):
    """The container runtime as its own plugin reaches it: it takes several containers in one call.

    It asks the plugin about changes that others make over CRI, cpupool itself included.
    """

    @property
    def may_lock_up(self) -> bool:
        """Whether a change by this way can lock the runtime up for good."""
        ...

    def expecting(self, container: ContainerID, cpus: CPUSet) -> AbstractContextManager[None]:
        """Let a change that cpupool makes over CRI meanwhile pass as it is.

        Args:
            container: what is changed.
            cpus: those that it is given; none where they stay.

        Raises:
            RuntimeBusy: it may be changed in a moment.
        """
        ...

    def update_all(self, wanted: Mapping[ContainerID, CPUSet]) -> None:
        """Let the runtime set containers' CPUs; what it refuses of one changes no other.

        Raises:
            RuntimeBusy: it may be asked again in a moment.
            RuntimeSilent: it does not answer.
            RuntimeRefused: it has done nothing.
        """
        ...


@dataclass(frozen=True, slots=True)
class FoundContainer:
    """A directory below a pod's cgroup: a container, a sandbox, or something unknown.

    Or the pod's own, where the kernel has moved a container's processes into it.

    Attributes:
        pod: the id in the pod's cgroup name: UID or static pod hash.
        id: the container id in the directory's name, or the whole name where it has none;
            `POD_ITSELF` for the pod's own directory.
        path: the directory, relative to the cgroup tree.
        cpus: the list of CPUs that it runs on now, as the kernel writes it.
    """

    pod: str
    id: str
    path: str
    cpus: str


@dataclass(frozen=True, slots=True)
class Mount:
    """A file or folder that a container sees, and cannot write.

    Attributes:
        container_path: where the container sees it.
        host_path: what it is, as the kubelet and the container runtime name it.
    """

    container_path: str
    host_path: str


class CgroupAccess(Protocol):
    """Reads and writes container cgroups. One thread only writes."""

    def read(self, path: str) -> tuple[tuple[CgroupNode, ...], CgroupNode]:
        """Read the ancestors that may be widened for a directory, root first, and its subtree.

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

    def containers(self) -> Iterator[FoundContainer]:
        """Walk every directory of every pod, with the CPUs that it runs on now.

        A pod's own comes after those below it, and only while the kernel has moved processes there.
        """
        ...

    def make_room(self, online: CPUSet, of_pod: Callable[[str], CPUSet]) -> None:
        """Let the cgroups above containers have CPUs that have come back.

        Args:
            online: for those above pods.
            of_pod: the id in a pod's cgroup name → what the pod's needs.

        Raises:
            HostError: one cannot be read or written.
        """
        ...


class BandwidthTree(Protocol):
    """The CPU time of the cgroups in a `CgroupTree`, under the same paths."""

    def bandwidth(self, path: str) -> Bandwidth | None:
        """Read how long a cgroup may run; None where there is nothing to limit.

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
"""What the kernel says of a cgroup on whose CPUs the scheduler balances no load."""


@dataclass(frozen=True, slots=True)
class Partition:
    """How far a cgroup has CPUs for itself.

    Attributes:
        state: in the kernel's words: `member`, `isolated`, `isolated invalid (why)`...
        cpus: those that it lists as its own; they count while it is isolated.
    """

    state: str
    cpus: CPUSet


class PartitionTree(Protocol):
    """The isolated partitions in a `CgroupTree`, under the same paths."""

    @property
    def obstacle(self) -> str:
        """Why there can be none on this node; empty where there can."""
        ...

    def reserved(self) -> Iterator[tuple[str, CPUSet]]:
        """Walk the cgroups that list CPUs as their own which no cgroup below them lists.

        Those are containers, and what lies above containers that have ended.

        Raises:
            HostError: one cannot be read.
        """
        ...

    def partition(self, path: str) -> Partition:
        """Read what a cgroup is.

        Raises:
            CgroupNotFound: it has ended.
            HostError: it cannot be read.
        """
        ...

    def isolate(self, path: str, cpus: CPUSet) -> None:
        """Make a cgroup an isolated partition of exactly these CPUs, or leave all as it was.

        Raises:
            CgroupNotFound: it has ended.
            CgroupWriteRejected: the kernel refuses.
            HostError: what lies above it cannot be read.
        """
        ...

    def release(self, path: str, cpus: CPUSet) -> None:
        """Make a cgroup an ordinary one again, if it is there, and take its CPUs from those above.

        Raises:
            HostError: one cannot be read or written.
        """
        ...
