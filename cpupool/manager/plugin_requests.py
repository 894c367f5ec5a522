"""Requests of containers that plugins of the QoS Resource Manager answer, and who is held.

A plugin serves a resource that containers request: `cpu` only under the policy `qrm`, any other
resource under every policy. The role `resource_manager` asks the plugins; what they have answered
is among the facts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from cpupool.core.cpu_manager import QRM, Misfit, TopologyPolicy
from cpupool.core.cpuset import CPUSet
from cpupool.core.errors import DevicesUnnamed, PlacementError
from cpupool.core.grants import Source
from cpupool.core.names import POLICY_CPUS
from cpupool.core.resource_plugins import (
    AnswerAwaited,
    AnswerContested,
    RequestRefused,
    RequestUnclear,
)
from cpupool.core.resources import CPU, NATIVE, is_extended
from cpupool.core.workloads import ContainerKind, ContainerRef
from cpupool.manager import aligning
from cpupool.policies.base import Refusal
from cpupool.wire import katalyst
from cpupool.wire.katalyst import QoSLevel

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from cpupool.core.grants import Grants
    from cpupool.core.resource_plugins import Given
    from cpupool.core.workloads import Container, Pod
    from cpupool.manager.facts import NodeFacts

_NOTHING: Final[Mapping[str, float]] = {}


def awaited(facts: NodeFacts) -> frozenset[str]:
    """Return the resources whose requests plugins answer, also before a plugin has registered.

    The configuration names them: `cpu` under the policy `qrm`, which it may be while it is not
    known, and the resources that plugins serve under another name.
    """
    plugins = facts.plugins
    if not plugins.enabled:
        return plugins.served
    named = {each.resource for each in plugins.names.values()}
    if facts.pools.cpu_manager.policy == QRM or not facts.configured:
        named.add(CPU)
    return plugins.served | named


def asked(facts: NodeFacts, grants: Grants, pod: Pod, container: Container) -> Mapping[str, float]:
    """Return the plugins' resources for which they are asked, and how much of each.

    A container that requests a pool has the pool's CPUs, and a pod with CPUs of an earlier policy
    keeps these: no plugin is asked for their `cpu`.
    """
    served = awaited(facts)
    if (
        not served
        or pod.finished
        or container.kind is ContainerKind.EPHEMERAL
        or katalyst.is_left_out(pod)
    ):
        return _NOTHING
    has = grants.chosen.get(pod.cgroup_uid)
    outside = (
        facts.pools.cpu_manager.policy != QRM
        or bool(container.requests)
        or (has is not None and has.source is Source.POLICY)
    )
    requested = ((facts.plugins.served_as(name), amount) for name, amount in _sorted(container))
    return {
        as_.resource: amount / as_.divisor
        for as_, amount in requested
        if as_.resource in served and not (outside and as_.resource == CPU)
    }


def contradiction(facts: NodeFacts, container: Container) -> str:
    """Return that a container requests one resource of a plugin by two names, or nothing."""
    found: dict[str, str] = {}
    served = awaited(facts)
    for name, _ in _sorted(container):
        resource = facts.plugins.served_as(name).resource
        if resource in served and resource in found:
            return f"requests {found[resource]} and {name}, which are the plugin's {resource}"
        found[resource] = name
    return ""


def _sorted(container: Container) -> list[tuple[str, float]]:
    return sorted(container.quantities.items())


def lacking(
    facts: NodeFacts, grants: Grants, pod: Pod, container: Container
) -> Mapping[str, float]:
    """Return the part of `asked` without an answer that counts and is enough."""
    ref = ContainerRef(pod.cgroup_uid, container.name)
    given = facts.plugins.given.get(ref, {})
    return {
        resource: quantity
        for resource, quantity in asked(facts, grants, pod, container).items()
        if resource not in given
        or given[resource].refused
        or not given[resource].serves(quantity)
        or _lost(grants, ref, given[resource])
    }


def _lost(grants: Grants, ref: ContainerRef, given: Given) -> CPUSet:
    """Return the CPUs of an exclusive answer that another pod owns: two records contradict."""
    if not given.exclusive:
        return CPUSet()
    return given.cpus - grants.part(ref.pod, POLICY_CPUS, ref.name)


def resized(facts: NodeFacts, grants: Grants, pod: Pod, container: Container) -> str:
    """Return that a container requests other CPUs than its plugin gave it alone; empty if not.

    A plugin is asked again for more, as the patched kubelet does, and never for less.
    """
    given = facts.plugins.given.get(ContainerRef(pod.cgroup_uid, container.name), {}).get(CPU)
    requested = asked(facts, grants, pod, container).get(CPU)
    if given is None or requested is None or given.kept or requested == given.quantity:
        return ""
    until = "the pod ends" if requested < given.quantity else "its plugin gives it more"
    now = f"it requests cpu {requested:g} since a resize"
    return f"{now}, and keeps CPUs {given.cpus} until {until}"


def unclear(facts: NodeFacts, pod: Pod, container: str) -> bool:
    """Return whether it is not known yet if a container may start without an answer.

    So it is in an agent that has just started: until it knows the pools, and what an earlier agent
    chose, it refuses no pod.
    """
    if facts.recovered or (facts.configured and not facts.pools.places):
        return False
    names = {name for each in pod.containers if each.name == container for name in each.quantities}
    requested = {facts.plugins.served_as(name).resource for name in names}
    return not katalyst.is_left_out(pod) and not requested.isdisjoint(awaited(facts))


def awaits_devices(facts: NodeFacts, pod: Pod) -> bool:
    """Return whether the NUMA nodes of a pod's devices are to be known before it is admitted."""
    if (
        aligning.topology_policy(facts, pod) is TopologyPolicy.NONE
        or pod.cgroup_uid in facts.device_nodes
    ):
        return False
    plugins, served = facts.plugins, awaited(facts)
    asks = any(
        is_extended(name) and plugins.served_as(name).resource not in served
        for each in pod.containers
        for name in each.quantities
    )
    # The CPUs of the policy lie near devices that only the kubelet knows, too.
    chosen = bool(facts.policy.wants(pod))
    return asks or chosen or any(container.requests for container in pod.containers)


def refusals(facts: NodeFacts, grants: Grants, pods: Iterable[Pod]) -> Mapping[str, Refusal]:
    """Return the pods that lack an answer: the id in a pod's cgroup name → why.

    A pod is held with the first container that must not start without its answer. Of a pod of
    shared cores, native resources can come later: it shares meanwhile.

    Args:
        facts: the node's facts.
        grants: who owns which CPUs.
        pods: the pods that run or start.
    """
    if not awaited(facts):
        return {}
    found = ((pod, _refusal(facts, grants, pod)) for pod in pods)
    return {pod.cgroup_uid: refusal for pod, refusal in found if refusal}


def _refusal(facts: NodeFacts, grants: Grants, pod: Pod) -> Refusal | None:
    if pod.finished or katalyst.waits_for_reconcile(pod):
        return None
    reported = any(container.id for container in pod.containers)
    if pod.description and pod.description.unclear and not katalyst.is_left_out(pod):
        unclear = RequestUnclear(pod.description.unclear)
        return Refusal(unclear, holds=not (reported or pod.essential), reachable=False)
    optional = None
    for container in pod.containers:
        resources = lacking(facts, grants, pod, container)
        if not resources:
            continue
        error = reason(facts, grants, pod, container, resources)
        shares = not error.passes and facts.pools.cpu_manager.on_misfit is Misfit.SHARE
        if _must_have(pod, resources) and not (reported or pod.essential or shares):
            return Refusal(error, holds=True, reachable=False)
        if not error.passes:
            optional = optional or Refusal(error, holds=False, reachable=False)
    return optional


def _must_have(pod: Pod, resources: Collection[str]) -> bool:
    """Return whether a container may not start without an answer for some resources.

    Variables and annotations of other resources than cpu and memory cannot come later.
    """
    return katalyst.qos_level(pod) is not QoSLevel.SHARED or not set(resources) <= set(NATIVE)


def reason(
    facts: NodeFacts,
    grants: Grants,
    pod: Pod,
    container: Container,
    resources: Collection[str],
) -> PlacementError:
    """Return why a container lacks answers for some resources."""
    ref = ContainerRef(pod.cgroup_uid, container.name)
    if why := facts.plugins.refusals.get(ref):
        return RequestRefused(container.name, why)
    given = facts.plugins.given.get(ref, {})
    for resource in resources:
        if resource in given and (why := given[resource].refused):
            return RequestRefused(container.name, why)
        if resource in given and (lost := _lost(grants, ref, given[resource])):
            return AnswerContested(container.name, lost)
    if awaits_devices(facts, pod):
        return DevicesUnnamed()
    return AnswerAwaited(container.name, " and ".join(resources))
