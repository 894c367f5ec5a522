"""From the facts about a node to the CPUs of every container: pure functions of values.

A pod owns an exclusive CPU from the moment the kubelet gives it the device until the pod ends.
Edits of the pools meanwhile change nothing: cpupool places no other container on it.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from cpupool.core.assignments import Cause, CPUAssignment, MemoryNodes, Placement
from cpupool.core.cpuset import CPUSet
from cpupool.core.devices import (
    NATIVE_CPU,
    AllocatedDevices,
    DeviceAssignments,
    NodesOfDevices,
    PodDevices,
)
from cpupool.core.grants import WHOLE_POD, PodOwner
from cpupool.core.names import KUBELET_CPUS
from cpupool.core.properties import NO_PROPERTIES
from cpupool.core.workloads import ContainerRef
from cpupool.manager import choosing, ownership, plugin_requests, requested, sightings
from cpupool.manager.choosing import Admission
from cpupool.manager.ports import POD_ITSELF
from cpupool.policies.base import BEST_EFFORT, DEFAULT, Demand
from cpupool.policies.pools import PoolsPolicy

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from cpupool.core.grants import Grants
    from cpupool.core.names import Names
    from cpupool.core.requests import Resource
    from cpupool.core.workloads import Container, Pod
    from cpupool.manager.facts import ContainerKey, NodeFacts, Promise
    from cpupool.policies.base import NodeView


_NO_CPUS: Final = CPUSet()
_K = TypeVar("_K")


@dataclass(frozen=True, slots=True)
class PlacedContainer:
    """A container instance and the CPUs that it must run on."""

    pod: Pod
    container: Container
    assignment: CPUAssignment


@dataclass(frozen=True, slots=True)
class Resolution:
    """The decisions that follow from the facts.

    Attributes:
        view: the policies' view: the machine, the pools, the grants, the shared sets.
        kept_shared: earlier CPUs of shared pools on which containers still run.
        containers: every known container instance.
        pods: the id in a pod's cgroup name → the pod.
        unknown: the assignment of the directories of a pod that is not known.
        missing: containers that request devices which no source has named yet.
        unconfirmed: these, and containers whose devices only a hint names.
    """

    view: NodeView
    kept_shared: CPUSet
    containers: Mapping[ContainerKey, PlacedContainer]
    pods: Mapping[str, Pod]
    unknown: CPUAssignment
    missing: tuple[ContainerRef, ...]
    unconfirmed: tuple[ContainerRef, ...]

    @property
    def grants(self) -> Grants:
        """Which owner has which CPUs of its own."""
        return self.view.grants

    @property
    def online(self) -> CPUSet:
        """The CPUs that are online."""
        return self.view.topology.online

    @property
    def shared(self) -> Mapping[str, CPUSet]:
        """Shared pool → what a container that starts now gets of it, offline CPUs included."""
        alone = {DEFAULT, BEST_EFFORT}
        return {name: cpus for name, cpus in self.view.extents.items() if name not in alone}

    def held_elsewhere(self, resource: Resource) -> CPUSet:
        """Return the CPUs that containers hold through other resources."""
        others = (grant.cpus for grant in self.grants if grant.resource != resource)
        return CPUSet.union((self.kept_shared, *others))

    def owned_by_others(self, pod: str) -> CPUSet:
        """Return the exclusive CPUs of all pods but this one; `pod` is its id in cgroup names."""
        return CPUSet.union(grant.cpus for uid, grant in self.grants.of_pods if uid != pod)

    def assignment(self, key: ContainerKey) -> CPUAssignment:
        """Return the CPUs for a directory below a pod's cgroup, or for the pod's own."""
        placed = self.containers.get(key)
        if placed is not None:
            return placed.assignment
        pod = self.pods.get(key[0])
        if pod is None:
            return self.unknown
        if key[1] == POD_ITSELF:
            return self._itself(pod)
        # Its sandbox, or a container that is not reported yet.
        own = self.view.chosen.get(pod.cgroup_uid)
        if own and (together := own.parts.get(WHOLE_POD, _NO_CPUS) & self.online):
            return CPUAssignment(Placement.POLICY, exclusive=together)
        return self.view.default

    def _itself(self, pod: Pod) -> CPUAssignment:
        """Return the CPUs of all containers of a pod, also of one that starts next.

        On cgroup v1 a container cannot get a CPU that its pod's cgroup lacks.
        """
        if self.view.kubelet_places:
            return self.view.default
        asked = {resource for container in pod.containers for resource in container.requests}
        room = CPUSet.union(
            (
                self.view.default.default,
                *(grant.cpus for grant in self.grants.of(PodOwner(pod.cgroup_uid)).values()),
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
    """The facts and the decisions that follow from them, of one moment."""

    facts: NodeFacts
    resolution: Resolution

    def assignment(self, key: ContainerKey) -> CPUAssignment:
        """Return the CPUs for a directory below a pod's cgroup, or for the pod's own."""
        return self.resolution.assignment(key)


def promised(facts: NodeFacts, before: Resolution, promises: Iterable[Promise]) -> Resolution:
    """Return a resolution with more answers of Allocate among the grants.

    The pod of an answer is not known yet. So the placement of containers changes only where a
    shared set is empty without the answered CPUs, and others stand in for it.
    """
    view = before.view
    grants = view.grants.adding(ownership.answers(facts, promises), facts.topology)
    taken = facts.topology.with_siblings(grants.cpus - view.grants.cpus)
    if all(map(taken.isdisjoint, view.extents.values())):
        return replace(before, view=replace(view, grants=grants))
    return resolve(facts, view.pods, replace(Admission.of(view), grants=grants))


def resolve(
    facts: NodeFacts, pods: tuple[Pod, ...], admission: Admission, before: Snapshot | None = None
) -> Resolution:
    """Place every container by the policy for its request.

    Args:
        facts: the facts now.
        pods: all pods of the node.
        admission: who owns which CPUs, and the pods that the CPU manager policy refuses.
        before: earlier decisions, whose placements stay where all that they depend on is the same.
    """
    view = choosing.view(facts, pods, admission.grants, admission)
    pools = PoolsPolicy()
    kept = _Kept(before, facts, view) if before else None
    same = before.resolution if before and kept and kept.all else None
    containers: dict[ContainerKey, PlacedContainer] = {}
    instances = sightings.instances(pods, facts.sighted)
    new = sightings.added(before.facts.sighted, facts.sighted) if same and before else None
    if same and new is not None:
        # A request of the runtime concerns one pod, and the node may have hundreds.
        containers.update(same.containers)
        instances = sightings.of_runtime(same.pods, new)
    for identifier, pod, container in instances:
        key = (pod.cgroup_uid, identifier)
        if kept and (stays := kept.placed(key, pod, container)):
            containers[key] = stays
            continue
        # A container keeps what an earlier policy gave it, also after an edit of the pool file.
        ref = ContainerRef(pod.cgroup_uid, container.name)
        own = view.chosen[ref.pod].part(ref.name) if ref.pod in view.chosen else _NO_CPUS
        if not own and (request := requested.counted(facts, pod, container)):
            devices = facts.devices.get(ref, {})
            demand = Demand(pod, container, request, devices, facts.kept_shared.get(key))
            placed = pools.place(view, demand)
        else:
            placed = facts.policy.place(view, Demand(pod, container))
        if placed.placement is Placement.PLUGIN and placed.exclusive:
            changed = plugin_requests.resized(facts, view.grants, pod, container)
            placed = replace(placed, reason=changed) if changed else placed
        nodes = facts.plugins.memory.get(ref)
        if nodes is not None:
            placed = replace(placed, memory=MemoryNodes(nodes, migrates=bool(pod.memory_migrates)))
        if properties := facts.plugins.properties.get(ref, NO_PROPERTIES):
            placed = replace(placed, properties=properties)
        containers[key] = PlacedContainer(pod, container, placed)
    if same:
        return replace(same, containers=containers)
    lacking = tuple(_lacking(facts, pods))
    return Resolution(
        view=view,
        kept_shared=CPUSet.union(facts.kept_shared.values()),
        containers=containers,
        pods={pod.cgroup_uid: pod for pod in pods},
        unknown=view.confined(Cause.UNKNOWN_POD, "its pod is not known"),
        missing=tuple(ref for ref, hinted in lacking if not hinted),
        unconfirmed=tuple(ref for ref, _ in lacking),
    )


def owners_stay(before: Snapshot, facts: NodeFacts) -> bool:
    """Return whether every CPU has the same owner: only containers of decided pods have come.

    A request of the runtime concerns one pod, and the node may have hundreds.
    """
    earlier, resolution = before
    new = sightings.added(earlier.sighted, facts.sighted)
    if not new or replace(earlier, sighted=facts.sighted) != facts:
        return False
    started = {container.pod for container in earlier.sighted.values()}
    listed = {uid for uid in started - facts.idle if uid in resolution.pods}
    return all(found.pod in listed and resolution.pods[found.pod].qos is not None for found in new)


class _Kept:
    """The earlier placements that stay, because all that they depend on is the same.

    Args:
        before: the earlier decisions.
        facts: the facts now.
        view: the policies' view now.

    Attributes:
        all: every placement stays that has the same pod and container.
    """

    def __init__(self, before: Snapshot, facts: NodeFacts, view: NodeView) -> None:
        earlier = before.resolution.view
        self._containers = before.resolution.containers
        self.all = earlier == view and _of_containers(before.facts) == _of_containers(facts)
        self._node = _of_node(before.facts, earlier) == _of_node(facts, view)
        self._policy = before.facts.policy is facts.policy and earlier.topology is view.topology
        # The grants of other pods matter only by the CPUs that they take from shared sets.
        self._other = set() if self.all else set(_differing(before.facts, earlier, facts, view))

    def placed(self, key: ContainerKey, pod: Pod, container: Container) -> PlacedContainer | None:
        """Return the earlier placement of a container if it stays."""
        found = self._containers.get(key)
        if found is None or found.pod is not pod or found.container is not container:
            return None
        if self.all:
            return found
        if pod.cgroup_uid in self._other:
            return None
        if (
            self._policy
            and found.assignment.placement is Placement.POLICY
            and not container.requests
        ):
            # The CPUs of an owner do not depend on what others share.
            return found
        # A reason may name other pods.
        return found if self._node and not found.assignment.reason else None


def _of_containers(facts: NodeFacts) -> tuple[object, ...]:
    """Return the facts outside the view that a placement depends on."""
    plugins = facts.plugins.memory, facts.plugins.properties, facts.plugins.given
    return facts.devices, facts.kept_shared, facts.policy, facts.static_cpus, plugins


def _of_node(facts: NodeFacts, view: NodeView) -> tuple[object, ...]:
    """Return what every placement depends on."""
    seen = view.topology, view.pools, view.cpus, view.barred, view.extents, view.default
    ruled = view.rules, view.sizes, facts.policy, facts.static_cpus
    return *seen, *ruled, requested.kubelet_owns(facts)


def _differing(
    had: NodeFacts, earlier: NodeView, facts: NodeFacts, view: NodeView
) -> Iterator[str]:
    """Yield the pods whose facts have changed, as the ids in cgroup names."""
    yield from _changed(earlier.refused, view.refused)
    yield from _changed(earlier.homes, view.homes)
    yield from (pod for pod, _ in _changed(had.kept_shared, facts.kept_shared))
    for owner, _ in _changed(earlier.grants.all, view.grants.all):
        if isinstance(owner, PodOwner):
            yield owner.uid
    yield from (ref.pod for ref in _changed(had.devices, facts.devices))
    yield from (ref.pod for ref in _changed(had.plugins.given, facts.plugins.given))
    yield from (ref.pod for ref in _changed(had.plugins.memory, facts.plugins.memory))
    yield from (ref.pod for ref in _changed(had.plugins.properties, facts.plugins.properties))
    yield from (ref.pod for ref in _changed(earlier.answered, view.answered))
    yield from (ref.pod for ref in _changed(earlier.claimed, view.claimed))


def _changed(before: Mapping[_K, object], now: Mapping[_K, object]) -> Iterable[_K]:
    """Return the keys with another value than before, or only here or there."""
    if before is now:
        return ()
    keys = before.keys() | now.keys()
    pairs = ((key, before.get(key), now.get(key)) for key in keys)
    return [key for key, had, has in pairs if had is not has and had != has]


def join_devices(
    pods: Iterable[Pod],
    names: Names,
    by_pod_name: Mapping[tuple[str, str], PodDevices],
    by_pod_uid: Mapping[str, PodDevices],
) -> DeviceAssignments:
    """Join the kubelet's records to our pods: the checkpoint by UID, podresources by name.

    The checkpoint counts first: a name may still belong to an earlier pod, whose successor a
    StatefulSet has already made. So podresources counts only for pods with a unique name. A pod
    that has finished holds nothing, although the checkpoint may name it for a while.
    """
    joined: dict[ContainerRef, Mapping[Resource, AllocatedDevices]] = {}
    for pod, live in _with_live(pods, by_pod_name):
        for container in pod.containers:
            resources = _recorded(pod, container, live or {}, by_pod_uid)
            by_pool = of_pools(resources, names)
            if own := resources.get(NATIVE_CPU):
                by_pool[KUBELET_CPUS] = own
            if by_pool:
                joined[ContainerRef(pod.cgroup_uid, container.name)] = by_pool
    return joined


def join_nodes(
    pods: Iterable[Pod],
    by_pod_name: Mapping[tuple[str, str], PodDevices],
    by_pod_uid: Mapping[str, PodDevices],
) -> NodesOfDevices:
    """Return the NUMA nodes of the resources of the pods that podresources names.

    podresources also names pods without devices, so its answer is complete, but for plain init
    containers: only the checkpoint has their devices. Names count as for `join_devices`.
    """
    return {
        pod.cgroup_uid: {
            container.name: frozenset(
                given.nodes
                for given in _recorded(pod, container, live, by_pod_uid).values()
                if given.nodes
            )
            for container in pod.containers
        }
        for pod, live in _with_live(pods, by_pod_name)
        if live is not None
    }


def _with_live(
    pods: Iterable[Pod], by_pod_name: Mapping[tuple[str, str], PodDevices]
) -> Iterator[tuple[Pod, PodDevices | None]]:
    """Yield pods that have not finished with their devices in podresources; None if unnamed."""
    listed = tuple(pod for pod in pods if not pod.finished)
    bearers = Counter((pod.namespace, pod.name) for pod in listed)
    for pod in listed:
        name = (pod.namespace, pod.name)
        yield pod, by_pod_name.get(name) if bearers[name] == 1 else None


def _recorded(
    pod: Pod, container: Container, live: PodDevices, by_pod_uid: Mapping[str, PodDevices]
) -> Mapping[str, AllocatedDevices]:
    # The kubelet identifies a static pod by its config hash, as in the cgroup's name.
    saved = by_pod_uid.get(pod.cgroup_uid, {})
    return {**live.get(container.name, {}), **saved.get(container.name, {})}


def of_pools(
    resources: Mapping[str, AllocatedDevices], names: Names
) -> dict[Resource, AllocatedDevices]:
    """Return the entries of our resources, under their references."""
    return {
        pool: grant
        for resource, grant in resources.items()
        if grant.ids and (pool := names.pool_of(resource)) is not None
    }


def _lacking(facts: NodeFacts, pods: Iterable[Pod]) -> Iterator[tuple[ContainerRef, bool]]:
    """Find the containers whose devices the kubelet has not named, and whether hints name them."""
    never: set[Resource] = set() if requested.kubelet_gives(facts) else {KUBELET_CPUS}
    for pod in pods:
        for container in () if pod.finished else pod.containers:
            request = requested.counted(facts, pod, container)
            if not request:
                continue
            ref = ContainerRef(pod.cgroup_uid, container.name)
            by_pool = facts.devices.get(ref, {})
            asked = request.amounts.keys() - never
            if asked - {pool for pool, grant in by_pool.items() if not grant.hint}:
                yield ref, asked <= by_pool.keys()
