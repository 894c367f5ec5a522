"""Suppression of best-effort pods: how many CPUs they may use, and which.

The results equal those of adjustByCPUSet, calculateBESuppressCPUSetPolicy and adjustByCfsQuota in
Koordinator 1.8, pkg/koordlet/qosmanager/plugins/cpusuppress/cpu_suppress.go, except that no CPU of
the candidates is no error here: best-effort pods then have none. `size` and the CPUs that come
`first` in `selected` are cpupool's own.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from itertools import groupby, islice
from math import ceil
from typing import TYPE_CHECKING, Final

from cpupool.core.cpuset import CPUSet
from cpupool.core.pools import MILLI_PER_CPU
from cpupool.policies.view import Size

if TYPE_CHECKING:
    from collections.abc import Collection

    from cpupool.core.cpu_manager import Suppression
    from cpupool.core.cpu_time import CPUUse
    from cpupool.core.topology import CPUTopology

_FEWEST: Final = 2
_GROWTH_PERCENT: Final = 10
"""The growth of the CPUs or the quota in one step, of the node's; they shrink in one step."""
_STEADY_MILLI: Final = MILLI_PER_CPU // 2
"""The CPUs do not grow for less, so that a small noise of the load does not move containers."""
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

    @classmethod
    def of(
        cls, use: CPUUse, cpus: CPUSet, best_effort: Collection[str], outside: Collection[str]
    ) -> Load:
        """Return the load of some of the machine's CPUs.

        Args:
            use: the use of CPUs and pods.
            cpus: the CPUs.
            best_effort: the best-effort pods, by the id in their cgroup names.
            outside: the pods that run on other CPUs.
        """
        node_milli = sum(milli for cpu, milli in use.by_cpu_milli.items() if cpu in cpus)
        by_pod = {pod: milli for pod, milli in use.by_pod_milli.items() if pod not in outside}
        others_milli = sum(milli for pod, milli in by_pod.items() if pod not in best_effort)
        return cls(node_milli, sum(by_pod.values()), others_milli)


def size(
    load: Load, suppression: Suppression, *, cpus: int, reserved: int, whole: int, before: int
) -> Size:
    """Return how many CPUs the load leaves to best-effort pods, and why.

    Args:
        load: the load now.
        suppression: the admin's limits.
        cpus: how many CPUs the limits and the load are about.
        reserved: how many CPUs are for the system.
        whole: how many CPUs best-effort pods have without a load.
        before: how many they have now.
    """
    # An annotation of the node may reserve any amount.
    capacity_milli, reserved_milli = cpus * MILLI_PER_CPU, min(reserved, cpus) * MILLI_PER_CPU
    allowed_milli = allowance_milli(
        capacity_milli,
        load,
        threshold_percent=suppression.threshold_percent,
        reserved_milli=reserved_milli,
    )
    least_milli = capacity_milli * suppression.min_percent // 100
    granted_milli = max(allowed_milli, least_milli)
    count = wanted(granted_milli, before, cpus)
    if count > before and granted_milli <= before * MILLI_PER_CPU + _STEADY_MILLI:
        count = before
    used = f"the other pods use {_cpus(load.others_milli)} CPUs"
    system = f"the system {_cpus(_system_milli(load, reserved_milli))}"
    limit = f"{suppression.threshold_percent} % of {cpus} CPUs"
    why = f"{used} and {system} of {limit}, which leaves {_cpus(allowed_milli)}"
    if granted_milli > allowed_milli:
        why += f"; {suppression.min_percent} % are best-effort pods' in any case"
    return Size(max(_FEWEST, min(count, whole)), whole, why)


def _cpus(milli: int) -> str:
    return f"{milli / MILLI_PER_CPU:.1f}"


def _system_milli(load: Load, reserved_milli: int) -> int:
    return max(load.node_milli - load.pods_milli, 0, reserved_milli)


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
    system_milli = _system_milli(load, reserved_milli)
    return capacity_milli * threshold_percent // 100 - load.others_milli - system_milli


def wanted(allowed_milli: int, before: int, cpus: int) -> int:
    """Return how many CPUs best-effort pods shall have.

    Args:
        allowed_milli: the milli-CPUs that they may use.
        before: how many CPUs they have now.
        cpus: the node's CPUs.
    """
    growth = ceil(cpus * _GROWTH_PERCENT / 100)
    return min(max(_FEWEST, ceil(allowed_milli / MILLI_PER_CPU)), before + growth)


def selected(
    topology: CPUTopology, count: int, lent: CPUSet, shared: CPUSet, first: CPUSet
) -> CPUSet:
    """Return the CPUs of best-effort pods.

    Of owned and shared CPUs they get the same part, so that no single owner carries them all.

    Args:
        topology: the machine.
        count: how many.
        lent: CPUs whose owners lend them.
        shared: the other CPUs that they may use.
        first: those of `shared` that they get before any other.
    """
    ahead = spread_pairs(topology, first, min(count, len(first)))
    shared -= first
    count -= len(ahead)
    candidates = len(lent) + len(shared)
    of_owners = count * len(lent) // candidates if candidates else 0
    return CPUSet(
        (
            *ahead,
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
