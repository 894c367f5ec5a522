"""How the kubelet chooses devices, as functions of values.

The embedded kubelet and the simulated node both decide with them. They follow kubernetes:
pkg/kubelet/cm/devicemanager/manager.go (`devicesToAllocate`), topology_hints.go, and the
scheduler's count of a pod's requests in component-helpers/resource/helpers.go (`PodRequests`).
Where Go's maps leave the order to chance, the lowest ids come first.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from cpupool.core.errors import NotEnoughDevices
from cpupool.core.workloads import ContainerKind
from cpupool.policies import hints
from cpupool.policies.hints import Merged, TopologyHint
from cpupool.wire.kubelet_checkpoint import NO_NODE

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from cpupool.core.requests import Resource
    from cpupool.core.workloads import Pod
    from cpupool.policies.hints import TopologyPolicy

IDs = frozenset[str]
Prefer = Callable[[IDs, IDs, int], IDs]
"""(available, must include, size) → what the plugin would rather give; empty for no opinion."""


@dataclass(frozen=True, slots=True)
class Listing:
    """What a plugin last listed for one resource.

    Attributes:
        healthy: ids that can be given out.
        unhealthy: ids that cannot.
        nodes: id → NUMA node ids, for the ids that have any.
    """

    healthy: IDs = frozenset()
    unhealthy: IDs = frozenset()
    nodes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    @property
    def capacity(self) -> int:
        """Count all devices, as the node's capacity does."""
        return len(self.healthy) + len(self.unhealthy)

    @property
    def allocatable(self) -> int:
        """Count the healthy devices, as the node's allocatable does."""
        return len(self.healthy)

    def all_unhealthy(self) -> Listing:
        """Give what is left when the plugin is gone: every device, none healthy."""
        return Listing(frozenset(), self.healthy | self.unhealthy, self.nodes)

    def touches(self, identifier: str, nodes: frozenset[int]) -> bool:
        """Tell whether a device is on one of the nodes."""
        return not nodes.isdisjoint(self.nodes.get(identifier, ()))


@dataclass(frozen=True, slots=True)
class Want:
    """What one container asks of one resource.

    Attributes:
        resource: its name.
        count: how many devices.
        listing: what there is.
        free: healthy ids that nobody holds.
        reusable: ids that the pod's plain init containers held.
    """

    resource: str
    count: int
    listing: Listing
    free: IDs
    reusable: IDs

    def on(self, nodes: frozenset[int]) -> IDs:
        """Give the free ids on these NUMA nodes."""
        return frozenset(one for one in self.free if self.listing.touches(one, nodes))


def affinity(wants: Iterable[Want], nodes: Collection[int], manager: TopologyPolicy) -> Merged:
    """Find the NUMA nodes that one container's devices should be on, as the kubelet does.

    Each resource that has a topology offers the sets of nodes that could serve it, and the Topology
    Manager takes what one set of each shares; so with several resources the nodes need not suffice
    for each. On a machine with many nodes the work is bounded (`policies/hints.py`).

    Args:
        wants: all that the container asks.
        nodes: the NUMA nodes of the machine.
        manager: what the Topology Manager demands.

    Returns:
        The nodes, None where any will do; and whether the container is let in.
    """
    aligned = [want for want in wants if want.listing.nodes]
    if not aligned:
        return Merged(TopologyHint(None, preferred=True), admit=True)
    return hints.merge(manager, nodes, [_hints(want, nodes) for want in aligned])


def unaligned(wants: Iterable[Want], manager: TopologyPolicy) -> str:
    """Say why `affinity` does not let a container in."""
    asked = " and ".join(f"{want.count} of {want.resource}" for want in wants if want.listing.nodes)
    return f"no NUMA nodes that topologyManagerPolicy {manager.value} accepts have {asked}"


def choose(want: Want, nodes: frozenset[int] | None, prefer: Prefer) -> IDs:
    """Choose the devices of one container: reusable ones, then aligned ones, then any.

    The plugin is asked about what neither reuse nor alignment decides. Its answer is advice: ids
    that are not free, or too many, are passed over, and what is missing is taken from the rest.

    Raises:
        NotEnoughDevices: fewer are free than asked for.
    """
    taken = _lowest(want.reusable, want.count)
    missing = want.count - len(taken)
    if not missing:
        return taken
    if len(want.free) < missing:
        raise NotEnoughDevices(want.resource, missing, len(want.free))
    aligned = want.on(nodes) if nodes and want.listing.nodes else frozenset()
    if missing >= len(aligned):
        taken |= aligned
        missing -= len(aligned)
        candidates = want.free - aligned
    else:
        candidates = aligned
    if missing:
        advice = prefer(candidates | taken, taken, want.count) & candidates
        advised = _lowest(advice, missing)
        taken |= advised | _lowest(candidates - advised, missing - len(advised))
    return taken


def by_node(ids: IDs, listing: Listing) -> dict[int, tuple[str, ...]]:
    """Group ids by NUMA node, those without one apart, as the kubelet's checkpoint does."""
    grouped: dict[int, list[str]] = {}
    for identifier in sorted(ids, key=_number_like):
        for node in listing.nodes.get(identifier) or (NO_NODE,):
            grouped.setdefault(node, []).append(identifier)
    return {node: tuple(grouped[node]) for node in sorted(grouped)}


def total_requests(pod: Pod) -> Counter[Resource]:
    """Count what the scheduler sets aside for a pod, per resource.

    App containers and sidecars add up; a plain init container needs its own amount beside the
    sidecars that started before it, and the largest moment counts.
    """
    total: Counter[Resource] = Counter()
    started: Counter[Resource] = Counter()
    peak: Counter[Resource] = Counter()
    for container in pod.containers:
        requests = Counter(container.requests)
        if container.kind is ContainerKind.INIT:
            peak |= started + requests
            continue
        total += requests
        if container.kind is ContainerKind.SIDECAR:
            started += requests
            peak |= started
    return total | peak


def _hints(want: Want, nodes: Collection[int]) -> Sequence[TopologyHint]:
    """Offer the sets of NUMA nodes that have enough, with everything reusable on them.

    A device on several nodes counts on each; cpupool's are on one.
    """

    def by_node(ids: Iterable[str]) -> Counter[int]:
        return Counter(node for one in ids for node in want.listing.nodes.get(one, ()))

    capacity = dict.fromkeys(nodes, 0) | by_node(want.listing.nodes)
    available = by_node(want.free | want.reusable)
    return hints.generate(want.count, capacity, available, by_node(want.reusable)).hints


def _lowest(ids: Iterable[str], count: int) -> IDs:
    return frozenset(heapq.nsmallest(count, ids, key=_number_like))


def _number_like(identifier: str) -> tuple[int, str]:
    return len(identifier), identifier
