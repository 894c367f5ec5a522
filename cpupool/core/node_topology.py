"""A node's topology as schedulers see it: how much of each resource every NUMA node has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from cpupool.core.cpu_manager import Scope, TopologyPolicy
from cpupool.core.cpuset import CPUSet

HUGE_PAGES: Final = "hugepages-"
"""The resources of huge pages, as `hugepages-2Mi` (KEP-1539)."""


class Publishing(Enum):
    """What the agent publishes of its node's topology."""

    OFF = "off"
    ZONES = "zones"
    """The resources of each NUMA node."""
    KOORDINATOR = "koordinator"
    """The same, with the annotations that Koordinator's scheduler reads."""


@dataclass(frozen=True, slots=True)
class TopologyManager:
    """The configuration of a kubelet's Topology Manager.

    Attributes:
        policy: how strictly it aligns.
        scope: what it aligns at once.
    """

    policy: TopologyPolicy = TopologyPolicy.NONE
    scope: Scope = Scope.CONTAINER


@dataclass(frozen=True, slots=True)
class Amounts:
    """How much of a resource a NUMA node has, in CPUs, devices or bytes.

    Attributes:
        capacity: what is there.
        allocatable: what pods can get while no pod runs.
        available: what pods can get now.
    """

    capacity: int
    allocatable: int
    available: int


@dataclass(frozen=True, slots=True)
class Zone:
    """One NUMA node.

    Attributes:
        node: its id.
        resources: resource name → how much of it.
        distances: NUMA node id → the kernel's distance.
    """

    node: int
    resources: Mapping[str, Amounts]
    distances: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class NodeTopology:
    """What schedulers are to know of a node.

    Attributes:
        zones: its NUMA nodes, sorted by id.
        manager: the Topology Manager that refuses pods; None where it is not known.
        fingerprint: names the pods that `available` takes into account.
        annotations: annotations of the object, for other readers of it.
        labels: labels of the object.
    """

    zones: tuple[Zone, ...]
    manager: TopologyManager | None
    fingerprint: str
    annotations: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class NodeMemory:
    """The memory of one NUMA node.

    Attributes:
        total_bytes: all of it, huge pages included.
        huge_pages: size of a page in bytes → the number of pages.
    """

    total_bytes: int
    huge_pages: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class KubeletAmounts:
    """The kubelet's own books of what it pins to NUMA nodes.

    Attributes:
        by_node: name of a resource of device plugins, or of memory → NUMA node id → how much.
        own_cpus: the CPUs that its static CPU manager has given to containers.
    """

    by_node: Mapping[str, Mapping[int, Amounts]] = field(default_factory=dict)
    own_cpus: CPUSet = field(default_factory=CPUSet)


NodeMemories = Mapping[int, NodeMemory]
"""NUMA node id → its memory."""


def huge_page_resource(size_bytes: int) -> str:
    """Return the name of the resource of huge pages of a size, as Kubernetes writes it."""
    number, units = size_bytes, ("", "Ki", "Mi", "Gi", "Ti")
    unit = 0
    while unit < len(units) - 1 and number % 1024 == 0:
        number, unit = number // 1024, unit + 1
    return f"{HUGE_PAGES}{number}{units[unit]}"
