"""Which CPUs Katalyst's CPU plugin takes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cpupool.core.cpuset import CPUSet
from cpupool.core.errors import NotEnoughCPUs
from cpupool.plugins.accumulator import take, take_in_turn
from tests.conformance.oracle.verdicts import Verdict, judge_taken

if TYPE_CHECKING:
    from cpupool.policies.layout import Layout
    from tests.conformance.oracle.verdicts import Case, Machines


def check(case: Case, machines: Machines) -> tuple[Verdict, str]:
    """Take CPUs as the case says."""
    layout = machines[case["topo"]]
    try:
        taken = _taken(case["fn"], layout, CPUSet.parse(case["avail"]), case["n"])
    except NotEnoughCPUs:
        taken = None
    return judge_taken(case, layout, taken)


def _taken(function: str, layout: Layout, available: CPUSet, count: int) -> CPUSet:
    if "balance" not in function:
        return take(layout, available, count, by_cache=function == "topology_l3")
    return take_in_turn(
        layout,
        available,
        count,
        whole_cores=not function.startswith("ht_"),
        from_top=function.endswith("_rev"),
    )
