"""From the facts about a node to the CPUs of every container: pure functions of values.

A pod owns an exclusive CPU from the moment the kubelet gives it the device until the pod ends.
An edit of the pools during this time changes nothing: cpupool places no other container on the CPU.

Theory of operation. Each step is a function of the values before it:

1. Grants: each owner with its CPUs (`ownership` by devices, `choosing` by the policy). The caller
   has decided them.
2. The view (`choosing.view`): the machine, the pools and the grants, and the shared sets that
   follow from them. A policy sees nothing else.
3. Placements (`placing.place`): one for each container instance. `placing` says on which parts of
   the inputs a placement depends.

A node may have hundreds of containers, while most changes concern one pod. So `resolve` takes the
earlier decisions, and repeats a placement only if a part has changed on which it depends. The
result is the same as if `resolve` had no earlier decisions and placed every container anew. There
are two more shortcuts. After a response to Allocate `promised` adds only its promise to the
resolution. `owners_stay` says, for a request of the container runtime, whether all grants are as
before.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple, Protocol

from cpupool.core.assignments import Cause, CPUAssignment, Placement
from cpupool.core.cgroups import POD_ITSELF
from cpupool.core.cpuset import CPUSet
from cpupool.core.grants import PodOwner
from cpupool.core.names import KUBELET_CPUS
from cpupool.core.workloads import ContainerRef
from cpupool.manager import choosing, ownership, placing, served_requests, sightings
from cpupool.manager.choosing import Choices
from cpupool.manager.placing import Inputs, Reads, Unchanged
from cpupool.policies.view import OF_POLICY

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from cpupool.core.grants import Grants
    from cpupool.core.requests import Resource
    from cpupool.core.workloads import Container, Pod
    from cpupool.manager.facts import ContainerKey, NodeFacts
    from cpupool.manager.promises import Promise
    from cpupool.policies.view import NodeView


@dataclass(frozen=True, slots=True)
class PlacedContainer:
    """A container instance and the CPUs that it must run on.

    Attributes:
        pod: its pod.
        container: the container in the pod's spec.
        assignment: the CPUs.
        reads: the parts of the inputs on which these depend.
    """

    pod: Pod
    container: Container
    assignment: CPUAssignment
    reads: Reads = field(default=Reads.EVERYTHING, compare=False)


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
        inputs: all that the placements depend on.
    """

    view: NodeView
    kept_shared: CPUSet
    containers: Mapping[ContainerKey, PlacedContainer]
    pods: Mapping[str, Pod]
    unknown: CPUAssignment
    missing: tuple[ContainerRef, ...]
    unconfirmed: tuple[ContainerRef, ...]
    inputs: Inputs

    @property
    def grants(self) -> Grants:
        """The grants: each owner with its CPUs."""
        return self.view.grants

    @property
    def online(self) -> CPUSet:
        """The CPUs that are online."""
        return self.view.topology.online

    @property
    def shared(self) -> Mapping[str, CPUSet]:
        """Shared pool → the CPUs of a container that starts now, offline CPUs included."""
        extents = self.view.extents.items()
        return {name: cpus for name, cpus in extents if name not in OF_POLICY}

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
        if own and (together := own.rest & self.online):
            return CPUAssignment(Placement.POLICY, exclusive=together)
        return self._shared(pod)

    def _shared(self, pod: Pod) -> CPUAssignment:
        """Return the CPUs of a pod's sandbox, unless the pod owns CPUs as a whole."""
        return self.inputs.node.policy.shared(self.view, pod)

    def _itself(self, pod: Pod) -> CPUAssignment:
        """Return the CPUs of all containers of a pod, also of one that starts next.

        On cgroup v1 a container cannot get a CPU that its pod's cgroup lacks.
        """
        if self.view.kubelet_places:
            return self.view.default
        requested = {resource for container in pod.containers for resource in container.requests}
        room = CPUSet.union(
            (
                self._shared(pod).default,
                *(grant.cpus for grant in self.grants.of(PodOwner(pod.cgroup_uid)).values()),
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


class Snapshot(NamedTuple):
    """The facts and the decisions that follow from them, of one moment."""

    facts: NodeFacts
    resolution: Resolution

    def assignment(self, key: ContainerKey) -> CPUAssignment:
        """Return the CPUs for a directory below a pod's cgroup, or for the pod's own."""
        return self.resolution.assignment(key)

    def allows(self, key: ContainerKey, cpus: CPUSet) -> bool:
        """Return whether a container may have these CPUs: where it belongs, or where it waits."""
        return cpus <= self.assignment(key).cpus | self.resolution.view.default.cpus


class Reader(Protocol):
    """The part of the manager that a role which only reads needs."""

    def snapshot(self) -> Snapshot:
        """Return the facts and the decisions of now."""
        ...


def promised(facts: NodeFacts, before: Resolution, promises: Iterable[Promise]) -> Resolution:
    """Return a resolution with more responses to Allocate among the grants.

    The pod of an answer is not known yet. So the placement of containers changes only where a
    shared set is empty without the answered CPUs, and others stand in for it.
    """
    view = before.view
    grants = view.grants.adding(ownership.promised(facts, promises), facts.topology)
    taken = facts.topology.with_siblings(grants.cpus - view.grants.cpus)
    if all(map(taken.isdisjoint, view.extents.values())):
        return replace(before, view=replace(view, grants=grants))
    return resolve(facts, view.pods, replace(Choices.of(view), grants=grants))


def resolve(
    facts: NodeFacts, pods: tuple[Pod, ...], choices: Choices, before: Snapshot | None = None
) -> Resolution:
    """Place every container by the policy for its request.

    Args:
        facts: the facts now.
        pods: all pods of the node.
        choices: the owners of CPUs, and the pods that the CPU manager policy refuses.
        before: earlier decisions; a placement stays while the facts on which it depends are equal.
    """
    view = choosing.view(facts, pods, choices.grants, choices)
    inputs = Inputs(facts, view, before.resolution.inputs if before else None)
    unchanged = Unchanged(before.resolution.inputs if before else None, inputs)
    earlier = before.resolution.containers if before else {}
    same = before.resolution if before and unchanged.parts is Reads.EVERYTHING else None
    containers: dict[ContainerKey, PlacedContainer] = {}
    instances = sightings.instances(pods, facts.sighted)
    new = sightings.added(before.facts.sighted, facts.sighted) if same and before else None
    if same and new is not None:
        # A request of the runtime concerns one pod, and the node may have hundreds.
        containers.update(same.containers)
        instances = sightings.of_runtime(same.pods, new)
    for identifier, pod, container in instances:
        key = (pod.cgroup_uid, identifier)
        found = earlier.get(key)
        if (
            found is not None
            and found.pod is pod
            and found.container is container
            and found.reads <= unchanged.parts
            and key[0] not in unchanged.differing
        ):
            containers[key] = found
        else:
            placed, reads = placing.place(inputs, key, pod, container)
            containers[key] = PlacedContainer(pod, container, placed, reads)
    if same:
        return replace(same, view=view, containers=containers, inputs=inputs)
    lacking = tuple(_lacking(facts, pods))
    return Resolution(
        view=view,
        kept_shared=CPUSet.union(facts.kept_shared.values()),
        containers=containers,
        pods={pod.cgroup_uid: pod for pod in pods},
        unknown=view.confined(Cause.UNKNOWN_POD, "its pod is not known"),
        missing=tuple(ref for ref, hinted in lacking if not hinted),
        unconfirmed=tuple(ref for ref, _ in lacking),
        inputs=inputs,
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


def _lacking(facts: NodeFacts, pods: Iterable[Pod]) -> Iterator[tuple[ContainerRef, bool]]:
    """Find the containers whose devices the kubelet has not named, and whether hints name them."""
    node = served_requests.served(facts)
    never: set[Resource] = set() if node.owns or node.beside else {KUBELET_CPUS}
    for pod in pods:
        for container in () if pod.finished else pod.containers:
            ref = ContainerRef(pod.cgroup_uid, container.name)
            by_pool = facts.devices.get(ref, {})
            if not (container.requests or container.whole_cpus or by_pool):
                continue
            request = served_requests.of_container(node, by_pool, pod, container)
            if not request:
                continue
            requested = request.amounts.keys() - never
            if requested - {pool for pool, allocated in by_pool.items() if not allocated.hint}:
                yield ref, requested <= by_pool.keys()
