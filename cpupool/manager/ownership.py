"""Who owns which CPU, by the kubelet's word, and by a policy's which was written down before.

A CPU has one owner, a pod. So has a core, but for pods of one pool that lists siblings, as a pool
with a `cpuBindPolicy` does: an exclusive CPU is bought against neighbours on its core.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from cpupool.core import devices
from cpupool.core.cpuset import CPUSet
from cpupool.core.devices import AllocatedDevices
from cpupool.core.grants import AnswerOwner, Grant, Grants, PodOwner, Source
from cpupool.core.requests import ResourceKind
from cpupool.core.workloads import ContainerRef
from cpupool.manager import requested

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from cpupool.core.requests import Resource
    from cpupool.core.workloads import Pod
    from cpupool.manager.facts import NodeFacts, Promise


class _Claim(NamedTuple):
    """What a container holds of a resource.

    Attributes:
        grant: what it would have if nobody else had any of it.
        told: its CPUs are what Allocate has answered.
        idle: its pod has no container, and none that is being created.
    """

    grant: Grant
    told: bool
    idle: bool


def settle(facts: NodeFacts, pods: Iterable[Pod], before: Grants) -> Grants:
    """Return the owner of every exclusive CPU.

    Args:
        facts: what is known now.
        pods: all that are there.
        before: who owned which CPUs until now; where facts contradict each other, the owner stays.
    """
    idle = facts.idle - {one.pod for one in facts.sighted.values() if one.name}
    living = [pod for pod in pods if not pod.finished]
    alive = {pod.cgroup_uid for pod in living}
    holders = {ref.pod for ref in facts.devices}
    claims = [
        claim for pod in living if pod.cgroup_uid in holders for claim in _claims(facts, pod, idle)
    ]
    needed = CPUSet.union(claim.grant.cpus for claim in claims if not claim.idle)

    none = CPUSet()

    def had(claim: _Claim) -> Grant:
        earlier = before.all.get((claim.grant.owner, claim.grant.resource))
        kept = claim.grant.cut(earlier.cpus if earlier else none)
        return kept.cut(kept.cpus - needed) if claim.idle else kept

    # Earlier owners first: a contradiction between facts never takes a CPU from a running pod. Then
    # those whom Allocate has given theirs: it gives nothing twice. An idle pod has ended, where one
    # with containers claims the same CPU: the kubelet gives devices away before the pod is gone.
    # Answers last: each was made for a pod that may be among them.
    kept = [had(claim) for claim in claims]
    chosen = [one for uid, one in before.of_pods if one.source is Source.POLICY and uid in alive]
    new = [claim for claim, part in zip(claims, kept, strict=True) if part.cpus != claim.grant.cpus]
    later = (one.grant for one in sorted(new, key=lambda one: (one.idle, not one.told)))
    answered = answers(facts, facts.promises)
    return Grants().adding((*kept, *chosen)).adding((*later, *answered), facts.topology)


def granted(facts: NodeFacts, resource: Resource, given: AllocatedDevices) -> CPUSet:
    """Return the exclusive CPUs that come with devices; none for a shared resource.

    What the container was told is what it has: its pool may have changed its policy since, or
    be gone. Where nobody remembers, it is what the pool gives now.
    """
    if not resource.kind.exclusive:
        return CPUSet()
    listed = devices.exclusive_cpus(given.ids) & facts.topology.present
    if told := given.told & facts.topology.present:
        return listed | told
    pool = facts.pools.by_name(resource)
    return pool.granted(listed, facts.topology) if pool else listed


def _claims(facts: NodeFacts, pod: Pod, idle: Collection[str]) -> Iterator[_Claim]:
    for container in pod.containers:
        held = facts.devices.get(ContainerRef(pod.cgroup_uid, container.name), {})
        for resource, given in held.items():
            kubelets = resource.kind is ResourceKind.KUBELET
            if kubelets and resource not in requested.counted(facts, pod, container).amounts:
                # They were the kubelet's to give, and it gives none any more.
                continue
            if cpus := granted(facts, resource, given):
                pool = facts.pools.by_name(resource)
                lists_siblings = pool is not None and pool.policy.bind is not None
                told = bool(given.told)
                grant = Grant(
                    PodOwner(pod.cgroup_uid),
                    resource,
                    Source.KUBELET if kubelets else Source.DEVICES,
                    {container.name: cpus},
                    # The kubelet gives out the siblings of its own to whom it likes.
                    whole_cores=not kubelets,
                    # As they were told, siblings may once have been listed.
                    beside=lists_siblings or told,
                )
                yield _Claim(grant, told, pod.cgroup_uid in idle)


def answers(facts: NodeFacts, promises: Iterable[Promise]) -> Iterator[Grant]:
    """Return what answers of Allocate own until a pod turns up with it."""
    for promise in promises:
        given = AllocatedDevices(promise.ids, promise.told)
        if cpus := granted(facts, promise.resource, given):
            owner = AnswerOwner(promise.number)
            yield Grant(owner, promise.resource, Source.DEVICES, {"": cpus}, beside=True)
