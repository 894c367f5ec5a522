"""The topology policy `numeric`: a set of NUMA nodes for each resource, not one for all.

Some resources are aligned: they lie on the same nodes. The sets of the others contain each other,
so that a NIC may lie on one of the two nodes that CPU and memory have.

The results equal those of Katalyst's policy, pkg/agent/orm/topology/policy_numeric.go in
katalyst-core, which walks through every combination of hints; here the work is bounded, and an
answer says whether the bound cut the search short.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from cpupool.core.cpu_manager import TopologyHint

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

Offer = tuple[str, "Sequence[TopologyHint] | None"]
"""A resource and its hints; None if it accepts any nodes, empty if no nodes can serve it."""

_MOST_STEPS: Final = 2**18
"""How many hints the search looks at."""
_NO_PREFERENCE: Final = TopologyHint(None, preferred=True)


@dataclass(frozen=True, slots=True)
class MergedEach:
    """The NUMA nodes of each resource of a container.

    Attributes:
        hints: resource → its nodes; None if the policy refuses the container.
        proven: whether the search was complete.
    """

    hints: Mapping[str, TopologyHint] | None
    proven: bool = True


def merge_each(offers: Sequence[Offer], align: Collection[str]) -> MergedEach:
    """Choose a hint for each resource.

    The order of the offers decides between combinations that are equally good.

    Args:
        offers: what each resource accepts.
        align: the resources that must lie on the same nodes.
    """
    if any(hints is not None and not hints for _, hints in offers):
        return MergedEach(None)
    best: tuple[TopologyHint, ...] | None = None
    most_preferred, widest = 0, 0
    search = _Search(offers, align)
    for combination in search.combinations():
        pairs = zip(offers, combination, strict=True)
        preferred = sum(hint.preferred for (name, _), hint in pairs if name not in align)
        width = max((len(hint.nodes or ()) for hint in combination), default=0)
        # Fewer preferred hints win, too, if no set is as wide: Katalyst compares in this order.
        if best is None or preferred > most_preferred or width < widest:
            best, most_preferred, widest = combination, preferred, width
    if best is None:
        return MergedEach(None, search.complete)
    names = (name for name, _ in offers)
    return MergedEach(dict(zip(names, best, strict=True)), search.complete)


class _Search:
    """Walks through the combinations of hints that a policy accepts, the first resource outermost.

    Attributes:
        complete: whether it has found all of them.
    """

    def __init__(self, offers: Sequence[Offer], align: Collection[str]) -> None:
        self._offers = offers
        self._aligned = [index for index, (name, _) in enumerate(offers) if name in align]
        self._steps = 0
        self.complete = True

    def combinations(
        self, chosen: tuple[TopologyHint, ...] = ()
    ) -> Iterator[tuple[TopologyHint, ...]]:
        """Yield the accepted combinations that begin with these hints."""
        if len(chosen) == len(self._offers):
            if self._wished(chosen):
                yield chosen
            return
        _, hints = self._offers[len(chosen)]
        for hint in hints or (_NO_PREFERENCE,):
            self._steps += 1
            if self._steps > _MOST_STEPS:
                self.complete = False
                return
            if self._goes_with(hint, chosen):
                yield from self.combinations((*chosen, hint))

    def _goes_with(self, hint: TopologyHint, chosen: tuple[TopologyHint, ...]) -> bool:
        before = [index for index in self._aligned if index < len(chosen)]
        aligned = len(chosen) in self._aligned
        if aligned and before and not _same(chosen[before[-1]], hint):
            return False
        others = (other.nodes for other in chosen if other.nodes is not None)
        nodes = hint.nodes
        return nodes is None or all(nodes <= other or other <= nodes for other in others)

    def _wished(self, chosen: tuple[TopologyHint, ...]) -> bool:
        """Return whether one of the last two aligned resources prefers its nodes."""
        last = [chosen[index] for index in self._aligned[-2:]]
        return not last or any(hint.preferred for hint in last)


def _same(first: TopologyHint, second: TopologyHint) -> bool:
    """Return whether two aligned resources can have these hints."""
    if _unwilling(first) or _unwilling(second):
        return first == second
    return None in {first.nodes, second.nodes} or first.nodes == second.nodes


def _unwilling(hint: TopologyHint) -> bool:
    return hint.nodes is None and not hint.preferred
