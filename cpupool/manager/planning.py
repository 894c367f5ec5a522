"""The plan of a pod: the order in which its containers choose CPUs, and the CPUs to use again.

A pod owns its CPUs until it ends, but the scheduler counts only the most that it uses at one time
(PodRequests in k8s.io/component-helpers, resource). So the agent plans a pod as a whole: an init
container, which ends before the next containers start, has CPUs of these.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cpupool.core.cpuset import CPUSet
from cpupool.core.grants import WHOLE_POD
from cpupool.core.workloads import ContainerKind, pod_request_milli

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

    from cpupool.core.workloads import Container, Pod


def beside(containers: Iterable[Container], name: str) -> Iterator[str]:
    """Yield the containers that run at the same time as one container of their pod.

    Args:
        containers: all of the pod, init containers first.
        name: the one container.
    """
    lasts = later = False
    for container in containers:
        ends = container.kind is ContainerKind.INIT
        if container.name == name:
            lasts, later = not ends, True
        elif lasts if later else not ends:
            yield container.name


def reusable(pod: Pod, parts: Mapping[str, CPUSet], name: str) -> CPUSet:
    """Return the CPUs of a pod that no container has while the named one runs.

    Args:
        pod: the pod.
        parts: container → its CPUs.
        name: the container.
    """
    busy = (parts.get(other, CPUSet()) for other in beside(pod.containers, name))
    return CPUSet.union(parts.values()) - CPUSet.union(busy)


def most_at_once(pod: Pod, requests: Mapping[str, int]) -> int:
    """Return how many CPUs of its own a pod uses at one time.

    Args:
        pod: the pod.
        requests: container → how many CPUs it has of its own.
    """
    if WHOLE_POD in requests:
        return requests[WHOLE_POD]
    return pod_request_milli((each.kind, requests.get(each.name, 0)) for each in pod.containers)


def of_bubble(pod: Pod, cpus: CPUSet, parts: Mapping[str, CPUSet]) -> Mapping[str, CPUSet]:
    """Return the parts of a bubble with the rest, which the other containers share.

    Args:
        pod: the pod.
        cpus: the bubble.
        parts: container → its part; two parts have the same CPUs if one is an init container's.
    """
    rest = cpus - CPUSet.union(lasting(pod, parts))
    return {**parts, WHOLE_POD: rest} if rest else parts


def lasting(pod: Pod, parts: Mapping[str, CPUSet]) -> list[CPUSet]:
    """Return the parts of a pod's CPUs that its containers have until the pod ends."""
    kept = (each.name for each in pod.containers if each.kind is not ContainerKind.INIT)
    return [parts[name] for name in kept if name in parts]


def lacking(pod: Pod, requests: Mapping[str, int], has: Collection[str]) -> tuple[str, ...]:
    """Return the containers that need CPUs, in the order of the pod.

    Args:
        pod: the pod.
        requests: container → how many CPUs it has of its own, in the order of the pod.
        has: the containers that have theirs; with an app container, the init containers ended
            before this agent started.
    """
    kinds = {container.name: container.kind for container in pod.containers}
    started = any(kinds.get(name) is ContainerKind.APP for name in has)
    return tuple(
        name
        for name in requests
        if name not in has and not (started and kinds.get(name) is ContainerKind.INIT)
    )


def orders(
    pod: Pod, requests: Mapping[str, int], names: Collection[str]
) -> Iterator[tuple[str, ...]]:
    """Yield the orders in which containers choose, the best first.

    Sidecars and app containers choose as in a pod without init containers, so that these cost them
    nothing. A topology policy can demand more CPUs then, because the largest init container must
    lie on NUMA nodes where the others do not fit, too. So in a second order that one comes first.

    Args:
        pod: the pod.
        requests: container → how many CPUs it has of its own, in the order of the pod.
        names: the containers that choose, in the order of the pod.
    """
    together = 0
    at_once: dict[str, int] = {}
    for container in pod.containers:
        count = requests.get(container.name, 0)
        if container.kind is ContainerKind.INIT:
            at_once[container.name] = together + count
        else:
            together += count
    lasting = [name for name in names if name not in at_once]
    inits = [name for name in names if name in at_once]
    inits.sort(key=at_once.__getitem__, reverse=True)
    yield (*lasting, *inits)
    if lasting and inits:
        largest, *others = inits
        before = [name for name in beside(pod.containers, largest) if name in lasting]
        yield (*before, largest, *lasting[len(before) :], *others)
