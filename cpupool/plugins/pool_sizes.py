"""The sizes of pools that share CPUs: made to fit together.

The results equal those of Katalyst, pkg/agent/sysadvisor/plugin/qosaware/resource/cpu/assembler and
pkg/agent/qrm-plugins/cpu/dynamicpolicy in katalyst-core; where it walks through a Go map, the names
decide here.
"""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING, NamedTuple

from cpupool.core.errors import NotEnoughCPUs

if TYPE_CHECKING:
    from collections.abc import Mapping

Sizes = dict[str, int]
"""Pool → number of CPUs."""


class Fitted(NamedTuple):
    """Sizes that fit together.

    Attributes:
        sizes: the sizes.
        throttled: whether the pools need more CPUs than there are.
    """

    sizes: Sizes
    throttled: bool


def normalized(needs: Mapping[str, int], total: int) -> Sizes | None:
    """Return sizes in proportion to the needs that are `total` together; None if none are.

    Each pool has a CPU at least, so there are none for fewer CPUs than pools.
    """
    sum_ = sum(needs.values())
    if sum_ == total:
        return dict(needs)
    if not sum_:
        return None
    sizes = {pool: ceil(need * total / sum_) for pool, need in sorted(needs.items())}
    while sum(sizes.values()) > total:
        larger = [pool for pool, size in sizes.items() if size > 1]
        if not larger:
            return None
        # The pool whose need is met best has one CPU less.
        sizes[max(larger, key=lambda pool: (sizes[pool] / needs[pool], sizes[pool]))] -= 1
    return sizes


def proportional(needs: Mapping[str, int], total: int) -> Sizes:
    """Return sizes in proportion to the needs; with fewer CPUs than pools each has one.

    Above `total` the pools have one CPU less each, the largest first.
    """
    sum_ = sum(needs.values())
    sizes = {pool: max(1, ceil(total * need / sum_)) for pool, need in sorted(needs.items())}
    while (over := sum(sizes.values()) - total) > 0:
        larger = [pool for pool, size in sizes.items() if size > 1]
        if not larger:
            break
        for pool in sorted(larger, key=lambda pool: -sizes[pool])[:over]:
            sizes[pool] -= 1
    return sizes


def fitted(
    needs: Mapping[str, int], fixed: Mapping[str, int], total: int, *, expands: bool
) -> Fitted:
    """Return sizes for the CPUs that there are.

    Where not even one CPU for each pool is left, every pool has all CPUs.

    Args:
        needs: pool → how many CPUs it needs.
        fixed: the same for pools that do not grow above it.
        total: how many CPUs there are.
        expands: whether the pools use all CPUs.
    """
    every = {**needs, **fixed}
    throttled = sum(every.values()) > total
    sizes: Sizes | None = every
    if throttled:
        sizes = normalized(every, total)
    elif expands:
        grown = normalized(needs, total - sum(fixed.values()))
        sizes = None if grown is None else {**grown, **fixed}
    return Fitted(dict.fromkeys(every, total) if sizes is None else sizes, throttled)


def overlapping(sizes: Mapping[str, int], needed: int) -> Sizes:
    """Return how many CPUs of each pool other pods use, too: the largest pool first.

    Raises:
        NotEnoughCPUs: the pools have fewer CPUs than needed.
    """
    sum_, left = sum(sizes.values()), needed
    if needed > sum_:
        raise NotEnoughCPUs(needed, sum_)
    shares: Sizes = {}
    for pool in sorted(sizes, key=lambda pool: (-sizes[pool], pool)):
        share = min(left, ceil(sizes[pool] * needed / sum_))
        if share:
            shares[pool] = share
        left -= share
    return shares
