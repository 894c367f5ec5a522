"""The kubelet CPU Manager's choice of CPUs, which lie close together.

The results equal those of takeByTopologyNUMAPacked and takeByTopologyNUMADistributed in Kubernetes
1.36, pkg/kubelet/cm/cpumanager/cpu_assignment.go. Both go down the machine's levels and take groups
that fit as a whole: sockets and NUMA nodes, L3 caches, cores; then single CPUs. On every level they
begin where the fewest CPUs are free, so that large groups stay whole for large requests.

This module does not copy errors of the kubelet. The kubelet regards a socket or a core as free when
the number of its free CPUs is the average size of such groups. It then takes the whole group, also
the CPUs that are not free. Here all CPUs of the group must be free. Where NUMA nodes and sockets
overlap, this module takes no CPU twice, and its distribution over NUMA nodes always ends (see
balance.py).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

from cpupool.core.cpuset import CPUSet
from cpupool.core.errors import NotEnoughCPUs
from cpupool.policies.accumulators.balance import share_out
from cpupool.policies.layout import GROUP_OF, Level

if TYPE_CHECKING:
    from cpupool.policies.layout import Layout, Place


@dataclass(frozen=True, slots=True)
class Taken:
    """CPUs that were chosen.

    Attributes:
        cpus: as many as requested.
        proven: False if the search for the best choice was cut short; the CPUs are valid anyway.
    """

    cpus: CPUSet
    proven: bool = True


def take_packed(
    layout: Layout,
    available: CPUSet,
    count: int,
    *,
    spread: bool = False,
    by_uncore: bool = False,
) -> Taken:
    """Take whole sockets, NUMA nodes and cores as far as they fit, and then single CPUs.

    Args:
        layout: the machine.
        available: the CPUs to choose from.
        count: how many to take.
        spread: follow the CPUs' ids within a socket, not the cores: the kubelet's
            distribute-cpus-across-cores, for machines whose siblings have distant ids.
        by_uncore: prefer few L3 caches: the kubelet's prefer-align-cpus-by-uncorecache.

    Raises:
        NotEnoughCPUs: fewer are available.
    """
    stock = _Stock(layout, available, count)
    if count <= 0:
        return Taken(stock.taken)
    stock.take_whole(stock.outer)
    stock.take_whole(stock.inner)
    if by_uncore:
        stock.take_by_uncore()
    if not spread:
        stock.take_whole(Level.CORE)
    stock.take_singles(Level.SOCKET if spread else Level.CORE)
    return Taken(stock.taken)


def take_distributed(
    layout: Layout,
    available: CPUSet,
    count: int,
    *,
    group: int = 1,
    spread: bool = False,
) -> Taken:
    """Take equally many CPUs of each of the fewest NUMA nodes that can share the request.

    A request that no nodes can share, or that is not a multiple of the group, is packed.

    Args:
        layout: the machine.
        available: the CPUs to choose from.
        count: how many to take.
        group: how many CPUs of a node to take at a time; for whole cores the CPUs of a core.
        spread: as in `take_packed`.

    Raises:
        NotEnoughCPUs: fewer are available.
    """
    nodes = len(layout.groups[Level.NODE])
    per_node = _rounded_up(_rounded_up(len(layout.cpus), group), nodes or 1)
    fewest = _rounded_up(count // group, per_node or 1)
    even = take_evenly(layout, available, count, group=group, spread=spread, fewest=fewest)
    return take_packed(layout, available, count, spread=spread) if even is None else even


def take_evenly(
    layout: Layout,
    available: CPUSet,
    count: int,
    *,
    group: int = 1,
    spread: bool = False,
    fewest: int = 1,
) -> Taken | None:
    """Take CPUs as `take_distributed` does; None where no NUMA nodes can share the request.

    Args:
        layout: the machine.
        available: the CPUs to choose from.
        count: how many to take.
        group: as in `take_distributed`.
        spread: as in `take_packed`.
        fewest: the least number of nodes to take; the kubelet takes as many as identical nodes
            would need, even where one node has enough CPUs.

    Raises:
        NotEnoughCPUs: fewer are available.
    """
    stock = _Stock(layout, available, count)
    if count <= 0 or count % group:
        return None
    nodes = stock.order(Level.NODE)
    free = [len(stock.free_in(Level.NODE, node)) for node in nodes]
    shares = share_out(free, count // group, group, fewest)
    if shares is None:
        return None
    for index, extra in shares.extra.items():
        for cpus in (shares.even, *[group] * extra):
            on_node = stock.free_in(Level.NODE, nodes[index])
            stock.take(take_packed(layout, on_node, cpus, spread=spread).cpus)
    return Taken(stock.taken, shares.proven)


class _Stock:
    """The CPUs that are still free, and the taken CPUs.

    Attributes:
        free: the CPUs that are left.
        taken: the CPUs that are taken.
        missing: how many CPUs are still to take.
        outer: the larger of NUMA node and socket on this machine.
        inner: the other one.
    """

    def __init__(self, layout: Layout, available: CPUSet, count: int) -> None:
        self.layout = layout
        self.free = available & layout.cpus
        self.taken = CPUSet()
        self.missing = count
        self.outer, self.inner = Level.SOCKET, Level.NODE
        if len(layout.groups[Level.SOCKET]) >= len(layout.groups[Level.NODE]):
            self.outer, self.inner = Level.NODE, Level.SOCKET
        self._parents = {
            self.inner: self.outer,
            Level.CORE: self.inner,
            Level.UNCORE: Level.NODE,
        }
        self._places: list[Place] | None = None
        if count > len(self.free):
            raise NotEnoughCPUs(count, len(self.free))

    def free_in(self, level: Level, group: int) -> CPUSet:
        """Return a group's free CPUs."""
        return self.layout.groups[level][group] & self.free

    def order(self, level: Level) -> list[int]:
        """List the groups that have free CPUs: the groups of one unit of the level above together.

        Units and groups with the fewest free CPUs come first, then the order is by id.
        """
        group_of, places = GROUP_OF[level], self._places_of_free()
        sizes = Counter(map(group_of, places))
        if level not in self._parents:
            return sorted(sizes, key=lambda group: (sizes[group], group))
        parent = self._parents[level]
        pairs = set(zip(map(GROUP_OF[parent], places), map(group_of, places), strict=True))
        within = defaultdict(list)
        for unit, group in sorted(pairs, key=lambda pair: (sizes[pair[1]], pair[1])):
            within[unit].append(group)
        # A group that lies in several units comes with the first of them.
        return list(dict.fromkeys(group for unit in self.order(parent) for group in within[unit]))

    def _places_of_free(self) -> list[Place]:
        if self._places is None:
            self._places = [self.layout.places[cpu] for cpu in self.free]
        return self._places

    def take(self, cpus: CPUSet) -> None:
        """Move free CPUs to the taken CPUs."""
        self.taken |= cpus
        self.free -= cpus
        self.missing -= len(cpus)
        self._places = None

    def take_whole(self, level: Level) -> None:
        """Take wholly free groups while they are not larger than the number of missing CPUs."""
        groups = self.layout.groups[level]
        # The kubelet uses the real size of nodes and caches, but the average of cores and sockets.
        usual = self.layout.usual(level) if level in (Level.CORE, Level.SOCKET) else None
        whole = {
            group
            for group in set(map(GROUP_OF[level], self._places_of_free()))
            if len(groups[group]) <= self.missing
            and usual in (None, len(groups[group]))
            and groups[group] <= self.free
        }
        # Most requests are smaller than any socket or node: then there is nothing to sort.
        for group in self.order(level) if whole else ():
            if group in whole and len(groups[group]) <= self.missing:
                self.take(groups[group])

    def take_by_uncore(self) -> None:
        """Take whole L3 caches, then the missing CPUs from the first cache that has them."""
        caches = self.order(Level.UNCORE)
        if self.missing >= self.layout.usual(Level.UNCORE):
            self.take_whole(Level.UNCORE)
        for cache in caches:
            if self.missing:
                self.take(self._rest_of(cache))

    def _rest_of(self, cache: int) -> CPUSet:
        """Return all missing CPUs from the lowest cores of a cache, or none."""
        threads = self.layout.usual(Level.CORE)
        cores = {self.layout.places[cpu].core for cpu in self.free_in(Level.UNCORE, cache)}
        lowest = sorted(cores)[: _rounded_up(self.missing, threads)]
        cpus = CPUSet.union(self.free_in(Level.CORE, core) for core in lowest)
        # The kubelet leaves one thread of the last core to others, and never more than one.
        if threads > 1 and self.missing % 2 and len(cpus) > self.missing:
            cpus = _lowest(cpus, len(cpus) - 1)
        return cpus if len(cpus) == self.missing else CPUSet()

    def take_singles(self, level: Level) -> None:
        """Take the missing CPUs from one group after the other, the lowest CPUs first."""
        for group in self.order(level) if self.missing else ():
            self.take(_lowest(self.free_in(level, group), self.missing))


def _lowest(cpus: CPUSet, count: int) -> CPUSet:
    return cpus if len(cpus) <= count else CPUSet(islice(cpus, count))


def _rounded_up(number: int, divisor: int) -> int:
    return -(-number // divisor)
