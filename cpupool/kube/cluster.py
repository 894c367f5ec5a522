"""What a node's agent knows of its cluster, and tells it: this node's pods, its labels, Events."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cpupool.kube import views
from cpupool.kube.events import EventRecorder
from cpupool.kube.reflector import Reflector
from cpupool.telemetry import log as logs

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Mapping

    from cpupool.core.names import Names
    from cpupool.core.workloads import Pod
    from cpupool.kube.client import APIServer
    from cpupool.telemetry.metrics import Metrics

log = logs.get(__name__)


class Cluster:
    """One node's view of the API server: a `PodSource`, a `NodeLabels` and an `EventSink`.

    Args:
        server: the API server.
        node: this node's name.
        names: for the resources that are ours.
        metrics: where the watches and Events are counted.
        changed: called when a pod or a label has become different; must not block.

    Attributes:
        events: where to tell users of a pod or of the node.
    """

    def __init__(
        self,
        server: APIServer,
        node: str,
        names: Names,
        metrics: Metrics,
        changed: Callable[[], None],
    ) -> None:
        self.events = EventRecorder(server, node, metrics)
        self._node = node
        self._changed = changed
        self._pods = Reflector(
            server,
            "pods",
            f"spec.nodeName={node}",
            lambda body: views.pod(body, names),
            changed=changed,
            metrics=metrics,
        )
        self._nodes = Reflector(
            server,
            "nodes",
            f"metadata.name={node}",
            views.node_labels,
            changed=self._node_changed,
            metrics=metrics,
        )

    def pods(self) -> tuple[Pod, ...] | None:
        """Give every pod of this node, or None until a first complete list is known."""
        return self._pods.items()

    def labels(self) -> Mapping[str, str] | None:
        """Give this node's labels, or None while there is no such node or it is not known yet."""
        nodes = self._nodes.items()
        return nodes[0] if nodes else None

    def loops(self) -> Mapping[str, Callable[[threading.Event], None]]:
        """Give what must run, by name."""
        return {
            "pod watch": self._pods.run,
            "node watch": self._nodes.run,
            "event recorder": self.events.run,
        }

    def wake(self) -> None:
        """Let every loop notice that it shall stop."""
        for loop in (self._pods, self._nodes, self.events):
            loop.wake()

    def _node_changed(self) -> None:
        if not self._nodes.items():
            log.warning(
                "the cluster has no such node",
                node=self._node,
                remedy="check --node-name or NODE_NAME",
            )
        self._changed()
