"""The NUMA nodes of pods that share the CPUs of one NUMA node: the policy's choices, kept.

A choice depends on earlier choices and on the shared CPUs of its time, so a pod keeps its node
while the node suffices, also over a restart: the CPUs of its containers then name the node.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from cpupool.core.cpuset import CPUSet
from cpupool.core.errors import CPUSetParseError
from cpupool.core.workloads import oldest_first

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from cpupool.core.cgroups import FoundContainer
    from cpupool.core.workloads import Pod
    from cpupool.policies.base import CPUManagerPolicy
    from cpupool.policies.view import NodeView


def chosen(
    policy: CPUManagerPolicy,
    pods: Iterable[Pod],
    before: Mapping[str, int],
    view: Callable[[], NodeView],
) -> Mapping[str, int]:
    """Return the id in a pod's cgroup name → its NUMA node.

    Args:
        policy: the policy in force.
        pods: all pods of the node.
        before: the earlier choices.
        view: returns the policies' view of the node; the call takes time.
    """
    bursting = oldest_first(_bursting(pods))
    if not bursting:
        return {}
    seen = view()
    homes = {pod.cgroup_uid: before[pod.cgroup_uid] for pod in bursting if pod.cgroup_uid in before}
    for pod in bursting:
        home = policy.home(replace(seen, homes=homes), pod)
        homes.pop(pod.cgroup_uid, None)
        if home is not None:
            homes[pod.cgroup_uid] = home
    return homes


def recovered(view: NodeView, found: Iterable[FoundContainer]) -> Mapping[str, int]:
    """Return the NUMA nodes on which an earlier agent has left such pods.

    Args:
        view: the policies' view of the node.
        found: the containers with their present CPUs.
    """
    bursting = {pod.cgroup_uid for pod in _bursting(view.pods)}
    on: dict[str, set[int | None]] = {}
    for container in found:
        if container.pod in bursting:
            with suppress(CPUSetParseError):
                nodes = map(view.topology.node_of, CPUSet.parse(container.cpus))
                on.setdefault(container.pod, set()).update(nodes)
    alone = {uid: next(iter(nodes)) for uid, nodes in on.items() if len(nodes) == 1}
    return {uid: -1 if node is None else node for uid, node in alone.items()}


def _bursting(pods: Iterable[Pod]) -> Iterator[Pod]:
    for pod in pods:
        if pod.orchestration and pod.orchestration.bursts and not pod.finished:
            yield pod
