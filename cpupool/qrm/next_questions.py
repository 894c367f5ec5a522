"""The next questions about a container: hints first, then the parts that it gets.

As in the Topology Manager, all plugins of a container are asked for hints, these are merged with
the NUMA nodes of its devices and with those of the CPU manager policy, and each plugin gets the
merged hint with the request. With the topology scope `pod` this is done for all containers of a pod
at one time.

A pod that runs waits for no plugin that is away or silent, as in the patched kubelet: the agent
asks the others, and it asks a silent plugin without hints.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from cpupool.core.cpu_manager import TopologyPolicy
from cpupool.core.errors import PlacementError
from cpupool.core.pod_resources import NATIVE
from cpupool.core.workloads import ContainerKind, ContainerRef
from cpupool.manager import aligning, by_plugins, choosing
from cpupool.policies import hints
from cpupool.policies.qrm.questions import Question
from cpupool.qrm.numeric_hints import merge_each

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from cpupool.core.cpu_manager import TopologyHint
    from cpupool.core.workloads import Container, Pod
    from cpupool.manager.facts import NodeFacts
    from cpupool.manager.resolve import Snapshot
    from cpupool.policies.qrm.questions import PluginOptions
    from cpupool.qrm.plugin_messages import Hints
    from cpupool.qrm.question_table import HintsAnswer

_ALIGNED: Final = NATIVE
"""The resources that the policy `numeric` aligns."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The questions to ask now; none if the container has all, or must wait.

    Attributes:
        hints: requests to ask for hints.
        allocate: requests to ask for, with the merged hint; None without a topology policy, and
            for a plugin that is not aligned.
        refused: why no NUMA nodes serve the container.
    """

    hints: tuple[Question, ...] = ()
    allocate: tuple[tuple[Question, TopologyHint | None], ...] = ()
    refused: str = ""


def plan(
    now: Snapshot,
    pod: Pod,
    container: Container,
    plugins: Mapping[str, PluginOptions],
    *,
    heard: Mapping[ContainerRef, Mapping[str, HintsAnswer]],
    unlisted: Collection[str],
) -> Plan:
    """Return what to ask for a container now.

    Args:
        now: the node's facts and decisions.
        pod: the container's pod.
        container: the container.
        plugins: resource → the options of its plugin, which is there.
        heard: the hints so far.
        unlisted: the resources whose plugin is there, and is to list before it allocates.
    """
    facts, open_ = now.facts, _open(now, pod, container)
    contradiction = _contradiction(facts, container)
    group = _aligned_with(facts, pod, container)
    needed = {resource for each in group for resource in _questions(now, pod, each)}
    aligned = {resource for resource, options in plugins.items() if options.aligned}
    waits = not needed.isdisjoint(unlisted) or by_plugins.awaits_devices(facts, pod)
    if pod.running:
        waits |= facts.plugins.expected
        aligned &= facts.plugins.answering
        open_ = {resource: open_[resource] for resource in open_.keys() & plugins.keys()}
    else:
        waits |= not needed <= plugins.keys()
    if contradiction or not open_ or waits:
        return Plan(refused=contradiction if open_ else "")
    policy = aligning.topology_policy(facts, pod)
    if policy is TopologyPolicy.NONE:
        return Plan(allocate=tuple((open_[resource], None) for resource in sorted(open_)))
    wanting = tuple(
        question
        for each in group
        for resource, question in sorted(_open(now, pod, each).items())
        if resource in aligned and resource not in heard.get(question.container, {})
    )
    if wanting:
        return Plan(hints=wanting)
    offers = {each.name: _offers(now, pod, each, heard) for each in group}
    try:
        merged = _merged(now, pod, container, offers)
    except PlacementError as error:
        return Plan(refused=error.as_kubelet)
    if merged is None:
        said = (heard.get(ContainerRef(pod.cgroup_uid, name), {}) for name in offers)
        words = [each.why for by_resource in said for each in by_resource.values() if each.why]
        fact = f"no NUMA nodes serve all its resources (topologyPolicy {policy.value})"
        return Plan(refused="; ".join([fact, *words]))
    return Plan(
        allocate=tuple(
            (open_[resource], merged[resource] if plugins[resource].aligned else None)
            for resource in sorted(open_)
        )
    )


def _aligned_with(facts: NodeFacts, pod: Pod, container: Container) -> tuple[Container, ...]:
    """Return the containers whose resources lie on the same NUMA nodes."""
    if not aligning.at_once(facts):
        return (container,)
    return tuple(
        each for each in pod.containers if not (pod.running and each.kind is ContainerKind.INIT)
    )


def _contradiction(facts: NodeFacts, container: Container) -> str:
    """Return that a container requests one resource of a plugin by two names, or nothing."""
    found: dict[str, str] = {}
    served = by_plugins.awaited(facts)
    for name in sorted(container.quantities):
        resource = facts.plugins.served_as(name).resource
        if resource in served and resource in found:
            return f"requests {found[resource]} and {name}, which are the plugin's {resource}"
        found[resource] = name
    return ""


def _questions(now: Snapshot, pod: Pod, container: Container) -> dict[str, Question]:
    """Return a container's requests to plugins: resource → request."""
    asked = by_plugins.plugin_requests(now.facts, now.resolution.grants, pod, container)
    return {
        resource: Question.of(pod, container, resource, quantity)
        for resource, quantity in asked.items()
    }


def _open(now: Snapshot, pod: Pod, container: Container) -> dict[str, Question]:
    """Return those that have no answer, or one that is not enough."""
    facts, grants = now.facts, now.resolution.grants
    given = facts.plugins.answers.get(ContainerRef(pod.cgroup_uid, container.name), {})
    lacking = by_plugins.lacking(facts, grants, pod, container)
    return {
        resource: question
        for resource, question in _questions(now, pod, container).items()
        # An answer that breaks a rule may be valid later; its plugin believes that it has given it.
        if resource in lacking
        and (resource not in given or not given[resource].serves(question.quantity))
    }


def _offers(
    now: Snapshot,
    pod: Pod,
    container: Container,
    heard: Mapping[ContainerRef, Mapping[str, HintsAnswer]],
) -> dict[str, Hints]:
    """Return the NUMA nodes of a container's requests; what an earlier answer gave stays."""
    ref = ContainerRef(pod.cgroup_uid, container.name)
    given, nodes = now.facts.plugins.answers.get(ref, {}), now.facts.topology.nodes
    had = {resource: each.near(nodes) for resource, each in given.items()}
    said = heard.get(ref, {})
    return {
        resource: said[resource].hints if resource in said else had.get(resource)
        for resource in _questions(now, pod, container)
    }


def _merged(
    now: Snapshot, pod: Pod, container: Container, offers: Mapping[str, Mapping[str, Hints]]
) -> Mapping[str, TopologyHint] | None:
    """Return resource → its NUMA nodes; None if the topology policy refuses the container.

    All containers with offers lie on the same nodes. The CPU manager policy has a say, too: it
    chooses CPUs near what the plugins give.

    Raises:
        PlacementError: the CPU manager policy has no CPUs for the pod.
    """
    facts, view = now.facts, now.resolution.view
    policy, own = aligning.topology_policy(facts, pod), offers[container.name]
    of_devices = aligning.of_devices(facts, pod, aligning.part(facts, container.name))
    if policy is TopologyPolicy.NUMERIC:
        listed = [*own.items(), *((f"device {n}", each) for n, each in enumerate(of_devices))]
        return merge_each(listed, _ALIGNED).hints
    nodes = facts.topology.nodes
    of_plugins = [hint for by_resource in offers.values() for hint in by_resource.values()]
    for of_cpus in choosing.offered(facts, view.pods, view.grants, pod, container.name):
        merged = hints.merge(policy, nodes, [*of_plugins, *of_devices, of_cpus])
        if merged.admit:
            return dict.fromkeys(own, merged.hint)
    return None
