"""The kubelet's choice of devices, as pure functions.

The embedded kubelet and the simulated node use them. They follow kubernetes:
pkg/kubelet/cm/devicemanager/manager.go (`devicesToAllocate`), topology_hints.go, and the
scheduler's count of a pod's requests in component-helpers/resource/helpers.go (`PodRequests`).
Where the order of Go's maps is random, the lowest ids come first here.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from cpupool.core.cpu_manager import TopologyHint
from cpupool.core.errors import NotEnoughDevices
from cpupool.core.workloads import pod_request_milli
from cpupool.policies import hints
from cpupool.policies.hints import Merged
from cpupool.wire.device_checkpoint import NO_NODE

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from cpupool.core.cpu_manager import TopologyPolicy
    from cpupool.core.requests import Resource
    from cpupool.core.workloads import Pod

IDs = frozenset[str]
Prefer = Callable[[IDs, IDs, int], IDs]
"""(available, must include, size) → the devices that the plugin prefers; empty without any."""


@dataclass(frozen=True, slots=True)
class Listing:
    """A plugin's last list of one resource's devices.

    Attributes:
        healthy: ids of healthy devices.
        unhealthy: ids of unhealthy devices.
        nodes: id → NUMA node ids, for the ids that have any.
    """

    healthy: IDs = frozenset()
    unhealthy: IDs = frozenset()
    nodes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    @property
    def capacity(self) -> int:
        """The number of all devices: the node's capacity."""
        return len(self.healthy) + len(self.unhealthy)

    @property
    def allocatable(self) -> int:
        """The number of healthy devices: the node's allocatable amount."""
        return len(self.healthy)

    def all_unhealthy(self) -> Listing:
        """Return the list after the plugin has gone: every device, none healthy."""
        return Listing(frozenset(), self.healthy | self.unhealthy, self.nodes)

    def touches(self, identifier: str, nodes: frozenset[int]) -> bool:
        """Return whether a device is on one of the nodes."""
        return not nodes.isdisjoint(self.nodes.get(identifier, ()))


@dataclass(frozen=True, slots=True)
class DeviceRequest:
    """One container's request for one resource.

    Attributes:
        resource: its name.
        count: how many devices.
        listing: the resource's devices.
        free: healthy ids that no container holds.
        reusable: ids that the pod's plain init containers held.
    """

    resource: str
    count: int
    listing: Listing
    free: IDs
    reusable: IDs

    def on(self, nodes: frozenset[int]) -> IDs:
        """Return the free ids on these NUMA nodes."""
        return frozenset(
            identifier for identifier in self.free if self.listing.touches(identifier, nodes)
        )


def affinity(
    requests: Iterable[DeviceRequest], nodes: Collection[int], manager: TopologyPolicy
) -> Merged:
    """Find the NUMA nodes for one container's devices, as the kubelet does.

    Each resource with a topology offers the sets of nodes that could serve it, and the Topology
    Manager takes the intersection of one set of each; so with several resources the nodes may not
    suffice for each. On a machine with many nodes the work is bounded (`policies/hints.py`).

    Args:
        requests: all requests of the container.
        nodes: the NUMA nodes of the machine.
        manager: the Topology Manager's policy.

    Returns:
        The nodes, None for any nodes; and whether the container is admitted.
    """
    aligned = [request for request in requests if request.listing.nodes]
    if not aligned:
        return Merged(TopologyHint(None, preferred=True), admit=True)
    return hints.merge(manager, nodes, [_hints(request, nodes) for request in aligned])


def unaligned(requests: Iterable[DeviceRequest], manager: TopologyPolicy) -> str:
    """Return why `affinity` does not admit a container."""
    requested = " and ".join(
        f"{request.count} of {request.resource}" for request in requests if request.listing.nodes
    )
    return f"no NUMA nodes that topologyManagerPolicy {manager.value} accepts have {requested}"


def choose(request: DeviceRequest, nodes: frozenset[int] | None, prefer: Prefer) -> IDs:
    """Choose the devices of one container: reusable devices, then aligned devices, then any.

    The plugin chooses where neither reuse nor alignment decides. Its answer is advice: ids that are
    not free, and surplus ids, are ignored, and missing devices come from the rest.

    Raises:
        NotEnoughDevices: fewer are free than requested.
    """
    taken = _lowest(request.reusable, request.count)
    missing = request.count - len(taken)
    if not missing:
        return taken
    if len(request.free) < missing:
        raise NotEnoughDevices(request.resource, missing, len(request.free))
    aligned = request.on(nodes) if nodes and request.listing.nodes else frozenset()
    if missing >= len(aligned):
        taken |= aligned
        missing -= len(aligned)
        candidates = request.free - aligned
    else:
        candidates = aligned
    if missing:
        advice = prefer(candidates | taken, taken, request.count) & candidates
        advised = _lowest(advice, missing)
        taken |= advised | _lowest(candidates - advised, missing - len(advised))
    return taken


def by_node(ids: IDs, listing: Listing) -> dict[int, tuple[str, ...]]:
    """Return NUMA node → ids, with NO_NODE for ids without a node, as the kubelet's checkpoint."""
    grouped: dict[int, list[str]] = {}
    for identifier in sorted(ids, key=_number_like):
        for node in listing.nodes.get(identifier) or (NO_NODE,):
            grouped.setdefault(node, []).append(identifier)
    return {node: tuple(grouped[node]) for node in sorted(grouped)}


def total_requests(pod: Pod) -> Counter[Resource]:
    """Return resource → the amount of a pool that the scheduler counts for a pod."""
    names = {name for container in pod.containers for name in container.requests}
    return Counter(
        {
            name: pod_request_milli(
                (each.kind, each.requests.get(name, 0)) for each in pod.containers
            )
            for name in sorted(names)
        }
    )


def _hints(request: DeviceRequest, nodes: Collection[int]) -> Sequence[TopologyHint]:
    """Return the sets of NUMA nodes with enough devices that contain all reusable devices.

    A device on several nodes is counted on each; cpupool's devices are on one node.
    """

    def by_node(ids: Iterable[str]) -> Counter[int]:
        return Counter(
            node for identifier in ids for node in request.listing.nodes.get(identifier, ())
        )

    capacity = dict.fromkeys(nodes, 0) | by_node(request.listing.nodes)
    available = by_node(request.free | request.reusable)
    return hints.generate(request.count, capacity, available, by_node(request.reusable)).hints


def _lowest(ids: Iterable[str], count: int) -> IDs:
    return frozenset(heapq.nsmallest(count, ids, key=_number_like))


def _number_like(identifier: str) -> tuple[int, str]:
    return len(identifier), identifier
