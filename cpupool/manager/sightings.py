"""What the container runtime tells of containers, joined to what the API server and kubelet tell.

The runtime knows a container before its pod reports it, and pods that the API server has not listed
yet. What it says is never more than a beginning: what is known already counts first.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING

from cpupool.core.assignments import Grant
from cpupool.core.cpuset import CPUSet
from cpupool.core.workloads import Container, ContainerID, ContainerRef, Pod, PodUID

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from cpupool.core.assignments import DeviceAssignments
    from cpupool.core.workloads import RuntimeContainer
    from cpupool.manager.resolve import NodeFacts, Promise


def present(
    listed: Sequence[Pod], sighted: Mapping[ContainerID, RuntimeContainer], held: DeviceAssignments
) -> tuple[Pod, ...]:
    """Give the listed pods, and those that only the runtime has told of.

    Args:
        listed: by the API server.
        sighted: by the runtime.
        held: the devices of containers. One that has ended may start again, and keeps them.
    """
    known = {pod.cgroup_uid for pod in listed}
    strangers: defaultdict[str, list[RuntimeContainer]] = defaultdict(list)
    for one in sighted.values():
        if one.pod not in known:
            strangers[one.pod].append(one)
    requests: defaultdict[str, dict[str, Mapping[str, int]]] = defaultdict(dict)
    for ref, by_pool in held.items() if strangers else ():
        requests[ref.pod][ref.name] = {pool: len(one.ids) for pool, one in by_pool.items()}
    return (*listed, *(_stranger(told, requests[pod]) for pod, told in strangers.items()))


def instances(
    pods: Iterable[Pod], sighted: Mapping[ContainerID, RuntimeContainer]
) -> Iterator[tuple[ContainerID, Pod, Container]]:
    """Give every container that is there: as its pod reports it, or as the runtime tells."""
    by_cgroup = {}
    for pod in pods:
        by_cgroup[pod.cgroup_uid] = pod
        for container in pod.containers:
            if container.id is not None and container.id not in sighted:
                yield container.id, pod, container
    for one in sighted.values():
        if one.name:
            pod = by_cgroup[one.pod]
            yield one.id, pod, _named(pod, one.name)


def joined(facts: NodeFacts) -> NodeFacts:
    """Bring the devices of pods that are there up to date, and what is promised to others."""
    pods = {pod.cgroup_uid: pod for pod in facts.present() if not pod.finished}
    alive = {pod.uid for pod in pods.values()}
    known: dict[ContainerRef, Mapping[str, Grant]] = {}
    for ref, by_pool in facts.devices.items():
        # The runtime names a static pod by its config hash until the API server lists it.
        uid = pods[ref.pod].uid if ref.pod in pods else ref.pod
        if uid in alive:
            known[ContainerRef(uid, ref.name)] = by_pool
    told = {
        ref: {**by_pool, **known.get(ref, {})} for ref, by_pool in _annotated(facts, pods).items()
    }
    promises = unfulfilled(facts.promises, told)
    return replace(facts, devices={**known, **told}, promises=promises)


def unfulfilled(promises: tuple[Promise, ...], found: DeviceAssignments) -> tuple[Promise, ...]:
    """Leave out the devices that a known pod holds: the kubelet gives none of them twice."""
    if not (promises and found):
        return promises
    fulfilled: defaultdict[str, set[str]] = defaultdict(set)
    for by_pool in found.values():
        for pool, grant in by_pool.items():
            fulfilled[pool] |= grant.ids
    left = (replace(one, ids=one.ids - fulfilled[one.pool]) for one in promises)
    return tuple(one for one in left if one.ids)


def _annotated(facts: NodeFacts, pods: Mapping[str, Pod]) -> dict[ContainerRef, dict[str, Grant]]:
    """Read the devices that the kubelet has written on containers, where nobody else writes.

    Of a listed pod they count only as far as its spec asks for as many.
    """
    found: dict[ContainerRef, dict[str, Grant]] = {}
    for one in facts.sighted.values():
        pod = pods.get(one.pod)
        if pod is None:
            continue
        container = _named(pod, one.name)
        for pool, ids in one.devices.items():
            if container.requests.get(pool) == len(ids):
                by_pool = found.setdefault(ContainerRef(pod.uid, one.name), {})
                by_pool[pool] = Grant(ids, told(facts.promises, pool, ids))
    return found


def told(promises: Iterable[Promise], pool: str, ids: frozenset[str]) -> CPUSet:
    """Give the CPUs that a container was told when it was promised these devices."""
    return CPUSet.union(one.cpus for one in promises if one.pool == pool and ids <= one.ids)


def _named(pod: Pod, name: str) -> Container:
    # An ephemeral container runs before the list shows it; it can ask for no device.
    return next((one for one in pod.containers if one.name == name), Container(name))


def _stranger(sighted: Sequence[RuntimeContainer], held: Mapping[str, Mapping[str, int]]) -> Pod:
    first = sighted[0]
    requests = {**held}
    for one in sighted:
        if one.name:
            asked = {pool: len(ids) for pool, ids in one.devices.items()}
            requests[one.name] = {**requests.get(one.name, {}), **asked}
    return Pod(
        uid=PodUID(first.pod),
        namespace=first.namespace,
        name=first.pod_name,
        qos=None,
        containers=tuple(Container(name, requests=asked) for name, asked in requests.items()),
    )
