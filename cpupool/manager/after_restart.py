"""The choices of an earlier agent, found again after a restart.

A choice stands by itself: the agent checks it against the machine and the other owners, and never
against the pod of today, whose request, labels and annotations may have changed since. So a restart
of the agent changes no grant. Sources name a choice, the best first:

* the record of the agent, for a container whose CPUs have changed since the runtime created it,
  unless it runs on CPUs that the annotation alone names;
* the annotation of a living container, which an agent wrote when the runtime created it;
* the record of the agent, which also has the pods that have ended and still have a cgroup;
* the CPUs on which a container runs, if they are as many as it requests today, and the policy could
  give them: unlike the others, any program can have written them.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from cpupool.core.cpuset import CPUSet
from cpupool.core.grants import (
    WHOLE_POD,
    Grant,
    Grants,
    Leaving,
    PodOwner,
    RecordedChange,
    Sharing,
    Source,
)
from cpupool.core.names import POLICY_CPUS
from cpupool.core.workloads import ContainerID, ContainerKind, oldest_first
from cpupool.manager import choosing, home_nodes, planning, served_requests, sightings
from cpupool.manager.choosing import Choices
from cpupool.policies.view import DEFAULT

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from collections.abc import Set as AbstractSet

    from cpupool.core.cgroups import FoundContainer
    from cpupool.core.workloads import Container, Pod
    from cpupool.manager.facts import NodeFacts
    from cpupool.policies.view import NodeView
    from cpupool.wire.cpu_manager_state import State


def recover(
    facts: NodeFacts, before: NodeView, found: Iterable[FoundContainer], recorded: State
) -> Choices:
    """Return the choices with those of an earlier agent.

    Of two pods that claim a CPU by the same source the older pod has it.

    Args:
        facts: the node's facts.
        before: the policies' view of the node.
        found: the containers with their present CPUs.
        recorded: the record of an earlier agent.
    """
    found = tuple(found)
    # The earlier agent confined the container that the kubelet gave a CPU of an owner.
    of_kubelet = [grant for grant in before.grants if grant.source is Source.KUBELET]
    grants = before.grants
    if not served_requests.kubelet_owns(facts):
        grants = Grants({key: each for key, each in grants.all.items() if each not in of_kubelet})
        with_cgroup = {container.pod for container in found}
        recorded = _plausible(facts, before, found, recorded)
        annotated = _annotated(facts, before, recorded, found)
        for claim in (*annotated, *_recorded(facts, before, recorded, with_cgroup)):
            grants = _granted(facts, grants, claim)
        grants = grants.adding(of_kubelet)
        grants = _from_cgroups(facts, before.pods, grants, found)
    return Choices(grants, before.refused, {**before.homes, **home_nodes.recovered(before, found)})


class _Claim(NamedTuple):
    """A pod's CPUs by one source.

    Attributes:
        uid: the id in the pod's cgroup name.
        pod: the pod; None where only the source has it.
        parts: container → its CPUs; `WHOLE_POD` → those of all containers of the pod.
        sharing: the others that may run there.
        changes: container → how its CPUs have changed since it began.
        bubble: whether the CPUs are a bubble.
    """

    uid: str
    pod: Pod | None
    parts: Mapping[str, CPUSet]
    sharing: Sharing
    changes: Mapping[str, RecordedChange] = MappingProxyType({})
    bubble: bool = False


def _plausible(
    facts: NodeFacts, before: NodeView, found: Iterable[FoundContainer], recorded: State
) -> State:
    """Return the record as far as it is not contradicted.

    Where a container runs on CPUs of its annotation alone, the annotation is newer: the record
    could not be written. On CPUs that neither names, another program has put it. A container gives
    back only the CPUs on which it still runs; of a pod that the API server forgot, all containers
    are taken for one. Where the cgroup has fewer CPUs than the record, as many as the runtime says,
    and the pod does not request the recorded number, the container has given the others back: they
    may have other owners.
    """
    found = tuple(found)
    runs = {(each.pod, ContainerID(each.id)): each.cpus for each in found}
    entries = {uid: dict(parts) for uid, parts in recorded.entries.items()}
    changes: defaultdict[str, dict[str, RecordedChange]] = defaultdict(dict)
    for uid in recorded.changes.keys() - {pod.cgroup_uid for pod in before.pods}:
        there = CPUSet.union(CPUSet.parse_or_empty(each.cpus) for each in found if each.pod == uid)
        for name, one in recorded.changes[uid].items():
            changes[uid][name] = replace(one, leaving=one.leaving & there)
    for identifier, pod, container in sightings.instances(before.pods, facts.sighted):
        uid, name = pod.cgroup_uid, container.name
        change = recorded.changes.get(uid, {}).get(name)
        has = CPUSet.parse_or_empty(runs.get((uid, identifier), ""))
        part = recorded.entries.get(uid, {}).get(name, CPUSet())
        sighted = facts.sighted.get(identifier)
        annotated = sighted.chosen if sighted else CPUSet()
        if change is None or not part or not change.baseline <= part:
            continue
        fewer = sighted is not None and has < part and len(has) == sighted.owns
        if fewer and choosing.requested(facts, pod).get(name) != len(part):
            entries[uid][name] = has
            change = replace(change, baseline=change.baseline & has)
        if has <= part | change.leaving or not has <= annotated:
            changes[uid][name] = replace(change, leaving=change.leaving & has)
    return replace(recorded, entries=entries, changes=changes)


def _recorded(
    facts: NodeFacts, before: NodeView, recorded: State, with_cgroup: AbstractSet[str]
) -> Iterator[_Claim]:
    """Yield the claims of the record: pods by their age, then those that the API server forgot.

    A pod that has ended keeps its CPUs until none of its containers has a cgroup. A record that
    could not be written names it later, too, and its CPUs have other owners then.
    """
    known = {
        pod.cgroup_uid: pod
        for pod in oldest_first(before.pods)
        if not pod.finished or pod.cgroup_uid in with_cgroup
    }
    ended = (recorded.entries.keys() & with_cgroup) - known.keys()
    for uid in (*known, *sorted(ended)):
        if parts := recorded.entries.get(uid):
            pod = known.get(uid)
            changes = recorded.changes.get(uid, {})
            sharing, bubble = _sharing(facts, pod, recorded, uid), uid in recorded.pods
            yield _Claim(uid, pod, parts, sharing, changes, bubble)


def _annotated(
    facts: NodeFacts, before: NodeView, recorded: State, found: Iterable[FoundContainer]
) -> Iterator[_Claim]:
    """Yield the claims of annotations, pods by their age.

    An annotation has the CPUs of one container. Whether its pod has them as a whole is in the
    record, or follows from containers that run beside each other on one CPU. A container that runs
    on fewer CPUs, as many as it requests in the runtime, has given the others back.
    """
    runs = {(each.pod, ContainerID(each.id)): each.cpus for each in found}
    living: defaultdict[str, dict[str, CPUSet]] = defaultdict(dict)
    for sighted in facts.sighted.values():
        if sighted.chosen:
            has_now = CPUSet.parse_or_empty(runs.get((sighted.pod, sighted.id), ""))
            shrunk = sighted.owns == len(has_now) and has_now < sighted.chosen
            given_back = shrunk and facts.policy.kind.resizes
            living[sighted.pod][sighted.name] = has_now if given_back else sighted.chosen
    for pod in oldest_first(before.pods):
        if not (has := living.get(pod.cgroup_uid)):
            continue
        entry = recorded.entries.get(pod.cgroup_uid, {})
        changes = recorded.changes.get(pod.cgroup_uid, {})
        has |= {name: entry[name] for name in changes if name in has}
        sharing = _sharing(facts, pod, recorded, pod.cgroup_uid)
        bubble = pod.cgroup_uid in recorded.pods
        if all((entry.get(name) or entry.get(WHOLE_POD)) == cpus for name, cpus in has.items()):
            parts = entry
        elif bubble := bubble or _has_bubble(facts, pod):
            parts = _as_bubble(pod, has)
        elif _together(facts, pod, has, entry):
            parts = _as_whole(has)
        else:
            parts = has
        yield _Claim(pod.cgroup_uid, pod, parts, sharing, changes, bubble)


def _has_bubble(facts: NodeFacts, pod: Pod) -> bool:
    """Return whether a pod gets a bubble today."""
    return facts.pools.cpu_manager.bubbles and WHOLE_POD in choosing.requested(facts, pod)


def _as_bubble(pod: Pod, has: Mapping[str, CPUSet]) -> Mapping[str, CPUSet]:
    """Return the parts of a bubble of which living containers name their CPUs.

    CPUs that no living container has are lost to it.

    Args:
        pod: the pod.
        has: container → its CPUs.
    """
    parts = {
        each.name: has[each.name]
        for each in pod.containers
        if each.name in has and (each.level_cpus or each.kind is ContainerKind.INIT)
    }
    return planning.of_bubble(pod, CPUSet.union(has.values()), parts)


def _together(
    facts: NodeFacts, pod: Pod, has: Mapping[str, CPUSet], entry: Mapping[str, CPUSet]
) -> bool:
    """Return whether all containers of a pod have their CPUs as one set."""
    if WHOLE_POD in entry or WHOLE_POD in choosing.requested(facts, pod):
        return True
    return CPUSet.overlap(planning.lasting(pod, has))


def _as_whole(has: Mapping[str, CPUSet]) -> Mapping[str, CPUSet]:
    """Return the parts of a pod that owns CPUs as one set: a container with less has a part.

    Args:
        has: container → its CPUs.
    """
    whole = CPUSet.union(has.values())
    return {WHOLE_POD: whole} | {name: cpus for name, cpus in has.items() if cpus < whole}


def _sharing(facts: NodeFacts, pod: Pod | None, recorded: State, uid: str) -> Sharing:
    """Return which others may run on a pod's CPUs: by the record, or else by the policy of today.

    A record without any sharing is of a node where no owner shares, or of an older agent. An older
    agent's record of the policy in force leaves the answer to the policy.
    """
    same = recorded.policy == facts.pools.cpu_manager.policy
    said = uid in recorded.entries and (recorded.sharing or not same)
    if said or pod is None:
        return recorded.sharing.get(uid, Sharing.NONE)
    return facts.policy.sharing(pod)


def _granted(facts: NodeFacts, grants: Grants, claim: _Claim) -> Grants:
    """Return the grants with those parts of a claim that nothing contradicts.

    A bubble is granted as a whole, or not at all: its pod then gets another one.
    """
    if claim.bubble:
        return _with_bubble(facts, grants, claim)
    # The whole comes before its parts.
    for name, cpus in sorted(claim.parts.items(), key=lambda part: part[0] != WHOLE_POD):
        change = claim.changes.get(name)
        leaving = change.leaving - cpus if change else CPUSet()
        if _can_be(facts, grants, claim, name, cpus | leaving):
            grant = Grant(
                PodOwner(claim.uid),
                POLICY_CPUS,
                Source.POLICY,
                {name: cpus},
                claim.sharing,
                whole_cores=False,
                leaving={name: Leaving(leaving)} if leaving else {},
                baselines={name: change.baseline} if change else {},
                resizes={name: change.resizes} if change else {},
            )
            added = grants.adding([grant])
            # A part that would be cut has another owner.
            grants = added if added.part(claim.uid, POLICY_CPUS, name) == cpus else grants
    return grants


def _with_bubble(facts: NodeFacts, grants: Grants, claim: _Claim) -> Grants:
    owner, parts = PodOwner(claim.uid), claim.parts
    bubble = Grant(
        owner, POLICY_CPUS, Source.POLICY, parts, claim.sharing, whole_cores=False, bubble=True
    )
    if not (_can_be(facts, grants, claim, WHOLE_POD, bubble.cpus) and _is_split(claim)):
        return grants
    added = grants.adding([bubble])
    return added if added.parts(claim.uid, POLICY_CPUS) == parts else grants


def _is_split(claim: _Claim) -> bool:
    """Return whether containers of a bubble that run at one time have different CPUs."""
    if not all(claim.parts.values()):
        return False
    if claim.pod is None or claim.pod.qos is None:
        # The kinds of its containers are not known.
        return True
    ending = {each.name for each in claim.pod.containers if each.kind is ContainerKind.INIT}
    lasting = [cpus for name, cpus in claim.parts.items() if name not in ending]
    return not CPUSet.overlap(lasting)


def _can_be(facts: NodeFacts, grants: Grants, claim: _Claim, name: str, cpus: CPUSet) -> bool:
    """Return whether the machine has these CPUs, and no other container owns one of them.

    The core of an owner of whole cores is its own. In a pod only an init container leaves its CPUs
    to later containers. Names and kinds of containers, and their requests of pools, never change.
    """
    parts = grants.parts(claim.uid, POLICY_CPUS)
    cores = CPUSet.union(grant.cpus for grant in grants if grant.whole_cores)
    if (
        not cpus
        or name in parts
        or not cpus <= facts.topology.present - facts.topology.with_siblings(cores)
    ):
        return False
    containers = claim.pod.containers if claim.pod and claim.pod.qos is not None else None
    if name == WHOLE_POD:
        outside = containers is None or all(map(served_requests.outside_pools, containers))
        return outside and not parts
    if WHOLE_POD in parts:
        return cpus < parts[WHOLE_POD]
    return containers is None or _can_be_beside(parts, containers, name, cpus)


def _can_be_beside(
    parts: Mapping[str, CPUSet], containers: tuple[Container, ...], name: str, cpus: CPUSet
) -> bool:
    """Return whether a container of a pod can have CPUs beside those that the others have."""
    there = any(each.name == name and served_requests.outside_pools(each) for each in containers)
    busy = (parts.get(other, CPUSet()) for other in planning.beside(containers, name))
    return there and cpus.isdisjoint(CPUSet.union(busy))


def _from_cgroups(
    facts: NodeFacts, pods: tuple[Pod, ...], grants: Grants, found: Iterable[FoundContainer]
) -> Grants:
    """Return the grants with the CPUs on which containers run, if the policy could give them.

    Another program may have written them, so they are as many as the container requests today.
    """
    runs = {(each.pod, ContainerID(each.id)): each.cpus for each in found}
    for identifier, pod, container in sightings.instances(pods, facts.sighted):
        cpus = CPUSet.parse_or_empty(runs.get((pod.cgroup_uid, identifier), ""))
        requests = choosing.requested(facts, pod)
        name = WHOLE_POD if WHOLE_POD in requests else container.name
        if not cpus or len(cpus) != requests.get(name):
            continue
        bubble = _has_bubble(facts, pod)
        if bubble and any(each.level_cpus for each in pod.containers):
            # The cgroups do not say which containers own parts of it.
            continue
        if cpus <= choosing.available(facts, choosing.view(facts, pods, grants)):
            sharing = facts.policy.sharing(pod)
            claim = _Claim(pod.cgroup_uid, pod, {name: cpus}, sharing, bubble=bubble)
            claimed = _granted(facts, grants, claim)
            # A pod that shares may run on as many CPUs as it requests: the last ones.
            if facts.policy.extents(choosing.view(facts, pods, claimed))[DEFAULT]:
                grants = claimed
    return grants
