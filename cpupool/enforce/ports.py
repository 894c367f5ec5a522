"""The interfaces through which `enforce/` reaches the kernel and the container runtime.

The adapters in `host/` and `runtime/` fit them without naming them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from cpupool.core.properties import NO_PROPERTIES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    from cpupool.core.bandwidth import Bandwidth
    from cpupool.core.cgroups import CgroupNode, FoundContainer
    from cpupool.core.cpuset import CPUSet
    from cpupool.core.properties import Properties
    from cpupool.core.workloads import ContainerID

ISOLATED: Final = "isolated"
"""The kernel's word for a cgroup on whose CPUs the scheduler does not balance load."""


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
        """Whether a change through NRI can lock up the runtime for ever."""
        ...

    @property
    def unanswered(self) -> bool:
        """Whether the runtime may still make a change that it has not answered."""
        ...

    @property
    def delays(self) -> bool:
        """Whether the start of a container waits until others have left its CPUs.

        The runtime takes no change before it has the answer.
        """
        ...

    def expecting(
        self, container: ContainerID, cpus: CPUSet, properties: Properties = NO_PROPERTIES
    ) -> AbstractContextManager[None]:
        """Accept, inside the context, a change that cpupool makes over CRI.

        Args:
            container: the changed container.
            cpus: its new CPUs; empty where they stay.
            properties: its new properties. A change of another program may come meanwhile.

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


class CalledRuntime(ContainerRuntime, Protocol):
    """The container runtime over CRI: a call changes one container, and several run in parallel."""

    def at_once(self, calls: Sequence[Callable[[], None]]) -> None:
        """Run several callers of this runtime at one time, and return when all have ended."""
        ...


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
        processes there. The walk does not read the directories in `known` again.
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


@dataclass(frozen=True, slots=True)
class Partition:
    """The partition state of a cgroup, and its exclusive CPUs.

    Attributes:
        state: in the kernel's words: `member`, `isolated`, `isolated invalid (why)`...
        cpus: the CPUs that it lists as exclusive; they have an effect while it is isolated.
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
