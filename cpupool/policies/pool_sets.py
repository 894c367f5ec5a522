"""The CPUs of pools that share a node, when their sizes change: a pool keeps the CPUs that it has.

Katalyst chooses anew at each change, in generatePoolsAndIsolation of its CPU plugin; here a pool
that shrinks leaves CPUs and a pool that grows gets those that are left, so that no other container
moves.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cpupool.core.cpuset import CPUSet
from cpupool.policies.katalyst_accumulator import take_in_turn
from cpupool.policies.pool_sizes import normalized, proportional

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cpupool.core.plugin_config import PoolSize
    from cpupool.policies.layout import Layout
    from cpupool.policies.pool_sizes import Sizes


def sized(pools: Mapping[str, PoolSize], total: int, now: Mapping[str, int]) -> Sizes:
    """Return how many CPUs each pool gets of `total`, at least one each.

    If the pools with a number do not fit beside the others, each has a share in proportion. With
    fewer CPUs than pools the sizes are more than `total` together.

    Args:
        pools: the pools.
        total: how many CPUs there are.
        now: pool whose size follows its load → that size.
    """
    fixed = {name: pool.cpus for name, pool in pools.items() if pool.cpus is not None}
    floors = {name: pool.at_least for name, pool in pools.items() if pool.at_least is not None}
    fixed |= {name: max(floor, now.get(name, 0)) for name, floor in floors.items()}
    weights = {name: pool.weight for name, pool in pools.items() if name not in fixed}
    rest = total - sum(fixed.values())
    if rest >= len(weights):
        sizes = {**fixed, **(normalized(weights, rest) or {})}
    else:
        sizes = _shrunk({**fixed, **dict.fromkeys(weights, 1)}, floors, total)
    return {name: sizes[name] for name in pools}


def _shrunk(wishes: Sizes, floors: Sizes, total: int) -> Sizes:
    """Return a share in proportion for each pool, but for those which would fall below a floor."""
    sizes = proportional(wishes, total)
    low = {name: floor for name, floor in floors.items() if sizes.get(name, floor) < floor}
    others = {name: wish for name, wish in wishes.items() if name not in low}
    if not low or sum(low.values()) + len(others) > total:
        return sizes
    return {**low, **_shrunk(others, floors, total - sum(low.values()))}


def placed(
    layout: Layout, available: CPUSet, sizes: Sizes, had: Mapping[str, CPUSet]
) -> Mapping[str, CPUSet]:
    """Return pool → its CPUs, the same part of each NUMA node where possible.

    The first pool takes CPUs from below, every other from above. With fewer CPUs than the sizes
    need each pool has all CPUs.

    Args:
        layout: the machine.
        available: the CPUs of all pools together.
        sizes: pool → how many CPUs it gets.
        had: pool → the CPUs that it had.
    """
    if sum(sizes.values()) > len(available):
        return dict.fromkeys(sizes, available)
    kept: dict[str, CPUSet] = {}
    for place, (pool, size) in enumerate(sizes.items()):
        has = (had.get(pool, CPUSet()) & available) - CPUSet.union(kept.values())
        most = min(size, len(has))
        kept[pool] = take_in_turn(layout, has, most, from_top=place > 0)
    free = available - CPUSet.union(kept.values())
    for place, (pool, size) in enumerate(sizes.items()):
        more = take_in_turn(layout, free, size - len(kept[pool]), from_top=place > 0)
        kept[pool] |= more
        free -= more
    return kept
