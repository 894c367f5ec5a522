"""The machine for a choice of CPUs: the core, cache, NUMA node and socket of each CPU."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from enum import Enum
from operator import itemgetter
from typing import TYPE_CHECKING, Final, NamedTuple, Self

from cpupool.core.cpuset import CPUSet

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from cpupool.core.topology import CPUTopology


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
    """

    cpus: CPUSet
    places: Mapping[int, Place]
    groups: Mapping[Level, Mapping[int, CPUSet]]

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
        """Return the layout of a machine, or of some of its CPUs.

        The id of a core is its lowest CPU, the id of a socket or a cache is its index. A CPU
        without a NUMA node is on node -1; a CPU without an L3 cache shares a cache with its socket.
        An offline CPU has the place of its core; if no thread of the core is online, only the node
        is known.
        """
        # The id of a core does not depend on whether its lowest thread runs.
        lowest: dict[int, int] = {}
        running_sibling: dict[int, int] = {}
        for known in topology.offline.values():
            running = known.core & topology.online
            for cpu in known.core:
                lowest[cpu] = min(lowest.get(cpu, cpu), known.core.first)
                if running:
                    running_sibling[cpu] = running.first
        cores = [lowest.get(core.first, core.first) for core in topology.cores]

        def place(cpu: int) -> Place:
            info = topology.cpus.get(cpu) or topology.cpus.get(running_sibling.get(cpu, cpu))
            if info is None:
                node = topology.node_of(cpu)
                return Place(lowest.get(cpu, cpu), -1, -1 if node is None else node, -1)
            return Place(
                cores[info.core],
                info.socket,
                -1 if info.node is None else info.node,
                # Negative, so that the id of a socket never equals the id of a cache.
                -2 - info.socket if info.l3 is None else info.l3,
            )

        return cls.of({cpu: place(cpu) for cpu in (topology.online if cpus is None else cpus)})

    def free(self, level: Level, available: CPUSet) -> dict[int, CPUSet]:
        """Return group → its available CPUs, without groups that have none."""
        cut = ((group, cpus & available) for group, cpus in self.groups[level].items())
        return {group: cpus for group, cpus in cut if cpus}

    def usual(self, level: Level) -> int:
        """Return how many CPUs a group has on average, rounded down; needs at least one group."""
        return len(self.cpus) // len(self.groups[level])

    @property
    def largest_core(self) -> int:
        """How many CPUs the largest core has."""
        return max(map(len, self.groups[Level.CORE].values()), default=1)

    def whole_cores(self, available: CPUSet) -> CPUSet:
        """Return the available CPUs whose whole core is available."""
        cores: Iterable[CPUSet] = self.groups[Level.CORE].values()
        return CPUSet.union(core for core in cores if core <= available)
