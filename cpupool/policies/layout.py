"""The machine as a choice of CPUs sees it: which core, cache, NUMA node and socket each is on."""

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
    """What CPUs are grouped by; an uncore cache is what the kubelet calls an L3 cache."""

    CORE = "core"
    UNCORE = "uncore cache"
    NODE = "NUMA node"
    SOCKET = "socket"


class Place(NamedTuple):
    """Where one CPU is: ids that are unique on the whole machine, and break ties."""

    core: int
    socket: int
    node: int
    uncore: int


_LEVELS: Final = (Level.CORE, Level.SOCKET, Level.NODE, Level.UNCORE)
"""What the numbers of a `Place` are of."""
GROUP_OF: Final[Mapping[Level, Callable[[Place], int]]] = {
    level: itemgetter(index) for index, level in enumerate(_LEVELS)
}
"""Level → what gives the id of a place's group."""


@dataclass(frozen=True, slots=True)
class Layout:
    """The CPUs that there are to choose from, free or not, and what they belong to.

    Attributes:
        cpus: all of them.
        places: CPU id → where it is.
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
        """Take a machine, or some of its CPUs, for all that there is.

        A core is called by its lowest CPU, a socket and a cache by its index. A CPU without a NUMA
        node is on node -1, one without an L3 cache shares one with its socket. An offline one is
        where its core is; of a core without an online thread no more is known than the node.
        """
        # A core is called alike whether its lowest thread runs or not.
        lowest: dict[int, int] = {}
        beside: dict[int, int] = {}
        for known in topology.offline.values():
            running = known.core & topology.online
            for cpu in known.core:
                lowest[cpu] = min(lowest.get(cpu, cpu), known.core.first)
                if running:
                    beside[cpu] = running.first
        cores = [lowest.get(core.first, core.first) for core in topology.cores]

        def place(cpu: int) -> Place:
            info = topology.cpus.get(cpu) or topology.cpus.get(beside.get(cpu, cpu))
            if info is None:
                node = topology.node_of(cpu)
                return Place(lowest.get(cpu, cpu), -1, -1 if node is None else node, -1)
            return Place(
                cores[info.core],
                info.socket,
                -1 if info.node is None else info.node,
                # Negative ids, so that a socket in the place of a cache is nobody's cache.
                -2 - info.socket if info.l3 is None else info.l3,
            )

        return cls.of({cpu: place(cpu) for cpu in (topology.online if cpus is None else cpus)})

    def free(self, level: Level, available: CPUSet) -> dict[int, CPUSet]:
        """Group available CPUs; groups without any are left out."""
        cut = ((group, cpus & available) for group, cpus in self.groups[level].items())
        return {group: cpus for group, cpus in cut if cpus}

    def usual(self, level: Level) -> int:
        """Give how many CPUs a group has on average, rounded down; at least one group is there."""
        return len(self.cpus) // len(self.groups[level])

    @property
    def largest_core(self) -> int:
        """How many CPUs a core has where all of them are there."""
        return max(map(len, self.groups[Level.CORE].values()), default=1)

    def whole_cores(self, available: CPUSet) -> CPUSet:
        """Give the available CPUs whose cores are available as a whole."""
        cores: Iterable[CPUSet] = self.groups[Level.CORE].values()
        return CPUSet.union(core for core in cores if core <= available)
