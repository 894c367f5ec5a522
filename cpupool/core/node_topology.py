"""A node's topology as schedulers see it: how much of each resource every NUMA node has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from cpupool.core.cpu_manager import Scope, TopologyPolicy
from cpupool.core.cpuset import CPUSet

HUGE_PAGES: Final = "hugepages-"
"""The resources of huge pages, as `hugepages-2Mi` (KEP-1539)."""


@dataclass(frozen=True, slots=True)
class TopologyManager:
    """The configuration of a kubelet's Topology Manager.

    Attributes:
        policy: how strictly it aligns.
        scope: the part of a pod that it aligns at once.
    """

    policy: TopologyPolicy = TopologyPolicy.NONE
    scope: Scope = Scope.CONTAINER


@dataclass(frozen=True, slots=True)
class Amounts:
    """The amounts of a resource on a NUMA node, in CPUs, devices or bytes.

    Attributes:
        capacity: the whole amount.
        allocatable: the amount that pods can get while no pod runs.
        available: the amount that pods can get now.
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
    """The facts about a node that the agent publishes for schedulers.

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
class CPUModel:
    """The kind of a machine's CPUs.

    Attributes:
        name: the model's name; empty where the kernel does not say.
        vendor: the vendor's id, as GenuineIntel.
        turbo: whether the CPUs may exceed their base frequency.
        l3_mask: the bits of an L3 cache that resctrl can give out, in hexadecimal; empty without
            cache allocation.
    """

    name: str = ""
    vendor: str = ""
    turbo: bool = False
    l3_mask: str = ""


@dataclass(frozen=True, slots=True)
class NodeMemory:
    """The memory of one NUMA node.

    Attributes:
        total_bytes: all of it, huge pages included.
        huge_pages: size of a page in bytes → the number of pages.
    """

    total_bytes: int
    huge_pages: Mapping[int, int] = field(default_factory=dict)

    @property
    def ordinary_bytes(self) -> int:
        """The memory that is not in huge pages."""
        return self.total_bytes - sum(size * count for size, count in self.huge_pages.items())


@dataclass(frozen=True, slots=True)
class KubeletAmounts:
    """The kubelet's own books of the resources that it pins to NUMA nodes.

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
