"""A node's topology as schedulers read it, from the node's state and its surroundings."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from cpupool.core.koordinator import CPUModel
from cpupool.core.node_topology import KubeletAmounts, NodeMemories, NodeTopology, Publishing
from cpupool.manager import koordinator, zones
from cpupool.wire import koordinator as koordinator_annotations
from cpupool.wire.pod_fingerprint import fingerprint

if TYPE_CHECKING:
    from cpupool.config.kubelet_config import KubeletConfig
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
    snapshot: Snapshot, names: Names, around: Surroundings, publishing: Publishing
) -> NodeTopology:
    """Return the topology that the agent publishes.

    Args:
        snapshot: the node's facts and decisions.
        names: the names of the pools' resources.
        around: the other facts.
        publishing: which scheduler reads it.
    """
    facts, resolution = snapshot
    for_koordinator = publishing is Publishing.KOORDINATOR
    found = zones.zones(
        facts,
        resolution,
        names,
        around.memory,
        around.amounts,
        every_cpu=for_koordinator,
    )
    resources = frozenset(name for zone in found for name in zone.resources)
    kubelet = around.kubelet
    annotations: dict[str, str] = {}
    if for_koordinator:
        annotations = koordinator_annotations.written(
            koordinator.published(snapshot, around.model, kubelet)
        )
    return NodeTopology(
        found,
        zones.refusing(facts, kubelet.topology_manager if kubelet else None),
        fingerprint(zones.fingerprinted(facts.pods or (), resources)),
        annotations,
        dict([koordinator_annotations.MANAGED_BY]) if for_koordinator else {},
    )
