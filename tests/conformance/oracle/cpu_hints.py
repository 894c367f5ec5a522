"""The NUMA nodes that the kubelet's static policy offers: generateCPUTopologyHints."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cpupool.core.cpuset import CPUSet
from cpupool.policies.layout import Level
from cpupool.policies.static.policy import topology_hints
from tests.conformance.oracle.verdicts import Verdict

if TYPE_CHECKING:
    from cpupool.policies.hints import ResourceHints
    from cpupool.policies.layout import Layout
    from tests.conformance.oracle.verdicts import Case, Machines


def check(case: Case, machines: Machines) -> tuple[Verdict, str]:
    """Offer nodes for one request."""
    layout, count = machines[case["topo"]], case["n"]
    available, reusable = CPUSet.parse(case["avail"]), CPUSet.parse(case["reusable"])
    by_socket = case["align_by_socket"]
    offer = topology_hints(layout, count, available, reusable, align_by_socket=by_socket)
    if "error" in case:
        flaw = unlawful(offer, layout, count, available | reusable)
        return Verdict.DIFFERENT if flaw else Verdict.PANIC, flaw
    given = listed(offer)
    if given != case["hints"]:
        return Verdict.DIFFERENT, f"{given} instead of {case['hints']}"
    return Verdict.EQUAL, ""


def listed(offer: ResourceHints) -> list[list[Any]]:
    """Write hints as the recordings have them."""
    return [[sorted(hint.nodes or ()), hint.preferred] for hint in offer.hints]


def unlawful(offer: ResourceHints, layout: Layout, count: int, usable: CPUSet) -> str:
    """Tell which hint has nodes that the machine has not, or too few usable CPUs on them."""
    if not offer.hints and len(usable) >= count:
        return f"no hints for {count} CPUs of {usable}"
    groups = layout.groups[Level.NODE]
    for hint in offer.hints:
        nodes = hint.nodes or frozenset()
        if not nodes <= groups.keys():
            return f"{hint} names nodes that are not there"
        if len(CPUSet.union(groups[node] for node in nodes) & usable) < count:
            return f"{hint} has no {count} CPUs"
    return ""
