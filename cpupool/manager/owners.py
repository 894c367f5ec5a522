"""Who owns which exclusive CPU.

A CPU has one owner, a pod. So has a core, but for pods of one pool that lists siblings, as a pool
with a `cpuBindPolicy` does: an exclusive CPU is bought against neighbours on its core.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cpupool.core.cpuset import CPUSet
from cpupool.core.names import KUBELET_CPUS
from cpupool.core.workloads import ContainerRef

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from cpupool.core.workloads import Pod
    from cpupool.manager.resolve import NodeFacts

Owned = Mapping[str, Mapping[str, CPUSet]]
"""The kubelet's UID of a pod → pool → exclusive CPUs that it owns."""


@dataclass(frozen=True, slots=True)
class _Claim:
    """What a container holds of an exclusive pool, by the kubelet's word.

    Attributes:
        pod: the kubelet's UID of its pod.
        pool: the pool's name.
        cpus: the CPUs that come with its devices.
        told: they are what Allocate has answered.
        beside: they may lie on cores of other pods of the pool: it lists siblings or, as they were
            told, once did.
        idle: the pod has no container, and none that is being created.
    """

    pod: str
    pool: str
    cpus: CPUSet
    told: bool
    beside: bool
    idle: bool


def owners(facts: NodeFacts, pods: Iterable[Pod], before: Owned) -> Owned:
    """Find the owner of every exclusive CPU that a pod has.

    Args:
        facts: what is known now.
        pods: all that are there.
        before: who owned which CPUs until now; where facts contradict each other, the owner stays.
    """
    owned: defaultdict[str, dict[str, CPUSet]] = defaultdict(dict)
    owner: dict[int, str] = {}
    first: dict[int, tuple[str, str]] = {}
    none = CPUSet()

    def give(claim: _Claim, cpus: CPUSet) -> None:
        if not cpus:
            return
        of_pod = owned[claim.pod]
        of_pod[claim.pool] = of_pod.get(claim.pool, none) | cpus
        owner.update(dict.fromkeys(cpus, claim.pod))
        for cpu in facts.topology.with_siblings(cpus):
            first.setdefault(cpu, (claim.pod, claim.pool))

    def mine(claim: _Claim) -> Iterator[int]:
        for cpu in claim.cpus:
            pod, pool = first.get(cpu, (claim.pod, claim.pool))
            beside = pool == claim.pool and claim.beside
            if owner.get(cpu, claim.pod) == claim.pod and (pod == claim.pod or beside):
                yield cpu

    idle = facts.idle - {one.pod for one in facts.sighted.values() if one.name}
    claims = [claim for pod in pods if not pod.finished for claim in _claims(facts, pod, idle)]
    needed = CPUSet.union(claim.cpus for claim in claims if not claim.idle)
    # Earlier owners first: a contradiction between facts never takes a CPU from a running pod. Then
    # those whom Allocate has given theirs: it gives nothing twice. An idle pod has ended, where one
    # with containers claims the same CPU: the kubelet gives devices away before the pod is gone.
    for claim in claims:
        had = claim.cpus & before.get(claim.pod, {}).get(claim.pool, none)
        give(claim, had - needed if claim.idle else had)
    for claim in sorted(claims, key=lambda claim: (claim.idle, not claim.told)):
        give(claim, CPUSet(mine(claim)))
    return owned


def owned_cpus(owned: Owned) -> CPUSet:
    """Join the CPUs that pods own, whichever pod and pool."""
    return CPUSet.union(cpus for by_pool in owned.values() for cpus in by_pool.values())


def _claims(facts: NodeFacts, pod: Pod, idle: Collection[str]) -> Iterator[_Claim]:
    for container in pod.containers:
        by_pool = facts.devices.get(ContainerRef(pod.cgroup_uid, container.name), {})
        for pool, grant in by_pool.items():
            if pool == KUBELET_CPUS and pool not in facts.requests(pod, container):
                # They were the kubelet's to give, and it gives none any more.
                continue
            if cpus := facts.granted(pool, grant):
                configured = facts.pools.by_name(pool)
                lists_siblings = configured is not None and configured.policy.bind is not None
                told = bool(grant.cpus)
                yield _Claim(
                    pod.cgroup_uid,
                    pool,
                    cpus,
                    told,
                    beside=lists_siblings or told,
                    idle=pod.cgroup_uid in idle,
                )
