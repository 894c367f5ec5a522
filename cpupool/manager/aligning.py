"""On which NUMA nodes a pod's own CPUs may lie: near its devices, and near what plugins gave it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from cpupool.core.cpu_manager import KOORDINATOR, Scope, TopologyPolicy
from cpupool.core.errors import TopologyAffinityError
from cpupool.core.grants import WHOLE_POD
from cpupool.core.workloads import ContainerRef
from cpupool.policies import hints

if TYPE_CHECKING:
    from collections.abc import Iterable

    from cpupool.core.cpu_manager import TopologyHint
    from cpupool.core.workloads import Pod
    from cpupool.manager.facts import NodeFacts
    from cpupool.policies.base import Ask, NodeView

Offer = tuple["TopologyHint", ...] | None
"""The NUMA nodes on which a resource can lie; None for any."""


def topology_policy(facts: NodeFacts, pod: Pod) -> TopologyPolicy:
    """Return how strictly a pod's CPUs lie near its devices and its memory.

    Koordinator's annotation of the pod counts before its label of the node, and that before the
    pool file.
    """
    own = facts.pools.cpu_manager
    if own.policy != KOORDINATOR:
        return own.topology_policy
    of_pod = pod.orchestration and pod.orchestration.topology
    return of_pod or facts.rules.topology or own.topology_policy


def at_once(facts: NodeFacts) -> bool:
    """Return whether all containers of a pod lie on the same NUMA nodes."""
    return facts.pools.cpu_manager.topology_scope is Scope.POD


def of_devices(facts: NodeFacts, pod: Pod, name: str) -> tuple[Offer, ...]:
    """Return the offers of a container's devices and memory; of all containers for `WHOLE_POD`."""
    named = facts.device_nodes.get(pod.cgroup_uid, {})
    has = frozenset().union(*(named.get(each, ()) for each in _containers(pod, name)))
    ordered = sorted(has, key=lambda devices: sorted(map(sorted, devices)))
    return tuple(hints.of_devices(devices) for devices in ordered)


def of_plugins(facts: NodeFacts, pod: Pod, name: str) -> tuple[Offer, ...]:
    """Return the offers of the answers that plugins gave for a container, or for a whole pod."""
    given = facts.plugins.given
    answers = (given.get(ContainerRef(pod.cgroup_uid, each), {}) for each in _containers(pod, name))
    return tuple(each.near for by_resource in answers for _, each in sorted(by_resource.items()))


def aligned(facts: NodeFacts, seen: NodeView, pod: Pod, ask: Ask, offers: Iterable[Offer]) -> Ask:
    """Return the request with the NUMA nodes that the topology policy demands for it.

    Args:
        facts: the node's facts.
        seen: the policies' view of the node.
        pod: the container's pod.
        ask: the container's request.
        offers: the NUMA nodes of each of its other resources.

    Raises:
        TopologyAffinityError: there are no such nodes.
    """
    policy = topology_policy(facts, pod)
    if policy is TopologyPolicy.NONE:
        return ask
    own = facts.policy.hints(ask)
    merged = hints.merge(policy, seen.topology.nodes, [None if own is None else own.hints, *offers])
    if not merged.admit:
        raise TopologyAffinityError(policy.value)
    return replace(ask, nodes=merged.hint.nodes)


def part(facts: NodeFacts, container: str) -> str:
    """Return what is aligned with a container: itself, or the whole pod."""
    return WHOLE_POD if at_once(facts) else container


def _containers(pod: Pod, name: str) -> list[str]:
    return [each.name for each in pod.containers] if name == WHOLE_POD else [name]
