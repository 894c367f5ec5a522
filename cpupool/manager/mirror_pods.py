"""The listed pods that are mirrors of static pods, which the kubelet identifies by a hash.

An annotation of a mirror names the static pod that it copies, but any pod's author can write it. So
the kubelet's facts about the hash decide: the labels of the sandbox, or its own records (ADR 0018).
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
    """The pod with a hash.

    Attributes:
        name: the pod's name.
        certain: whether the kubelet says so; otherwise a pod says so, and no other pod has
            contradicted it in time.
    """

    name: PodName
    certain: bool


def identities(
    pods: Iterable[Pod], sighted: Iterable[RuntimeContainer], before: Mapping[str, Identity]
) -> dict[str, Identity]:
    """Return hash → pod for each claimed hash, without hashes that several pods claim.

    Args:
        pods: the listed pods.
        sighted: the container runtime's containers, with the labels from the kubelet.
        before: the result until now; an entry stays while a pod claims it, or if it is certain.
    """
    claims = _claims(pods)
    words = (
        {container.pod: (container.namespace, container.pod_name) for container in sighted}
        if claims
        else {}
    )
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
    """Return the pods without false mirrors, and with only the first mirror of each static pod."""
    taken = set()
    for pod in pods:
        if pod.cgroup_uid != pod.uid:
            if pod.cgroup_uid in taken or not _believed(pod, known):
                continue
            taken.add(pod.cgroup_uid)
        yield pod


def forged(pods: Iterable[Pod], known: Mapping[str, Identity]) -> Iterator[Pod]:
    """Return the false mirrors, whose claim to a static pod the agent refuses."""
    return (pod for pod in pods if pod.cgroup_uid != pod.uid and not _believed(pod, known))


def uncertain(pods: Iterable[Pod], known: Mapping[str, Identity]) -> frozenset[str]:
    """Return the hashes whose pod only the kubelet can name.

    A static pod without devices needs no identity: it runs on the default pool.
    """
    return frozenset(
        pod.cgroup_uid
        for pod in pods
        if pod.cgroup_uid != pod.uid
        and any(container.requests for container in pod.containers)
        and not ((identity := known.get(pod.cgroup_uid)) and identity.certain)
    )


def recorded(
    hashes: Iterable[str],
    saved: Mapping[str, PodDevices],
    live: Mapping[PodName, PodDevices],
) -> dict[str, PodName]:
    """Find the names of static pods by the devices that both of the kubelet's records have.

    Args:
        hashes: the hashes to find.
        saved: the checkpoint, which has no names.
        live: podresources, which has no hashes.
    """
    found = {}
    for static in hashes:
        devices = set(_devices(saved.get(static, {})))
        names = [name for name, pod in live.items() if not devices.isdisjoint(_devices(pod))]
        if len(names) == 1:
            found[static] = names[0]
    return found


def _believed(pod: Pod, known: Mapping[str, Identity]) -> bool:
    identity = known.get(pod.cgroup_uid)
    return identity is not None and identity.name == (pod.namespace, pod.name)


def _claims(pods: Iterable[Pod]) -> Mapping[str, set[PodName]]:
    claims: defaultdict[str, set[PodName]] = defaultdict(set)
    for pod in pods:
        if pod.cgroup_uid != pod.uid:
            claims[pod.cgroup_uid].add((pod.namespace, pod.name))
    return claims


def _devices(pod: PodDevices) -> Iterator[tuple[str, str, frozenset[str]]]:
    for container, resources in pod.items():
        for resource, allocated in resources.items():
            if allocated.ids:
                yield container, resource, allocated.ids
