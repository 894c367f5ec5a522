"""What plugins are asked next for a container: hints first, then what it gets.

As in the Topology Manager, all plugins of a container are asked for hints, these are merged with
the NUMA nodes of its devices and with those of the CPU manager policy, and each plugin gets the
merged hint with the request.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from cpupool.core.cpu_manager import TopologyHint, TopologyPolicy
from cpupool.core.errors import PlacementError
from cpupool.core.resources import NATIVE
from cpupool.core.workloads import ContainerRef
from cpupool.manager import aligning, choosing, plugin_requests
from cpupool.policies import hints
from cpupool.policies.numeric import merge_each
from cpupool.wire import katalyst

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cpupool.core.resource_plugins import PluginOptions, Question
    from cpupool.core.workloads import Container, Pod
    from cpupool.manager.resolve import Snapshot

Hints = tuple[TopologyHint, ...] | None
_ALIGNED: Final = NATIVE
"""The resources that the policy `numeric` aligns."""


@dataclass(frozen=True, slots=True)
class Heard:
    """A plugin's hints for a container.

    Attributes:
        hints: None for no preference, empty if no nodes can serve it.
        why: the plugin's words, if it has refused.
    """

    hints: Hints
    why: str = ""


@dataclass(frozen=True, slots=True)
class Plan:
    """What to ask now; nothing if the container has all, or must wait.

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
    heard: Mapping[str, Heard],
) -> Plan:
    """Return what to ask for a container.

    Args:
        now: the node.
        pod: the container's pod.
        container: the container.
        plugins: resource → the options of its plugin, for the plugins that are there.
        heard: resource → the hints for this container.
    """
    facts, grants = now.facts, now.resolution.grants
    given = facts.plugins.given.get(ContainerRef(pod.cgroup_uid, container.name), {})
    open_ = {
        resource
        for resource, quantity in plugin_requests.lacking(facts, grants, pod, container).items()
        # An answer that breaks a rule may count later; the plugin has it as given.
        if resource not in given or not given[resource].serves(quantity)
    }
    asked = {
        resource: katalyst.question(pod, container, resource, quantity)
        for resource, quantity in plugin_requests.asked(facts, grants, pod, container).items()
    }
    contradiction = plugin_requests.contradiction(facts, container)
    waits = not asked.keys() <= plugins.keys() or plugin_requests.awaits_devices(facts, pod)
    if contradiction or not open_ or waits:
        return Plan(refused=contradiction if open_ else "")
    policy = aligning.topology_policy(facts, pod)
    if policy is TopologyPolicy.NONE:
        return Plan(allocate=tuple((asked[resource], None) for resource in sorted(open_)))
    wanting = tuple(
        asked[resource]
        for resource in sorted(open_)
        if plugins[resource].aligned and resource not in heard
    )
    if wanting:
        return Plan(hints=wanting)
    # What an earlier answer gave stays.
    had = {resource: each.near for resource, each in given.items()}
    offers = {
        resource: heard[resource].hints if resource in heard else had.get(resource)
        for resource in asked
    }
    try:
        merged = _merged(now, pod, container, offers)
    except PlacementError as error:
        return Plan(refused=error.as_kubelet)
    if merged is None:
        words = [each.why for each in heard.values() if each.why]
        fact = f"no NUMA nodes serve all its resources (topologyPolicy {policy.value})"
        return Plan(refused="; ".join([fact, *words]))
    return Plan(
        allocate=tuple(
            (asked[resource], merged[resource] if plugins[resource].aligned else None)
            for resource in sorted(open_)
        )
    )


def _merged(
    now: Snapshot, pod: Pod, container: Container, offers: Mapping[str, Hints]
) -> Mapping[str, TopologyHint] | None:
    """Return resource → its NUMA nodes; None if the topology policy refuses the container.

    The CPU manager policy has a say, too: it chooses CPUs near what the plugins give.

    Raises:
        PlacementError: the CPU manager policy has no CPUs for the pod.
    """
    facts, view = now.facts, now.resolution.view
    policy = aligning.topology_policy(facts, pod)
    of_devices = aligning.of_devices(facts, pod, container.name)
    if policy is TopologyPolicy.NUMERIC:
        listed = [*offers.items(), *((f"device {n}", each) for n, each in enumerate(of_devices))]
        return merge_each(listed, _ALIGNED).hints
    nodes = facts.topology.nodes
    of_cpus = choosing.offered(facts, view.pods, view.grants, pod, container.name)
    merged = hints.merge(policy, nodes, [*offers.values(), *of_devices, of_cpus])
    return dict.fromkeys(offers, merged.hint) if merged.admit else None
