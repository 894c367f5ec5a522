"""How much of each pool is in use, and how scattered the free CPUs are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from cpupool.core import devices
from cpupool.core.cpuset import CPUSet
from cpupool.core.devices import Offer
from cpupool.manager import offers
from cpupool.policies.fragmentation import score
from cpupool.policies.layout import Layout, Level

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cpupool.core.pools import Pool, PoolKind
    from cpupool.core.topology import CPUTopology
    from cpupool.manager.facts import NodeFacts

_LEVELS: Final = {"numa_node": Level.NODE, "uncore_cache": Level.UNCORE}


@dataclass(frozen=True, slots=True)
class PoolUsage:
    """One pool of the kubelet's, in devices: CPUs, milli-CPUs of a shared pool, or units.

    Attributes:
        name: the pool's name.
        kind: exclusive or shared.
        capacity: devices of the configured pool; 0 where it is no longer configured.
        allocated: devices that pods hold.
        offline: devices of the configured pool whose CPU is offline.
        draining: devices that pods hold and that the pool has lost.
    """

    name: str
    kind: PoolKind
    capacity: int
    allocated: int
    offline: int
    draining: int


def usage(facts: NodeFacts) -> tuple[PoolUsage, ...]:
    """Return the usage of every pool, also of pools that exist only because pods hold devices."""
    return tuple(_usage(facts))


def _usage(facts: NodeFacts) -> Iterator[PoolUsage]:
    held = offers.held_ids(facts)
    for resource in offers.offered(facts, held):
        ids = held.get(resource.name, frozenset())
        yield PoolUsage(
            name=resource.name,
            kind=resource.pool.kind,
            capacity=resource.capacity,
            allocated=len(ids),
            offline=resource.offline(facts.topology),
            draining=len(Offer.of(resource, facts.topology, CPUSet(), ids).draining),
        )


def fragmentation(facts: NodeFacts) -> dict[str, dict[str, float]]:
    """Return how scattered the free CPUs of each exclusive pool are.

    Returns:
        pool → `numa_node` and `uncore_cache` → 0 to 1, as `policies.fragmentation.score`.
    """
    held = offers.held_ids(facts)
    return {
        resource.name: _scores(
            resource.pool,
            facts.topology,
            devices.exclusive_cpus(held.get(resource.name, frozenset())),
        )
        for resource in offers.offered(facts, held)
        if resource.name.kind.exclusive
    }


def _scores(pool: Pool, topology: CPUTopology, held: CPUSet) -> dict[str, float]:
    there = pool.offered & topology.online
    layout = Layout.of_topology(topology, there)
    return {
        name: score(there - held, layout.groups[level].values()) for name, level in _LEVELS.items()
    }
