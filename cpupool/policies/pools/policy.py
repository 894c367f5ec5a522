"""CPU-Pooler's policy: a container gets the CPUs that come with its devices of pools.

The kubelet gives out the devices. It first asks which devices of an exclusive pool are good.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from cpupool.core import devices, withheld
from cpupool.core.assignments import Cause, CPUAssignment, Placement
from cpupool.core.cpuset import CPUSet
from cpupool.core.names import ENABLE_SHARED_CPUS, KUBELET_CPUS
from cpupool.core.pools import Pool, PoolKind
from cpupool.policies import cpu_limit
from cpupool.policies.pools import preferred_cpus

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cpupool.core.devices import AllocatedDevices
    from cpupool.core.requests import CPURequest, Resource
    from cpupool.core.workloads import Pod
    from cpupool.policies.base import Choice, ChoiceRequest, ContainerToPlace
    from cpupool.policies.view import NodeView


@dataclass(frozen=True, slots=True)
class PoolsPolicy:
    """The policy for containers that request pools."""

    def choose(self, view: NodeView, request: ChoiceRequest) -> Choice:
        """Choose CPUs of an exclusive pool by the rules of its line in the pool file.

        Raises:
            NotEnoughCPUs: there are fewer.
            SMTAlignmentError: the pool promises whole cores, and there are too few.
        """
        return preferred_cpus.prefer(
            view.pools.behind(request.resource) or Pool.named(request.resource, ""),
            view.topology,
            request.available,
            request.count,
            required=request.reusable,
            held=request.others,
        )

    def extents(self, view: NodeView) -> Mapping[str, CPUSet]:
        """Return shared pool → the CPUs of a container that starts now, offline CPUs included."""
        return {pool.name: pool.cpus - view.barred for pool in view.pools.of_kind(PoolKind.SHARED)}

    def place(self, view: NodeView, to_place: ContainerToPlace) -> CPUAssignment:
        """Return the CPUs of the container's pools; the default pool's where a fact is missing."""
        request, known = to_place.request, to_place.devices
        unnamed = next((resource for resource in request.amounts if resource not in known), None)
        if unnamed is not None:
            return _without_devices(view, request, unnamed)
        exclusive = shared = CPUSet()
        resources: dict[Resource, CPUSet] = {}
        common, online = view.common, view.topology.online
        for resource in request.amounts:
            if resource.kind.exclusive:
                mine = view.grants.part(to_place.pod.cgroup_uid, resource, to_place.container.name)
                given = devices.exclusive_cpus(known[resource].ids) & view.topology.present
                if others := given - mine:
                    return _contested(view, to_place.pod, resource, others)
                exclusive |= mine
                resources[resource] = mine
            elif (pool := view.pools.behind(resource)) is not None:
                shared |= pool.cpus
                resources[resource] = pool.cpus & common
        stays = to_place.kept is not None
        on_shared = (to_place.kept if to_place.kept is not None else shared) & common
        there = exclusive & online | on_shared
        if not there:
            return _without_cpus(view, known, to_place, exclusive, shared)
        return CPUAssignment(
            Placement.POOLS,
            exclusive=exclusive & online,
            shared=on_shared,
            offline=exclusive - online,
            stale=stays,
            resources={resource: cpus & there for resource, cpus in resources.items()},
            limit=cpu_limit.of_pools(to_place.pod, to_place.container, request, shared),
        )


def _contested(view: NodeView, pod: Pod, resource: Resource, cpus: CPUSet) -> CPUAssignment:
    holders = view.others_with(view.topology.with_siblings(cpus), pod)
    still = f": pod {holders} still has them or their cores" if holders else ""
    return view.confined(Cause.CONTESTED, f"CPUs {cpus} of {resource} are not this pod's{still}")


def _without_cpus(
    view: NodeView,
    known: Mapping[Resource, AllocatedDevices],
    to_place: ContainerToPlace,
    exclusive: CPUSet,
    shared: CPUSet,
) -> CPUAssignment:
    requested = to_place.request.amounts
    gone = [resource for resource in requested if not view.pools.behind(resource)]
    if gone and not exclusive:
        return _without_devices(view, to_place.request, gone[0])
    if strange := [resource for resource in requested if _names_no_cpu(resource, known[resource])]:
        why = f"its devices of {strange[0]} are not CPUs: another plugin has listed them"
        return view.confined(Cause.NO_CPUS, why)
    why = "every CPU of its pools is offline"
    parts, gone_cpus = view.topology.withheld, (exclusive | shared) - view.topology.online
    if not gone_cpus.isdisjoint(withheld.all_of(parts)):
        why = f"its {withheld.why(gone_cpus, parts)}"
    return view.confined(Cause.OFFLINE, why)


def _names_no_cpu(resource: Resource, given: AllocatedDevices) -> bool:
    """Return whether devices of an exclusive pool have no CPU ids: another plugin listed them."""
    return resource.kind.exclusive and not devices.exclusive_cpus(given.ids)


def _without_devices(view: NodeView, request: CPURequest, resource: Resource) -> CPUAssignment:
    if resource == KUBELET_CPUS:
        if view.kubelet_places or ENABLE_SHARED_CPUS not in request.amounts:
            why = "the kubelet has not named the CPUs that are its own"
            return view.confined(Cause.NO_DEVICES, why)
        why = "it requests shared CPUs in addition to its own, and has none of an exclusive pool"
        return view.confined(Cause.NO_POOL, why)
    if view.pools.behind(resource) is None:
        return view.confined(Cause.NO_POOL, f"there is no pool {resource}")
    return view.confined(Cause.NO_DEVICES, f"the kubelet has named no devices of {resource}")
