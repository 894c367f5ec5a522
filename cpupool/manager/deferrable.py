"""The changes that a sweep may defer: those of pods that only share CPUs.

No change of such a pod moves a container of another pod: not its start, not its new states, not
its end. A sweep must look soon at its containers only if they run on wrong CPUs. Three changes can
wait: the pod appears in the list of pods, its states change, it ends. The agent looks at several
such changes in one sweep. If the pod's sandbox starts or ends, or if one of its containers ends, no
decision changes. This holds only under a policy that says so (`sharers_stay`). Other policies give
CPUs by a pod's class, by its load, or by the answer of a plugin.
"""

from __future__ import annotations

from dataclasses import fields, replace
from operator import attrgetter
from typing import TYPE_CHECKING, Final

from cpupool.core.grants import PodOwner
from cpupool.core.workloads import Container, Pod

if TYPE_CHECKING:
    from collections.abc import Iterable

    from cpupool.core.workloads import RuntimeContainer
    from cpupool.manager.facts import NodeFacts
    from cpupool.manager.resolve import Resolution, Snapshot

_STATES: Final = {"running", "finished", "ending", "ends_s"}
_SPEC: Final = attrgetter(*({field.name for field in fields(Pod)} - _STATES - {"containers"}))
_CONTAINER_SPEC: Final = attrgetter(*({field.name for field in fields(Container)} - {"id"}))


def shares(now: Snapshot, pod: Pod) -> bool:
    """Return whether a pod neither has nor can get CPUs of its own, nor waits for others' facts.

    Args:
        now: what is known.
        pod: the pod as it is listed.
    """
    facts, grants = now.facts, now.resolution.grants
    eligible = facts.pools.cpu_manager.eligible
    return (
        _knows_all(facts)
        and pod.qos is not None
        and pod.cgroup_uid == pod.uid
        and pod.orchestration is None
        and not facts.policy.requests(pod)
        and not any(
            eligible.cpus(container)
            or any(resource.kind.exclusive for resource in container.requests)
            for container in pod.containers
        )
        and not grants.of(PodOwner(pod.cgroup_uid))
        and not any(uid == pod.cgroup_uid for uid, _ in facts.kept_shared)
    )


def moves_nothing(now: Snapshot, listed: Iterable[Pod]) -> bool:
    """Return whether the pods that are listed leave every container where it is.

    The container runtime must have named its containers, as it does by NRI.

    Args:
        now: what is known.
        listed: the node's pods.
    """
    facts, resolution = now
    if facts.pods is None:
        return False
    known = {pod.uid: pod for pod in facts.pods}
    for pod in listed:
        before = known.pop(pod.uid, None)
        if before is pod:
            continue
        if not shares(now, pod):
            return False
        if before is None:
            # The runtime may have named it before: its containers have waited for this.
            if pod.cgroup_uid in resolution.pods:
                return False
        elif not _asks_the_same(before, pod):
            return False
        named = (container.id for container in pod.containers if container.id is not None)
        if any(identifier not in facts.sighted for identifier in named):
            return False
    return all(shares(now, gone) for gone in known.values())


def stays(
    now: Snapshot, new: Iterable[RuntimeContainer], gone: Iterable[RuntimeContainer]
) -> Resolution | None:
    """Return the decisions after a change of the runtime's containers; None if one may differ.

    Args:
        now: what is known.
        new: the containers and sandboxes that the runtime has in addition.
        gone: those that it has no longer.
    """
    resolution = now.resolution
    ended = set()
    for found in (*new, *gone):
        pod = resolution.pods.get(found.pod)
        if pod is None or not shares(now, pod):
            return None
        ended.add((found.pod, found.id))
        # A container stays as long as its pod lists it.
        ended -= {(found.pod, container.id) for container in pod.containers}
    if any(found.name for found in new):
        return None
    if ended.isdisjoint(resolution.containers):
        return resolution
    left = {key: placed for key, placed in resolution.containers.items() if key not in ended}
    return replace(resolution, containers=left)


def _knows_all(facts: NodeFacts) -> bool:
    return (
        facts.recovered
        and facts.policy.sharers_stay
        # A package may inherit the word, and answer otherwise.
        and facts.pools.cpu_manager.installed is None
        and not (facts.static_cpus or facts.sizes or facts.plugins.enabled or facts.plugins.served)
    )


def _asks_the_same(before: Pod, pod: Pod) -> bool:
    """Return whether two values of a pod differ in its states alone."""
    return (
        _SPEC(before) == _SPEC(pod)
        and len(before.containers) == len(pod.containers)
        and all(
            _CONTAINER_SPEC(one) == _CONTAINER_SPEC(other)
            for one, other in zip(before.containers, pod.containers, strict=True)
        )
    )
