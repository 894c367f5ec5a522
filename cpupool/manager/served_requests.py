"""The part of containers' requests that cpupool serves.

The kubelet's static CPU manager may serve native requests beside it (`kubelet_gives`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from cpupool.config.pool_rules import suits_static_kubelet
from cpupool.core.grants import WHOLE_POD
from cpupool.core.names import ENABLE_SHARED_CPUS, KUBELET_CPUS
from cpupool.core.requests import NO_REQUEST, CPURequest
from cpupool.core.workloads import ContainerKind, ContainerRef
from cpupool.policies.built_in import kind

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cpupool.core.devices import AllocatedDevices
    from cpupool.core.pools import NodePools
    from cpupool.core.requests import Resource
    from cpupool.core.workloads import Container, Pod
    from cpupool.manager.facts import NodeFacts

Devices: TypeAlias = "Mapping[Resource, AllocatedDevices]"
"""The devices of one container."""


def kubelet_owns(facts: NodeFacts) -> bool:
    """Return whether the kubelet gives out exclusive CPUs, and cpupool adds shared CPUs to them.

    This is so with OpenShift's mixed CPUs, also after they are off while containers still have
    devices; never with a CPU manager policy that gives out CPUs itself.
    """
    pools = facts.pools
    if not facts.static_cpus or pools.cpu_manager.chooses or not pools.shared_alone:
        return False
    on = pools.mixed is not None
    return on or any(ENABLE_SHARED_CPUS in held for held in facts.devices.values())


def beside_kubelet(facts: NodeFacts) -> bool:
    """Return whether the kubelet gives out CPUs beside cpupool, which places all other containers.

    A policy that goes by classes tolerates the kubelet's static CPU manager, for the time of a
    migration.
    """
    pools = facts.pools
    tolerant = bool(facts.static_cpus) and kind(pools.cpu_manager).beside_kubelet
    return tolerant and suits_static_kubelet(pools)


@dataclass(frozen=True, slots=True)
class Served:
    """The rules that say which requests cpupool serves on a node.

    Attributes:
        pools: as configured.
        owns: as `kubelet_owns`.
        beside: as `beside_kubelet`.
    """

    pools: NodePools
    owns: bool
    beside: bool


def served(facts: NodeFacts) -> Served:
    """Return which requests cpupool serves."""
    return Served(facts.pools, kubelet_owns(facts), beside_kubelet(facts))


def kubelet_gives(facts: NodeFacts) -> bool:
    """Return whether the kubelet gives out CPUs, and cpupool lets it."""
    return kubelet_owns(facts) or beside_kubelet(facts)


def served_by_kubelet(facts: NodeFacts, pod: Pod) -> bool:
    """Return whether the kubelet gives a pod CPUs of its own, which prevail over an annotation."""
    if not beside_kubelet(facts):
        return False
    node = served(facts)
    return any(
        _of_kubelet(node, _devices(facts, pod, container), pod, container)
        for container in pod.containers
    )


def outside_pools(container: Container) -> bool:
    """Return whether a container requests no pool; its requests of pools never change.

    A container that requests a pool gets the pool's CPUs only. OpenShift's resource is no pool.
    """
    return container.requests.keys() <= {ENABLE_SHARED_CPUS}


def countable(pod: Pod) -> Mapping[str, int]:
    """Return container → number of CPUs that a policy could give it for its native request.

    The containers of a pod whose class owns CPUs can share one set: `WHOLE_POD` has the pod's
    request. Such a pod that requests a pool gets the pool's CPUs only.
    """
    outside = filter(outside_pools, pod.containers)
    counts = {each.name: n for each in outside if (n := each.ownable_cpus)}
    if pod.orchestration and pod.orchestration.owns and (whole := together(pod)):
        counts[WHOLE_POD] = whole
    return counts


def together(pod: Pod) -> int:
    """Return the number of CPUs that the containers of a pod can own as one set; 0 for none."""
    return pod.whole_cpus if all(map(outside_pools, pod.containers)) else 0


def counted(facts: NodeFacts, pod: Pod, container: Container) -> CPURequest:
    """Return the part of a container's request that cpupool serves."""
    return of_container(served(facts), _devices(facts, pod, container), pod, container)


def of_container(node: Served, devices: Devices, pod: Pod, container: Container) -> CPURequest:
    """Return the part of a container's request that cpupool serves.

    cpupool serves OpenShift's resource while it is on or the container has it, and only in addition
    to CPUs of the container's own. These come from an exclusive pool or else, for a whole native
    request, from the kubelet; not for an init container that ends, whose CPUs the kubelet does not
    report.

    Beside a policy that tolerates the kubelet's static CPU manager, the CPUs that the kubelet gives
    are in the result without that resource, too.

    Args:
        node: which requests cpupool serves.
        devices: the devices that the kubelet gave to the container.
        pod: the pod.
        container: the container.
    """
    requested, whole = container.requests, _whole_cpus(devices, container)
    if not requested and not whole:
        return NO_REQUEST
    if node.pools.cpu_manager.chooses and whole and outside_pools(container):
        return _of_kubelet(node, devices, pod, container)
    if ENABLE_SHARED_CPUS not in requested and not whole:
        return CPURequest(requested)
    enabled = ENABLE_SHARED_CPUS in requested and (
        node.pools.mixed is not None or ENABLE_SHARED_CPUS in devices
    )
    exclusive = CPURequest(requested).exclusive
    if not exclusive and container.kind is not ContainerKind.INIT:
        # For a pod that is not listed yet, only its annotations are known.
        unlisted = enabled and pod.qos is None
        if unlisted or (whole and (enabled or (requested and node.owns))):
            return CPURequest({**requested, KUBELET_CPUS: whole})
    if enabled and exclusive:
        return CPURequest(requested)
    return CPURequest(
        {resource: n for resource, n in requested.items() if resource != ENABLE_SHARED_CPUS}
    )


def _of_kubelet(node: Served, devices: Devices, pod: Pod, container: Container) -> CPURequest:
    """Return the CPUs that a container has of the kubelet beside a policy that tolerates it.

    A pod of a class that shares does so also if the kubelet gives it CPUs: these go to no other
    pod, and are shared, too.
    """
    orchestration = pod.orchestration
    if (
        not node.beside
        or not outside_pools(container)
        or not (whole := _whole_cpus(devices, container))
        or container.kind is ContainerKind.INIT
        or (orchestration and orchestration.shares)
    ):
        return NO_REQUEST
    return CPURequest({KUBELET_CPUS: whole})


def _whole_cpus(devices: Devices, container: Container) -> int:
    """Return how many CPUs the kubelet's static CPU manager has given, or gives, to a container.

    It refuses an in-place resize of such a container, whose spec has the new request nevertheless.
    """
    given = devices.get(KUBELET_CPUS)
    return container.whole_cpus or (len(given.ids) if given else 0)


def _devices(facts: NodeFacts, pod: Pod, container: Container) -> Devices:
    return facts.devices.get(ContainerRef(pod.cgroup_uid, container.name), {})
