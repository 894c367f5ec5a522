"""The agent's view of its cluster: pods, labels, the pool ConfigMap, and Events to send.

It puts the watches and the writers of one node together behind one object, so that the embedded
cluster of `local/` can take its place.
"""

from __future__ import annotations

from enum import Flag, auto
from functools import partial
from typing import TYPE_CHECKING

from cpupool.kube import descriptions, node_topology, views
from cpupool.kube.config_map import CONFIG_MAP_WATCH, ConfigMapWatch
from cpupool.kube.events import EventRecorder
from cpupool.kube.node_status import NodeStatusObject
from cpupool.kube.node_topology import NodeTopologyObject
from cpupool.kube.pod_status import PodStatus
from cpupool.kube.reflector import Reflector
from cpupool.kube.resources import NODES, PODS
from cpupool.telemetry import log as logs

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Mapping

    from cpupool.core.names import Names
    from cpupool.core.workloads import Node, Pod
    from cpupool.kube.client import APIServer
    from cpupool.kube.config_map import ConfigMapName
    from cpupool.telemetry.metrics import Metrics

log = logs.get(__name__)


class Writes(Flag):
    """The objects that the agent writes for others, beside Events and the failure of pods."""

    NOTHING = 0
    TOPOLOGY = auto()
    """The node's NodeResourceTopology."""
    CHOSEN_CPUS = auto()
    """The CPUs that the agent chose for a pod, in an annotation."""
    NODE_RESOURCES = auto()
    """The node's resources by its plugins, in the node's status."""


class ClusterView:
    """One node's view of the API server: a `PodSource`, a `NodeLabels` and an `EventSink`.

    Args:
        server: the API server.
        node: this node's name.
        names: for the resources that are ours.
        metrics: counts the watches and Events.
        changed: called when a label or the ConfigMap has become different; must not block.
        pods_changed: called when a pod has become different; must not block.
        config_map: the ConfigMap with the pool files; None where its mounted folder has to do.
        describes: whether to keep the description of each pod for plugins for resources.
        writes: the objects that the agent writes.

    Attributes:
        events: sends Events about a pod or the node.
        config_map: that ConfigMap; None without a name.
        pod_status: writes that a pod of the node has failed.
        pod_annotations: writes which CPUs the agent chose; None without such writes.
        topology: writes the node's topology; None without such writes.
        node_status: writes the node's resources; None without such writes.
    """

    def __init__(
        self,
        server: APIServer,
        node: str,
        names: Names,
        metrics: Metrics,
        changed: Callable[[], None],
        *,
        pods_changed: Callable[[], None],
        config_map: ConfigMapName | None = None,
        describes: bool = False,
        writes: Writes = Writes.NOTHING,
    ) -> None:
        self.events = EventRecorder(server, node, metrics)
        self.pod_status = PodStatus(server)
        # A connection of its own, for the thread of another role.
        self.pod_annotations = PodStatus(server) if Writes.CHOSEN_CPUS in writes else None
        self.config_map = (
            ConfigMapWatch(server, config_map, changed=changed, restarted=metrics.watch_restarted)
            if config_map
            else None
        )
        self.topology = (
            NodeTopologyObject(server, node, restarted=metrics.watch_restarted)
            if Writes.TOPOLOGY in writes
            else None
        )
        declares = Writes.NODE_RESOURCES in writes
        self.node_status = NodeStatusObject(server, node) if declares else None
        self._node = node
        self._changed = changed
        read = descriptions.pod if describes else views.pod
        self._pods = Reflector(
            server,
            PODS.collection(),
            lambda body: read(body, names),
            fields=f"spec.nodeName={node}",
            changed=pods_changed,
            restarted=metrics.watch_restarted,
        )
        self._nodes = Reflector(
            server,
            NODES.collection(),
            views.node,
            fields=f"metadata.name={node}",
            changed=self._node_changed,
            restarted=metrics.watch_restarted,
        )

    def pods(self) -> tuple[Pod, ...] | None:
        """Return every pod of this node, or None until a first complete list is known."""
        return self._pods.items()

    def labels(self) -> Mapping[str, str] | None:
        """Return this node's labels, or None while there is no such node or it is not known yet."""
        node = self.node()
        return node.labels if node else None

    def node(self) -> Node | None:
        """Return this node, or None while there is no such node or it is not known yet."""
        nodes = self._nodes.items()
        return nodes[0] if nodes else None

    def loops(
        self, beat: Callable[[str], None] = lambda _loop: None
    ) -> Mapping[str, Callable[[threading.Event], None]]:
        """Return the loops that must run, by name.

        Args:
            beat: called by each loop with its name, as it turns.
        """
        loops = {
            "pod watch": self._pods.run,
            "node watch": self._nodes.run,
            "event recorder": self.events.run,
        }
        if self.config_map:
            loops[CONFIG_MAP_WATCH] = self.config_map.run
        if self.topology:
            loops[node_topology.NAME] = self.topology.run
        return {name: partial(run, beat=partial(beat, name)) for name, run in loops.items()}

    def wake(self) -> None:
        """Let every loop notice `stop`."""
        for loop in (self._pods, self._nodes, self.events):
            loop.wake()
        if self.config_map:
            self.config_map.wake()
        if self.topology:
            self.topology.wake()

    def _node_changed(self) -> None:
        if not self._nodes.items():
            log.warning(
                "the cluster has no such node",
                node=self._node,
                remedy="check --node-name or NODE_NAME",
            )
        self._changed()
