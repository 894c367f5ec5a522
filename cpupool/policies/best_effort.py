"""Suppression of best-effort pods: how many CPUs they may use, and which.

The results equal those of adjustByCPUSet, calculateBESuppressCPUSetPolicy and adjustByCfsQuota in
Koordinator 1.8, pkg/koordlet/qosmanager/plugins/cpusuppress/cpu_suppress.go, except that no CPU of
the candidates is no error here: best-effort pods then have none.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from itertools import groupby, islice
from math import ceil
from typing import TYPE_CHECKING, Final

from cpupool.core.cpuset import CPUSet
from cpupool.core.pools import MILLI_PER_CPU

if TYPE_CHECKING:
    from cpupool.core.topology import CPUTopology

_FEWEST: Final = 2
_GROWTH_PERCENT: Final = 10
"""How much the CPUs or the quota grow at once, of the node's; they shrink at once."""
_PERIOD_US: Final = 100_000
_LEAST_QUOTA_US: Final = 2000
_STEP_PERCENT: Final = 1
"""A quota that changes by less, of the node's, is not written."""


@dataclass(frozen=True, slots=True)
class Load:
    """The CPU time that a node's pods use, in milli-CPUs.

    Attributes:
        node_milli: the whole node.
        pods_milli: all pods.
        others_milli: the pods that are not best-effort.
    """

    node_milli: int
    pods_milli: int
    others_milli: int


def allowance_milli(
    capacity_milli: int, load: Load, *, threshold_percent: int, reserved_milli: int
) -> int:
    """Return the milli-CPUs that best-effort pods may use; less than 0 if others use too much.

    Source: calculateBESuppressCPU in pkg/koordlet/qosmanager/helpers/calculator.go.

    Args:
        capacity_milli: the node's CPUs.
        load: the load now.
        threshold_percent: the part of the node that all pods and the system may use together.
        reserved_milli: the part for the system, also while it uses less.
    """
    system_milli = max(load.node_milli - load.pods_milli, 0, reserved_milli)
    return capacity_milli * threshold_percent // 100 - load.others_milli - system_milli


def suppressed(
    topology: CPUTopology, allowed_milli: int, before: int, lent: CPUSet, shared: CPUSet
) -> CPUSet:
    """Return the CPUs of best-effort pods.

    Of owned and shared CPUs they get the same part, so that no single owner carries them all.

    Args:
        topology: the machine.
        allowed_milli: the milli-CPUs that they may use.
        before: how many CPUs they have now.
        lent: CPUs whose owners lend them.
        shared: the other CPUs that they may use.
    """
    growth = ceil(len(topology.online) * _GROWTH_PERCENT / 100)
    wanted = max(_FEWEST, ceil(allowed_milli / MILLI_PER_CPU))
    count = min(wanted, before + growth)
    candidates = len(lent) + len(shared)
    of_owners = count * len(lent) // candidates if candidates else 0
    return CPUSet(
        (
            *spread_pairs(topology, lent, of_owners),
            *spread_pairs(topology, shared, count - of_owners),
        )
    )


def spread_pairs(topology: CPUTopology, among: CPUSet, count: int) -> tuple[int, ...]:
    """Return CPUs in the order of choosing: pairs of SMT siblings, in turn of each NUMA node.

    Args:
        topology: the machine.
        among: the CPUs to choose from.
        count: how many; if there are fewer, none is chosen.
    """
    if count > len(among):
        return ()
    groups: defaultdict[tuple[int | None, int], list[int]] = defaultdict(list)
    for cpu in sorted(among, key=lambda cpu: (topology.cpus[cpu].core, cpu)):
        groups[topology.cpus[cpu].node, topology.cpus[cpu].socket].append(cpu)
    left = sorted(groups.values(), key=lambda cpus: (-len(cpus), cpus[0]))
    chosen: list[int] = []
    turn = 0
    for size in (2, 1):
        found = True
        while count - len(chosen) >= size:
            if turn == 0:
                if not found:
                    break
                found = False
            taken = _siblings(topology, left[turn], size)
            found = found or bool(taken)
            chosen += taken
            left[turn] = [cpu for cpu in left[turn] if cpu not in taken]
            turn = (turn + 1) % len(left)
    return tuple(chosen)


def quota_us(allowed_milli: int, before_us: int, cpus: int) -> int | None:
    """Return the CFS quota of all best-effort pods per 100 ms; None if it is as good as before.

    Args:
        allowed_milli: the milli-CPUs that they may use.
        before_us: the quota now; -1 for none.
        cpus: the node's CPUs.
    """
    whole_us = cpus * _PERIOD_US
    wanted_us = max(allowed_milli * _PERIOD_US // MILLI_PER_CPU, _LEAST_QUOTA_US)
    if abs(wanted_us - before_us) * 100 < whole_us * _STEP_PERCENT and wanted_us != _LEAST_QUOTA_US:
        return None
    if before_us < 0:
        return wanted_us
    return min(wanted_us, before_us + whole_us * _GROWTH_PERCENT // 100)


def _siblings(topology: CPUTopology, cpus: list[int], size: int) -> list[int]:
    """Return the first `size` CPUs of one core, from CPUs in the order of their cores."""
    cores = groupby(cpus, key=lambda cpu: topology.cpus[cpu].core)
    taken = (list(islice(core, size)) for _, core in cores)
    return next((threads for threads in taken if len(threads) == size), [])
