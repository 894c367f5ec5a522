"""The resources of each NUMA node, as the node itself would give them to a pod."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from cpupool.core.cpu_manager import TopologyPolicy
from cpupool.core.cpuset import CPUSet
from cpupool.core.devices import NATIVE_CPU, advertised, exclusive_cpus
from cpupool.core.node_topology import Amounts, TopologyManager, Zone, huge_page_resource
from cpupool.core.resources import MEMORY, is_extended
from cpupool.manager import offers
from cpupool.policies.base import DEFAULT, NodeView
from cpupool.policies.built_in import given

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from cpupool.core.devices import Advertised
    from cpupool.core.names import Names
    from cpupool.core.node_topology import KubeletAmounts, NodeMemories
    from cpupool.core.topology import CPUTopology
    from cpupool.core.workloads import Pod
    from cpupool.manager.facts import NodeFacts
    from cpupool.manager.resolve import Resolution

_Resources = dict[str, Amounts]
_NOTHING: Final = Amounts(0, 0, 0)


def zones(
    facts: NodeFacts,
    resolution: Resolution,
    names: Names,
    memory: NodeMemories,
    kubelet: KubeletAmounts,
    *,
    every_cpu: bool = False,
) -> tuple[Zone, ...]:
    """Return the NUMA nodes with their resources, sorted by id.

    A resource without a NUMA node is in no zone, as a shared pool's: the node gives it to any pod.
    A zone has every resource that another zone has: schedulers take a missing one for no limit.

    Args:
        facts: the node's facts.
        resolution: the decisions that follow from them.
        names: the names of the pools' resources.
        memory: the memory of the nodes; without it memory and huge pages are left out.
        kubelet: the kubelet's books of what it pins to nodes.
        every_cpu: whether `allocatable` counts every online CPU, also those of pools: for a
            scheduler that subtracts these itself.
    """
    by_node: dict[int, _Resources] = {node: {} for node in facts.topology.nodes}
    for name, amounts in (
        (NATIVE_CPU, _cpus(facts, resolution, kubelet.own_cpus, every_cpu=every_cpu)),
        *_memory(memory),
        *_foreign(kubelet, names),
        *_pools(facts, resolution, names),
    ):
        for node, resources in by_node.items():
            resources[name] = amounts.get(node, _NOTHING)
    order = sorted(by_node)
    return tuple(
        Zone(
            node,
            dict(sorted(by_node[node].items())),
            dict(zip(order, facts.topology.distances.get(node, ()), strict=False)),
        )
        for node in order
    )


def fingerprinted(pods: tuple[Pod, ...], resources: frozenset[str]) -> Iterator[tuple[str, str]]:
    """Yield namespace and name of the pods that a scheduler has to see in `available`.

    These are running pods with a container that lasts and requests an extended resource of the
    zones or, in a Guaranteed pod, whole cpu, memory or huge pages.

    Source: AreExclusiveForPod and IsPodRelevantShared in kubernetes-sigs/scheduler-plugins,
    pkg/noderesourcetopology.

    Args:
        pods: the node's pods.
        resources: the names of the zones' resources.
    """
    for pod in pods:
        lasting = frozenset().union(*(container.lasting for container in pod.containers))
        if pod.running and any(name in resources or not is_extended(name) for name in lasting):
            yield pod.namespace, pod.name


def refusing(facts: NodeFacts, kubelet: TopologyManager | None) -> TopologyManager | None:
    """Return the Topology Manager that refuses pods of this node; None where it is not known.

    The object has room for one: the kubelet's, or else that of the CPU manager policy. Without NUMA
    nodes there is nothing to align, and a scheduler that tried would find no node.
    """
    if not facts.topology.nodes:
        return TopologyManager()
    if kubelet is not None and kubelet.policy is not TopologyPolicy.NONE:
        return kubelet
    own = facts.pools.cpu_manager
    ours = own.chooses and own.topology_policy.of_kubelet
    return TopologyManager(own.topology_policy, own.topology_scope) if ours else kubelet


def allocatable_cpus(facts: NodeFacts, view: NodeView) -> CPUSet:
    """Return the CPUs that pods without pools can get while no pod runs.

    If no CPU manager gives out CPUs, native cpu is time on any CPU.
    """
    if facts.pools.cpu_manager.chooses:
        return given(facts.policy, NodeView(facts.topology, facts.pools, view.cpus))
    if facts.static_cpus:
        return facts.static_cpus & facts.topology.online
    return facts.topology.online


def _cpus(
    facts: NodeFacts, resolution: Resolution, of_kubelet: CPUSet, *, every_cpu: bool
) -> Mapping[int, Amounts]:
    topology, view = facts.topology, resolution.view
    if facts.pools.cpu_manager.chooses:
        idle = NodeView(topology, facts.pools, view.cpus)
        allocatable, available = _own_cpus(facts, idle), _own_cpus(facts, view)
    else:
        # A scheduler compares a Guaranteed pod's cpu with that of one node. Without a CPU manager
        # the node does not: less than all would keep pods from the nodes of their devices.
        allocatable = available = allocatable_cpus(facts, view)
    if facts.static_cpus:
        available -= of_kubelet | resolution.grants.cpus
    if every_cpu:
        allocatable = topology.online
    return {
        node: Amounts(len(cpus), len(cpus & allocatable), len(cpus & available))
        for node, cpus in topology.nodes.items()
    }


def _own_cpus(facts: NodeFacts, view: NodeView) -> CPUSet:
    """Return the CPUs that the pods of one NUMA node can get as their own.

    The policy may give CPUs that others share, but never all of these.
    """
    cpus, shared = given(facts.policy, view), facts.policy.extents(view)[DEFAULT]
    of_nodes = (cpus & on_node for on_node in facts.topology.nodes.values())
    if not shared or not any(shared <= found for found in of_nodes):
        return cpus
    whole = facts.pools.cpu_manager.options.full_pcpus_only
    last = CPUSet.of(shared.first)
    return cpus - (facts.topology.with_siblings(last) if whole else last)


def _memory(memory: NodeMemories) -> Iterator[tuple[str, Mapping[int, Amounts]]]:
    sizes = {size for node in memory.values() for size in node.huge_pages}
    kept = {
        node: sum(size * count for size, count in has.huge_pages.items())
        for node, has in memory.items()
    }
    if memory:
        yield MEMORY, {node: _all(has.total_bytes - kept[node]) for node, has in memory.items()}
    for size in sorted(sizes):
        yield (
            huge_page_resource(size),
            {node: _all(size * has.huge_pages.get(size, 0)) for node, has in memory.items()},
        )


def _all(count: int) -> Amounts:
    return Amounts(count, count, count)


def _foreign(kubelet: KubeletAmounts, names: Names) -> Iterator[tuple[str, Mapping[int, Amounts]]]:
    for name, amounts in kubelet.by_node.items():
        if name != NATIVE_CPU and names.pool_of(name) is None:
            yield name, amounts


def _pools(
    facts: NodeFacts, resolution: Resolution, names: Names
) -> Iterator[tuple[str, Mapping[int, Amounts]]]:
    held = offers.held_ids(facts)
    for resource in advertised(facts.pools):
        if resource.name.kind.exclusive:
            ids = held.get(resource.name, frozenset())
            yield names.resource(resource.name), _devices(facts, resolution, resource, ids)


def _devices(
    facts: NodeFacts, resolution: Resolution, resource: Advertised, held: frozenset[str]
) -> Mapping[int, Amounts]:
    devices = tuple(offers.offer(facts, resolution, resource, held))
    offered = resource.pool.offered
    healthy = exclusive_cpus(device.id for device in devices if device.healthy) & offered
    free = healthy - exclusive_cpus(held)
    return {
        node: Amounts(count, _on(facts.topology, healthy, node), _on(facts.topology, free, node))
        for node, count in _count_by_node(facts.topology, offered).items()
    }


def _count_by_node(topology: CPUTopology, cpus: CPUSet) -> Mapping[int, int]:
    nodes = (topology.node_of(cpu) for cpu in cpus)
    return Counter(node for node in nodes if node is not None)


def _on(topology: CPUTopology, cpus: CPUSet, node: int) -> int:
    return len(cpus & topology.nodes.get(node, CPUSet()))
