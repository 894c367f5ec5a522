"""Splits a request among NUMA nodes so that the numbers of free CPUs stay as equal as possible.

This is the arithmetic of KEP-2902 (sig-node, cpumanager-distribute-cpus-policy-option), as in
takeByTopologyNUMADistributed of the kubelet's cpu_assignment.go. The request goes to the fewest
nodes that can share it equally. The remainder goes to some of these nodes, one group of CPUs after
the other. The best split has the lowest standard deviation of free CPUs.

Every split leaves the same total of free CPUs. So the lowest deviation is the lowest sum of
squares. A node that gives c of its x free CPUs lowers the sum of squares by c * (2x - c). This
number is the gain of the node.

The kubelet tries every combination of nodes. Two facts make the search here shorter. Nodes with
equally many free CPUs have the same gain, so the search tries only the first of them. A node with
more free CPUs never has a smaller gain, so the search stops with a combination when even its best
completion cannot win.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from heapq import heapify, heapreplace
from operator import le
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

_MAX_STEPS: Final = 6_000
"""The number of nodes that the search visits, in all combinations, before it takes the best."""


@dataclass(frozen=True, slots=True)
class Shares:
    """The CPUs that the chosen nodes give.

    Attributes:
        even: CPUs that each of them gives.
        extra: chosen node (its index) → groups of CPUs that it gives in addition.
        gain: how much the sum of squares of the nodes' free CPUs falls.
        proven: False if the search was cut short, so that a better choice may exist.
    """

    even: int
    extra: Mapping[int, int]
    gain: int
    proven: bool = True


def share_out(free: Sequence[int], groups: int, group: int, fewest: int) -> Shares | None:
    """Choose nodes, and how many CPUs each of them gives.

    The function compares deviations exactly, while the kubelet rounds them to three decimals; the
    results can differ only where the deviation times the number of nodes is over 1000 CPUs.

    Args:
        free: free CPUs of each node; of equal choices the first wins, in this order.
        groups: how many groups of CPUs to take.
        group: CPUs in a group.
        fewest: the least number of nodes to take.

    Returns:
        The shares, or None if no number of nodes can share the groups evenly.
    """
    for nodes in range(fewest, min(groups, len(free)) + 1):
        shares = _Search(free, groups, group, nodes).best()
        if shares is not None:
            return shares
    return None


def share_out_beside(
    given: Sequence[int], free: Sequence[int], groups: int, group: int
) -> list[int] | None:
    """Share out evenly where some nodes give required CPUs.

    Among sets of equally many nodes, the nodes with the most free CPUs leave the lowest deviation.

    Args:
        given: how many required CPUs each node gives.
        free: free CPUs of each node, the required CPUs included.
        groups: how many groups of CPUs to take, the required CPUs included.
        group: CPUs in a group.

    Returns:
        The number of CPUs from each node, the required CPUs included; None if no number of nodes
        can share them evenly, each with the same number of groups or one more.
    """
    order = sorted(range(len(free)), key=lambda node: (not given[node], -free[node], node))
    for nodes in range(max(1, sum(map(bool, given))), min(groups, len(free)) + 1):
        even, rest = divmod(groups, nodes)
        room = (node for node in order[:nodes] if free[node] >= (even + 1) * group)
        more = sorted(room, key=lambda node: (given[node] <= even * group, -free[node], node))
        shares = [0] * len(free)
        for node in order[:nodes]:
            shares[node] = (even + (node in more[:rest])) * group
        lawful = all(map(le, given, shares)) and all(map(le, shares, free))
        if lawful and len(more) >= rest:
            return shares
    return None


class _Search:
    """The search for the best choice of a given number of nodes.

    Attributes:
        able: the nodes that have enough CPUs for an even share.
        left: the CPUs that each of them has left after its even share.
        rest: groups of CPUs to take in addition to the even shares, fewer than nodes.
        to_beat: the gain of the best choice so far.
        steps: how many NUMA nodes the search may still visit; a node counts in each combination.
    """

    def __init__(self, free: Sequence[int], groups: int, group: int, nodes: int) -> None:
        self.nodes = nodes
        self.group = group
        self.even = groups // nodes * group
        self.rest = groups % nodes
        self.able = [node for node, cpus in enumerate(free) if cpus >= self.even]
        self.left = [free[node] - self.even for node in self.able]
        self.to_beat = -1
        self.steps = _MAX_STEPS

    def best(self) -> Shares | None:
        """Return the best choice; None if this many nodes cannot share the groups."""
        if len(self.able) < self.nodes:
            return None
        largest = _leftmost_largest(self.left, self.nodes)
        left = [self.left[at] for at in largest]
        limit = self._rest_limit(left)
        if limit < 0:
            return None
        best = self._shares(largest)
        if best.gain < self._even_gain(left) + limit:
            # One less: a choice with the same gain that comes before the largest wins.
            self.to_beat = best.gain - 1
            for chosen in _combinations(self.left, self.nodes, self._may_win):
                shares = self._shares(chosen)
                if shares.gain > self.to_beat:
                    best, self.to_beat = shares, shares.gain
        extra = {self.able[at]: groups for at, groups in best.extra.items()}
        return replace(best, extra=extra, proven=self.steps > 0)

    def _may_win(self, left: Sequence[int]) -> bool:
        self.steps -= len(left)
        limit = self._rest_limit(left)
        return self.steps > 0 and limit >= 0 and self._even_gain(left) + limit > self.to_beat

    def _shares(self, chosen: Sequence[int]) -> Shares:
        """Return the shares of chosen nodes, with the rest from those nodes that gain most."""
        even_gain = self._even_gain([self.left[at] for at in chosen])
        givers = [at for at in chosen if self.left[at] >= self.group]
        left = [self.left[at] for at in givers]
        limit = self._rest_limit(left)
        # With at least as many nodes as groups in the rest, the largest nodes give one group each.
        best = self._go_round(left, _leftmost_largest(left, self.rest))
        gain = self._rest_gain(left, best)

        def may_win(left: Sequence[int]) -> bool:
            self.steps -= len(left)
            return self.steps > 0 and self._rest_limit(left) > max(gain, self.to_beat - even_gain)

        for size in range(min(len(left), self.rest) - 1, 0, -1):
            if gain == limit or self.steps <= 0:
                break
            for some in _combinations(left, size, may_win):
                extra = self._go_round(left, some)
                if self._rest_gain(left, extra) > gain:
                    best, gain = extra, self._rest_gain(left, extra)
        by_node = dict.fromkeys(chosen, 0) | dict(zip(givers, best, strict=True))
        return Shares(self.even, by_node, even_gain + gain)

    def _even_gain(self, left: Sequence[int]) -> int:
        return self.even * (2 * sum(left) + self.even * len(left))

    def _rest_gain(self, left: Sequence[int], extra: Sequence[int]) -> int:
        """Return the gain of extra groups."""
        given = (groups * self.group for groups in extra)
        return sum(cpus * (2 * free - cpus) for free, cpus in zip(left, given, strict=True))

    def _rest_limit(self, left: Sequence[int]) -> int:
        """Return the rest's gain if the largest node always gives; -1 if there are too few CPUs."""
        if not self.rest:
            return 0
        heap = [-cpus for cpus in left]
        heapify(heap)
        gain = 0
        for _ in range(self.rest):
            largest = -heap[0]
            if largest < self.group:
                return -1
            heapreplace(heap, self.group - largest)
            gain += self.group * (2 * largest - self.group)
        return gain

    def _go_round(self, left: Sequence[int], some: Sequence[int]) -> list[int]:
        """Take the rest group by group round some nodes, until the nodes have no more groups."""
        extra = [0] * len(left)
        rest = min(self.rest, sum(left[at] // self.group for at in some))
        while rest:
            for at in some:
                if rest and left[at] >= (extra[at] + 1) * self.group:
                    extra[at] += 1
                    rest -= 1
        return extra


def _leftmost_largest(values: Sequence[int], count: int) -> list[int]:
    """Return the indices of the largest values in ascending order; of equal values the first."""
    return sorted(sorted(range(len(values)), key=lambda at: -values[at])[:count])


def _combinations(
    values: Sequence[int],
    size: int,
    may_win: Callable[[Sequence[int]], bool],
    begun: tuple[int, ...] = (),
) -> Iterator[tuple[int, ...]]:
    """Yield choices of indices in lexical order; of choices with the same values only the first.

    If a value cannot win, a smaller value that comes later cannot win either.

    Args:
        values: the values to choose from.
        size: how many indices to choose.
        may_win: receives the values of a prefix with its best completion; returns whether to
            continue with the prefix.
        begun: the prefix.
    """
    open_places = size - len(begun)
    if not open_places:
        yield begun
        return
    tried, hopeless = set[int](), -1
    for at in range(begun[-1] + 1 if begun else 0, len(values) - open_places + 1):
        if values[at] in tried or values[at] <= hopeless:
            continue
        tried.add(values[at])
        best_end = sorted(values[at + 1 :], reverse=True)[: open_places - 1]
        if may_win([*(values[index] for index in begun), values[at], *best_end]):
            yield from _combinations(values, size, may_win, (*begun, at))
        else:
            hopeless = values[at]
