"""The container runtime's facts about containers, joined to those of API server and kubelet.

The runtime knows a container before its pod reports it, and pods that the API server has not listed
yet. The agent uses its facts only until it knows better ones.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING

from cpupool.core.workloads import Container, ContainerID, Pod, PodUID
from cpupool.manager import believed_annotations, mirror_pods

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from cpupool.core.requests import Resource
    from cpupool.core.workloads import RuntimeContainer
    from cpupool.manager.facts import NodeFacts


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
        requests[ref.pod][ref.name] = {
            resource: len(allocated.ids) for resource, allocated in held.items()
        }
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
    """Return the facts with the devices of present pods, also those of believed annotations."""
    listed = facts.pods or ()
    static = mirror_pods.identities(listed, facts.sighted.values(), facts.static)
    if static != facts.static:
        facts = replace(facts, static=static)
    pods = {pod.cgroup_uid: pod for pod in present(facts) if not pod.finished}
    nodes = {uid: nodes for uid, nodes in facts.device_nodes.items() if uid in pods}
    devices = believed_annotations.devices(facts, pods)
    if devices == facts.devices and nodes == facts.device_nodes:
        # Later comparisons are then of the same objects.
        return facts
    return replace(facts, devices=devices, device_nodes=nodes)


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
            requested = {resource: len(ids) for resource, ids in container.devices.items()}
            requests[container.name] = {**requests.get(container.name, {}), **requested}
    return Pod(
        uid=PodUID(first.pod),
        namespace=first.namespace,
        name=first.pod_name,
        qos=None,
        containers=tuple(
            Container(name, requests=requested) for name, requested in requests.items()
        ),
    )
