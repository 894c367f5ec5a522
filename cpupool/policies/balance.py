"""How many CPUs each NUMA node gives, so that what is left on the nodes is as even as it can be.

This is the arithmetic of KEP-2902 (sig-node, cpumanager-distribute-cpus-policy-option), as
takeByTopologyNUMADistributed in the kubelet's cpu_assignment.go has it: the fewest nodes that can
share a request evenly do so, and what does not divide goes group by group round some of them.
Among the ways to do that, the one wins that leaves the lowest standard deviation of free CPUs.

The sum of what is left is the same whatever is chosen, so the lowest deviation is the lowest sum of
squares. A node that gives c of its x free CPUs lowers it by c * (2x - c), called the gain here.
Where the kubelet tries every combination, two facts keep the search short: nodes with equally many
free CPUs are worth the same, so the first of them stands for all, and more free CPUs never gain
less, so a combination is dropped as soon as the best possible end of it would not win.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from heapq import heapify, heapreplace
from operator import le
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

_MAX_STEPS: Final = 6_000
"""How many nodes are weighed, in all combinations, before the best so far has to do."""


@dataclass(frozen=True, slots=True)
class Shares:
    """What the chosen nodes give.

    Attributes:
        even: CPUs that each of them gives.
        extra: chosen node (its index) → groups of CPUs that it gives on top.
        gain: how much the sum of squares of the nodes' free CPUs falls.
        proven: False if the search was cut short, so that a better choice may exist.
    """

    even: int
    extra: Mapping[int, int]
    gain: int
    proven: bool = True


def share_out(free: Sequence[int], groups: int, group: int, fewest: int) -> Shares | None:
    """Choose nodes, and what each of them gives.

    The deviation is compared exactly, where the kubelet rounds it to three decimals; that differs
    at most where the deviation times the number of nodes is over 1000 CPUs.

    Args:
        free: free CPUs of each node; of equal choices the first wins, in this order.
        groups: how many groups of CPUs to take.
        group: CPUs in a group.
        fewest: how many nodes to take at least.

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
    """Share out evenly where some nodes give certain CPUs in any case.

    Of equally many nodes those with the most free CPUs leave the lowest deviation.

    Args:
        given: how many CPUs each node gives in any case.
        free: free CPUs of each node, the given ones included.
        groups: how many groups of CPUs to take, the given ones included.
        group: CPUs in a group.

    Returns:
        What each node gives, the given CPUs included; None if no number of nodes can share that
        evenly, each the same number of groups or one more.
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
        able: the nodes that have an even share.
        left: what each of them has left after giving it.
        rest: groups of CPUs to take beyond the even shares, fewer than nodes.
        to_beat: the gain of the best choice so far.
        steps: how many more nodes may be weighed, one once in each combination.
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
        """Give the best choice; None if this many nodes cannot share the groups."""
        if len(self.able) < self.nodes:
            return None
        largest = _leftmost_largest(self.left, self.nodes)
        left = [self.left[at] for at in largest]
        limit = self._rest_limit(left)
        if limit < 0:
            return None
        best = self._shares(largest)
        if best.gain < self._even_gain(left) + limit:
            # One less than theirs: who equals it and comes before the largest wins.
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
        """Let chosen nodes share, the rest going round those of them that are best for it."""
        even_gain = self._even_gain([self.left[at] for at in chosen])
        givers = [at for at in chosen if self.left[at] >= self.group]
        left = [self.left[at] for at in givers]
        limit = self._rest_limit(left)
        # Of as many nodes as there are groups in the rest, or more, the first give one each.
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
        """Give what extra groups gain."""
        given = (groups * self.group for groups in extra)
        return sum(cpus * (2 * free - cpus) for free, cpus in zip(left, given, strict=True))

    def _rest_limit(self, left: Sequence[int]) -> int:
        """Give what the rest gains where always the largest gives; -1 if there is not enough."""
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
        """Take the rest group by group round some nodes, as far as they have groups."""
        extra = [0] * len(left)
        rest = min(self.rest, sum(left[at] // self.group for at in some))
        while rest:
            for at in some:
                if rest and left[at] >= (extra[at] + 1) * self.group:
                    extra[at] += 1
                    rest -= 1
        return extra


def _leftmost_largest(values: Sequence[int], count: int) -> list[int]:
    """Give the indices of the largest values in their order, of equal ones the first."""
    return sorted(sorted(range(len(values)), key=lambda at: -values[at])[:count])


def _combinations(
    values: Sequence[int],
    size: int,
    may_win: Callable[[Sequence[int]], bool],
    begun: tuple[int, ...] = (),
) -> Iterator[tuple[int, ...]]:
    """Choose indices in lexical order, of the choices with the same values only the first.

    Where a value cannot win, a smaller one that comes later cannot either.

    Args:
        values: what to choose from.
        size: how many to choose.
        may_win: told the values of a beginning with its best end, says whether to go on with it.
        begun: the beginning.
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
