"""The fewest groups (NUMA nodes, uncore caches) that hold so many CPUs, and the best of these."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from heapq import nlargest
from itertools import combinations
from math import comb
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

Distances = Mapping[int, Mapping[int, int]]
"""Group → other group → how far it is; the same both ways."""

_TRIED: Final = 250
"""Sets that are compared at most; where there are more, some good ones are."""
_CENTRES: Final = 16
"""Groups around which these lie."""


@dataclass(frozen=True, slots=True)
class Narrowed:
    """The groups that were found.

    Attributes:
        groups: their ids, ascending.
        proven: that of no other set of as few groups the distances or the CPUs left over are
            better; they are the fewest in any case.
    """

    groups: tuple[int, ...]
    proven: bool


def fewest(
    sizes: Mapping[int, int],
    count: int,
    *,
    given: Collection[int] = (),
    emptiest: bool = False,
    distances: Distances | None = None,
) -> Narrowed:
    """Find the fewest groups that hold `count` CPUs together.

    Among sets of as few groups the nearest to each other are best, then those with the fewest CPUs
    left over, then those with the lowest ids.

    Args:
        sizes: group → how many CPUs of it can be taken.
        count: how many are wanted; at most all of them.
        given: groups that the answer has in any case.
        emptiest: the most CPUs left over are best instead.
        distances: how far any two groups are from each other; None where they are all alike.
    """
    missing = count - sum(sizes[group] for group in given)
    others = sorted(sizes.keys() - set(given))
    more = _how_many(sorted((sizes[group] for group in others), reverse=True), missing)
    few = comb(len(others), more) <= _TRIED
    tried = combinations(others, more) if few else _near(sizes, others, more, missing, distances)

    def badness(chosen: tuple[int, ...]) -> tuple[int, int, tuple[int, ...]]:
        spread = 0
        if distances:
            groups = (*given, *chosen)
            rows = (map(distances[one].__getitem__, groups[:at]) for at, one in enumerate(groups))
            spread = sum(map(sum, rows))
        held = sum(sizes[group] for group in chosen)
        return spread, -held if emptiest else held, chosen

    enough = (one for one in set(tried) if sum(sizes[group] for group in one) >= missing)
    best = min(enough, key=badness)
    spare = sum(sizes[group] for group in best) - missing
    same_size = len({sizes[group] for group in others}) == 1
    ideal = not distances and (emptiest or not spare or same_size)
    return Narrowed(tuple(sorted((*given, *best))), proven=few or ideal)


def _how_many(descending: list[int], missing: int) -> int:
    more = 0
    while missing > 0:
        missing -= descending[more]
        more += 1
    return more


def _near(
    sizes: Mapping[int, int],
    others: list[int],
    more: int,
    missing: int,
    distances: Distances | None,
) -> Iterator[tuple[int, ...]]:
    """Give good sets: around large groups, of those nearest to one that suffice the largest."""
    centres = nlargest(_CENTRES if distances else 1, others, key=sizes.__getitem__)
    for centre in centres:
        row = distances[centre] if distances else dict.fromkeys(others, 0)
        near = sorted(others, key=lambda group: (row[group], -sizes[group], group))
        reached = (
            nlargest(more, near[:reach], key=lambda group: (sizes[group], -group))
            for reach in range(more, len(near) + 1)
        )
        largest = next(some for some in reached if sum(map(sizes.__getitem__, some)) >= missing)
        spare = sum(map(sizes.__getitem__, largest)) - missing
        yield tuple(sorted(largest))
        # And the smallest that still suffices in the place of the last of them.
        *first, last = largest
        fits = (one for one in near if one not in first and sizes[one] >= sizes[last] - spare)
        yield tuple(sorted((*first, min(fits, key=lambda group: (sizes[group], group)))))
