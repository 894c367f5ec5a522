"""From the facts about a node to the CPUs of every container: pure functions of values.

The owner of an exclusive CPU is the pod, from the moment the kubelet has given it the device until
the pod ends. Whatever the pools say meanwhile, nobody else is placed on it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from cpupool.core import devices
from cpupool.core.assignments import (
    Cause,
    CPUAssignment,
    DeviceAssignments,
    Grant,
    Placement,
    PodDevices,
)
from cpupool.core.cpuset import CPUSet
from cpupool.core.pools import NodePools, Pool, PoolKind
from cpupool.core.topology import NO_CPUS, CPUTopology
from cpupool.core.workloads import ContainerID, ContainerRef
from cpupool.manager import owners, sightings
from cpupool.manager.ports import POD_ITSELF

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from cpupool.core.names import Names
    from cpupool.core.workloads import Container, Pod, RuntimeContainer
    from cpupool.manager.owners import Owned

ContainerKey = tuple[str, ContainerID]
"""The ids in a container's cgroup path: the pod's and its own."""


@dataclass(frozen=True, slots=True)
class Promise:
    """Devices that Allocate has given out, to a pod that is not known yet.

    Attributes:
        number: counts promises.
        pool: the pool's name.
        ids: the devices.
        cpus: what the container is told.
    """

    number: int
    pool: str
    ids: frozenset[str]
    cpus: CPUSet = field(default_factory=CPUSet)


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """Everything that the decisions follow from.

    Attributes:
        pools: as configured.
        configured: whether somebody has said so; a node may well have no pools.
        topology: as last read.
        pods: this node's pods; None until a first complete list is known.
        sighted: the containers and sandboxes that the container runtime has told of, by id.
        devices: what the kubelet gave to these pods.
        promises: what it gave to pods that are not known yet.
        kept_shared: the shared CPUs of containers that must not follow a change of their pools.
        blocked: CPUs that nobody may have because a topology change brought two pools together.
    """

    pools: NodePools = field(default_factory=NodePools)
    configured: bool = False
    topology: CPUTopology = NO_CPUS
    pods: tuple[Pod, ...] | None = None
    sighted: Mapping[ContainerID, RuntimeContainer] = field(default_factory=dict)
    devices: DeviceAssignments = field(default_factory=dict)
    promises: tuple[Promise, ...] = ()
    kept_shared: Mapping[ContainerKey, CPUSet] = field(default_factory=dict)
    blocked: CPUSet = field(default_factory=CPUSet)

    def granted(self, pool: str, grant: Grant) -> CPUSet:
        """Give the exclusive CPUs that come with a grant; none for a pool of another kind.

        What the container was told is what it has: its pool may have changed its policy since, or
        be gone. Where nobody remembers, it is what the pool gives now.
        """
        configured = self.pools.by_name(pool) or Pool.named(pool, "")
        if configured.kind is not PoolKind.EXCLUSIVE:
            return CPUSet()
        listed = devices.exclusive_cpus(grant.ids) & self.topology.present
        told = grant.cpus & self.topology.present
        return listed | told if told else configured.granted(listed, self.topology)

    def present(self) -> tuple[Pod, ...]:
        """Give every pod: those listed, and those that only the container runtime has told of."""
        return sightings.present(self.pods or (), self.sighted, self.devices)

    def held_ids(self) -> Mapping[str, frozenset[str]]:
        """Give pool → the device ids that pods hold, known pods or not."""
        held: defaultdict[str, set[str]] = defaultdict(set)
        for by_pool in self.devices.values():
            for pool, grant in by_pool.items():
                held[pool] |= grant.ids
        for promise in self.promises:
            held[promise.pool] |= promise.ids
        return {pool: frozenset(ids) for pool, ids in held.items()}

    def offered(self, held: Iterable[str]) -> tuple[Pool, ...]:
        """Give the pools that the kubelet knows: those configured, and those still held.

        Args:
            held: the names of pools that pods hold devices of; one that is configured no longer is
                given without CPUs.
        """
        unlisted = (Pool.named(name, "") for name in held if self.pools.by_name(name) is None)
        gone = (pool for pool in unlisted if pool.kind is not PoolKind.DEFAULT)
        return (*self.pools.advertised, *gone)


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
        owned: no CPU is in two pods.
        promised: pool → exclusive CPUs of pods that are not known yet.
        kept_shared: CPUs of shared pools as they were, on which containers still run.
        shared: shared pool → what a container that starts now gets of it, offline CPUs included.
        containers: every known container instance.
        pods: every pod by the id in its cgroup's name.
        online: the CPUs that are online.
        unreported: for other directories of a known pod: its sandbox, or what is not reported yet.
        unknown: for the directories of a pod that is not known.
        missing: containers that request devices which no source has named yet.
    """

    owned: Owned
    promised: Mapping[str, CPUSet]
    kept_shared: CPUSet
    shared: Mapping[str, CPUSet]
    containers: Mapping[ContainerKey, PlacedContainer]
    pods: Mapping[str, Pod]
    online: CPUSet
    unreported: CPUAssignment
    unknown: CPUAssignment
    missing: tuple[ContainerRef, ...]

    def held_elsewhere(self, pool: str) -> CPUSet:
        """Give the CPUs that containers hold through other pools than this one."""
        holders = (*self.owned.values(), self.promised)
        exclusive = CPUSet.union(
            cpus for by_pool in holders for holder, cpus in by_pool.items() if holder != pool
        )
        return exclusive | self.kept_shared

    def assignment(self, key: ContainerKey) -> CPUAssignment:
        """Give the CPUs for a directory below a pod's cgroup, or for the pod's own."""
        placed = self.containers.get(key)
        if placed is not None:
            return placed.assignment
        pod = self.pods.get(key[0])
        if pod is None:
            return self.unknown
        return self._itself(pod) if key[1] == POD_ITSELF else self.unreported

    def _itself(self, pod: Pod) -> CPUAssignment:
        """Give room for every container of a pod, one that starts next included, and for no other.

        On cgroup v1 a container cannot be given a CPU that its pod's cgroup lacks.
        """
        requested = {pool for container in pod.containers for pool in container.requests}
        room = CPUSet.union(
            (
                self.unreported.default,
                *self.owned.get(pod.uid, {}).values(),
                *(cpus for pool, cpus in self.shared.items() if pool in requested),
                *(
                    placed.assignment.cpus
                    for (uid, _), placed in self.containers.items()
                    if uid == pod.cgroup_uid
                ),
            )
        )
        return CPUAssignment(
            Placement.CONFINED,
            default=room & self.online,
            reason="the kernel has moved processes here from a container whose CPUs went offline",
            cause=Cause.OFFLINE,
        )


def resolve(facts: NodeFacts, before: Owned) -> Resolution:
    """Place every container.

    Args:
        facts: what is known now.
        before: who owned which CPUs until now; where facts contradict each other, the owner stays.
    """
    pods = facts.present()
    owned = owners.owners(facts, pods, before)
    promised = dict(_promised(facts))
    taken = owners.owned_cpus(owned) | CPUSet.union(promised.values())
    barred = facts.topology.with_siblings(taken) | facts.blocked
    placing = _Placing.by(facts, owned, barred)
    containers: dict[ContainerKey, PlacedContainer] = {}
    for identifier, pod, container in sightings.instances(pods, facts.sighted):
        key = (pod.cgroup_uid, identifier)
        placed = placing.place(pod, container, facts.kept_shared.get(key))
        containers[key] = PlacedContainer(pod, container, placed)
    return Resolution(
        owned=owned,
        promised=promised,
        kept_shared=CPUSet.union(facts.kept_shared.values()),
        shared={
            pool.name: pool.cpus - barred for pool in facts.pools if pool.kind is PoolKind.SHARED
        },
        containers=containers,
        pods={pod.cgroup_uid: pod for pod in pods},
        online=facts.topology.online,
        unreported=placing.default,
        unknown=placing.confined(Cause.UNKNOWN_POD, "its pod is not known"),
        missing=tuple(_missing(facts, pods)),
    )


def join_devices(
    pods: Iterable[Pod],
    names: Names,
    by_pod_name: Mapping[tuple[str, str], PodDevices],
    by_pod_uid: Mapping[str, PodDevices],
) -> DeviceAssignments:
    """Bring the kubelet's answers to our pods: the checkpoint by UID, podresources by name.

    The checkpoint's word counts first: a name may be that of an earlier pod, whose successor a
    StatefulSet has made already. So podresources is believed only of pods whose name no other has.
    A pod that has finished holds nothing, although the checkpoint may name it for a while.
    """
    listed = tuple(pod for pod in pods if not pod.finished)
    bearers = Counter((pod.namespace, pod.name) for pod in listed)
    joined: dict[ContainerRef, Mapping[str, Grant]] = {}
    for pod in listed:
        name = (pod.namespace, pod.name)
        live = by_pod_name.get(name, {}) if bearers[name] == 1 else {}
        # The kubelet knows a static pod by its config hash, as the cgroup does.
        saved = by_pod_uid.get(pod.cgroup_uid, {})
        for container in pod.containers:
            resources = {**live.get(container.name, {}), **saved.get(container.name, {})}
            if by_pool := of_pools(resources, names):
                joined[ContainerRef(pod.uid, container.name)] = by_pool
    return joined


def of_pools(resources: Mapping[str, Grant], names: Names) -> dict[str, Grant]:
    """Pick what is ours: resource → grant in, pool → grant out."""
    return {
        pool: grant
        for resource, grant in resources.items()
        if grant.ids and (pool := names.pool_of(resource)) is not None
    }


def _promised(facts: NodeFacts) -> Iterator[tuple[str, CPUSet]]:
    pools = {promise.pool for promise in facts.promises}
    for pool in pools:
        ids = frozenset().union(*(one.ids for one in facts.promises if one.pool == pool))
        yield pool, facts.granted(pool, Grant(ids))


def _missing(facts: NodeFacts, pods: Iterable[Pod]) -> Iterator[ContainerRef]:
    for pod in pods:
        for container in pod.containers:
            ref = ContainerRef(pod.uid, container.name)
            known = facts.devices.get(ref, {})
            if not pod.finished and any(pool not in known for pool in container.requests):
                yield ref


def _default_cpus(facts: NodeFacts, owned: Owned, common: CPUSet) -> CPUSet:
    if not facts.pools.pools and not owned:
        # There is nothing to keep apart, so containers stay where they are.
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
    owned: Owned
    common: CPUSet
    default: CPUAssignment

    @classmethod
    def by(cls, facts: NodeFacts, owned: Owned, barred: CPUSet) -> _Placing:
        common = facts.topology.online - barred
        default = _default_cpus(facts, owned, common)
        return cls(facts, owned, common, CPUAssignment(Placement.DEFAULT, default=default))

    def confined(self, cause: Cause, reason: str) -> CPUAssignment:
        return replace(self.default, placement=Placement.CONFINED, reason=reason, cause=cause)

    def place(self, pod: Pod, container: Container, kept_shared: CPUSet | None) -> CPUAssignment:
        if not container.requests:
            return self.default
        known = self.facts.devices.get(ContainerRef(pod.uid, container.name), {})
        unnamed = next((name for name in container.requests if name not in known), None)
        if unnamed is not None:
            return self._without_devices(unnamed)
        mine = self.owned.get(pod.uid, {})
        exclusive = shared = CPUSet()
        pools: dict[str, CPUSet] = {}
        shared_milli = 0
        for name, amount in container.requests.items():
            configured = self.facts.pools.by_name(name)
            if PoolKind.of_name(name) is PoolKind.EXCLUSIVE:
                granted = self.facts.granted(name, known[name])
                owned = mine.get(name, CPUSet())
                if others := devices.exclusive_cpus(known[name].ids) & granted - owned:
                    why = f"CPUs {others} of {name} are not this pod's"
                    return self.confined(Cause.CONTESTED, why)
                exclusive |= granted & owned
                pools[name] = granted & owned
            elif configured is not None:
                shared |= configured.cpus
                shared_milli += amount
                pools[name] = configured.cpus & self.common
        online = self.facts.topology.online
        common = (shared if kept_shared is None else kept_shared) & self.common
        if not exclusive & online | common:
            gone = [name for name in container.requests if not self.facts.pools.by_name(name)]
            if gone and not exclusive:
                return self._without_devices(gone[0])
            return self.confined(Cause.OFFLINE, "every CPU of its pools is offline")
        there = exclusive & online | common
        return CPUAssignment(
            Placement.POOLS,
            exclusive=exclusive & online,
            shared=common,
            offline=exclusive - online,
            stale=kept_shared is not None,
            pools={name: cpus & there for name, cpus in pools.items()},
            shared_milli=shared_milli,
        )

    def _without_devices(self, pool: str) -> CPUAssignment:
        if self.facts.pools.by_name(pool) is None:
            return self.confined(Cause.NO_POOL, f"there is no pool {pool}")
        return self.confined(Cause.NO_DEVICES, f"the kubelet has named no devices of {pool}")
