"""The annotations that the agent believes until a record of the kubelet names the devices.

The annotation of a container names the devices that a response to Allocate gave to the container.
It is a hint (ADR 0018), because the pod's author may have written it. The agent believes it if

* the container requests as many devices of the resource,
* no record of the kubelet names devices of this resource for the container,
* Allocate gave exactly these devices (`promises.gave`), and no other pod has one of them,
* and no record of the kubelet contradicts it later (`corrected`).

`core/devices.py` reads the annotation (`allocated`). `after_restart.py` reads another annotation:
the CPUs that a policy chose.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from cpupool.core.devices import AllocatedDevices
from cpupool.core.workloads import ContainerRef
from cpupool.manager import promises

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from cpupool.core.devices import DevicesByContainer
    from cpupool.core.requests import Resource
    from cpupool.core.workloads import Pod
    from cpupool.manager.facts import NodeFacts
    from cpupool.manager.promises import Promise


def devices(facts: NodeFacts, pods: Mapping[str, Pod]) -> DevicesByContainer:
    """Return the known devices of pods, and those of the annotations that the agent believes.

    Listed pods come before pods that only the runtime reports.

    Args:
        facts: the node's facts; a pod's spec may contradict a known hint.
        pods: the id in a pod's cgroup name → the pod, for pods that have not ended.
    """
    found = {
        ref: {
            resource: allocated
            for resource, allocated in held.items()
            if not allocated.hint or _requests(pods[ref.pod], ref.name, resource, allocated.ids)
        }
        for ref, held in facts.devices.items()
        if ref.pod in pods
    }
    annotated = (
        container
        for container in facts.sighted.values()
        if container.devices and container.pod in pods
    )
    for container in sorted(annotated, key=lambda container: pods[container.pod].qos is None):
        pod, ref = pods[container.pod], ContainerRef(container.pod, container.name)
        for resource, ids in container.devices.items():
            held = found.get(ref, {})
            if resource in held or not _requests(pod, container.name, resource, ids):
                continue
            if promises.gave(facts.promises, found, container.pod, resource, ids):
                cpus = promises.announced(facts.promises, resource, ids)
                found[ref] = {**held, resource: AllocatedDevices(ids, cpus, hint=True)}
    return found


def corrected(known: DevicesByContainer, found: DevicesByContainer) -> DevicesByContainer:
    """Return the known devices without the hints that the kubelet's records contradict.

    Args:
        known: the known devices of containers.
        found: the kubelet's records.
    """

    def refuted(ref: ContainerRef, resource: Resource, allocated: AllocatedDevices) -> bool:
        if ref in found and resource not in found[ref]:
            return True
        return any(
            other.pod != ref.pod
            and resource in held
            and not held[resource].ids.isdisjoint(allocated.ids)
            for other, held in found.items()
        )

    return {
        ref: {
            resource: allocated
            for resource, allocated in held.items()
            if not (allocated.hint and refuted(ref, resource, allocated))
        }
        for ref, held in known.items()
    }


def merged(
    known: DevicesByContainer, found: DevicesByContainer, promised: Iterable[Promise]
) -> DevicesByContainer:
    """Return the known devices with the kubelet's records, and without contradicted hints.

    Args:
        known: the known devices of containers.
        found: the kubelet's records, which do not have the CPUs that Allocate announced.
        promised: the responses to Allocate, which have them.
    """
    joined = dict(corrected(known, found))
    for ref, by_pool in found.items():
        before = joined.get(ref, {})
        joined[ref] = {
            **before,
            **{
                pool: _with_announced(
                    before.get(pool), promises.as_announced(promised, pool, allocated)
                )
                for pool, allocated in by_pool.items()
            },
        }
    return joined


def _with_announced(
    known: AllocatedDevices | None, allocated: AllocatedDevices
) -> AllocatedDevices:
    """Return the kubelet's record of devices with the CPUs that Allocate announced for them."""
    if known is None or known.ids != allocated.ids:
        return allocated
    return replace(allocated, announced=known.announced | allocated.announced)


def _requests(pod: Pod, name: str, resource: Resource, ids: frozenset[str]) -> bool:
    return any(
        container.name == name and container.requests.get(resource) == len(ids)
        for container in pod.containers
    )
