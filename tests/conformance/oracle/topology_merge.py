"""The Topology Manager's merge of what all resources offer, by each of its policies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cpupool.core.cpu_manager import TopologyHint, TopologyPolicy
from cpupool.policies.hints import merge
from tests.conformance.oracle.verdicts import Verdict

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tests.conformance.oracle.verdicts import Case, Machines


def check(case: Case, machines: Machines) -> tuple[Verdict, str]:
    """Merge as the case says; it brings its own NUMA nodes."""
    nodes, offers = case["nodes"], list(_offers(case["providers"]))
    distances = None
    if case["prefer_closest"]:
        distances = dict(zip(nodes, case["distances"], strict=True))
    for name, recorded in case["results"].items():
        policy = TopologyPolicy(name)
        merged = merge(policy, nodes, offers, distances)
        numa = None if merged.hint.nodes is None else sorted(merged.hint.nodes)
        given = {"numa": numa, "preferred": merged.hint.preferred, "admit": merged.admit}
        # The policy "none" looks at no hint, so it says nothing but that the pod comes in.
        said = {"admit"} if policy is TopologyPolicy.NONE else given.keys()
        if not merged.proven or any(given[key] != recorded[key] for key in said):
            return Verdict.DIFFERENT, f"{name}: {merged} instead of {dict(recorded)}"
    return Verdict.EQUAL, ""


def _offers(
    providers: list[Mapping[str, list[list[Any]] | None] | None],
) -> Iterator[list[TopologyHint] | None]:
    for provider in providers:
        for hints in (provider or {"any": None}).values():
            yield None if hints is None else [_hint(*hint) for hint in hints]


def _hint(numa: list[int] | None, preferred: bool) -> TopologyHint:
    return TopologyHint(None if numa is None else frozenset(numa), preferred)
