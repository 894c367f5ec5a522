"""The numbered device list of each resource for the kubelet, and the devices that pods hold.

A list gets another number when a device in it differs for the kubelet. So a waiting ListAndWatch
stream compares numbers, and not thousands of devices.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from cpupool.core.cpuset import CPUSet
from cpupool.core.devices import Advertised, Offer, advertised, exclusive_cpus

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from cpupool.core.requests import Resource
    from cpupool.core.topology import CPUTopology
    from cpupool.manager.facts import NodeFacts
    from cpupool.manager.resolve import Resolution


@dataclass(frozen=True, slots=True)
class DeviceList:
    """A pool's offer, numbered.

    Attributes:
        generation: differs from that of an earlier list of this pool if a device differs.
        offer: the devices.
        held: the ids that pods hold.
    """

    generation: int
    offer: Offer
    held: frozenset[str]


def held_ids(
    facts: NodeFacts, before: Mapping[Resource, frozenset[str]] | None = None
) -> Mapping[Resource, frozenset[str]]:
    """Return resource → the device ids that pods hold, also pods that are not known yet.

    Args:
        facts: the node's facts.
        before: an earlier result; a set with the same ids stays the same object, and so keeps its
            offer.
    """
    before = before or {}
    held: defaultdict[Resource, set[str]] = defaultdict(set)
    for by_resource in facts.devices.values():
        for resource, given in by_resource.items():
            held[resource] |= given.ids
    for promise in facts.promises:
        held[promise.resource] |= promise.ids
    now = {resource: frozenset(ids) for resource, ids in held.items()}
    return {
        resource: same if (same := before.get(resource)) == ids else ids
        for resource, ids in now.items()
    }


def offered(facts: NodeFacts, held: Iterable[Resource]) -> tuple[Advertised, ...]:
    """Return the kubelet's resources: those configured, and those that pods still hold.

    Args:
        facts: the node's facts.
        held: the resources whose devices pods hold; a resource that is no longer configured has no
            CPUs in the result.
    """
    configured = advertised(facts.pools)
    known = {resource.name for resource in configured}
    devices = (resource for resource in held if not resource.kind.native)
    return (
        *configured,
        *(Advertised.gone(resource) for resource in devices if resource not in known),
    )


def lists(
    facts: NodeFacts,
    resolution: Resolution,
    held: Mapping[Resource, frozenset[str]],
    before: Mapping[str, DeviceList],
    numbers: Iterator[int],
) -> dict[str, DeviceList]:
    """Return the list of every resource that the kubelet knows.

    Args:
        facts: the node's facts.
        resolution: the decisions that follow from them.
        held: resource → the device ids that pods hold. Unchanged ids are the same object as in the
            list before: a shared pool may have a hundred thousand.
        before: the lists until now; a list without a difference for the kubelet keeps its number.
        numbers: the numbers of the other lists.
    """
    found: dict[str, DeviceList] = {}
    for resource in offered(facts, held):
        listed = before.get(resource.name)
        ids = held.get(resource.name, frozenset())
        offered_now = offer(facts, resolution, resource, ids, listed)
        same = listed is not None and listed.offer.looks_like(offered_now)
        number = listed.generation if listed is not None and same else next(numbers)
        found[resource.name] = DeviceList(number, offered_now, ids)
    return found


def numbers(lists: Mapping[str, DeviceList]) -> Mapping[str, int]:
    """Return resource → the number of its list, which is all that a waiter compares."""
    return {resource: listed.generation for resource, listed in lists.items()}


def offer(
    facts: NodeFacts,
    resolution: Resolution,
    resource: Advertised,
    held: frozenset[str],
    before: DeviceList | None = None,
) -> Offer:
    """Return the devices of a resource.

    Args:
        facts: the node's facts.
        resolution: the decisions that follow from them.
        resource: the resource.
        held: its ids that pods hold.
        before: its list until now; None for no list.
    """
    taken = resolution.held_elsewhere(resource.name)
    withheld = facts.blocked - resolution.grants.cpus
    if resource.name.kind.exclusive:
        withheld |= _additional_cpus(facts, resolution, resource, held)
    if resource.pool.policy.whole_cores:
        withheld |= _parts_of_cores(facts.topology, resource, held, taken, withheld)
    if before is not None and before.offer.resource == resource:
        same = before.held is held
        found = before.offer if same else before.offer.holding(held, since=before.held)
        return replace(found, topology=facts.topology, taken=taken, withheld=withheld)
    return Offer.of(resource, facts.topology, taken, held, withheld)


def _additional_cpus(
    facts: NodeFacts, resolution: Resolution, resource: Advertised, held: Iterable[str]
) -> CPUSet:
    """Return the CPUs that pods have in addition to their devices of an exclusive pool.

    They may come from before an edit. A pool without a `cpuBindPolicy` promises that the siblings
    stay idle, so these are included.
    """
    cpus = exclusive_cpus(held)
    grants = (grant for grant in resolution.grants if grant.resource == resource.name)
    granted = CPUSet.union(grant.cpus for grant in grants)
    binds = resource.pool.policy.bind is not None
    idle = CPUSet() if binds else facts.topology.with_siblings(cpus)
    return (granted | idle) - cpus


def _parts_of_cores(
    topology: CPUTopology,
    resource: Advertised,
    held: Iterable[str],
    taken: CPUSet,
    withheld: CPUSet,
) -> CPUSet:
    """Return the free CPUs of a pool of whole cores whose core is not free as a whole.

    The pool never gives them. The kubelet's Topology Manager would count them, and send a pod to a
    NUMA node where the pool has too few cores.
    """
    offered = resource.pool.offered
    blocked = topology.with_siblings(taken) | withheld | exclusive_cpus(held)
    free = (offered & topology.online) - blocked
    cores = [own for core in topology.cores if (own := core & offered)]
    # As in `policies/pools/preferred_cpus.py`, a core with fewer threads than the others is no
    # whole core.
    largest = max(map(len, cores), default=0)
    return free - CPUSet.union(own for own in cores if len(own) == largest and own <= free)
