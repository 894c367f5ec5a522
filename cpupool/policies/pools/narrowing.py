"""The search for the fewest groups (NUMA nodes, uncore caches) with enough CPUs for a request.

Among sets of as few groups it finds the best one: the nearest groups, then the best fit.
"""

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
"""Group → other group → distance; the same in both directions."""

_TRIED: Final = 250
"""The most sets to compare; where there are more, the search compares only some good sets."""
_CENTRES: Final = 16
"""The number of groups around which these good sets lie."""


@dataclass(frozen=True, slots=True)
class Narrowed:
    """The groups that the search found.

    Attributes:
        groups: their ids, ascending.
        proven: whether no other set of as few groups has better distances or a better number of
            CPUs left over; the number of groups is always the least.
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
    """Find the fewest groups that have `count` CPUs together.

    Among sets of as few groups, the groups nearest to each other are best, then those with the
    fewest CPUs left over, then those with the lowest ids.

    Args:
        sizes: group → how many CPUs of it are available.
        count: how many CPUs to take; at most all available CPUs.
        given: groups that the answer must contain.
        emptiest: prefer the most CPUs left over instead of the fewest.
        distances: the distance of any two groups; None where all distances are equal.
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
            rows = (
                map(distances[group].__getitem__, groups[:at]) for at, group in enumerate(groups)
            )
            spread = sum(map(sum, rows))
        held = sum(sizes[group] for group in chosen)
        return spread, -held if emptiest else held, chosen

    enough = (chosen for chosen in set(tried) if sum(sizes[group] for group in chosen) >= missing)
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
    """Yield good sets: around a large group the nearest groups that suffice, the largest first."""
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
        # The same set with its last group replaced by the smallest that still suffices.
        *first, last = largest
        fits = (
            group for group in near if group not in first and sizes[group] >= sizes[last] - spare
        )
        yield tuple(sorted((*first, min(fits, key=lambda group: (sizes[group], group)))))
