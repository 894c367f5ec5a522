"""The embedded node's substitute for an API server."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from cpupool.kube import views
from cpupool.telemetry import log as logs

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Mapping

    from cpupool.core.events import EventSink
    from cpupool.core.workloads import Node, Pod
    from cpupool.manager.ports import PodSource

log = logs.get(__name__)


class EventLog:
    """A sink that writes Events into the log."""

    def pod(self, pod: Pod, reason: str, message: str, *, warning: bool = True) -> None:
        """Log an Event about a pod."""
        _write(warning, reason, message, f"{pod.namespace}/{pod.name}")

    def node(self, reason: str, message: str, *, warning: bool = True) -> None:
        """Log an Event about the node."""
        _write(warning, reason, message, "node")


@dataclass(frozen=True, slots=True)
class EmbeddedCluster:
    """A cluster of one node, whose labels do not change.

    Attributes:
        source: the source of the pods; it wakes the agent by itself.
        node_labels: the node's labels.
        events: receives the Events.
        config_map: None: the agent reads the folder of pool files.
        pod_status: None: the status of a pod is the kubelet's alone.
        pod_annotations: None: there is no scheduler.
        topology: None: there is no scheduler.
        node_status: None: there is no scheduler.
    """

    source: PodSource
    node_labels: Mapping[str, str]
    events: EventSink = field(default_factory=EventLog)
    config_map: None = None
    pod_status: None = None
    pod_annotations: None = None
    topology: None = None
    node_status: None = None

    def pods(self) -> tuple[Pod, ...] | None:
        """Return the source's pods.

        Raises:
            CPUPoolError: the source cannot be read now.
        """
        return self.source.pods()

    def labels(self) -> Mapping[str, str]:
        """Return the labels."""
        return self.node_labels

    def node(self) -> Node:
        """Return the node."""
        return views.node({"metadata": {"labels": self.node_labels}})

    def loops(
        self, beat: Callable[[str], None] = lambda _loop: None
    ) -> Mapping[str, Callable[[threading.Event], None]]:
        """Return no loops: there is nothing to watch."""
        del beat
        return {}

    def wake(self) -> None:
        """Do nothing: there is no loop."""


def _write(warning: bool, reason: str, message: str, about: str) -> None:  # noqa: FBT001
    write = log.warning if warning else log.info
    write("event", about=about, reason=reason, said=message)
