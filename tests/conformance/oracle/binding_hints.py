"""Katalyst's hints for containers that are bound to NUMA nodes: CPU and memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cpupool.core.cpuset import CPUSet
from cpupool.plugins.binding_hints import (
    Binding,
    NoBinding,
    NodeMemory,
    cpu_hints,
    memory_hints,
)
from tests.conformance.oracle.verdicts import Verdict

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from cpupool.core.cpu_manager import TopologyHint
    from tests.conformance.oracle.verdicts import Case, Machines

_PREFIX = "katalyst.kubewharf.io/"


def check_cpu(case: Case, machines: Machines) -> tuple[Verdict, str]:
    """Compare the hints for CPUs."""
    annotations = case["annotations"]
    binding = Binding(
        _is_on(annotations, "numa_exclusive"),
        frozenset(CPUSet.parse(annotations.get(f"{_PREFIX}numa_ids", ""))),
        int(annotations.get(f"{_PREFIX}numa_number", 0)),
        _is_on(annotations, "align_by_socket"),
        _is_on(annotations, "distribute_evenly_across_numa"),
        _is_on(annotations, "full_pcpus_pairing"),
    )
    reserved, eligible = CPUSet.parse(case["reserved"]), CPUSet.parse(case["eligible_numas"])
    free = {
        int(node): CPUSet()
        if int(node) not in eligible or (binding.exclusive and state["allocated"])
        else CPUSet.parse(state["default"]) - reserved
        for node, state in case["state"].items()
    }
    layout = machines[case["topo"]]
    return _judged(case, lambda: cpu_hints(layout, binding, case["request"], free))


def check_memory(case: Case, machines: Machines) -> tuple[Verdict, str]:
    """Compare the hints for memory."""
    memory = {
        int(node): NodeMemory(state["allocatable"], state["free"])
        for node, state in case["state"].items()
    }
    layout = machines[case["topo"]]
    return _judged(
        case,
        lambda: memory_hints(
            layout,
            case["request"],
            memory,
            exclusive=_is_on(case["annotations"], "numa_exclusive"),
            highest_first=case["high_numa_preference"],
        ),
    )


def _is_on(annotations: Mapping[str, str], key: str) -> bool:
    return annotations.get(key) == "true"


def _judged(case: Case, hints: Callable[[], tuple[TopologyHint, ...]]) -> tuple[Verdict, str]:
    found: list[Any] | None
    try:
        found = [[sorted(hint.nodes or ()), hint.preferred] for hint in hints()]
    except NoBinding:
        found = None
    recorded = None if "error" in case else case["hints"]
    if found != recorded:
        return Verdict.DIFFERENT, f"{found} instead of {recorded}"
    return Verdict.EQUAL, ""
