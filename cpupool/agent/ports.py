"""The interfaces of the agent's loops to the node and the API server; adapters fit them unnamed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from cpupool.core.cpuset import CPUSet
    from cpupool.core.workloads import ContainerRef, Pod
    from cpupool.manager.resizing import OwnCPUs
    from cpupool.wire.node_topology import Observed, Values


class NodeLabels(Protocol):
    """The source of this node's labels."""

    def labels(self) -> Mapping[str, str] | None:
        """Return the labels, or None until they are known."""
        ...


class Owners(Protocol):
    """The containers with CPUs of their own that can change while they run."""

    def own_cpus(self) -> Mapping[ContainerRef, OwnCPUs]:
        """Return the CPUs of each."""
        ...

    def narrow(self, ref: ContainerRef, assigned: CPUSet, leaving: CPUSet) -> bool:
        """Take the leaving CPUs: the container runs on the assigned CPUs alone.

        Returns:
            Whether the container must have and leave these CPUs; if not, it loses none.
        """
        ...

    def needs(self, ref: ContainerRef, cpus: CPUSet) -> bool | None:
        """Return whether a thread can run on none but these CPUs; None if none is in sight."""
        ...

    def pod(self, uid: str) -> Pod | None:
        """Return a pod by the id in its cgroup's name; None if it is not listed."""
        ...

    def remaining(self) -> Collection[str] | None:
        """Return the pods that are listed or have a cgroup; None while they are not known."""
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
        """Set the function that each change of the object calls; it must not block."""
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
