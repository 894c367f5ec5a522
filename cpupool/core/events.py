"""The sink of Kubernetes' Events, by which the agent tells a pod's author or an admin of a fact."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from cpupool.core.workloads import Pod


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
