"""The topology of a node for schedulers, made from the node's state and its surroundings."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from cpupool.core.node_topology import CPUModel, KubeletAmounts, NodeMemories, NodeTopology
from cpupool.manager import koordinator_annotations, zones
from cpupool.wire.pod_fingerprint import fingerprint

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cpupool.config.kubelet_settings import KubeletConfig
    from cpupool.core.names import Names
    from cpupool.manager.resolve import Snapshot


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The facts about a node that only its published topology needs.

    Attributes:
        memory: the memory of the NUMA nodes.
        amounts: the kubelet's books of what it pins to nodes.
        kubelet: the kubelet's configuration; None where it is not known.
        model: the kind of the machine's CPUs.
    """

    memory: NodeMemories = field(default_factory=dict)
    amounts: KubeletAmounts = field(default_factory=KubeletAmounts)
    kubelet: KubeletConfig | None = None
    model: CPUModel = field(default_factory=CPUModel)


def node_topology(
    snapshot: Snapshot, names: Names, around: Surroundings, *, annotated: bool
) -> NodeTopology:
    """Return the topology that the agent publishes.

    Args:
        snapshot: the node's facts and decisions.
        names: the names of the pools' resources.
        around: the other facts.
        annotated: whether a scheduler that assigns CPUs reads it.
    """
    facts, resolution = snapshot
    kubelet = around.kubelet
    manager = zones.refusing(facts, kubelet.topology_manager if kubelet else None)
    # Such a scheduler keeps the books of each NUMA node itself: it needs what each really has.
    loose = zones.loose(facts, manager, kubelet, around.amounts)
    found = zones.zones(
        facts,
        resolution,
        names,
        around.memory,
        around.amounts,
        every_cpu=annotated,
        loose=frozenset() if annotated else loose,
    )
    resources = frozenset(name for zone in found for name in zone.resources)
    annotations: Mapping[str, str] = {}
    labels: Mapping[str, str] = {}
    if annotated:
        annotations, labels = koordinator_annotations.metadata(snapshot, around.model, kubelet)
    return NodeTopology(
        found,
        manager,
        fingerprint(zones.fingerprinted(facts.pods or (), resources)),
        annotations,
        labels,
    )
