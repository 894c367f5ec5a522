"""The roles that write to the API server, as far as the settings ask for them."""

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
    """Return name → role.

    Args:
        manager: the node's state.
        settings: say when pods fail, and how the node's topology is published.
        root: where the machine's trees are.
        cluster: has a sink for each object that the agent writes.
        telemetry: takes the roles' reports.
        ready: returns whether the owner of each CPU is known.
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
