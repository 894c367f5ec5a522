"""The NUMA nodes on which a pod's own CPUs may lie.

They are near its devices, its memory and the resources that plugins gave to it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from cpupool.core.cpu_manager import Scope, TopologyPolicy
from cpupool.core.cpuset import CPUSet
from cpupool.core.errors import TopologyAffinityError
from cpupool.core.grants import WHOLE_POD
from cpupool.core.workloads import ContainerRef
from cpupool.policies import hints

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from cpupool.core.cpu_manager import TopologyHint
    from cpupool.core.workloads import Pod
    from cpupool.manager.facts import NodeFacts
    from cpupool.policies.base import ChoiceRequest
    from cpupool.policies.view import NodeView

NodeHints = tuple["TopologyHint", ...] | None
"""The NUMA nodes on which a resource can lie; None for any."""


def topology_policy(facts: NodeFacts, pod: Pod) -> TopologyPolicy:
    """Return how strictly a pod's CPUs lie near its devices and its memory."""
    own = facts.pools.cpu_manager
    return facts.policy.asked_alignment(facts.rules, pod) or own.topology_policy


def node_policy(facts: NodeFacts) -> TopologyPolicy:
    """Return how strictly the CPUs of a pod lie near its devices where the pod says nothing."""
    own = facts.pools.cpu_manager
    return facts.policy.asked_alignment(facts.rules, None) or own.topology_policy


def at_once(facts: NodeFacts) -> bool:
    """Return whether all containers of a pod lie on the same NUMA nodes."""
    return facts.pools.cpu_manager.topology_scope is Scope.POD


def of_devices(facts: NodeFacts, pod: Pod, name: str) -> tuple[NodeHints, ...]:
    """Return the offers of a container's devices and memory; of all containers for `WHOLE_POD`."""
    named = facts.device_nodes.get(pod.cgroup_uid, {})
    has = frozenset().union(*(named.get(each, ()) for each in _containers(pod, name)))
    ordered = sorted(has, key=lambda devices: sorted(map(sorted, devices)))
    return tuple(hints.of_devices(devices) for devices in ordered)


def of_plugins(facts: NodeFacts, pod: Pod, name: str) -> tuple[NodeHints, ...]:
    """Return the offers of the answers that plugins gave for a container, or for a whole pod."""
    given, nodes = facts.plugins.answers, facts.topology.nodes
    answers = (given.get(ContainerRef(pod.cgroup_uid, each), {}) for each in _containers(pod, name))
    return tuple(
        each.near(nodes) for by_resource in answers for _, each in sorted(by_resource.items())
    )


def of_cpus(facts: NodeFacts, request: ChoiceRequest) -> NodeHints:
    """Return the offer of the policy for a request."""
    own = facts.policy.hints(request)
    return None if own is None else own.hints


def ways(request: ChoiceRequest) -> Iterator[ChoiceRequest]:
    """Yield a request that costs the pod as few more CPUs as can be, then one that may cost more.

    There is one way where the pod leaves no CPUs to the container.
    """
    every = replace(request, available=request.available | request.reusable, reusable=CPUSet())
    suffices = request.count <= len(request.reusable)
    yield replace(every, available=request.reusable) if suffices else request
    if request.reusable:
        yield every


def aligned(
    facts: NodeFacts, seen: NodeView, pod: Pod, request: ChoiceRequest, offers: Iterable[NodeHints]
) -> ChoiceRequest:
    """Return the request with the NUMA nodes that the topology policy demands for it.

    CPUs that the pod leaves to the container come first, as far as they lie on these nodes.

    Args:
        facts: the node's facts.
        seen: the policies' view of the node.
        pod: the container's pod.
        request: the container's request.
        offers: the NUMA nodes of each of its other resources.

    Raises:
        TopologyAffinityError: there are no such nodes.
    """
    policy, offers = topology_policy(facts, pod), tuple(offers)
    if policy is TopologyPolicy.NONE:
        return request
    cpus_of = seen.topology.nodes
    for way in ways(request):
        merged = hints.merge(policy, cpus_of, [of_cpus(facts, way), *offers])
        nodes = merged.hint.nodes
        if merged.hint.preferred:
            there = CPUSet.union(cpus_of.get(node, CPUSet()) for node in nodes or cpus_of)
            return replace(request, nodes=nodes, reusable=request.reusable & there)
        if merged.admit:
            # The nodes are a preference, and cost the pod no more CPUs.
            return replace(request, nodes=nodes)
    raise TopologyAffinityError(policy.value)


def part(facts: NodeFacts, container: str) -> str:
    """Return the part of a pod that is aligned with a container: the container, or `WHOLE_POD`."""
    return WHOLE_POD if at_once(facts) else container


def _containers(pod: Pod, name: str) -> list[str]:
    return [each.name for each in pod.containers] if name == WHOLE_POD else [name]
