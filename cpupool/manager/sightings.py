"""What the container runtime tells of containers, joined to what the API server and kubelet tell.

The runtime knows a container before its pod reports it, and pods that the API server has not listed
yet. What it says is never more than a beginning: what is known already counts first.

The devices that a container's annotation names are a hint (ADR 0018): a pod's author may have
written it, and the kubelet's records take it back.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING

from cpupool.core.cpuset import CPUSet
from cpupool.core.devices import AllocatedDevices
from cpupool.core.workloads import Container, ContainerID, ContainerRef, Pod, PodUID
from cpupool.manager import static_pods

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from cpupool.core.devices import DeviceAssignments
    from cpupool.core.requests import Resource
    from cpupool.core.workloads import RuntimeContainer
    from cpupool.manager.facts import NodeFacts, Promise


def present(facts: NodeFacts) -> tuple[Pod, ...]:
    """Return every pod: those listed, and those that only the container runtime has told of.

    A container of these that has ended may start again, and keeps its devices.
    """
    listed = tuple(static_pods.true(facts.pods or (), facts.static))
    known = {pod.cgroup_uid for pod in listed}
    strangers: defaultdict[str, list[RuntimeContainer]] = defaultdict(list)
    for one in facts.sighted.values():
        if one.pod not in known:
            strangers[one.pod].append(one)
    requests: defaultdict[str, dict[str, Mapping[Resource, int]]] = defaultdict(dict)
    for ref, held in facts.devices.items() if strangers else ():
        requests[ref.pod][ref.name] = {resource: len(one.ids) for resource, one in held.items()}
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
    """Bring the devices of pods that are there up to date; a hint must be what the spec asks."""
    listed = facts.pods or ()
    static = static_pods.identities(listed, facts.sighted.values(), facts.static)
    facts = replace(facts, static=static)
    pods = {pod.cgroup_uid: pod for pod in present(facts) if not pod.finished}
    known = {
        ref: {
            resource: grant
            for resource, grant in held.items()
            if not grant.hint or _asks(pods[ref.pod], ref.name, resource, grant.ids)
        }
        for ref, held in facts.devices.items()
        if ref.pod in pods
    }
    return replace(facts, devices=_with_hints(facts, pods, known))


def corrected(known: DeviceAssignments, found: DeviceAssignments) -> DeviceAssignments:
    """Drop the hints that the kubelet's records contradict.

    Args:
        known: what is known of containers' devices.
        found: the kubelet's records.
    """

    def refuted(ref: ContainerRef, resource: Resource, grant: AllocatedDevices) -> bool:
        if ref in found and resource not in found[ref]:
            return True
        return any(
            other.pod != ref.pod
            and resource in held
            and not held[resource].ids.isdisjoint(grant.ids)
            for other, held in found.items()
        )

    return {
        ref: {
            resource: grant
            for resource, grant in held.items()
            if not (grant.hint and refuted(ref, resource, grant))
        }
        for ref, held in known.items()
    }


def unfulfilled(promises: tuple[Promise, ...], found: DeviceAssignments) -> tuple[Promise, ...]:
    """Leave out the devices that the kubelet's records name: it gives none of them twice."""
    if not (promises and found):
        return promises
    fulfilled: defaultdict[Resource, set[str]] = defaultdict(set)
    for held in found.values():
        for resource, grant in held.items():
            fulfilled[resource] |= grant.ids
    left = (replace(promise, ids=promise.ids - fulfilled[promise.resource]) for promise in promises)
    return tuple(one for one in left if one.ids)


def _with_hints(
    facts: NodeFacts, pods: Mapping[str, Pod], known: DeviceAssignments
) -> DeviceAssignments:
    """Add the devices that annotations name, where nothing is known and Allocate has given them.

    A listed pod comes before one that only the runtime has told of.
    """
    found = dict(known)
    annotated = (one for one in facts.sighted.values() if one.devices and one.pod in pods)
    for one in sorted(annotated, key=lambda one: pods[one.pod].qos is None):
        ref = ContainerRef(one.pod, one.name)
        for resource, ids in one.devices.items():
            held = found.get(ref, {})
            if resource in held or not _asks(pods[one.pod], one.name, resource, ids):
                continue
            if _given(facts.promises, found, one.pod, resource, ids):
                grant = AllocatedDevices(ids, told(facts.promises, resource, ids), hint=True)
                found[ref] = {**held, resource: grant}
    return found


def _asks(pod: Pod, container: str, resource: Resource, ids: frozenset[str]) -> bool:
    return _named(pod, container).requests.get(resource) == len(ids)


def _given(
    promises: Iterable[Promise],
    known: DeviceAssignments,
    pod: str,
    resource: Resource,
    ids: frozenset[str],
) -> bool:
    """Return whether Allocate has given exactly these devices, and no other pod has one of them.

    Besides, the kubelet lets containers of a pod have the devices of its init containers.
    """
    of_pod: set[str] = set()
    for ref, held in known.items():
        if (grant := held.get(resource)) is None:
            continue
        if ref.pod == pod:
            of_pod |= grant.ids
        elif not grant.ids.isdisjoint(ids):
            return False
    answers = (promise.ids for promise in promises if promise.resource == resource)
    return ids <= of_pod or any(answer <= ids <= answer | of_pod for answer in answers)


def told(promises: Iterable[Promise], resource: Resource, ids: frozenset[str]) -> CPUSet:
    """Give the CPUs that a container was told when it was promised these devices."""
    return CPUSet.union(
        promise.told for promise in promises if promise.resource == resource and ids <= promise.ids
    )


def _named(pod: Pod, name: str) -> Container:
    # An ephemeral container runs before the list shows it; it can ask for no device.
    return next(
        (container for container in pod.containers if container.name == name), Container(name)
    )


def _stranger(
    sighted: Sequence[RuntimeContainer], held: Mapping[str, Mapping[Resource, int]]
) -> Pod:
    first = sighted[0]
    requests = {**held}
    for one in sighted:
        if one.name:
            asked = {resource: len(ids) for resource, ids in one.devices.items()}
            requests[one.name] = {**requests.get(one.name, {}), **asked}
    return Pod(
        uid=PodUID(first.pod),
        namespace=first.namespace,
        name=first.pod_name,
        qos=None,
        containers=tuple(Container(name, requests=asked) for name, asked in requests.items()),
    )
