"""The merge of hints by Katalyst's manager: the kubelet's policies, and `numeric`."""

from __future__ import annotations

from itertools import permutations, product
from typing import TYPE_CHECKING, Any, Final

from cpupool.core.cpu_manager import TopologyHint, TopologyPolicy
from cpupool.policies.hints import merge
from cpupool.qrm.numeric_hints import merge_each
from tests.conformance.oracle.verdicts import Verdict

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from cpupool.qrm.numeric_hints import Offer
    from tests.conformance.oracle.verdicts import Case, Machines

    Provider = Mapping[str, list[list[Any]] | None]

_NUMERIC: Final = "numeric"
_NO_RESOURCE: Final = "*"


def check(case: Case, _machines: Machines) -> tuple[Verdict, str]:
    """Merge by each policy; where Go's order of maps decides, one of the orders must give it."""
    nodes, align, providers = case["nodes"], case["align"], case["providers"]
    verdict = Verdict.EQUAL
    for name, recorded in case["results"].items():
        if name == _NUMERIC:
            found = [_written(merge_each(each, align).hints) for each in _orders(providers)]
        else:
            offers = _sorted(providers)
            merged = merge(TopologyPolicy(name), nodes, [hints for _, hints in offers])
            alike = dict.fromkeys((resource for resource, _ in offers), merged.hint)
            found = [_written(alike if merged.admit else None)]
        right = [_relevant(answer) for answer in recorded.get("one_of", [recorded])]
        if found[0] not in right:
            if not any(answer in right for answer in found):
                return Verdict.DIFFERENT, f"{name}: {found[0]} instead of {right}"
            verdict = Verdict.MAP_ORDER
    return verdict, ""


def _sorted(providers: Sequence[Provider]) -> list[Offer]:
    return [offer for provider in providers for offer in _offers(provider, sorted(provider))]


def _orders(providers: Sequence[Provider]) -> Iterator[list[Offer]]:
    """Yield the offers in every order of the resources of each provider, sorted first."""
    for orders in product(*(permutations(sorted(provider)) for provider in providers)):
        pairs = zip(providers, orders, strict=True)
        yield [offer for provider, order in pairs for offer in _offers(provider, order)]


def _offers(provider: Provider, order: Sequence[str]) -> Iterator[Offer]:
    if not provider:
        yield _NO_RESOURCE, None
    for resource in order:
        hints = provider[resource]
        yield resource, None if hints is None else [_hint(*hint) for hint in hints]


def _hint(numa: list[int] | None, preferred: bool) -> TopologyHint:
    return TopologyHint(None if numa is None else frozenset(numa), preferred)


def _written(hints: Mapping[str, TopologyHint] | None) -> dict[str, Any] | None:
    if hints is None:
        return None
    return {
        resource: [None if hint.nodes is None else sorted(hint.nodes), hint.preferred]
        for resource, hint in hints.items()
    }


def _relevant(answer: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the hints of an answer; those of a refused container are left out."""
    return dict(answer["hints"]) if answer["admit"] else None
