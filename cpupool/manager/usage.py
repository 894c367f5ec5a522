"""How much of each pool is in use, and how scattered what is left is."""

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
    """One pool that the kubelet knows, in devices: CPUs, of a shared pool milli-CPUs, or units.

    Attributes:
        name: the pool's name.
        kind: exclusive or shared.
        capacity: devices of the pool as configured; 0 where it is configured no longer.
        allocated: devices that pods hold.
        offline: devices of the pool as configured whose CPU is offline.
        draining: devices that pods hold and that the pool has lost.
    """

    name: str
    kind: PoolKind
    capacity: int
    allocated: int
    offline: int
    draining: int


def usage(facts: NodeFacts) -> tuple[PoolUsage, ...]:
    """Count the devices of every pool, those included that only pods still hold something of."""
    return tuple(_usage(facts))


def _usage(facts: NodeFacts) -> Iterator[PoolUsage]:
    held = offers.held_ids(facts)
    for one in offers.offered(facts, held):
        ids = held.get(one.name, frozenset())
        yield PoolUsage(
            name=one.name,
            kind=one.pool.kind,
            capacity=one.capacity,
            allocated=len(ids),
            offline=one.offline(facts.topology),
            draining=len(Offer.of(one, facts.topology, CPUSet(), ids).draining),
        )


def fragmentation(facts: NodeFacts) -> dict[str, dict[str, float]]:
    """Tell how scattered the free CPUs of each exclusive pool are.

    Returns:
        pool → `numa_node` and `uncore_cache` → 0 to 1, as `policies.fragmentation.score`.
    """
    held = offers.held_ids(facts)
    return {
        one.name: _scores(
            one.pool, facts.topology, devices.exclusive_cpus(held.get(one.name, frozenset()))
        )
        for one in offers.offered(facts, held)
        if one.name.kind.exclusive
    }


def _scores(pool: Pool, topology: CPUTopology, held: CPUSet) -> dict[str, float]:
    there = pool.offered & topology.online
    layout = Layout.of_topology(topology, there)
    return {
        name: score(there - held, layout.groups[level].values()) for name, level in _LEVELS.items()
    }
