"""How scattered free CPUs are.

The measure is the size of the block in which a free CPU finds itself: the free CPUs of its NUMA
node, or of its uncore cache. The score compares its mean over all free CPUs with what it would be
if as many CPUs were free in as few, as large groups as there are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from cpupool.core.cpuset import CPUSet


def score(free: CPUSet, groups: Iterable[CPUSet]) -> float:
    """Tell how much smaller than they could be the blocks are in which free CPUs lie.

    Args:
        free: the free CPUs.
        groups: what they could fill: all CPUs of each node, or of each cache, free or not.

    Returns:
        0 where they lie as close together as can be, towards 1 the more they are scattered.
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
