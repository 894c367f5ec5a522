"""The CPUs of pools that share a node, when their sizes change: a pool keeps the CPUs that it has.

Katalyst chooses anew at each change, in generatePoolsAndIsolation of its CPU plugin; here a pool
that shrinks leaves CPUs and a pool that grows gets those that are left, so that no other container
moves.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cpupool.core.cpuset import CPUSet
from cpupool.plugins.accumulator import take_in_turn
from cpupool.plugins.pool_sizes import normalized, proportional
from cpupool.policies.layout import Level

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cpupool.plugins.config import PoolSize
    from cpupool.plugins.pool_sizes import Sizes
    from cpupool.policies.layout import Layout


def sized(pools: Mapping[str, PoolSize], total: int, now: Mapping[str, int]) -> Sizes:
    """Return how many CPUs each pool gets of `total`, at least one each.

    If the pools with a number do not fit beside the others, each has a share in proportion, and
    none fewer than it has at least. With fewer CPUs than pools the sizes are more than `total`
    together.

    Args:
        pools: the pools.
        total: how many CPUs there are.
        now: pool whose size follows its load → that size.
    """
    fixed = {name: pool.cpus for name, pool in pools.items() if pool.cpus is not None}
    follow = {name: pool.at_least for name, pool in pools.items() if pool.at_least is not None}
    fixed |= {name: max(floor, now.get(name, fixed.get(name, 0))) for name, floor in follow.items()}
    fixed = {name: min(size, pools[name].most or size) for name, size in fixed.items()}
    on_nodes = (name for name, pool in pools.items() if pool.node is not None)
    floors = {name: min(pools[name].fewest, fixed[name]) for name in (*on_nodes, *follow)}
    weights = {name: pool.weight for name, pool in pools.items() if name not in fixed}
    rest = total - sum(fixed.values())
    if rest >= len(weights):
        sizes = {**fixed, **(normalized(weights, rest) or {})}
    else:
        sizes = _shrunk({**fixed, **dict.fromkeys(weights, 1)}, floors, total)
    return {name: sizes[name] for name in pools}


def _shrunk(needs: Sizes, floors: Sizes, total: int) -> Sizes:
    """Return a share in proportion for each pool, but for those which would fall below a floor."""
    sizes = proportional(needs, total)
    low = {name: floor for name, floor in floors.items() if sizes.get(name, floor) < floor}
    others = {name: need for name, need in needs.items() if name not in low}
    if not low or sum(low.values()) + len(others) > total:
        return sizes
    return {**low, **_shrunk(others, floors, total - sum(low.values()))}


def placed(
    layout: Layout,
    available: CPUSet,
    sizes: Sizes,
    had: Mapping[str, CPUSet],
    nodes: Mapping[str, int],
) -> Mapping[str, CPUSet]:
    """Return pool → its CPUs, the same part of each NUMA node where possible.

    The first pool that is on no NUMA node takes CPUs from below, every other such pool from above.
    With fewer CPUs than the sizes need each pool has all CPUs.

    Args:
        layout: the machine.
        available: the CPUs of all pools together.
        sizes: pool → how many CPUs it gets.
        had: pool → the CPUs that it had.
        nodes: pool → the NUMA node that has all its CPUs; one pool of a node.
    """
    homes = {pool: _home(layout, available, nodes.get(pool)) for pool in sizes}
    if sum(sizes.values()) > len(available):
        return homes
    anywhere = [pool for pool in sizes if pool not in nodes]
    kept = dict.fromkeys(sizes, CPUSet())
    left = {pool: had.get(pool, CPUSet()) & available for pool in anywhere}

    def add(pool: str, cpus: CPUSet, most: int | None = None) -> CPUSet:
        """Return the CPUs without a pool that a pool takes: as many as it lacks."""
        found = cpus - CPUSet.union(kept.values())
        lacks = sizes[pool] - len(kept[pool])
        count = min(lacks, len(found) if most is None else most, len(found))
        more = take_in_turn(layout, found, count, from_top=pool in anywhere[1:])
        kept[pool] |= more
        return more

    for pool in nodes:
        add(pool, had.get(pool, CPUSet()) & homes[pool])
    for pool in nodes:
        add(pool, homes[pool] - CPUSet.union(left.values()))
        # Of the pools that can have CPUs of other nodes, each gives first what it loses anyway.
        for giver, cpus in left.items():
            over = max(0, len(cpus) - sizes[giver])
            left[giver] -= add(pool, cpus & homes[pool], over)
        for giver, cpus in left.items():
            left[giver] -= add(pool, cpus & homes[pool])
    for pool in anywhere:
        add(pool, left[pool])
    for pool in anywhere:
        add(pool, available)
    return kept


def _home(layout: Layout, available: CPUSet, node: int | None) -> CPUSet:
    """Return the CPUs that a pool can have; all if its NUMA node has none."""
    of_node = layout.groups[Level.NODE].get(node, CPUSet()) if node is not None else CPUSet()
    return of_node & available or available
