"""A measure of how scattered free CPUs are.

The measure is the size of a free CPU's block: the free CPUs of its NUMA node, or of its uncore
cache. The score compares the mean size over all free CPUs with the best mean: the same number of
free CPUs in the fewest, largest groups.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from cpupool.core.cpuset import CPUSet


def score(free: CPUSet, groups: Iterable[CPUSet]) -> float:
    """Return how much smaller the blocks of free CPUs are than they could be.

    Args:
        free: the free CPUs.
        groups: the groups that they could fill: all CPUs of each node, or of each cache.

    Returns:
        0 where the free CPUs are as close together as possible; towards 1 where they are scattered.
    """
    sizes = []
    blocks = []
    for group in groups:
        sizes.append(len(group))
        blocks.append(len(group & free))
    left = sum(blocks)
    best = 0
    for size in sorted(sizes, reverse=True):
        filled = min(size, left)
        best += filled * filled
        left -= filled
    return 1 - sum(block * block for block in blocks) / best if best else 0.0
