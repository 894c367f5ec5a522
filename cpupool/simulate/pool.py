"""A simulated exclusive pool: its devices, and the devices that no pod holds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from cpupool.core.cpuset import CPUSet
from cpupool.core.devices import Advertised, Offer, exclusive_cpus
from cpupool.local.devices import DeviceRequest, IDs, Listing
from cpupool.policies.layout import Layout, Level
from cpupool.policies.pools import fragmentation

if TYPE_CHECKING:
    from cpupool.core.topology import CPUTopology


@dataclass(slots=True)
class Room:
    """CPUs that one source of own CPUs can give.

    Attributes:
        layout: all of them.
        free: those without an owner.
    """

    layout: Layout
    free: CPUSet

    @classmethod
    def empty(cls, topology: CPUTopology, cpus: CPUSet) -> Room:
        """Return a room without owners."""
        return cls(Layout.of_topology(topology, cpus), cpus)

    @property
    def size(self) -> int:
        """The number of CPUs, free or not."""
        return len(self.layout.cpus)

    def fragmentation(self) -> float:
        """Return how scattered the free CPUs are over NUMA nodes, 0 to 1."""
        return fragmentation.score(self.free, self.layout.groups[Level.NODE].values())

    def largest_block(self) -> int:
        """Return the most CPUs that are free on one NUMA node."""
        return max(map(len, self.layout.free(Level.NODE, self.free).values()), default=0)


@dataclass(slots=True)
class SimulatedPool:
    """An exclusive pool, and the devices that pods hold.

    Attributes:
        offer: the pool's offer.
        listing: the list of its plugin.
        free: the ids that no pod holds.
        room: the healthy CPUs.
    """

    offer: Offer
    listing: Listing
    free: IDs
    room: Room

    @classmethod
    def of(cls, pool: Advertised, topology: CPUTopology) -> SimulatedPool:
        """Return a pool with all devices free."""
        offer = Offer.of(pool, topology, CPUSet(), ())
        healthy = frozenset(device.id for device in offer if device.healthy)
        nodes = {device.id: (device.node,) for device in offer if device.node is not None}
        room = Room.empty(topology, exclusive_cpus(healthy))
        return cls(offer, Listing(healthy, nodes=nodes), healthy, room)

    def request(self, count: int, held: IDs, reusable: IDs) -> DeviceRequest:
        """Return a container's request.

        Args:
            count: how many devices.
            held: the ids that its own pod has already.
            reusable: the ids that the pod's finished init containers had.
        """
        return DeviceRequest(
            self.offer.resource.name, count, self.listing, self.free - held, reusable
        )

    def take(self, ids: IDs) -> None:
        """Mark devices as held by a pod."""
        self.free -= ids
        self.room.free -= exclusive_cpus(ids)

    def give_back(self, ids: IDs) -> None:
        """Free devices of a pod."""
        self.free |= ids
        self.room.free |= exclusive_cpus(ids)
