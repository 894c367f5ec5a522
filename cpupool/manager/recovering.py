"""The choices of an earlier agent, found again after a restart."""

from __future__ import annotations

from collections import defaultdict
from contextlib import suppress
from typing import TYPE_CHECKING

from cpupool.core.cpuset import CPUSet
from cpupool.core.errors import CPUSetParseError
from cpupool.core.grants import WHOLE_POD, Grants, PodOwner, Source
from cpupool.core.names import POLICY_CPUS
from cpupool.core.workloads import ContainerID, ContainerKind, oldest_first
from cpupool.manager import choosing, homes, requested, sightings
from cpupool.manager.choosing import Admission
from cpupool.policies.base import DEFAULT

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from cpupool.core.grants import Grant
    from cpupool.core.workloads import Pod
    from cpupool.manager.facts import NodeFacts
    from cpupool.manager.ports import FoundContainer
    from cpupool.policies.base import NodeView


def recover(
    facts: NodeFacts,
    before: NodeView,
    found: Iterable[FoundContainer],
    recorded: Mapping[str, Mapping[str, CPUSet]],
) -> Admission:
    """Return the decisions with the choices of an earlier agent.

    The sources, the best first: the annotations of living containers, which an agent wrote when the
    runtime created them; the record of the agent; the CPUs where containers run. CPUs count only if
    the machine has them, the container requests as many, and no other owner has one of them. Of two
    pods that claim a CPU the older pod has it. CPUs that only a cgroup names must be CPUs that the
    policy could give.

    Args:
        facts: the node's facts.
        before: the policies' view of the node.
        found: the containers with their present CPUs.
        recorded: the id in a pod's cgroup name → container → the CPUs that an agent gave it.
    """
    found, pods, grants = tuple(found), before.pods, before.grants
    # The earlier agent confined the container that the kubelet gave a CPU of an owner.
    of_kubelet = [grant for grant in grants if grant.source is Source.KUBELET]
    grants = Grants({key: each for key, each in grants.all.items() if each not in of_kubelet})
    living: defaultdict[str, dict[str, CPUSet]] = defaultdict(dict)
    for sighted in facts.sighted.values():
        if sighted.chosen:
            living[sighted.pod][sighted.name] = sighted.chosen
    for source in (living, recorded):
        for pod in oldest_first(pods):
            has = source.get(pod.cgroup_uid, {})
            if source is living and WHOLE_POD in choosing.wanted(facts, pod):
                # Each container has all CPUs of the pod, or a part of them.
                has = {**has, WHOLE_POD: CPUSet.union(has.values())}
            for container, cpus in has.items():
                names = _parts(facts, pod, container) if source is living else (container,)
                for name in names:
                    if _could_be_chosen(facts, grants, pod, name, cpus):
                        parts = _split(name, cpus, has)
                        grants = _whole(grants, choosing.granted(facts, pod, parts))
    grants = _from_cgroups(facts, pods, grants.adding(of_kubelet), found)
    return Admission(grants, before.refused, {**before.homes, **homes.recovered(before, found)})


def _split(name: str, cpus: CPUSet, has: Mapping[str, CPUSet]) -> Mapping[str, CPUSet]:
    """Return the parts of a grant; with the CPUs of a pod also those of containers that have less.

    Args:
        name: the container, or `WHOLE_POD`.
        cpus: its CPUs.
        has: the CPUs of each container of the pod.
    """
    if name != WHOLE_POD:
        return {name: cpus}
    return {name: cpus} | {part: less for part, less in has.items() if less and less < cpus}


def _from_cgroups(
    facts: NodeFacts, pods: tuple[Pod, ...], grants: Grants, found: Iterable[FoundContainer]
) -> Grants:
    """Return the grants with the CPUs on which containers run, if the policy could give them."""
    runs = {(each.pod, ContainerID(each.id)): each.cpus for each in found}
    for identifier, pod, wanting in sightings.instances(pods, facts.sighted):
        text = runs.get((pod.cgroup_uid, identifier), "")
        wants = choosing.wanted(facts, pod)
        name = WHOLE_POD if WHOLE_POD in wants else wanting.name
        if not text or name not in wants:
            continue
        with suppress(CPUSetParseError):
            cpus = CPUSet.parse(text)
            free = cpus <= choosing.available(facts, choosing.view(facts, pods, grants))
            if free and _could_be_chosen(facts, grants, pod, name, cpus):
                claimed = _whole(grants, choosing.granted(facts, pod, {name: cpus}))
                # A pod that shares may run on as many CPUs as it requests: the last ones.
                if facts.policy.extents(choosing.view(facts, pods, claimed))[DEFAULT]:
                    grants = claimed
    return grants


def _could_be_chosen(facts: NodeFacts, grants: Grants, pod: Pod, name: str, cpus: CPUSet) -> bool:
    """Return whether an agent can have chosen these CPUs for a container that has none yet.

    Only init containers leave their CPUs to later containers of their pod. No CPU is a sibling in a
    core that another owner has as a whole. The labels and annotations of a pod may have changed
    since it got its CPUs.
    """
    parts = grants.parts(pod.cgroup_uid, POLICY_CPUS)
    counts = {**requested.countable(pod), WHOLE_POD: requested.together(pod)}
    whole = CPUSet.union(grant.cpus for grant in grants if grant.whole_cores)
    if (
        requested.kubelet_owns(facts)
        or name in parts
        or (parts and WHOLE_POD in {name, *parts})
        or not cpus
        or len(cpus) != counts.get(name)
        or not cpus <= facts.topology.present - facts.topology.with_siblings(whole)
    ):
        return False
    busy = CPUSet()
    for container in pod.containers:
        own = cpus if container.name == name else parts.get(container.name, CPUSet())
        if not own.isdisjoint(busy):
            return False
        if container.kind is not ContainerKind.INIT:
            busy |= own
    return True


def _parts(facts: NodeFacts, pod: Pod, container: str) -> tuple[str, ...]:
    """Return the names under which a grant can have the CPUs of a container, the likely first."""
    wants = choosing.wanted(facts, pod)
    if WHOLE_POD in wants:
        return (WHOLE_POD,)
    return (container,) if container in wants else (container, WHOLE_POD)


def _whole(grants: Grants, claim: Grant) -> Grants:
    """Return the grants with a claim, or without it if another owner has one of its CPUs."""
    added = grants.adding([claim])
    has = added.parts(claim.owner.uid, POLICY_CPUS) if isinstance(claim.owner, PodOwner) else {}
    return added if claim.parts.items() <= has.items() else grants
