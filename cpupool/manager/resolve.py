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
    NATIVE_CPU,
    Cause,
    CPUAssignment,
    DeviceAssignments,
    Grant,
    Placement,
    PodDevices,
)
from cpupool.core.cpuset import CPUSet
from cpupool.core.names import ENABLE_SHARED_CPUS, KUBELET_CPUS
from cpupool.core.pools import MILLI_PER_CPU, NodePools, Pool, PoolKind
from cpupool.core.quota import Limit
from cpupool.core.topology import NO_CPUS, CPUTopology
from cpupool.core.workloads import ContainerID, ContainerKind, ContainerRef
from cpupool.manager import owners, sightings, static_pods
from cpupool.manager.ports import POD_ITSELF

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from cpupool.core.names import Names
    from cpupool.core.workloads import Container, Pod, RuntimeContainer
    from cpupool.manager.owners import Owned
    from cpupool.manager.static_pods import Identity

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
        static: hash → which pod it stands for, of the static pods that listed pods claim to mirror.
        sighted: the containers and sandboxes that the container runtime has told of, by id.
        devices: what the kubelet gave to these pods.
        promises: what it gave to pods that are not known yet.
        kept_shared: the shared CPUs of containers that must not follow a change of their pools.
        blocked: CPUs that nobody may have because a topology change brought two pools together.
        static_cpus: those that the kubelet's static CPU manager gives out; none under policy none.
        idle: pods that have no container's cgroup, where two pods claim a CPU: the one has ended.
    """

    pools: NodePools = field(default_factory=NodePools)
    configured: bool = False
    topology: CPUTopology = NO_CPUS
    pods: tuple[Pod, ...] | None = None
    static: Mapping[str, Identity] = field(default_factory=dict)
    sighted: Mapping[ContainerID, RuntimeContainer] = field(default_factory=dict)
    devices: DeviceAssignments = field(default_factory=dict)
    promises: tuple[Promise, ...] = ()
    kept_shared: Mapping[ContainerKey, CPUSet] = field(default_factory=dict)
    blocked: CPUSet = field(default_factory=CPUSet)
    static_cpus: CPUSet = field(default_factory=CPUSet)
    idle: frozenset[str] = frozenset()

    @property
    def kubelet_owns(self) -> bool:
        """Whether exclusive CPUs are the kubelet's to give, and cpupool adds shared ones to them.

        So it is with OpenShift's mixed CPUs, also while containers have not given theirs back.
        """
        if not self.static_cpus or not self.pools.shared_alone:
            return False
        on = self.pools.mixed is not None
        return on or any(ENABLE_SHARED_CPUS in held for held in self.devices.values())

    def requests(self, pod: Pod, container: Container) -> Mapping[str, int]:
        """Give what counts of what a container requests: pool → amount.

        OpenShift's resource counts while it is on or the container has it, and only beside CPUs of
        its own. These are an exclusive pool's or else, for a whole native request, the kubelet's;
        not an init container's that ends, whose CPUs the kubelet tells nobody.
        """
        asked = container.requests
        if ENABLE_SHARED_CPUS not in asked and not container.whole_cpus:
            return asked
        enabled = ENABLE_SHARED_CPUS in asked and (
            self.pools.mixed is not None
            or ENABLE_SHARED_CPUS
            in self.devices.get(ContainerRef(pod.cgroup_uid, container.name), {})
        )
        exclusive = any(PoolKind.of_name(pool) is PoolKind.EXCLUSIVE for pool in asked)
        if not exclusive and container.kind is not ContainerKind.INIT:
            # Of a pod that is not listed yet only its annotations are known.
            unlisted = enabled and pod.qos is None
            whole = container.whole_cpus and (enabled or (asked and self.kubelet_owns))
            if unlisted or whole:
                return {**asked, KUBELET_CPUS: container.whole_cpus}
        if enabled and exclusive:
            return asked
        return {pool: amount for pool, amount in asked.items() if pool != ENABLE_SHARED_CPUS}

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
        listed = tuple(static_pods.true(self.pods or (), self.static))
        return sightings.present(listed, self.sighted, self.devices)

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
        kept = (pool for pool in unlisted if pool.name != KUBELET_CPUS)
        gone = (pool for pool in kept if pool.kind is not PoolKind.DEFAULT)
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
        unconfirmed: these, and containers whose devices only a hint names.
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
    unconfirmed: tuple[ContainerRef, ...]

    def held_elsewhere(self, pool: str) -> CPUSet:
        """Give the CPUs that containers hold through other pools than this one."""
        holders = (*self.owned.values(), self.promised)
        exclusive = CPUSet.union(
            cpus for by_pool in holders for holder, cpus in by_pool.items() if holder != pool
        )
        return exclusive | self.kept_shared

    def owned_by_others(self, pod: str) -> CPUSet:
        """Return the exclusive CPUs of all pods but one, named by the id in its cgroup's name."""
        others = {uid: by_pool for uid, by_pool in self.owned.items() if uid != pod}
        return owners.owned_cpus(others)

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
        if self.unreported.placement is Placement.KUBELET:
            return self.unreported
        requested = {pool for container in pod.containers for pool in container.requests}
        room = CPUSet.union(
            (
                self.unreported.default,
                *self.owned.get(pod.cgroup_uid, {}).values(),
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
    # The kubelet gives out the siblings of its exclusive CPUs to whom it likes.
    kubelets = CPUSet.union(by_pool.get(KUBELET_CPUS, CPUSet()) for by_pool in owned.values())
    taken = (owners.owned_cpus(owned) - kubelets) | CPUSet.union(promised.values())
    barred = facts.topology.with_siblings(taken) | kubelets | facts.blocked
    placing = _Placing.by(facts, pods, owned, barred)
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
        unconfirmed=tuple(_missing(facts, pods, hints=False)),
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
            by_pool = of_pools(resources, names)
            if (own := resources.get(NATIVE_CPU)) and container.requests:
                by_pool[KUBELET_CPUS] = own
            if by_pool:
                joined[ContainerRef(pod.cgroup_uid, container.name)] = by_pool
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


def _missing(
    facts: NodeFacts, pods: Iterable[Pod], *, hints: bool = True
) -> Iterator[ContainerRef]:
    never = set() if facts.kubelet_owns else {KUBELET_CPUS}
    for pod in pods:
        for container in () if pod.finished else pod.containers:
            requests = facts.requests(pod, container)
            if not requests:
                continue
            ref = ContainerRef(pod.cgroup_uid, container.name)
            by_pool = facts.devices.get(ref, {})
            named = {pool for pool, grant in by_pool.items() if hints or not grant.hint}
            if requests.keys() - named - never:
                yield ref


def _names_no_cpu(pool: str, grant: Grant) -> bool:
    """Return whether the devices of an exclusive pool are another plugin's, without CPU ids."""
    return PoolKind.of_name(pool) is PoolKind.EXCLUSIVE and not devices.exclusive_cpus(grant.ids)


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
    pods: tuple[Pod, ...]
    owned: Owned
    common: CPUSet
    default: CPUAssignment

    @classmethod
    def by(cls, facts: NodeFacts, pods: tuple[Pod, ...], owned: Owned, barred: CPUSet) -> _Placing:
        common = facts.topology.online - barred
        if facts.kubelet_owns:
            return cls(facts, pods, owned, common, CPUAssignment(Placement.KUBELET))
        default = _default_cpus(facts, owned, common)
        return cls(facts, pods, owned, common, CPUAssignment(Placement.DEFAULT, default=default))

    def confined(self, cause: Cause, reason: str) -> CPUAssignment:
        if self.facts.kubelet_owns:
            return replace(self.default, reason=reason, cause=cause)
        return replace(self.default, placement=Placement.CONFINED, reason=reason, cause=cause)

    def place(self, pod: Pod, container: Container, kept_shared: CPUSet | None) -> CPUAssignment:
        requests = self.facts.requests(pod, container)
        if not requests:
            return self.default
        known = self.facts.devices.get(ContainerRef(pod.cgroup_uid, container.name), {})
        unnamed = next((name for name in requests if name not in known), None)
        if unnamed is not None:
            return self._without_devices(unnamed)
        mine = self.owned.get(pod.cgroup_uid, {})
        exclusive = shared = CPUSet()
        pools: dict[str, CPUSet] = {}
        for name in requests:
            configured = self.facts.pools.by_name(name)
            if PoolKind.of_name(name) is PoolKind.EXCLUSIVE:
                granted = self.facts.granted(name, known[name])
                owned = mine.get(name, CPUSet())
                if others := devices.exclusive_cpus(known[name].ids) & granted - owned:
                    return self._contested(pod, name, others)
                exclusive |= granted & owned
                pools[name] = granted & owned
            elif configured is not None:
                shared |= configured.cpus
                pools[name] = configured.cpus & self.common
        online = self.facts.topology.online
        common = (shared if kept_shared is None else kept_shared) & self.common
        if not exclusive & online | common:
            return self._without_cpus(requests, known, exclusive)
        there = exclusive & online | common
        return CPUAssignment(
            Placement.POOLS,
            exclusive=exclusive & online,
            shared=common,
            offline=exclusive - online,
            stale=kept_shared is not None,
            pools={name: cpus & there for name, cpus in pools.items()},
            limit=self._limit(pod, container, requests, shared),
        )

    def _limit(
        self, pod: Pod, container: Container, requests: Mapping[str, int], shared: CPUSet
    ) -> Limit | None:
        """Say how much CPU time a container is to have that is as requested.

        With CPUs of its own it is not limited: its set already is, and a quota of as many CPUs
        could only throttle it. Where the kubelet gives these it has an opinion, and what comes in
        addition is added to that (openshift/enhancements, node-tuning/mixed-cpu-node-plugin.md).
        """
        own_milli = container.limit_milli
        if KUBELET_CPUS in requests:
            if own_milli is None:
                return None
            shared_milli = len(shared) * MILLI_PER_CPU
            return Limit(own_milli + shared_milli, or_unlimited=True, own_milli=own_milli)
        if any(PoolKind.of_name(pool) is PoolKind.EXCLUSIVE for pool in requests):
            return Limit(None)
        limits = (sum(requests.values()), own_milli, pod.limit_milli)
        return Limit(min(one for one in limits if one is not None), own_milli=own_milli)

    def _contested(self, pod: Pod, pool: str, cpus: CPUSet) -> CPUAssignment:
        cores = self.facts.topology.with_siblings(cpus)
        holders = [
            f"{other.namespace}/{other.name}"
            for other in self.pods
            if other is not pod
            and any(
                not cores.isdisjoint(has) for has in self.owned.get(other.cgroup_uid, {}).values()
            )
        ]
        still = f": pod {', '.join(holders)} still has them or their cores" if holders else ""
        return self.confined(Cause.CONTESTED, f"CPUs {cpus} of {pool} are not this pod's{still}")

    def _without_cpus(
        self, requests: Iterable[str], known: Mapping[str, Grant], exclusive: CPUSet
    ) -> CPUAssignment:
        gone = [name for name in requests if not self.facts.pools.by_name(name)]
        if gone and not exclusive:
            return self._without_devices(gone[0])
        if strange := [name for name in requests if _names_no_cpu(name, known[name])]:
            why = f"its devices of {strange[0]} are no CPUs: another plugin has listed them"
            return self.confined(Cause.NO_CPUS, why)
        return self.confined(Cause.OFFLINE, "every CPU of its pools is offline")

    def _without_devices(self, pool: str) -> CPUAssignment:
        if pool == KUBELET_CPUS:
            if self.facts.kubelet_owns:
                why = "the kubelet has not named the CPUs that are its own"
                return self.confined(Cause.NO_DEVICES, why)
            why = (
                "it asks for shared CPUs beside CPUs of its own, and has none of an exclusive pool"
            )
            return self.confined(Cause.NO_POOL, why)
        if self.facts.pools.by_name(pool) is None:
            return self.confined(Cause.NO_POOL, f"there is no pool {pool}")
        return self.confined(Cause.NO_DEVICES, f"the kubelet has named no devices of {pool}")
