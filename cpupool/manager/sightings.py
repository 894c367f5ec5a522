"""The container runtime's facts about containers, joined to those of API server and kubelet.

The runtime knows a container before its pod reports it, and pods that the API server has not listed
yet. The agent uses its facts only until it knows better ones.

The devices that a container's annotation names are a hint (ADR 0018): a pod's author may have
written the annotation, and the kubelet's records correct it.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING

from cpupool.core.devices import AllocatedDevices
from cpupool.core.workloads import Container, ContainerID, ContainerRef, Pod, PodUID
from cpupool.manager import mirror_pods, promises

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from cpupool.core.devices import DeviceAssignments
    from cpupool.core.requests import Resource
    from cpupool.core.workloads import RuntimeContainer
    from cpupool.manager.facts import NodeFacts
    from cpupool.manager.promises import Promise


def present(facts: NodeFacts) -> tuple[Pod, ...]:
    """Return every pod: the listed pods, and the pods that only the container runtime reports.

    If a container of the latter has ended, it may start again, and keeps its devices.
    """
    listed = tuple(mirror_pods.true(facts.pods or (), facts.static))
    known = {pod.cgroup_uid for pod in listed}
    unlisted: defaultdict[str, list[RuntimeContainer]] = defaultdict(list)
    for container in facts.sighted.values():
        if container.pod not in known:
            unlisted[container.pod].append(container)
    requests: defaultdict[str, dict[str, Mapping[Resource, int]]] = defaultdict(dict)
    for ref, held in facts.devices.items() if unlisted else ():
        requests[ref.pod][ref.name] = {resource: len(grant.ids) for resource, grant in held.items()}
    return (
        *listed,
        *(_unlisted_pod(containers, requests[pod]) for pod, containers in unlisted.items()),
    )


def instances(
    pods: Iterable[Pod], sighted: Mapping[ContainerID, RuntimeContainer]
) -> Iterator[tuple[ContainerID, Pod, Container]]:
    """Return every container instance that its pod or the runtime reports."""
    by_cgroup = {}
    for pod in pods:
        by_cgroup[pod.cgroup_uid] = pod
        for container in pod.containers:
            if container.id is not None and container.id not in sighted:
                yield container.id, pod, container
    yield from of_runtime(by_cgroup, sighted.values())


def of_runtime(
    pods: Mapping[str, Pod], sighted: Iterable[RuntimeContainer]
) -> Iterator[tuple[ContainerID, Pod, Container]]:
    """Return the container instances that the runtime reports.

    Args:
        pods: the id in a pod's cgroup name → the pod.
        sighted: the containers that the runtime reports, sandboxes included.
    """
    for found in sighted:
        if found.name:
            pod = pods[found.pod]
            yield found.id, pod, _named(pod, found.name)


def added(
    before: Mapping[ContainerID, RuntimeContainer], now: Mapping[ContainerID, RuntimeContainer]
) -> tuple[RuntimeContainer, ...] | None:
    """Return the containers that the runtime reports now only; None if another thing differs."""
    if not before.items() <= now.items():
        return None
    return tuple(found for key, found in now.items() if key not in before)


def joined(facts: NodeFacts) -> NodeFacts:
    """Return the facts with the devices of present pods; a hint must match the pod's spec."""
    listed = facts.pods or ()
    static = mirror_pods.identities(listed, facts.sighted.values(), facts.static)
    if static != facts.static:
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
    nodes = {uid: nodes for uid, nodes in facts.device_nodes.items() if uid in pods}
    devices = _with_hints(facts, pods, known)
    if devices == facts.devices and nodes == facts.device_nodes:
        # Later comparisons are then of the same objects.
        return facts
    return replace(facts, devices=devices, device_nodes=nodes)


def corrected(known: DeviceAssignments, found: DeviceAssignments) -> DeviceAssignments:
    """Return the known devices without the hints that the kubelet's records contradict.

    Args:
        known: the known devices of containers.
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


def merged(
    known: DeviceAssignments, found: DeviceAssignments, promised: Iterable[Promise]
) -> DeviceAssignments:
    """Return the known devices with the kubelet's records, and without contradicted hints.

    Args:
        known: the known devices of containers.
        found: the kubelet's records, which do not have the CPUs that Allocate announced.
        promised: the answers of Allocate, which have them.
    """
    joined = dict(corrected(known, found))
    for ref, by_pool in found.items():
        before = joined.get(ref, {})
        joined[ref] = {
            **before,
            **{
                pool: with_announced(before.get(pool), promises.as_announced(promised, pool, grant))
                for pool, grant in by_pool.items()
            },
        }
    return joined


def _with_hints(
    facts: NodeFacts, pods: Mapping[str, Pod], known: DeviceAssignments
) -> DeviceAssignments:
    """Add the devices that annotations name, where none are known and Allocate gave them.

    Listed pods come before pods that only the runtime reports.
    """
    found = dict(known)
    annotated = (
        container
        for container in facts.sighted.values()
        if container.devices and container.pod in pods
    )
    for container in sorted(annotated, key=lambda container: pods[container.pod].qos is None):
        ref = ContainerRef(container.pod, container.name)
        for resource, ids in container.devices.items():
            held = found.get(ref, {})
            if resource in held or not _asks(pods[container.pod], container.name, resource, ids):
                continue
            if promises.gave(facts.promises, found, container.pod, resource, ids):
                cpus = promises.announced(facts.promises, resource, ids)
                grant = AllocatedDevices(ids, cpus, hint=True)
                found[ref] = {**held, resource: grant}
    return found


def _asks(pod: Pod, container: str, resource: Resource, ids: frozenset[str]) -> bool:
    return _named(pod, container).requests.get(resource) == len(ids)


def with_announced(known: AllocatedDevices | None, grant: AllocatedDevices) -> AllocatedDevices:
    """Return the kubelet's record of devices with the CPUs that Allocate announced for them."""
    if known is None or known.ids != grant.ids:
        return grant
    return replace(grant, announced=known.announced | grant.announced)


def _named(pod: Pod, name: str) -> Container:
    # An ephemeral container runs before the list shows it; it cannot request devices.
    for container in pod.containers:
        if container.name == name:
            return container
    return Container(name)


def _unlisted_pod(
    sighted: Sequence[RuntimeContainer], held: Mapping[str, Mapping[Resource, int]]
) -> Pod:
    first = sighted[0]
    requests = {**held}
    for container in sighted:
        if container.name:
            asked = {resource: len(ids) for resource, ids in container.devices.items()}
            requests[container.name] = {**requests.get(container.name, {}), **asked}
    return Pod(
        uid=PodUID(first.pod),
        namespace=first.namespace,
        name=first.pod_name,
        qos=None,
        containers=tuple(Container(name, requests=asked) for name, asked in requests.items()),
    )
