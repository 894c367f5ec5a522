"""The roles that write to the API server, where it takes what they write."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cpupool.agent import koordinator_annotator, pod_failer, topology_reporter
from cpupool.agent.koordinator_annotator import CPUAnnotator
from cpupool.agent.pod_failer import PodFailer
from cpupool.agent.topology_reporter import TopologyReporter, surroundings

if TYPE_CHECKING:
    from collections.abc import Callable

    from cpupool.agent.setup import Cluster, Setup
    from cpupool.host.root import HostRoot
    from cpupool.loops.telemetry import Telemetry
    from cpupool.manager.manager import Manager

ClusterWriter = PodFailer | CPUAnnotator | TopologyReporter


def cluster_writers(
    manager: Manager,
    settings: Setup,
    root: HostRoot,
    *,
    cluster: Cluster,
    telemetry: Telemetry,
    ready: Callable[[], bool],
) -> dict[str, ClusterWriter]:
    """Return the roles by name.

    Args:
        manager: the node's state.
        settings: when pods fail, and as what the node's topology is published.
        root: where the machine's trees are.
        cluster: what it takes.
        telemetry: what the roles report with.
        ready: whether it is known who owns which CPU.
    """
    health = telemetry.health
    roles: dict[str, ClusterWriter] = {}
    if status := cluster.pod_status:
        roles[pod_failer.NAME] = PodFailer(
            manager, status, after_s=settings.fail_misfit_after_s, health=health
        )
    if annotations := cluster.pod_annotations:
        roles[koordinator_annotator.NAME] = CPUAnnotator(manager, annotations, health=health)
    if sink := cluster.topology:
        published = settings.topology
        roles[topology_reporter.NAME] = TopologyReporter(
            manager,
            sink,
            published.publishing,
            node=cluster.node,
            node_name=published.node,
            around=surroundings(root, published.kubelet, published.publishing),
            ready=ready,
            telemetry=telemetry,
        )
    return roles
