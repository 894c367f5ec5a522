"""The kubelet's distribution over NUMA nodes with every combination tried, as an oracle.

KEP-2902 and takeByTopologyNUMADistributed in cpu_assignment.go, for a few nodes only: its time
grows exponentially. `aliased` adds what the kubelet does not mean to do: combinations of four
nodes and more share Go arrays, so that the best one is overwritten by some that come after it.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cpupool.core.cpuset import CPUSet
from cpupool.core.errors import NotEnoughCPUs
from cpupool.policies.accumulators.kubelet import Taken, take_packed
from cpupool.policies.layout import Layout, Level

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


@dataclass(frozen=True, slots=True)
class Distribution:
    """What is taken of which nodes (by their index).

    Attributes:
        even: CPUs of each chosen node.
        chosen: the nodes.
        rest: groups beyond that.
        going_round: the nodes that give one group of the rest after the other, in turns.
    """

    even: int
    chosen: tuple[int, ...]
    rest: int
    going_round: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Slice:
    """A slice as Go has it: what is appended goes into the same array while there is room."""

    array: list[int]
    length: int = 0

    def append(self, value: int) -> _Slice:
        array = self.array
        if self.length == len(array):
            array = [*array, *[0] * max(1, self.length)]
        array[self.length] = value
        return _Slice(array, self.length + 1)

    def values(self) -> tuple[int, ...]:
        return tuple(self.array[: self.length])

    def copy(self) -> _Slice:
        return _Slice(list(self.values()), self.length)


def distribute(
    free: Sequence[int], groups: int, group: int, fewest: int, *, aliased: bool = False
) -> Distribution | None:
    """Distribute groups of CPUs over nodes with so many free CPUs; None where none can share."""
    for size in range(fewest, min(groups, len(free)) + 1):
        even, rest = groups // size * group, groups % size
        lowest, chosen, going_round = math.inf, _Slice([]), _Slice([])
        for nodes in _combinations(range(len(free)), size):
            if lowest == 0:
                break
            if any(free[node] < even for node in nodes.values()):
                continue
            left = [cpus - even * (node in nodes.values()) for node, cpus in enumerate(free)]
            givers = [node for node in nodes.values() if left[node] >= group]
            best, some = _best_round(left, givers, rest, group, aliased=aliased)
            if best < lowest:
                lowest, going_round = best, some
                chosen = nodes if aliased else nodes.copy()
        if chosen.length:
            return Distribution(even, chosen.values(), rest, going_round.values())
    return None


def go_round(left: Sequence[int], some: Sequence[int], rest: int, group: int) -> Counter[int]:
    """Count the groups that nodes give in turns, as far as they have some."""
    given: Counter[int] = Counter()
    while given.total() < rest:
        able = [node for node in some if left[node] >= (given[node] + 1) * group]
        if not able:
            break
        given.update(able[: rest - given.total()])
    return given


def take_as_kubelet(
    layout: Layout, available: CPUSet, count: int, *, group: int = 1, spread: bool = False
) -> Taken:
    """Stand in for `take_distributed`, overwritten combinations included."""
    if count > len(available):
        raise NotEnoughCPUs(count, len(available))
    nodes = _nodes(layout, available)
    groups = count // group
    on_average = math.ceil(math.ceil(len(layout.cpus) / group) / len(layout.groups[Level.NODE]))
    free = [len(layout.groups[Level.NODE][node] & available) for node in nodes]
    found = None
    if count and count % group == 0:
        found = distribute(free, groups, group, math.ceil(groups / on_average), aliased=True)
    if found is None:
        return take_packed(layout, available, count, spread=spread)
    taken = CPUSet()
    left = [cpus - found.even * (node in found.chosen) for node, cpus in enumerate(free)]
    given = go_round(left, found.going_round, found.rest, group)
    for index, node in enumerate(nodes):
        for part in (found.even * (index in found.chosen), *[group] * given[index]):
            on_node = layout.groups[Level.NODE][node] & available - taken
            taken |= take_packed(layout, on_node, part, spread=spread).cpus
    return Taken(taken)


def _combinations(nodes: Sequence[int], size: int, begun: _Slice | None = None) -> Iterator[_Slice]:
    begun = begun or _Slice([])
    if not size:
        yield begun
        return
    for at in range(len(nodes) - size + 1):
        yield from _combinations(nodes[at + 1 :], size - 1, begun.append(nodes[at]))


def _best_round(
    left: Sequence[int], givers: Sequence[int], rest: int, group: int, *, aliased: bool
) -> tuple[float, _Slice]:
    lowest, best = math.inf, _Slice([])
    if not rest:
        return _deviation(left), best
    for size in range(len(givers), 0, -1):
        for some in _combinations(givers, size):
            given = go_round(left, some.values(), rest, group)
            # The kubelet loops for ever over nodes that have not enough whole groups.
            if given.total() < rest:
                continue
            deviation = _deviation([cpus - given[node] * group for node, cpus in enumerate(left)])
            if deviation < lowest:
                lowest, best = deviation, some if aliased else some.copy()
    return lowest, best


def _deviation(values: Sequence[int]) -> float:
    mean = round(sum(values) / len(values), 3)
    return round(math.sqrt(sum((value - mean) ** 2 for value in values) / len(values)), 3)


def _nodes(layout: Layout, available: CPUSet) -> list[int]:
    """Order the nodes as the kubelet does: by sockets first, where those are the larger ones."""
    nodes = layout.free(Level.NODE, available)
    sockets = layout.free(Level.SOCKET, available)

    def rank(node: int) -> tuple[int, int, int, int]:
        socket = layout.places[nodes[node].first].socket
        if len(layout.groups[Level.SOCKET]) >= len(layout.groups[Level.NODE]):
            return 0, 0, len(nodes[node]), node
        return len(sockets[socket]), socket, len(nodes[node]), node

    return sorted(nodes, key=rank)
