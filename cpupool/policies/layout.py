"""The machine for a choice of CPUs: the core, cache, NUMA node and socket of each CPU.

The accumulators choose by these groups alone, without the rest of the topology.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field, replace
from enum import Enum
from operator import itemgetter
from typing import TYPE_CHECKING, Final, NamedTuple, Self

from cpupool.core.cpuset import CPUSet

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from cpupool.core.topology import CoreType, CPUTopology


class Level(Enum):
    """The levels that group CPUs; uncore cache is the kubelet's word for an L3 cache."""

    CORE = "core"
    UNCORE = "uncore cache"
    NODE = "NUMA node"
    SOCKET = "socket"


class Place(NamedTuple):
    """The place of a CPU: ids that are unique on the whole machine; the lower id wins a tie."""

    core: int
    socket: int
    node: int
    uncore: int


_LEVELS: Final = (Level.CORE, Level.SOCKET, Level.NODE, Level.UNCORE)
"""The levels of a `Place`, in the order of its fields."""
GROUP_OF: Final[Mapping[Level, Callable[[Place], int]]] = {
    level: itemgetter(index) for index, level in enumerate(_LEVELS)
}
"""Level → getter of the id of a place's group."""


@dataclass(frozen=True, slots=True)
class Layout:
    """The CPUs that a choice can use, free or not, and their groups.

    Attributes:
        cpus: all CPUs.
        places: CPU id → its place.
        groups: level → id → the CPUs of that core, cache, node or socket.
        short: the CPUs of cores that lack threads: such a core is never whole, and has no part in
            the usual size of a core.
    """

    cpus: CPUSet
    places: Mapping[int, Place]
    groups: Mapping[Level, Mapping[int, CPUSet]]
    short: CPUSet = field(default_factory=CPUSet)

    @classmethod
    def of(cls, places: Mapping[int, Place]) -> Self:
        """Group CPUs by their places."""
        members = [defaultdict[int, list[int]](list) for _ in _LEVELS]
        for cpu, place in places.items():
            for groups_of, group in zip(members, place, strict=True):
                groups_of[group].append(cpu)
        groups = {
            level: {group: CPUSet(cpus) for group, cpus in sorted(found.items())}
            for level, found in zip(_LEVELS, members, strict=True)
        }
        return cls(CPUSet(places), places, groups)

    @classmethod
    def of_topology(cls, topology: CPUTopology, cpus: CPUSet | None = None) -> Self:
        """Return the layout of a machine's online CPUs, or of some of them.

        The id of a core is its lowest online CPU, the id of a socket or a cache is its index. A CPU
        without a NUMA node is on node -1; a CPU without an L3 cache shares a cache with its socket.
        Of a CPU that is not online nothing is known: it is a core by itself. A policy leaves it
        out, because it would change the size of its groups.

        The kubelet has the average of all cores as the threads per core. A core that lacks a thread
        would make this number one, and owners of whole cores would share cores.
        """

        def place(cpu: int) -> Place:
            info = topology.cpus.get(cpu)
            if info is None:
                return Place(cpu, -1, -1, -1)
            return Place(
                topology.cores[info.core].first,
                info.socket,
                -1 if info.node is None else info.node,
                # Negative, so that the id of a socket never equals the id of a cache.
                -2 - info.socket if info.l3 is None else info.l3,
            )

        layout = cls.of({cpu: place(cpu) for cpu in (topology.online if cpus is None else cpus)})
        return replace(layout, short=_short(layout.groups[Level.CORE].values(), topology))

    def free(self, level: Level, available: CPUSet) -> dict[int, CPUSet]:
        """Return group → its available CPUs, without groups that have none."""
        cut = ((group, cpus & available) for group, cpus in self.groups[level].items())
        return {group: cpus for group, cpus in cut if cpus}

    def usual(self, level: Level) -> int:
        """Return how many CPUs a group has on average, rounded down; needs at least one group."""
        groups: Collection[CPUSet] = self.groups[level].values()
        if level is Level.CORE and self.short:
            groups = [core for core in groups if core.isdisjoint(self.short)]
        return sum(map(len, groups)) // len(groups)

    @property
    def largest_core(self) -> int:
        """The number of CPUs of the largest core."""
        return max(map(len, self.groups[Level.CORE].values()), default=1)

    def whole_cores(self, available: CPUSet) -> CPUSet:
        """Return the available CPUs whose whole core is available."""
        cores: Iterable[CPUSet] = self.groups[Level.CORE].values()
        return CPUSet.union(core for core in cores if core <= available) - self.short


def _short(cores: Iterable[CPUSet], topology: CPUTopology) -> CPUSet:
    """Return the CPUs of the cores that lack threads which other cores of their kind have.

    A hybrid machine whose kernel names no kinds of cores lacks none: there the kubelet's average
    decides. CPUs that are offline decide nothing, because a machine answers as one without them.
    """
    if _is_hybrid(topology):
        return CPUSet()
    by_kind: defaultdict[CoreType, list[CPUSet]] = defaultdict(list)
    for core in cores:
        if info := topology.cpus.get(core.first):
            by_kind[info.core_type].append(core)
    short: list[CPUSet] = []
    for alike in by_kind.values():
        largest = max(map(len, alike))
        short += [core for core in alike if len(core) < largest]
    return CPUSet.union(short)


def _is_hybrid(topology: CPUTopology) -> bool:
    """Return whether a machine has two kinds of cores without names.

    The ids of all CPUs are in a row, and each kind has ids of its own. If CPUs are offline, and
    leave no gap, the cores that lack them have ids between the threads of others, or it is one.
    """
    cores, online = topology.cores, topology.online
    if topology.hybrid or online != CPUSet(range(len(online))):
        return False
    largest = max(map(len, cores), default=0)
    smaller = [core for core in cores if len(core) < largest]
    between = CPUSet.union(
        CPUSet(range(core.first, max(core))) for core in cores if len(core) == largest
    )
    apart = between.isdisjoint(CPUSet.union(smaller))
    return apart and len(smaller) > 1 and 2 * len(smaller) >= len(cores)
