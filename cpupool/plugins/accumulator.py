"""The choice of CPUs in the order of Katalyst's CPU plugin.

The results equal those of TakeByTopology, TakeByNUMABalance and TakeHTByNUMABalance in
katalyst-core, pkg/agent/qrm-plugins/cpu/dynamicpolicy/calculator.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cpupool.core.cpuset import CPUSet
from cpupool.core.errors import NotEnoughCPUs
from cpupool.policies.accumulators.kubelet import take_packed
from cpupool.policies.layout import Layout, Level

if TYPE_CHECKING:
    from collections.abc import Iterable


def take(layout: Layout, available: CPUSet, count: int, *, by_cache: bool = False) -> CPUSet:
    """Take whole sockets, then whole cores, then threads, whatever the NUMA nodes.

    Args:
        layout: the machine.
        available: the CPUs to choose from.
        count: how many to take.
        by_cache: whether the CPUs beyond whole sockets lie behind the L3 caches that fit best: a
            cache with as many free CPUs, else the smallest with more, else the largest.

    Raises:
        NotEnoughCPUs: fewer are available.
    """
    if count > len(available):
        raise NotEnoughCPUs(count, len(available))
    flat = _without_nodes(layout)
    if not by_cache:
        return take_packed(flat, available, count).cpus
    taken = _whole_sockets(layout, available, count)
    while missing := count - len(taken):
        # Of two caches alike the one with the lower id comes first.
        caches = [cpus for _, cpus in sorted(layout.free(Level.UNCORE, available - taken).items())]
        if enough := [cpus for cpus in caches if len(cpus) >= missing]:
            return taken | take_packed(flat, min(enough, key=len), missing).cpus
        taken |= max(caches, key=len)
    return taken


def take_in_turn(
    layout: Layout,
    available: CPUSet,
    count: int,
    *,
    whole_cores: bool = True,
    from_top: bool = False,
) -> CPUSet:
    """Take a core of each NUMA node in turn, then a thread of each in turn.

    Args:
        layout: the machine.
        available: the CPUs to choose from.
        count: how many to take.
        whole_cores: whether cores come first; else threads alone.
        from_top: whether higher ids come first within a node.

    Raises:
        NotEnoughCPUs: fewer are available.
    """
    if count > len(available):
        raise NotEnoughCPUs(count, len(available))
    threads = layout.usual(Level.CORE)
    taken = CPUSet()
    if whole_cores:
        whole = layout.whole_cores(available)
        cores = {
            node: _ordered(layout.free(Level.CORE, cpus).items(), from_top=from_top)
            for node, cpus in layout.free(Level.NODE, whole).items()
        }
        taken = CPUSet.union(_dealt(cores.values(), count // threads))
    singles = {
        node: [CPUSet.of(cpu) for cpu in sorted(cpus, reverse=from_top)]
        for node, cpus in layout.free(Level.NODE, available - taken).items()
    }
    return taken | CPUSet.union(_dealt(singles.values(), count - len(taken)))


def _without_nodes(layout: Layout) -> Layout:
    """Return the machine as Katalyst's accumulator sees it: a node and a cache for each socket."""
    return Layout.of(
        {
            cpu: place._replace(node=place.socket, uncore=place.socket)
            for cpu, place in layout.places.items()
        }
    )


def _whole_sockets(layout: Layout, available: CPUSet, count: int) -> CPUSet:
    taken = CPUSet()
    for _, cpus in sorted(layout.free(Level.SOCKET, available).items()):
        whole = len(cpus) == layout.usual(Level.SOCKET)
        if whole and len(taken) + len(cpus) <= count:
            taken |= cpus
    return taken


def _ordered(cores: Iterable[tuple[int, CPUSet]], *, from_top: bool) -> list[CPUSet]:
    return [cpus for _, cpus in sorted(cores, reverse=from_top)]


def _dealt(stacks: Iterable[list[CPUSet]], count: int) -> list[CPUSet]:
    """Return up to `count` sets, from each stack in turn."""
    stacks = list(stacks)
    rounds = range(max(map(len, stacks), default=0))
    dealt = [stack[turn] for turn in rounds for stack in stacks if turn < len(stack)]
    return dealt[:count]
