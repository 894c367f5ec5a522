"""The resources that plugins give: who requests them, who lacks an answer, and who is held for it.

A plugin serves a resource that containers request: `cpu` only under a policy that leaves CPUs to a
plugin, any other resource under every policy. What plugins have answered is among the facts; who
asks them, and how, is no matter of the manager.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self

from cpupool.core.cpu_manager import Misfit, TopologyPolicy
from cpupool.core.cpuset import CPUSet
from cpupool.core.errors import DevicesUnnamed, PlacementError
from cpupool.core.grants import Source
from cpupool.core.names import POLICY_CPUS
from cpupool.core.plugin_facts import ServedAs
from cpupool.core.pod_resources import CPU, NATIVE, is_extended
from cpupool.core.workloads import ContainerKind, ContainerRef
from cpupool.manager import aligning
from cpupool.policies.built_in import kind
from cpupool.policies.view import Refusal

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from cpupool.core.grants import Grants
    from cpupool.core.plugin_facts import RecordedAnswer
    from cpupool.core.workloads import Container, Pod
    from cpupool.manager.facts import NodeFacts

_NOTHING: Final[Mapping[str, float]] = {}


class AnswerAwaited(PlacementError):
    """A container whose plugins have not answered yet."""

    passes = True
    remedy = "wait, or check that the plugin runs"

    def __init__(self, container: str, resources: str) -> None:
        what = f"the plugin for {resources} has not answered for container {container} yet"
        super().__init__(f"{what}; {self.remedy}", what)


class RequestUnclear(PlacementError):
    """A pod with an annotation that does not say what the pod requests, or its class.

    Attributes:
        why: what is wrong with it.
    """

    heals = False
    remedy = "correct the annotation, and create the pod again"

    def __init__(self, why: str) -> None:
        self.why = why
        super().__init__(f"{why}; {self.remedy}", why)


class RequestRefused(PlacementError):
    """A container that a plugin, or the topology policy, refuses.

    Attributes:
        container: its name.
        why: the plugin's words.
    """

    remedy = "read the plugin's log, or change what the pod requests"

    def __init__(self, container: str, why: str) -> None:
        self.container = container
        self.why = why
        what = f"container {container}: {why}"
        super().__init__(f"{what}; the plugin's log has more", what)


class AnswerContested(PlacementError):
    """A container whose plugin has named CPUs that another pod owns.

    Attributes:
        container: its name.
        cpus: the CPUs of the other pod.
    """

    remedy = "create this pod or that one again"

    def __init__(self, container: str, cpus: CPUSet) -> None:
        self.container = container
        self.cpus = cpus
        what = f"container {container}: its plugin has named CPUs {cpus}, which another pod owns"
        super().__init__(f"{what}; {self.remedy}", what)


def awaited(facts: NodeFacts) -> frozenset[str]:
    """Return the resources whose requests plugins answer, also before a plugin has registered.

    The configuration names them: `cpu`, also while the policy is not known, and the resources that
    plugins serve under another name.
    """
    plugins = facts.plugins
    if not plugins.enabled:
        return plugins.served
    named = {each.resource for each in plugins.names.values()}
    if kind(facts.pools.cpu_manager).asks_plugins or not facts.configured:
        named.add(CPU)
    return plugins.served | named


@dataclass(frozen=True, slots=True)
class Awaited:
    """The rules that say which requests plugins answer on a node.

    Attributes:
        resources: the resources whose requests plugins answer.
        names: as in `PluginFacts`.
        cpus: whether the CPU manager policy leaves the CPUs of the default pool to a plugin.
    """

    resources: frozenset[str]
    names: Mapping[str, ServedAs]
    cpus: bool

    @classmethod
    def of(cls, facts: NodeFacts) -> Self:
        """Return the rules on a node with these facts."""
        policy = kind(facts.pools.cpu_manager)
        return cls(awaited(facts), facts.plugins.names, policy.asks_plugins)


def plugin_requests(
    facts: NodeFacts, grants: Grants, pod: Pod, container: Container
) -> Mapping[str, float]:
    """Return the plugins' resources that a container requests, and how much of each."""
    return plugin_requests_by(Awaited.of(facts), grants, pod, container)


def plugin_requests_by(
    rules: Awaited, grants: Grants, pod: Pod, container: Container
) -> Mapping[str, float]:
    """Return the plugins' resources that a container requests, and how much of each.

    A container that requests a pool has the pool's CPUs, and a pod with CPUs of an earlier policy
    keeps these: no plugin is asked for their `cpu`.
    """
    if (
        not rules.resources
        or pod.finished
        or container.kind is ContainerKind.EPHEMERAL
        or pod.description.left_out
    ):
        return _NOTHING
    has = grants.chosen.get(pod.cgroup_uid)
    outside = (
        not rules.cpus
        or bool(container.requests)
        or (has is not None and has.source is Source.POLICY)
    )
    requested = (
        (rules.names.get(name) or ServedAs(name), amount)
        for name, amount in sorted(container.quantities.items())
    )
    return {
        as_.resource: amount / as_.divisor
        for as_, amount in requested
        if as_.resource in rules.resources and not (outside and as_.resource == CPU)
    }


def lacking(
    facts: NodeFacts,
    grants: Grants,
    pod: Pod,
    container: Container,
    rules: Awaited | None = None,
) -> Mapping[str, float]:
    """Return the part of `plugin_requests` without a valid answer that is enough.

    Args:
        facts: the node's facts.
        grants: who owns which CPUs.
        pod: the container's pod.
        container: the container.
        rules: those of the facts, from a caller that asks about many containers.
    """
    ref = ContainerRef(pod.cgroup_uid, container.name)
    given = facts.plugins.answers.get(ref, {})
    return {
        resource: quantity
        for resource, quantity in plugin_requests_by(
            rules or Awaited.of(facts), grants, pod, container
        ).items()
        if resource not in given
        or given[resource].refused
        or not given[resource].serves(quantity)
        or _lost(grants, ref, given[resource])
    }


def _lost(grants: Grants, ref: ContainerRef, given: RecordedAnswer) -> CPUSet:
    """Return the CPUs of an exclusive answer that another pod owns: two records contradict."""
    if not given.exclusive:
        return CPUSet()
    return given.cpus - grants.part(ref.pod, POLICY_CPUS, ref.name)


def resized(given: RecordedAnswer, requested: float | None) -> str:
    """Return that a container requests other CPUs than its plugin gave it alone; empty if not.

    The agent asks a plugin again for more, as the patched kubelet does, and never for less.

    Args:
        given: the plugin's answer.
        requested: the amount of CPUs for which the plugin is asked now; None for none.
    """
    if requested is None or given.kept or requested == given.quantity:
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
    return not pod.description.left_out and not requested.isdisjoint(awaited(facts))


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
    chosen = bool(facts.policy.requests(pod))
    return asks or chosen or any(container.requests for container in pod.containers)


def refusals(facts: NodeFacts, grants: Grants, pods: Iterable[Pod]) -> Mapping[str, Refusal]:
    """Return the pods that lack an answer: the id in a pod's cgroup name → why.

    A pod is held with the first container that must not start without its answer.

    Args:
        facts: the node's facts.
        grants: who owns which CPUs.
        pods: the pods that run or start.
    """
    rules = Awaited.of(facts)
    if not rules.resources:
        return {}
    found = ((pod, _refusal(facts, grants, pod, rules)) for pod in pods)
    return {pod.cgroup_uid: refusal for pod, refusal in found if refusal}


def _refusal(facts: NodeFacts, grants: Grants, pod: Pod, rules: Awaited) -> Refusal | None:
    described = pod.description
    if pod.finished or described.starts_early:
        return None
    reported = any(container.id for container in pod.containers)
    if described.unclear and not described.left_out:
        unclear = RequestUnclear(described.unclear)
        return Refusal(unclear, holds=not (reported or pod.essential), reachable=False)
    optional = None
    for container in pod.containers:
        resources = lacking(facts, grants, pod, container, rules)
        if not resources:
            continue
        error = reason(facts, grants, pod, container, resources)
        shares = not error.passes and facts.pools.cpu_manager.on_misfit is Misfit.SHARE
        bound = _bound(facts, pod, resources, passes=error.passes)
        if bound and not (reported or pod.essential or shares):
            return Refusal(error, holds=True, reachable=False)
        if not error.passes:
            optional = optional or Refusal(error, holds=False, reachable=False)
    return optional


def _bound(facts: NodeFacts, pod: Pod, resources: Collection[str], *, passes: bool) -> bool:
    """Return whether a container is not created before it has answers for some resources.

    Variables and annotations of other resources than cpu and memory cannot come later. A pod that
    may share waits, too, but not for a plugin that has refused it, is away or is silent.

    Args:
        facts: the node's facts.
        pod: the container's pod.
        resources: what has no answer.
        passes: whether the answers are awaited, and none is refused.
    """
    if pod.description.awaits_all or not set(resources) <= set(NATIVE):
        return True
    plugins = facts.plugins
    return passes and (plugins.expected or set(resources) <= plugins.answering)


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
    given = facts.plugins.answers.get(ref, {})
    for resource in resources:
        if resource in given and (why := given[resource].refused):
            return RequestRefused(container.name, why)
        if resource in given and (lost := _lost(grants, ref, given[resource])):
            return AnswerContested(container.name, lost)
    if awaits_devices(facts, pod):
        return DevicesUnnamed()
    return AnswerAwaited(container.name, " and ".join(resources))
