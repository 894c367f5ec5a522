"""Koordinator's suppression of best-effort pods: the CPUs, their order, and the quota."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from cpupool.core.cpuset import CPUSet
from cpupool.policies.koordinator import best_effort, node_rules
from tests.conformance.oracle.verdicts import Verdict, machine_of

if TYPE_CHECKING:
    from tests.conformance.oracle.verdicts import Case, Machines


def check_cpus(case: Case, _machines: Machines) -> tuple[Verdict, str]:
    """Suppress best-effort pods beside the owners of the case."""
    topology = machine_of(case["cpus"])
    free = topology.online - CPUSet.parse(case["reserved_cpus"])
    free -= node_rules.system_cpus(case["system_qos"]).withheld
    owners: defaultdict[str, CPUSet] = defaultdict(CPUSet)
    for pod in case["pods"] or ():
        own = CPUSet.parse(pod.get("cpuset", ""))
        # Of two pods that have a CPU the later one counts.
        for qos in owners:
            owners[qos] -= own
        owners[pod["qos"]] |= own
    before = len(CPUSet.parse(case["old_be_cpus"]))
    given = best_effort.selected(
        topology,
        best_effort.wanted(case["target_milli"], before, len(topology.online)),
        lent=free & owners["LSR"],
        shared=free - owners["LSR"] - owners["LSE"],
        # Koordinator has no CPUs that come first.
        first=CPUSet(),
    )
    if case.get("panic"):
        # Upstream divides by the number of candidates.
        return (Verdict.DIFFERENT, f"{given} of none") if given else (Verdict.PANIC, "")
    return _compared(given, CPUSet.parse(case["be_cpus"]))


def check_order(case: Case, _machines: Machines) -> tuple[Verdict, str]:
    """Choose in the order of the case."""
    topology, among = machine_of(case["cpus"]), CPUSet.parse(case["among"])
    given = best_effort.spread_pairs(topology, among, case["n"])
    return _compared(given, tuple(case["order"] or ()))


def check_quota(case: Case, _machines: Machines) -> tuple[Verdict, str]:
    """Set the quota of the case."""
    given = best_effort.quota_us(
        case["target_milli"], case["current_quota_us"], case["capacity_cpus"]
    )
    return _compared(given, case["new_quota_us"])


def _compared(given: object, recorded: object) -> tuple[Verdict, str]:
    if given != recorded:
        return Verdict.DIFFERENT, f"{given} instead of {recorded}"
    return Verdict.EQUAL, ""
