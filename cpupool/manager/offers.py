"""Which resources the kubelet knows, and which of their devices pods hold."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from cpupool.core.devices import Advertised, advertised
from cpupool.core.requests import ResourceKind

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from cpupool.core.requests import Resource
    from cpupool.manager.facts import NodeFacts


def held_ids(facts: NodeFacts) -> Mapping[Resource, frozenset[str]]:
    """Return resource → the device ids that pods hold, known pods or not."""
    held: defaultdict[Resource, set[str]] = defaultdict(set)
    for by_resource in facts.devices.values():
        for resource, given in by_resource.items():
            held[resource] |= given.ids
    for promise in facts.promises:
        held[promise.resource] |= promise.ids
    return {resource: frozenset(ids) for resource, ids in held.items()}


def offered(facts: NodeFacts, held: Iterable[Resource]) -> tuple[Advertised, ...]:
    """Return what the kubelet knows: what is configured, and what is still held.

    Args:
        facts: the node's.
        held: the resources that pods hold devices of; one that is configured no longer is returned
            without CPUs.
    """
    configured = advertised(facts.pools)
    known = {one.name for one in configured}
    devices = (one for one in held if one.kind is not ResourceKind.KUBELET)
    return (*configured, *(Advertised.gone(one) for one in devices if one not in known))
