"""Devices: how a pool's CPUs are offered to the kubelet.

An exclusive pool offers each listed CPU under its own id with its NUMA node; a shared pool offers
the ids 0 to 1000·n-1, one per milli-CPU. Both are CPU-Pooler's ids: the kubelet's checkpoint of
pods that already run holds them.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from cpupool.core.cpuset import MAX_CPU, CPUSet, format_ids
from cpupool.core.errors import AllocationError, UnavailableDevices, UnknownDevices
from cpupool.core.pools import MILLI_PER_CPU, Pool, PoolKind

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from cpupool.core.topology import CPUTopology

_CANONICAL_NUMBER: Final = re.compile(r"0|[1-9][0-9]{0,8}", re.ASCII)
"""The one spelling in which an id is given out: `007` and `+7` are nobody's."""


@dataclass(frozen=True, slots=True)
class Device:
    """One device of a pool.

    Attributes:
        id: what the kubelet hands back in Allocate.
        healthy: whether it can be given out.
        node: its NUMA node id; None for milli-CPUs and for CPUs without one.
    """

    id: str
    healthy: bool
    node: int | None


def devices_of(pool: Pool, topology: CPUTopology, held: CPUSet) -> Iterator[Device]:
    """List a pool's devices, healthy where they can be given out.

    A milli-CPU is no particular CPU: a shared pool is healthy while one of its CPUs runs, because
    an unhealthy device would keep running pods from being admitted again after a kubelet restart.

    Args:
        pool: an exclusive or a shared pool.
        topology: the machine.
        held: CPUs that pods still hold through another pool.
    """
    if pool.kind is PoolKind.SHARED:
        healthy = not pool.cpus.isdisjoint(topology.online)
        for number in range(capacity(pool)):
            yield Device(str(number), healthy, None)
        return
    for cpu in pool.cpus:
        yield Device(str(cpu), _available(cpu, topology, held), topology.node_of(cpu))


def capacity(pool: Pool) -> int:
    """Count a pool's devices."""
    return len(pool.cpus) * (MILLI_PER_CPU if pool.kind is PoolKind.SHARED else 1)


def check_ids(pool: Pool, ids: Collection[str]) -> None:
    """Accept only ids that the pool lists, each once.

    Raises:
        UnknownDevices: with those that it does not list.
        AllocationError: with those that are named again.
    """
    if pool.kind is PoolKind.SHARED:
        limit = capacity(pool)
        unknown = [identifier for identifier in ids if not _is_number_below(identifier, limit)]
    else:
        listed = {str(cpu) for cpu in pool.cpus}
        unknown = [identifier for identifier in ids if identifier not in listed]
    if unknown:
        raise UnknownDevices(pool.name, "no such devices", "use the ids that it lists", unknown)
    if len(set(ids)) < len(ids):
        again = [identifier for identifier, times in Counter(ids).items() if times > 1]
        raise AllocationError(pool.name, "devices are named twice", "name each once", again)


def check_available(pool: Pool, ids: Iterable[str], topology: CPUTopology, held: CPUSet) -> None:
    """Accept only exclusive devices that can be given out now.

    Raises:
        UnavailableDevices: with those that cannot.
    """
    if pool.kind is PoolKind.SHARED:
        return
    gone = [identifier for identifier in ids if not _available(int(identifier), topology, held)]
    if gone:
        raise UnavailableDevices(
            pool.name,
            "these CPUs are offline or still held through another pool",
            "wait until they are back",
            gone,
        )


def exclusive_cpus(ids: Iterable[str]) -> CPUSet:
    """Read the CPUs that exclusive device ids name; ids that are no CPU ids are left out."""
    return CPUSet(
        int(identifier) for identifier in ids if _is_number_below(identifier, MAX_CPU + 1)
    )


def describe_ids(ids: Iterable[str]) -> str:
    """Write device ids in the list format, for the annotation that a container carries."""
    return format_ids(sorted(int(identifier) for identifier in ids))


def _available(cpu: int, topology: CPUTopology, held: CPUSet) -> bool:
    # The whole core counts: a neighbour on the sibling is what an exclusive CPU is bought against.
    return cpu in topology.online and topology.core_of(cpu).isdisjoint(held)


def _is_number_below(text: str, limit: int) -> bool:
    return _CANONICAL_NUMBER.fullmatch(text) is not None and int(text) < limit
