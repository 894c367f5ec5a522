"""Koordinator's takeCPUs and takePreferredCPUs."""

from __future__ import annotations

from typing import Final

from cpupool.core.cpuset import CPUSet
from cpupool.core.errors import NotEnoughCPUs
from cpupool.core.pool_policy import ExclusivePolicy, NUMAPolicy
from cpupool.policies.accumulators.koordinator import OccupiedCPUs, take
from tests.conformance.oracle.verdicts import Case, Machines, Verdict, judge_taken

_EXCLUSIVE: Final = {
    "None": ExclusivePolicy.NONE,
    "PCPULevel": ExclusivePolicy.PHYSICAL_CORE,
    "NUMANodeLevel": ExclusivePolicy.NUMA_NODE,
}
_STRATEGIES: Final = {
    "MostAllocated": NUMAPolicy.MOST_ALLOCATED,
    "LeastAllocated": NUMAPolicy.LEAST_ALLOCATED,
    "DistributeEvenly": NUMAPolicy.DISTRIBUTED,
}


def check(case: Case, machines: Machines) -> tuple[Verdict, str]:
    """Take CPUs as the case asks."""
    layout = machines[case["topo"]]
    held = [
        OccupiedCPUs(CPUSet.parse(one["cpus"]), one["ref"], _EXCLUSIVE[one["exclusive"]])
        for one in case["allocated"]
    ]
    try:
        taken = take(
            layout,
            CPUSet.parse(case["avail"]),
            case["n"],
            full_cores=case["bind"] == "FullPCPUs",
            strategy=_STRATEGIES[case["strategy"]],
            exclusive=_EXCLUSIVE[case["exclusive"]],
            held=held,
            preferred=CPUSet.parse(case.get("preferred", "")),
        )
    except NotEnoughCPUs:
        return judge_taken(case, layout, None)
    return judge_taken(case, layout, taken.cpus)
