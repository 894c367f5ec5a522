"""From the facts about a node to the CPUs of every container: pure functions of values.

The owner of an exclusive CPU is the pod, from the moment the kubelet has given it the device until
the pod ends. Whatever the pools say meanwhile, nobody else is placed on it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from cpupool.core import devices
from cpupool.core.assignments import CPUAssignment, DeviceAssignments, Placement, PodDevices
from cpupool.core.cpuset import CPUSet
from cpupool.core.pools import NodePools, Pool, PoolKind
from cpupool.core.topology import NO_CPUS, CPUTopology
from cpupool.core.workloads import ContainerID, ContainerRef, PodUID

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from cpupool.core.names import Names
    from cpupool.core.workloads import Container, Pod

ContainerKey = tuple[str, ContainerID]
"""The ids in a container's cgroup path: the pod's and its own."""


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """Everything that the decisions follow from.

    Attributes:
        pools: as configured.
        topology: as last read.
        pods: this node's pods; None until a first complete list is known.
        devices: what the kubelet gave to these pods.
        retired: pools that are configured no longer, whose devices pods may still hold.
        blocked: CPUs that nobody may have because a topology change brought two pools together.
    """

    pools: NodePools = field(default_factory=NodePools)
    topology: CPUTopology = NO_CPUS
    pods: tuple[Pod, ...] | None = None
    devices: DeviceAssignments = field(default_factory=dict)
    retired: tuple[Pool, ...] = ()
    blocked: CPUSet = field(default_factory=CPUSet)

    def exclusive_pool(self, name: str) -> Pool | None:
        """Find an exclusive pool that is configured, or was when its devices were given out.

        An agent that starts after a pool was removed knows it only by name.
        """
        retired = (pool for pool in self.retired if pool.name == name)
        pool = self.pools.by_name(name) or next(retired, None) or Pool.named(name, "")
        return pool if pool.kind is PoolKind.EXCLUSIVE else None


@dataclass(frozen=True, slots=True)
class PlacedContainer:
    """A container instance and where it belongs."""

    pod: Pod
    container: Container
    assignment: CPUAssignment


@dataclass(frozen=True, slots=True)
class Resolution:
    """What follows from the facts.

    Attributes:
        owned: pod → pool → exclusive CPUs that it owns. No CPU is in two pods.
        containers: every known container instance.
        pods: every pod by the id in its cgroup's name.
        unreported: for other directories of a known pod: its sandbox, or what is not reported yet.
        unknown: for the directories of a pod that is not known.
        missing: containers that request devices which no source has named yet.
    """

    owned: Mapping[PodUID, Mapping[str, CPUSet]]
    containers: Mapping[ContainerKey, PlacedContainer]
    pods: Mapping[str, Pod]
    unreported: CPUAssignment
    unknown: CPUAssignment
    missing: tuple[ContainerRef, ...]

    def held_elsewhere(self, pool: str) -> CPUSet:
        """Give the CPUs that pods own through other pools than this one."""
        return CPUSet.union(
            cpus
            for by_pool in self.owned.values()
            for owner_pool, cpus in by_pool.items()
            if owner_pool != pool
        )

    def assignment(self, key: ContainerKey) -> CPUAssignment:
        """Give the CPUs for a directory below a pod's cgroup."""
        placed = self.containers.get(key)
        if placed is not None:
            return placed.assignment
        return self.unreported if key[0] in self.pods else self.unknown


def resolve(facts: NodeFacts, before: Mapping[PodUID, Mapping[str, CPUSet]]) -> Resolution:
    """Place every container.

    Args:
        facts: what is known now.
        before: who owned which CPUs until now; where facts contradict each other, the owner stays.
    """
    pods = facts.pods or ()
    owned = _owners(facts, before)
    placing = _Placing.by(facts, owned, facts.topology.with_siblings(owned_cpus(owned)))
    containers: dict[ContainerKey, PlacedContainer] = {}
    for pod in pods:
        for container in pod.containers:
            if container.id is not None:
                placed = PlacedContainer(pod, container, placing.place(pod, container))
                containers[pod.cgroup_uid, container.id] = placed
    return Resolution(
        owned=owned,
        containers=containers,
        pods={pod.cgroup_uid: pod for pod in pods},
        unreported=CPUAssignment(Placement.DEFAULT, default=placing.default),
        unknown=placing.confined("its pod is not known"),
        missing=tuple(_missing(facts)),
    )


def owned_cpus(owned: Mapping[PodUID, Mapping[str, CPUSet]]) -> CPUSet:
    """Join the CPUs that pods own, whichever pod and pool."""
    return CPUSet.union(cpus for by_pool in owned.values() for cpus in by_pool.values())


def join_devices(
    pods: Iterable[Pod],
    names: Names,
    by_pod_name: Mapping[tuple[str, str], PodDevices],
    by_pod_uid: Mapping[str, PodDevices],
) -> DeviceAssignments:
    """Bring the kubelet's answers to our pods: podresources by name, the checkpoint by UID.

    podresources leaves out plain init containers; the checkpoint has them.
    """
    joined: dict[ContainerRef, Mapping[str, frozenset[str]]] = {}
    for pod in pods:
        live = by_pod_name.get((pod.namespace, pod.name), {})
        # The kubelet knows a static pod by its config hash, as the cgroup does.
        saved = by_pod_uid.get(pod.cgroup_uid, {})
        for container in pod.containers:
            resources = {**saved.get(container.name, {}), **live.get(container.name, {})}
            by_pool = {
                pool: ids
                for resource, ids in resources.items()
                if ids and (pool := names.pool_of(resource)) is not None
            }
            if by_pool:
                joined[ContainerRef(pod.uid, container.name)] = by_pool
    return joined


def _owners(
    facts: NodeFacts, before: Mapping[PodUID, Mapping[str, CPUSet]]
) -> dict[PodUID, dict[str, CPUSet]]:
    owned: dict[PodUID, dict[str, CPUSet]] = {}
    taken = CPUSet()
    # Earlier owners first: a contradiction between facts never takes a CPU from a running pod.
    for pod in sorted(facts.pods or (), key=lambda pod: pod.uid not in before):
        if pod.finished:
            continue
        mine: dict[str, CPUSet] = {}
        for pool, cpus in _claims(facts, pod):
            mine[pool] = mine.get(pool, CPUSet()) | cpus - taken
        if any(mine.values()):
            owned[pod.uid] = mine
            # A core has one owner: nobody gets the sibling of somebody's CPU.
            taken |= facts.topology.with_siblings(CPUSet.union(mine.values()))
    return owned


def _claims(facts: NodeFacts, pod: Pod) -> Iterator[tuple[str, CPUSet]]:
    for container in pod.containers:
        by_pool = facts.devices.get(ContainerRef(pod.uid, container.name), {})
        for name, ids in by_pool.items():
            pool = facts.exclusive_pool(name)
            if pool is not None:
                listed = devices.exclusive_cpus(ids) & facts.topology.present
                yield name, pool.granted(listed, facts.topology)


def _missing(facts: NodeFacts) -> Iterator[ContainerRef]:
    for pod in facts.pods or ():
        for container in pod.containers:
            ref = ContainerRef(pod.uid, container.name)
            known = facts.devices.get(ref, {})
            if not pod.finished and any(pool not in known for pool in container.requests):
                yield ref


def _default_cpus(facts: NodeFacts, common: CPUSet) -> CPUSet:
    if not facts.pools.pools:
        # Without any pool there is nothing to keep apart, so containers stay where they are.
        return CPUSet()
    # With the default pool offline the kernel would let its containers run on every CPU of the
    # cgroup above: better on CPUs of no pool, and at worst on those that no pod owns.
    unlisted = common - CPUSet.union(pool.reach(facts.topology) for pool in facts.pools)
    return facts.pools.default_cpus(facts.topology) & common or unlisted or common


@dataclass(frozen=True, slots=True)
class _Placing:
    """Places containers one by one.

    `common` are the CPUs that many may use now: online, and on no core that a pod owns a CPU of.
    """

    facts: NodeFacts
    owned: Mapping[PodUID, Mapping[str, CPUSet]]
    common: CPUSet
    default: CPUSet

    @classmethod
    def by(
        cls, facts: NodeFacts, owned: Mapping[PodUID, Mapping[str, CPUSet]], taken: CPUSet
    ) -> _Placing:
        common = facts.topology.online - facts.blocked - taken
        return cls(facts, owned, common, _default_cpus(facts, common))

    def confined(self, reason: str) -> CPUAssignment:
        return CPUAssignment(Placement.CONFINED, default=self.default, reason=reason)

    def place(self, pod: Pod, container: Container) -> CPUAssignment:
        if not container.requests:
            return CPUAssignment(Placement.DEFAULT, default=self.default)
        known = self.facts.devices.get(ContainerRef(pod.uid, container.name), {})
        mine = self.owned.get(pod.uid, {})
        exclusive = shared = CPUSet()
        for name in container.requests:
            configured = self.facts.pools.by_name(name)
            owner = self.facts.exclusive_pool(name)
            if name not in known:
                missing = (
                    "the kubelet has named no devices of" if configured else "there is no pool"
                )
                return self.confined(f"{missing} {name}")
            if owner is not None:
                listed = devices.exclusive_cpus(known[name]) & self.facts.topology.present
                owned = mine.get(name, CPUSet())
                if not listed <= owned:
                    return self.confined(f"CPUs {listed - owned} of {name} are not this pod's")
                exclusive |= owner.granted(listed, self.facts.topology) & owned
            elif configured is not None:
                shared |= configured.cpus & self.common
            else:
                return self.confined(f"there is no pool {name}")
        cpus = exclusive & self.facts.topology.online
        if not cpus | shared:
            return self.confined("every CPU of its pools is offline")
        return CPUAssignment(Placement.POOLS, exclusive=cpus, shared=shared)
