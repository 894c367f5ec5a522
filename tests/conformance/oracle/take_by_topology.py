"""The kubelet's takeByTopologyNUMAPacked and takeByTopologyNUMADistributed."""

from __future__ import annotations

from cpupool.core.cpuset import CPUSet
from cpupool.core.errors import NotEnoughCPUs
from cpupool.policies.accumulators.kubelet import take_distributed, take_packed
from tests.conformance.oracle.verdicts import Case, Machines, Verdict, judge_taken


def check(case: Case, machines: Machines) -> tuple[Verdict, str]:
    """Take CPUs as the case asks."""
    layout, available = machines[case["topo"]], CPUSet.parse(case["avail"])
    spread = case["sort"] == "spread"
    try:
        if case["fn"] == "packed":
            uncore = bool(case.get("uncore"))
            taken = take_packed(layout, available, case["n"], spread=spread, by_uncore=uncore)
        else:
            group = case["group"]
            taken = take_distributed(layout, available, case["n"], group=group, spread=spread)
    except NotEnoughCPUs:
        return judge_taken(case, layout, None)
    return judge_taken(case, layout, taken.cpus)
