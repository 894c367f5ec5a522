"""The interfaces between the agent's loops and the API server; adapters fit them unnamed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from cpupool.core.workloads import Pod
    from cpupool.wire.node_topology import Observed, Values


class NodeLabels(Protocol):
    """The source of this node's labels."""

    def labels(self) -> Mapping[str, str] | None:
        """Return the labels, or None until they are known."""
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
