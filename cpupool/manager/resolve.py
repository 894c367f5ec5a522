"""From the facts about a node to the CPUs of every container: pure functions of values.

The owner of an exclusive CPU is the pod, from the moment the kubelet has given it the device until
the pod ends. Whatever the pools say meanwhile, nobody else is placed on it.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from cpupool.core import devices
from cpupool.core.assignments import Cause, CPUAssignment, Placement
from cpupool.core.cpuset import CPUSet
from cpupool.core.devices import NATIVE_CPU, AllocatedDevices, DeviceAssignments, PodDevices
from cpupool.core.grants import Grants, PodOwner
from cpupool.core.names import KUBELET_CPUS
from cpupool.core.pools import MILLI_PER_CPU, PoolKind
from cpupool.core.quota import Limit
from cpupool.core.workloads import ContainerRef
from cpupool.manager import ownership, requested, sightings
from cpupool.manager.ports import POD_ITSELF

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from cpupool.core.names import Names
    from cpupool.core.requests import CPURequest, Resource
    from cpupool.core.workloads import Container, Pod
    from cpupool.manager.facts import ContainerKey, NodeFacts, Promise


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
        grants: who has which CPUs of its own.
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

    grants: Grants
    kept_shared: CPUSet
    shared: Mapping[str, CPUSet]
    containers: Mapping[ContainerKey, PlacedContainer]
    pods: Mapping[str, Pod]
    online: CPUSet
    unreported: CPUAssignment
    unknown: CPUAssignment
    missing: tuple[ContainerRef, ...]
    unconfirmed: tuple[ContainerRef, ...]

    def held_elsewhere(self, resource: Resource) -> CPUSet:
        """Return the CPUs that containers hold through other resources than this one."""
        others = (grant.cpus for grant in self.grants if grant.resource != resource)
        return CPUSet.union((self.kept_shared, *others))

    def owned_by_others(self, pod: str) -> CPUSet:
        """Return the exclusive CPUs of all pods but one, named by the id in its cgroup's name."""
        return CPUSet.union(grant.cpus for uid, grant in self.grants.of_pods if uid != pod)

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
        asked = {one for container in pod.containers for one in container.requests}
        room = CPUSet.union(
            (
                self.unreported.default,
                *(one.cpus for one in self.grants.of(PodOwner(pod.cgroup_uid)).values()),
                *(cpus for pool, cpus in self.shared.items() if pool in asked),
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


class Snapshot(NamedTuple):
    """What is known and what follows from it, as of one moment."""

    facts: NodeFacts
    resolution: Resolution

    def assignment(self, key: ContainerKey) -> CPUAssignment:
        """Return the CPUs for a directory below a pod's cgroup, or for the pod's own."""
        return self.resolution.assignment(key)


def promised(facts: NodeFacts, before: Resolution, promises: Iterable[Promise]) -> Resolution:
    """Return a resolution with more answers of Allocate among the grants."""
    claims = ownership.answers(facts, promises)
    return replace(before, grants=before.grants.adding(claims, facts.topology))


def resolve(facts: NodeFacts, before: Grants) -> Resolution:
    """Place every container.

    Args:
        facts: what is known now.
        before: who owned which CPUs until now; where facts contradict each other, the owner stays.
    """
    pods = sightings.present(facts)
    grants = ownership.settle(facts, pods, before)
    whole = CPUSet.union(grant.cpus for grant in grants if grant.whole_cores)
    barred = facts.topology.with_siblings(whole) | grants.cpus | facts.blocked
    placing = _Placing.by(facts, pods, grants, barred)
    containers: dict[ContainerKey, PlacedContainer] = {}
    for identifier, pod, container in sightings.instances(pods, facts.sighted):
        key = (pod.cgroup_uid, identifier)
        placed = placing.place(pod, container, facts.kept_shared.get(key))
        containers[key] = PlacedContainer(pod, container, placed)
    return Resolution(
        grants=grants,
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
    joined: dict[ContainerRef, Mapping[Resource, AllocatedDevices]] = {}
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


def of_pools(
    resources: Mapping[str, AllocatedDevices], names: Names
) -> dict[Resource, AllocatedDevices]:
    """Pick what is ours: extended resource in, its reference out."""
    return {
        pool: grant
        for resource, grant in resources.items()
        if grant.ids and (pool := names.pool_of(resource)) is not None
    }


def _missing(
    facts: NodeFacts, pods: Iterable[Pod], *, hints: bool = True
) -> Iterator[ContainerRef]:
    never: set[Resource] = set() if requested.kubelet_owns(facts) else {KUBELET_CPUS}
    for pod in pods:
        for container in () if pod.finished else pod.containers:
            request = requested.counted(facts, pod, container)
            if not request:
                continue
            ref = ContainerRef(pod.cgroup_uid, container.name)
            by_pool = facts.devices.get(ref, {})
            named = {pool for pool, grant in by_pool.items() if hints or not grant.hint}
            if request.amounts.keys() - named - never:
                yield ref


def _names_no_cpu(resource: Resource, given: AllocatedDevices) -> bool:
    """Return whether the devices of an exclusive pool are another plugin's, without CPU ids."""
    return resource.kind.exclusive and not devices.exclusive_cpus(given.ids)


def _default_cpus(facts: NodeFacts, grants: Grants, common: CPUSet) -> CPUSet:
    if not facts.pools.pools and not any(grants.of_pods):
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
    grants: Grants
    common: CPUSet
    default: CPUAssignment

    @classmethod
    def by(
        cls, facts: NodeFacts, pods: tuple[Pod, ...], grants: Grants, barred: CPUSet
    ) -> _Placing:
        common = facts.topology.online - barred
        if requested.kubelet_owns(facts):
            return cls(facts, pods, grants, common, CPUAssignment(Placement.KUBELET))
        default = _default_cpus(facts, grants, common)
        return cls(facts, pods, grants, common, CPUAssignment(Placement.DEFAULT, default=default))

    @property
    def kubelet_places(self) -> bool:
        """Whether what has no CPUs by its request is left to the kubelet."""
        return self.default.placement is Placement.KUBELET

    def confined(self, cause: Cause, reason: str) -> CPUAssignment:
        if self.kubelet_places:
            return replace(self.default, reason=reason, cause=cause)
        return replace(self.default, placement=Placement.CONFINED, reason=reason, cause=cause)

    def place(self, pod: Pod, container: Container, kept_shared: CPUSet | None) -> CPUAssignment:
        request = requested.counted(self.facts, pod, container)
        if not request:
            return self.default
        known = self.facts.devices.get(ContainerRef(pod.cgroup_uid, container.name), {})
        unnamed = next((one for one in request.amounts if one not in known), None)
        if unnamed is not None:
            return self._without_devices(unnamed)
        exclusive = shared = CPUSet()
        resources: dict[Resource, CPUSet] = {}
        for one in request.amounts:
            if one.kind.exclusive:
                mine = self.grants.part(pod.cgroup_uid, one, container.name)
                given = devices.exclusive_cpus(known[one].ids) & self.facts.topology.present
                if others := given - mine:
                    return self._contested(pod, one, others)
                exclusive |= mine
                resources[one] = mine
            elif (pool := self.facts.pools.behind(one)) is not None:
                shared |= pool.cpus
                resources[one] = pool.cpus & self.common
        online = self.facts.topology.online
        common = (shared if kept_shared is None else kept_shared) & self.common
        if not exclusive & online | common:
            return self._without_cpus(request.amounts, known, exclusive)
        there = exclusive & online | common
        return CPUAssignment(
            Placement.POOLS,
            exclusive=exclusive & online,
            shared=common,
            offline=exclusive - online,
            stale=kept_shared is not None,
            resources={one: cpus & there for one, cpus in resources.items()},
            limit=self._limit(pod, container, request, shared),
        )

    def _limit(
        self, pod: Pod, container: Container, request: CPURequest, shared: CPUSet
    ) -> Limit | None:
        """Say how much CPU time a container is to have that is as requested.

        With CPUs of its own it is not limited: its set already is, and a quota of as many CPUs
        could only throttle it. Where the kubelet gives these it has an opinion, and what comes in
        addition is added to that (openshift/enhancements, node-tuning/mixed-cpu-node-plugin.md).
        """
        own_milli = container.limit_milli
        if KUBELET_CPUS in request.amounts:
            if own_milli is None:
                return None
            shared_milli = len(shared) * MILLI_PER_CPU
            return Limit(own_milli + shared_milli, or_unlimited=True, own_milli=own_milli)
        if request.exclusive:
            return Limit(None)
        limits = (sum(request.amounts.values()), own_milli, pod.limit_milli)
        return Limit(min(one for one in limits if one is not None), own_milli=own_milli)

    def _contested(self, pod: Pod, resource: Resource, cpus: CPUSet) -> CPUAssignment:
        cores = self.facts.topology.with_siblings(cpus)
        near = {uid for uid, has in self.grants.of_pods if not cores.isdisjoint(has.cpus)}
        holders = [
            f"{other.namespace}/{other.name}"
            for other in self.pods
            if other is not pod and other.cgroup_uid in near
        ]
        still = f": pod {', '.join(holders)} still has them or their cores" if holders else ""
        return self.confined(
            Cause.CONTESTED, f"CPUs {cpus} of {resource} are not this pod's{still}"
        )

    def _without_cpus(
        self,
        asked: Iterable[Resource],
        known: Mapping[Resource, AllocatedDevices],
        exclusive: CPUSet,
    ) -> CPUAssignment:
        gone = [one for one in asked if not self.facts.pools.behind(one)]
        if gone and not exclusive:
            return self._without_devices(gone[0])
        if strange := [one for one in asked if _names_no_cpu(one, known[one])]:
            why = f"its devices of {strange[0]} are no CPUs: another plugin has listed them"
            return self.confined(Cause.NO_CPUS, why)
        return self.confined(Cause.OFFLINE, "every CPU of its pools is offline")

    def _without_devices(self, resource: Resource) -> CPUAssignment:
        if resource == KUBELET_CPUS:
            if self.kubelet_places:
                why = "the kubelet has not named the CPUs that are its own"
                return self.confined(Cause.NO_DEVICES, why)
            why = (
                "it asks for shared CPUs beside CPUs of its own, and has none of an exclusive pool"
            )
            return self.confined(Cause.NO_POOL, why)
        if self.facts.pools.behind(resource) is None:
            return self.confined(Cause.NO_POOL, f"there is no pool {resource}")
        return self.confined(Cause.NO_DEVICES, f"the kubelet has named no devices of {resource}")
