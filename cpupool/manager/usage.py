"""How much of each pool is in use, in devices: whole CPUs or, of a shared pool, milli-CPUs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from cpupool.core import devices
from cpupool.core.cpuset import CPUSet
from cpupool.core.devices import Offer
from cpupool.core.pools import Pool, PoolKind

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cpupool.manager.resolve import NodeFacts


@dataclass(frozen=True, slots=True)
class PoolUsage:
    """One pool that the kubelet knows.

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
    held = facts.held_ids()
    for pool in facts.offered(held):
        ids = held.get(pool.name, frozenset())
        offline = Pool(pool.name, pool.kind, pool.cpus - facts.topology.online)
        yield PoolUsage(
            name=pool.name,
            kind=pool.kind,
            capacity=devices.capacity(pool),
            allocated=len(ids),
            offline=devices.capacity(offline),
            draining=len(Offer.of(pool, facts.topology, CPUSet(), ids).draining),
        )
