"""The owner of each CPU, from the kubelet's records and from the recorded choices of a policy.

A CPU has one owner, a pod. A core has one owner, too, except for pods of one pool that lists
siblings, as a pool with a `cpuBindPolicy`: an exclusive CPU must have no neighbours on its core.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from cpupool.core import devices
from cpupool.core.cpuset import CPUSet
from cpupool.core.devices import AllocatedDevices
from cpupool.core.grants import Grant, Grants, PodOwner, PromiseOwner, Source
from cpupool.core.names import POLICY_CPUS
from cpupool.core.requests import ResourceKind
from cpupool.core.workloads import ContainerRef, oldest_first
from cpupool.manager import served_requests

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from cpupool.core.devices import DevicesByContainer
    from cpupool.core.requests import Resource
    from cpupool.core.workloads import Pod
    from cpupool.manager.facts import NodeFacts
    from cpupool.manager.promises import Promise


class _Claim(NamedTuple):
    """A container's claim to CPUs of a resource.

    Attributes:
        grant: the grant that it would have without other claims.
        announced: whether the CPUs come from Allocate's response.
        idle: whether its pod has no container, not even one that the runtime is creating.
    """

    grant: Grant
    announced: bool
    idle: bool


def settle(facts: NodeFacts, pods: Iterable[Pod], before: Grants) -> Grants:
    """Return the owner of every exclusive CPU.

    Args:
        facts: the facts now.
        pods: all pods of the node.
        before: the owners until now; where facts contradict each other, the owner stays.
    """
    idle = facts.idle - {container.pod for container in facts.sighted.values() if container.name}
    living = [pod for pod in pods if not pod.finished]
    alive = {pod.cgroup_uid for pod in living}
    holders = {ref.pod for ref in facts.devices}
    claims = [
        claim for pod in living if pod.cgroup_uid in holders for claim in _claims(facts, pod, idle)
    ]
    claims += [_Claim(grant, announced=False, idle=False) for grant in _plugged(facts, living)]
    needed = CPUSet.union(claim.grant.cpus for claim in claims if not claim.idle)

    none = CPUSet()

    def had(claim: _Claim) -> Grant:
        earlier = before.all.get((claim.grant.owner, claim.grant.resource))
        kept = claim.grant.cut(earlier.cpus if earlier else none)
        return kept.cut(kept.cpus - needed) if claim.idle else kept

    # Earlier owners come first: a contradiction between facts never takes a CPU from a running pod.
    # Then come claims with CPUs from Allocate, which gives no CPU twice. An idle pod has ended if a
    # pod with containers claims the same CPU: the kubelet gives devices out before the old pod is
    # gone. Answers come last: each belongs to a pod that may be among the claims.
    kept = [had(claim) for claim in claims]
    # A pod that has ended keeps the default pool's CPUs until no container of it has a cgroup.
    # Those of a plugin's answers are claimed anew while the pod lives.
    chosen = [
        grant
        for uid, grant in before.chosen.items()
        if (grant.source is Source.POLICY if uid in alive else uid not in idle)
    ]
    new = [claim for claim, part in zip(claims, kept, strict=True) if part.cpus != claim.grant.cpus]
    later = (
        claim.grant for claim in sorted(new, key=lambda claim: (claim.idle, not claim.announced))
    )
    answered = tuple(promised(facts, facts.promises))
    if not (kept or answered) and len(chosen) == len(before.all):
        return before
    return Grants().adding((*kept, *chosen)).adding((*later, *answered), facts.topology)


def granted(facts: NodeFacts, resource: Resource, given: AllocatedDevices) -> CPUSet:
    """Return the exclusive CPUs that come with devices; none for a shared resource.

    A container has the CPUs that Allocate announced: since then its pool may have another policy,
    or be gone. Where these CPUs are not known, the container has what the pool gives now.
    """
    if not resource.kind.exclusive:
        return CPUSet()
    listed = devices.exclusive_cpus(given.ids) & facts.topology.present
    if announced := given.announced & facts.topology.present:
        return listed | announced
    pool = facts.pools.by_name(resource)
    return pool.granted(listed, facts.topology) if pool else listed


def as_granted(facts: NodeFacts, grants: Grants) -> DevicesByContainer:
    """Return the devices with the CPUs of each grant under the pools in force.

    It is for the moment before the pools change. For a pool that is not in force it is not known
    whether siblings belong to a grant.
    """
    in_force = {pool.name for pool in facts.pools}

    def written(ref: ContainerRef, resource: Resource, given: AllocatedDevices) -> AllocatedDevices:
        if resource not in in_force:
            return given
        return replace(given, announced=grants.part(ref.pod, resource, ref.name) or given.announced)

    return {
        ref: {resource: written(ref, resource, given) for resource, given in held.items()}
        for ref, held in facts.devices.items()
    }


def _claims(facts: NodeFacts, pod: Pod, idle: Collection[str]) -> Iterator[_Claim]:
    for container in pod.containers:
        held = facts.devices.get(ContainerRef(pod.cgroup_uid, container.name), {})
        for resource, given in held.items():
            kubelets = resource.kind is ResourceKind.KUBELET
            if kubelets and resource not in served_requests.counted(facts, pod, container).amounts:
                # The kubelet's CPU manager gave these CPUs, and no longer gives any.
                continue
            if cpus := granted(facts, resource, given):
                pool = facts.pools.by_name(resource)
                lists_siblings = pool is not None and pool.policy.bind is not None
                announced = bool(given.announced)
                grant = Grant(
                    PodOwner(pod.cgroup_uid),
                    resource,
                    Source.KUBELET if kubelets else Source.DEVICES,
                    {container.name: cpus},
                    # The kubelet may give the siblings of its CPUs to other containers.
                    whole_cores=not kubelets,
                    # The pool may have listed siblings when Allocate announced the CPUs.
                    shares_cores=lists_siblings or announced,
                )
                yield _Claim(grant, announced, pod.cgroup_uid in idle)


def _plugged(facts: NodeFacts, pods: Iterable[Pod]) -> Iterator[Grant]:
    """Yield the grants of exclusive answers of plugins."""
    own = facts.plugins.own
    for pod in oldest_first(pods) if own else ():
        refs = (ContainerRef(pod.cgroup_uid, container.name) for container in pod.containers)
        if parts := {ref.name: own[ref] for ref in refs if ref in own}:
            owner = PodOwner(pod.cgroup_uid)
            yield Grant(owner, POLICY_CPUS, Source.PLUGIN, parts, whole_cores=False)


def promised(facts: NodeFacts, promises: Iterable[Promise]) -> Iterator[Grant]:
    """Yield the grants of promises, which own their CPUs until a pod has their devices."""
    for promise in promises:
        given = AllocatedDevices(promise.ids, promise.announced)
        if cpus := granted(facts, promise.resource, given):
            owner = PromiseOwner(promise.number)
            yield Grant(owner, promise.resource, Source.DEVICES, {"": cpus}, shares_cores=True)
