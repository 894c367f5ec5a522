"""The resources of each NUMA node, as the node itself would give them to a pod."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from cpupool.config.kubelet_settings import NO_MEMORY_MANAGER
from cpupool.core.cpu_manager import STATIC, Scope, TopologyPolicy
from cpupool.core.cpuset import CPUSet
from cpupool.core.devices import NATIVE_CPU, advertised, exclusive_cpus
from cpupool.core.node_topology import Amounts, TopologyManager, Zone, huge_page_resource
from cpupool.core.pod_resources import MEMORY, is_extended
from cpupool.manager import offers
from cpupool.manager.aligning import node_policy
from cpupool.policies.built_in import given
from cpupool.policies.view import DEFAULT, NodeView

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from cpupool.config.kubelet_settings import KubeletConfig
    from cpupool.core.devices import Advertised
    from cpupool.core.names import Names
    from cpupool.core.node_topology import KubeletAmounts, NodeMemories
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
    loose: frozenset[str] = frozenset(),
) -> tuple[Zone, ...]:
    """Return the NUMA nodes with their resources, sorted by id.

    A resource without a NUMA node is in no zone, as a shared pool's: the node gives it to any pod.
    A zone has every resource that another zone has: schedulers take a missing one for no limit.
    Cpu, memory and huge pages are in each zone, because schedulers refuse every pod for them
    otherwise.

    Args:
        facts: the node's facts.
        resolution: the decisions that follow from them.
        names: the names of the pools' resources.
        memory: the memory of the nodes; without it memory and huge pages are left out.
        kubelet: the kubelet's books of what it pins to nodes.
        every_cpu: whether `allocatable` includes every online CPU, also those of pools: for a
            scheduler that subtracts these itself.
        loose: as from `loose`: of each of them, every zone has what the whole node has.
    """
    by_node: dict[int, _Resources] = {node: {} for node in facts.topology.nodes}
    parts = facts.topology.nodes
    if NATIVE_CPU in loose:
        parts = dict.fromkeys(parts, CPUSet.union(parts.values()))
    for name, amounts in (
        (NATIVE_CPU, _cpus(facts, resolution, kubelet.own_cpus, parts, every_cpu=every_cpu)),
        *_memory(memory, [*by_node], loose=MEMORY in loose),
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


def loose(
    facts: NodeFacts,
    published: TopologyManager | None,
    kubelet: KubeletConfig | None,
    amounts: KubeletAmounts,
) -> frozenset[str]:
    """Return `cpu` and `memory`, each if no manager keeps that of a pod on one NUMA node.

    The published policy makes a scheduler refuse pods that fit into no zone. The node refuses them
    only if a static CPU manager, or a memory manager, gives hints to a Topology Manager that is as
    strict. Memory stands for huge pages, too. Devices have the hints of their plugins.

    Sources: GetTopologyHints of pkg/kubelet/cm/cpumanager and memorymanager in kubernetes: the
    policies `none` and `None` have no hint; kubernetes-sigs/scheduler-plugins,
    pkg/noderesourcetopology/filter.go, which refuses for `single-numa-node` alone.

    Args:
        facts: the node's facts.
        published: the Topology Manager that schedulers read; None where none is named.
        kubelet: the kubelet's configuration; None where it is not known.
        amounts: the kubelet's books, which have memory with its memory manager alone.
    """
    if published is None or published.policy is not TopologyPolicy.SINGLE_NUMA_NODE:
        return frozenset()

    def keeps(manager: TopologyManager | None) -> bool:
        """Return whether a manager refuses what a scheduler refuses by the published one."""
        if manager is None or manager.policy is not published.policy:
            return False
        return manager.scope is Scope.POD or published.scope is Scope.CONTAINER

    own = facts.pools.cpu_manager
    by_kubelet = keeps(kubelet.topology_manager if kubelet else None)
    by_us = own.chooses and keeps(TopologyManager(node_policy(facts), own.topology_scope))
    static = bool(facts.static_cpus) or (kubelet and kubelet.cpu_manager_policy == STATIC)
    pins = MEMORY in amounts.by_node or (
        kubelet and kubelet.memory_manager_policy not in (NO_MEMORY_MANAGER, "")
    )
    kept = {
        NATIVE_CPU: by_us or (by_kubelet and static),
        MEMORY: (pins and (by_kubelet or by_us)) or (MEMORY in facts.plugins.served and by_us),
    }
    return frozenset(name for name, is_kept in kept.items() if not is_kept)


def refusing(facts: NodeFacts, kubelet: TopologyManager | None) -> TopologyManager | None:
    """Return the Topology Manager that refuses pods of this node; None where it is not known.

    The object has room for one: the kubelet's, or else that of the CPU manager policy. Without NUMA
    nodes there is nothing to align, and a scheduler that tried would find no node.
    """
    if not facts.topology.nodes:
        return TopologyManager()
    if kubelet is not None and kubelet.policy is not TopologyPolicy.NONE:
        return kubelet
    own, policy = facts.pools.cpu_manager, node_policy(facts)
    ours = own.chooses and policy.of_kubelet and policy is not TopologyPolicy.NONE
    return TopologyManager(policy, own.topology_scope) if ours else kubelet


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
    facts: NodeFacts,
    resolution: Resolution,
    of_kubelet: CPUSet,
    parts: Mapping[int, CPUSet],
    *,
    every_cpu: bool,
) -> Mapping[int, Amounts]:
    topology, view = facts.topology, resolution.view
    if facts.pools.cpu_manager.chooses:
        idle = NodeView(topology, facts.pools, view.cpus)
        allocatable, available = _own_cpus(facts, idle, parts), _own_cpus(facts, view, parts)
    else:
        # Without a CPU manager cpu is time on any CPU: what pods have of it is not known here.
        allocatable = available = allocatable_cpus(facts, view)
    if facts.static_cpus:
        available -= of_kubelet | resolution.grants.cpus
    if every_cpu:
        allocatable = topology.online
    return {
        node: Amounts(len(cpus), len(cpus & allocatable), len(cpus & available))
        for node, cpus in parts.items()
    }


def _own_cpus(facts: NodeFacts, view: NodeView, parts: Mapping[int, CPUSet]) -> CPUSet:
    """Return the CPUs that the pods of one part can get as their own.

    The policy may give CPUs that others share, but never all of these.
    """
    cpus, shared = given(facts.policy, view), facts.policy.extents(view)[DEFAULT]
    of_parts = (cpus & part for part in parts.values())
    if not shared or not any(shared <= found for found in of_parts):
        return cpus
    whole = facts.pools.cpu_manager.options.full_pcpus_only
    last = CPUSet.of(shared.first)
    return cpus - (facts.topology.with_running_siblings(last) if whole else last)


def _memory(
    memory: NodeMemories, nodes: Collection[int], *, loose: bool
) -> Iterator[tuple[str, Mapping[int, Amounts]]]:
    if not memory:
        return
    by_name = {MEMORY: {node: has.ordinary_bytes for node, has in memory.items()}}
    for size in sorted({size for has in memory.values() for size in has.huge_pages}):
        by_name[huge_page_resource(size)] = {
            node: size * has.huge_pages.get(size, 0) for node, has in memory.items()
        }
    for name, in_bytes in by_name.items():
        of_each = dict.fromkeys(nodes, sum(in_bytes.values())) if loose else in_bytes
        yield name, {node: Amounts(each, each, each) for node, each in of_each.items()}


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
        node: Amounts(len(offered & cpus), len(healthy & cpus), len(free & cpus))
        for node, cpus in facts.topology.nodes.items()
        if not cpus.isdisjoint(offered)
    }
