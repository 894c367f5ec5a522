"""Which listed pod is the mirror of a static pod, which the kubelet knows by a hash.

A mirror says of which static pod it is the copy by an annotation, and any pod's author can write
it. So the kubelet's word on the hash decides: the labels of the sandbox, or its own records
(ADR 0018).
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from cpupool.core.devices import PodDevices
    from cpupool.core.workloads import Pod, RuntimeContainer

PodName = tuple[str, str]
"""Namespace and name."""


@dataclass(frozen=True, slots=True)
class Identity:
    """Which pod a hash stands for.

    Attributes:
        name: the pod's.
        certain: the kubelet says so; else a pod does, and no other has contradicted it in time.
    """

    name: PodName
    certain: bool


def identities(
    pods: Iterable[Pod], sighted: Iterable[RuntimeContainer], before: Mapping[str, Identity]
) -> dict[str, Identity]:
    """Find the pod for which each claimed hash stands; none while the claims differ.

    Args:
        pods: as listed.
        sighted: by the container runtime, with the labels that the kubelet has given.
        before: what was found until now. It stays while it is claimed, or is the kubelet's word.
    """
    claims = _claims(pods)
    words = {one.pod: (one.namespace, one.pod_name) for one in sighted} if claims else {}
    found = {}
    for static, names in claims.items():
        known = before.get(static)
        if static in words:
            found[static] = Identity(words[static], certain=True)
        elif known is not None and (known.certain or known.name in names):
            found[static] = known
        elif len(names) == 1:
            found[static] = Identity(next(iter(names)), certain=False)
    return found


def true(pods: Iterable[Pod], known: Mapping[str, Identity]) -> Iterator[Pod]:
    """Leave out the mirrors that are not believed, and all but the first of each static pod."""
    taken = set()
    for pod in pods:
        if pod.cgroup_uid != pod.uid:
            if pod.cgroup_uid in taken or not _believed(pod, known):
                continue
            taken.add(pod.cgroup_uid)
        yield pod


def forged(pods: Iterable[Pod], known: Mapping[str, Identity]) -> Iterator[Pod]:
    """Return the mirrors that are not believed."""
    return (pod for pod in pods if pod.cgroup_uid != pod.uid and not _believed(pod, known))


def uncertain(pods: Iterable[Pod], known: Mapping[str, Identity]) -> frozenset[str]:
    """Return the hashes about which the kubelet has to be asked.

    A static pod without devices needs no identity: its place is the default pool.
    """
    return frozenset(
        pod.cgroup_uid
        for pod in pods
        if pod.cgroup_uid != pod.uid
        and any(container.requests for container in pod.containers)
        and not ((one := known.get(pod.cgroup_uid)) and one.certain)
    )


def recorded(
    hashes: Iterable[str],
    saved: Mapping[str, PodDevices],
    live: Mapping[PodName, PodDevices],
) -> dict[str, PodName]:
    """Find the names of static pods by the devices that the kubelet's two records have in common.

    Args:
        hashes: those to find.
        saved: the checkpoint, which knows no names.
        live: podresources, which knows no hashes.
    """
    found = {}
    for static in hashes:
        devices = set(_devices(saved.get(static, {})))
        names = [name for name, pod in live.items() if not devices.isdisjoint(_devices(pod))]
        if len(names) == 1:
            found[static] = names[0]
    return found


def _believed(pod: Pod, known: Mapping[str, Identity]) -> bool:
    one = known.get(pod.cgroup_uid)
    return one is not None and one.name == (pod.namespace, pod.name)


def _claims(pods: Iterable[Pod]) -> Mapping[str, set[PodName]]:
    claims: defaultdict[str, set[PodName]] = defaultdict(set)
    for pod in pods:
        if pod.cgroup_uid != pod.uid:
            claims[pod.cgroup_uid].add((pod.namespace, pod.name))
    return claims


def _devices(pod: PodDevices) -> Iterator[tuple[str, str, frozenset[str]]]:
    for container, resources in pod.items():
        for resource, grant in resources.items():
            if grant.ids:
                yield container, resource, grant.ids
