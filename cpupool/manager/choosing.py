"""The grants of CPUs that the node's CPU manager policy gives to containers.

A choice depends on earlier choices, so the agent makes it once, for a whole pod, and keeps it until
the pod ends. The placement of each container follows from the grants (`resolve`).
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from cpupool.core.assignments import CPUAssignment, Placement
from cpupool.core.cpuset import CPUSet
from cpupool.core.errors import CPUSetParseError, NotEnoughCPUs, SMTAlignmentError
from cpupool.core.grants import Grant, Grants, PodOwner, Source
from cpupool.core.names import POLICY_CPUS
from cpupool.core.workloads import ContainerID, ContainerKind
from cpupool.manager import requested, sightings
from cpupool.policies.base import DEFAULT, Ask, NodeView
from cpupool.policies.pools import PoolsPolicy
from cpupool.telemetry import log as logs

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from cpupool.core.workloads import Pod
    from cpupool.manager.facts import NodeFacts
    from cpupool.manager.ports import FoundContainer

log = logs.get(__name__)


def view(facts: NodeFacts, pods: tuple[Pod, ...], grants: Grants) -> NodeView:
    """Return the policies' view of a node."""
    whole = CPUSet.union(grant.cpus for grant in grants if grant.whole_cores)
    bare = NodeView(
        facts.topology,
        facts.pools,
        facts.pools.default_cpus(facts.topology),
        grants,
        barred=facts.topology.with_siblings(whole) | grants.cpus | facts.blocked,
        pods=pods,
    )
    extents = {**PoolsPolicy().extents(bare), **facts.policy.extents(bare)}
    if requested.kubelet_owns(facts):
        default = CPUAssignment(Placement.KUBELET)
    elif facts.pools.pools or any(grants.of_pods):
        default = CPUAssignment(Placement.DEFAULT, default=extents[DEFAULT])
    else:
        # No pool and no grant: the agent leaves containers where they are.
        default = CPUAssignment(Placement.DEFAULT)
    return replace(bare, extents=extents, default=default)


def admit(facts: NodeFacts, pods: tuple[Pod, ...], grants: Grants) -> Grants:
    """Return the grants with a choice for every pod that runs or starts, and has no choice yet.

    A pod that does not fit shares the default pool; the agent tries again at the next change.

    Args:
        facts: the node's facts; a pod starts when the container runtime reports it.
        pods: all pods of the node.
        grants: who owns which CPUs.
    """
    starting = {container.pod for container in facts.sighted.values()}
    for pod in pods:
        if not (wants := _wants(facts, pod)):
            continue
        has = grants.parts(pod.cgroup_uid, POLICY_CPUS).keys()
        runs = pod.cgroup_uid in starting or any(container.id for container in pod.containers)
        if runs and not wants.keys() <= has:
            grants = _admitted(facts, pods, grants, pod, wants)
    return grants


def recover(
    facts: NodeFacts, pods: tuple[Pod, ...], grants: Grants, found: Iterable[FoundContainer]
) -> Grants:
    """Return the grants with the choices of an earlier agent, from the CPUs where containers run.

    A set of CPUs counts only if it has exactly the size that the policy gives to the container, and
    the policy could give these CPUs; if two sets overlap, the first counts.
    """
    runs = {(container.pod, ContainerID(container.id)): container.cpus for container in found}
    for identifier, pod, container in sightings.instances(pods, facts.sighted):
        count = _wants(facts, pod).get(container.name)
        uid = pod.cgroup_uid
        if count is None or container.name in grants.parts(uid, POLICY_CPUS):
            continue
        with suppress(CPUSetParseError):
            cpus = CPUSet.parse(runs.get((uid, identifier), ""))
            if len(cpus) == count and cpus <= _available(facts, view(facts, pods, grants)):
                grants = grants.adding([_grant(pod, {container.name: cpus})])
    return grants


def _wants(facts: NodeFacts, pod: Pod) -> Mapping[str, int]:
    """Return container → number of its own CPUs, without containers that request pools."""
    wants = facts.policy.wants(pod)
    if not wants or pod.finished or requested.kubelet_owns(facts):
        return {}
    pooled = {container.name for container in pod.containers if container.requests}
    return {name: count for name, count in wants.items() if name not in pooled}


def _available(facts: NodeFacts, seen: NodeView) -> CPUSet:
    """Return the CPUs that the policy can give: free CPUs of the default pool."""
    return facts.policy.available(seen) & seen.free


def _admitted(
    facts: NodeFacts, pods: tuple[Pod, ...], grants: Grants, pod: Pod, wants: Mapping[str, int]
) -> Grants:
    """Return the grants with those of one pod, or unchanged if the pod does not fit."""
    kinds = {container.name: container.kind for container in pod.containers}
    made, left = grants, CPUSet()
    for name, count in wants.items():
        parts = made.parts(pod.cgroup_uid, POLICY_CPUS)
        ends = kinds[name] is ContainerKind.INIT
        if (cpus := parts.get(name)) is None:
            if ends and any(kinds.get(part) is ContainerKind.APP for part in parts):
                # The init container ended before this agent started.
                continue
            seen = view(facts, pods, made)
            available = _available(facts, seen)
            try:
                cpus = facts.policy.choose(seen, Ask(POLICY_CPUS, count, available, left)).cpus
            except (NotEnoughCPUs, SMTAlignmentError):
                return grants
            if len(cpus) != count or not cpus <= available | left:
                log.error("policy has chosen CPUs that it cannot give", pod=pod.name, cpus=cpus)
                return grants
            made = made.adding([_grant(pod, {name: cpus})])
        # An init container ends before the others start, and leaves its CPUs to them.
        left = left | cpus if ends else left - cpus
    return made


def _grant(pod: Pod, parts: Mapping[str, CPUSet]) -> Grant:
    owner = PodOwner(pod.cgroup_uid)
    return Grant(owner, POLICY_CPUS, Source.POLICY, parts, whole_cores=False)
