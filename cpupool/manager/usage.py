"""The use of each pool and of the CPU manager policy's CPUs, and how scattered the CPUs are."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Final

from cpupool.core import devices
from cpupool.core.cpu_manager import NONE, TopologyPolicy
from cpupool.core.cpuset import CPUSet
from cpupool.core.errors import TopologyAffinityError
from cpupool.core.names import POLICY_CPUS
from cpupool.manager import offers
from cpupool.policies.built_in import kind
from cpupool.policies.layout import Layout, Level
from cpupool.policies.pools.fragmentation import score
from cpupool.policies.view import BEST_EFFORT, DEFAULT

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from cpupool.core.grants import Grant
    from cpupool.core.pools import Pool, PoolKind
    from cpupool.core.topology import CPUTopology
    from cpupool.manager.facts import NodeFacts
    from cpupool.policies.view import NodeView

_LEVELS: Final = {"numa_node": Level.NODE, "uncore_cache": Level.UNCORE}


@dataclass(frozen=True, slots=True)
class PoolUsage:
    """One pool of the kubelet's, in devices: CPUs, milli-CPUs of a shared pool, or units.

    Attributes:
        name: the pool's name.
        kind: exclusive or shared.
        capacity: devices of the configured pool; 0 where it is no longer configured.
        allocated: devices that pods hold.
        offline: devices of the configured pool whose CPU is offline.
        draining: devices that pods hold and that the pool has lost.
    """

    name: str
    kind: PoolKind
    capacity: int
    allocated: int
    offline: int
    draining: int


def usage(facts: NodeFacts) -> tuple[PoolUsage, ...]:
    """Return the usage of every pool, also of pools that exist only because pods hold devices."""
    return tuple(_usage(facts))


def _usage(facts: NodeFacts) -> Iterator[PoolUsage]:
    held = offers.held_ids(facts)
    for resource in offers.offered(facts, held):
        ids = held.get(resource.name, frozenset())
        yield PoolUsage(
            name=resource.name,
            kind=resource.pool.kind,
            capacity=resource.capacity,
            allocated=len(ids),
            offline=resource.offline(facts.topology),
            draining=len(resource.drained(ids)),
        )


def fragmentation(facts: NodeFacts) -> dict[str, dict[str, float]]:
    """Return how scattered the free CPUs of each exclusive pool are.

    Returns:
        pool → `numa_node` and `uncore_cache` → 0 to 1, as `policies.fragmentation.score`.
    """
    held = offers.held_ids(facts)
    return {
        resource.name: _scores(
            resource.pool,
            facts.topology,
            devices.exclusive_cpus(held.get(resource.name, frozenset())),
        )
        for resource in offers.offered(facts, held)
        if resource.name.kind.exclusive
    }


def _scores(pool: Pool, topology: CPUTopology, held: CPUSet) -> dict[str, float]:
    there = pool.offered & topology.online
    layout = Layout.of_topology(topology, there)
    return {
        name: score(there - held, layout.groups[level].values()) for name, level in _LEVELS.items()
    }


class Boundary(Enum):
    """The borders that a container's own CPUs can respect, in the words of the kubelet's metrics.

    Source: pkg/kubelet/metrics/metrics.go, `container_aligned_compute_resources_count`.
    """

    PHYSICAL_CPU = "physical_cpu"
    UNCORE_CACHE = "uncore_cache"
    NUMA_NODE = "numa_node"


@dataclass(frozen=True, slots=True)
class PolicyUsage:
    """The CPUs of the CPU manager policy.

    Attributes:
        free: how many CPUs the policy can still give.
        owned: how many CPUs containers own.
        by_node: NUMA node → how many of the owned CPUs lie on it.
        shared: NUMA node → how many of its CPUs the pods without own CPUs share.
        best_effort: the same for best-effort pods; empty where they have no set of their own.
        owners: class of pods → how many of them own CPUs, and how many CPUs; the class of other
            owners is `none`.
        irregular: class of pods → how many of them break a rule of admission.
    """

    free: int
    owned: int
    by_node: Mapping[int, int]
    shared: Mapping[int, int]
    best_effort: Mapping[int, int]
    owners: Mapping[str, tuple[int, int]]
    irregular: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ChoiceCounts:
    """The numbers of choices and refusals of the CPU manager policy.

    Attributes:
        given: containers that got CPUs of their own.
        refused: pods that did not.
        aligned: boundary → how many of these containers do not cross it.
        misaligned: boundary → how many of these pods did not fit, because the policy promises the
            boundary.
    """

    given: int
    refused: int
    aligned: Mapping[Boundary, int]
    misaligned: Mapping[Boundary, int]


def policy_usage(facts: NodeFacts, view: NodeView) -> PolicyUsage:
    """Return how much of the CPU manager policy's CPUs is in use."""
    owned = CPUSet.union(grant.cpus for grant in view.chosen.values())
    best_effort = view.extents.get(BEST_EFFORT)
    return PolicyUsage(
        len(facts.policy.available(view)),
        len(owned),
        _by_node(view, owned),
        _by_node(view, view.extents[DEFAULT]),
        {} if best_effort is None else _by_node(view, best_effort),
        _owners(view),
        _irregular(view),
    )


def _by_node(view: NodeView, cpus: CPUSet) -> dict[int, int]:
    return {node: len(cpus & there) for node, there in view.topology.nodes.items()}


def _owners(view: NodeView) -> dict[str, tuple[int, int]]:
    classes = {pod.cgroup_uid: pod.orchestration and pod.orchestration.qos for pod in view.pods}
    counted = dict.fromkeys(kind(view.pools.cpu_manager).owner_classes, (0, 0))
    for uid, grant in view.chosen.items():
        qos = classes.get(uid)
        name = qos.value if qos else NONE
        pods, cpus = counted.get(name, (0, 0))
        counted[name] = pods + 1, cpus + len(grant.cpus)
    return counted


def _irregular(view: NodeView) -> dict[str, int]:
    policy = kind(view.pools.cpu_manager)
    told = [pod.orchestration for pod in view.pods if policy.irregular(pod)]
    found = [each.qos.value for each in told if each and each.qos]
    return {name: found.count(name) for name in policy.owner_classes}


def choice_counts(before: NodeView | None, after: NodeView) -> ChoiceCounts:
    """Count the CPU manager policy's decisions between two views; `before` is None at the start.

    As in the kubelet, the numbers by core and by NUMA node are 0 unless the configuration promises
    that boundary.
    """
    manager = after.pools.cpu_manager
    cores = manager.options.full_pcpus_only
    nodes = manager.topology_policy is TopologyPolicy.SINGLE_NUMA_NODE
    given = [cpus for uid, grant in after.chosen.items() for cpus in _new(before, uid, grant)]
    refused = [
        refusal.error
        for uid, refusal in after.refused.items()
        if before is None or uid not in before.refused
    ]
    apart = sum(isinstance(error, TopologyAffinityError) for error in refused)
    return ChoiceCounts(
        len(given),
        len(refused),
        {
            Boundary.PHYSICAL_CPU: cores * len(given),
            Boundary.UNCORE_CACHE: sum(_behind_one_cache(after.topology, cpus) for cpus in given),
            Boundary.NUMA_NODE: nodes * len(given),
        },
        {
            Boundary.PHYSICAL_CPU: cores * (len(refused) - apart),
            Boundary.NUMA_NODE: nodes * apart,
        },
    )


def _new(before: NodeView | None, uid: str, grant: Grant) -> Iterator[CPUSet]:
    """Yield the CPUs that a pod has got since an earlier view; a bubble counts once."""
    if grant.bubble:
        if before is None or uid not in before.chosen:
            yield grant.cpus
        return
    for name, cpus in grant.parts.items():
        if before is None or not before.grants.part(uid, POLICY_CPUS, name):
            yield cpus


def _behind_one_cache(topology: CPUTopology, cpus: CPUSet) -> bool:
    return any(cpus <= behind for behind in topology.l3)
