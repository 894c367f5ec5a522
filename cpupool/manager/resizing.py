"""An in-place resize: a running container gets more or fewer CPUs of its own.

A call of the runtime changes a grant (`resized`). The container owns new CPUs at once. During its
notice it may still run on the CPUs that it loses. After the notice the container must leave them,
and it owns them until the kernel reports that it has left. While the agent waits for this report,
`resized` refuses a further resize of the container.

Sources: KEP-1287 (in-place resize), KEP-5554 (the baseline), KEP-6122 (the notice).
"""

from __future__ import annotations

from collections import defaultdict
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import Enum
from itertools import takewhile
from typing import TYPE_CHECKING

from cpupool.core.cpu_manager import TopologyPolicy
from cpupool.core.cpuset import CPUSet
from cpupool.core.errors import DevicesUnnamed, NotEnoughCPUs, PlacementError
from cpupool.core.grants import WHOLE_POD, Sharing, Source
from cpupool.core.names import POLICY_CPUS, Names
from cpupool.core.workloads import ContainerID, ContainerRef, CPUMoves, oldest_first
from cpupool.manager import aligning, choosing, guard, planning
from cpupool.manager.choosing import CPUsAwaited
from cpupool.policies.base import ChoiceRequest, Operation
from cpupool.policies.view import DEFAULT

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from cpupool.core.cgroups import FoundContainer
    from cpupool.core.grants import Grant, Grants
    from cpupool.core.workloads import Pod, RuntimeContainer
    from cpupool.manager.choosing import Choices
    from cpupool.manager.facts import NodeFacts
    from cpupool.manager.resolve import Resolution, Snapshot
    from cpupool.policies.view import NodeView


class ResizeRefused(PlacementError):
    """A resize that the rules of the policy do not allow."""

    def __init__(self, what: str, remedy: str) -> None:
        super().__init__(f"{what}; {remedy}", what)


def resized(
    facts: NodeFacts,
    seen: NodeView,
    ref: ContainerRef,
    count: int,
    *,
    unix_s: int | None = None,
    runs: bool = True,
    names: Names | None = None,
) -> Grants:
    """Return the grants after a resize of one container.

    Args:
        facts: the node's facts.
        seen: the policies' view of the node.
        ref: the container.
        count: how many CPUs of its own it requests; 0 for no whole number.
        unix_s: the time now, if it is known.
        runs: whether it runs, so that it may have pinned threads where it began.
        names: for the message of a refusal; None for the usual domain.

    Raises:
        PlacementError: the container keeps the CPUs that it has.
    """
    pod = next((pod for pod in seen.pods if pod.cgroup_uid == ref.pod), None)
    grant = seen.chosen.get(ref.pod)
    if grant and grant.bubble:
        what = f"it has CPUs {grant.part(ref.name)} of {grant.cpus}, which its pod owns as a whole"
        raise ResizeRefused(what, "create the pod again with the new requests")
    if pod is None or grant is None or not grant.resizable(ref.name):
        what = "the CPU manager policy has given it no CPUs of its own"
        raise ResizeRefused(what, "create the pod again with the new request")
    moves = (names or Names()).moves
    return _Resize(facts, seen, pod, grant, ref.name, count, moves, unix_s, runs=runs).grants()


def begun(
    facts: NodeFacts, seen: NodeView, ref: ContainerRef, count: int, *, unix_s: int | None = None
) -> Grants:
    """Return the grants before a container is created: it has what it requests, without a notice.

    A request that does not fit changes nothing: then it has as many CPUs as before.
    """
    grants = seen.grants
    if not facts.policy.kind.resizes:
        return grants
    if count:
        with suppress(PlacementError):
            grants = resized(facts, seen, ref, count, unix_s=unix_s, runs=False)
    grant = grants.chosen.get(ref.pod)
    leaving = grant.leaving.get(ref.name) if grant else None
    if grant and leaving and leaving.in_force:
        return grants.replacing(grant.narrowed(ref.name))
    return grants


@dataclass(frozen=True, slots=True)
class _Resize:
    """A resize of one container.

    Attributes:
        facts: the node's facts.
        seen: the policies' view of the node.
        pod: the container's pod.
        grant: the pod's grant.
        name: the container.
        count: how many CPUs of its own it requests; 0 for no whole number.
        moves: the annotation that lets it leave the CPUs with which it began.
        unix_s: the time now, if it is known.
        runs: whether it runs.
    """

    facts: NodeFacts
    seen: NodeView
    pod: Pod
    grant: Grant
    name: str
    count: int
    moves: str
    unix_s: int | None = None
    runs: bool = True

    @property
    def has(self) -> CPUSet:
        """The CPUs that the container must have until now."""
        return self.grant.parts[self.name]

    def grants(self) -> Grants:
        """Return the grants after it.

        Raises:
            PlacementError: the container keeps the CPUs that it has.
        """
        grants, facts = self.seen.grants, self.facts
        if self.count == len(self.has):
            return grants
        if not self.count:
            owned = len(self.has)
            what = f"it owns {owned} CPU{'s' * (owned > 1)}, and requests no whole number now"
            raise ResizeRefused(what, "request whole CPUs")
        leaving = self.grant.leaving.get(self.name)
        if leaving and not leaving.in_force:
            what = f"it has not left CPUs {leaving.cpus} of its last resize yet"
            raise ResizeRefused(what, "wait: the kubelet tries again")
        grows = self.count > len(self.has)
        request = self._aligned(self._more()) if grows else self._fewer()
        chosen = facts.policy.choose(self.seen, request)
        choice = guard.checked(facts.pools.cpu_manager.policy, request, chosen)
        grant = self.grant.changing(self.name, choice.cpus, self.unix_s)
        if self.name in grant.leaving and not notice_s(facts, self.pod):
            # Without a notice the answer to the runtime has the CPUs that stay.
            grant = grant.narrowed(self.name)
        made = grants.replacing(grant)
        if grows:
            self._check(made)
        return made

    def _request(self, available: CPUSet, has: CPUSet) -> ChoiceRequest:
        resize = Operation.RESIZE
        return ChoiceRequest(
            POLICY_CPUS, self.count, available, has=has, pod=self.pod, operation=resize
        )

    def _fewer(self) -> ChoiceRequest:
        """Return the request of a container that gives CPUs back.

        Raises:
            ResizeRefused: it would lose CPUs with which it began.
        """
        baseline = self.grant.baseline(self.name)
        if self.count >= len(baseline):
            return self._request(self.has - baseline, baseline)
        if self.pod.cpu_moves is CPUMoves.ANY or not self.runs:
            return self._request(self.has & baseline, CPUSet())
        what = f"it requests cpu {self.count}, and keeps the CPUs {baseline} with which it began"
        word = f"annotate its pod with {self.moves}: any, if the application can leave them"
        raise ResizeRefused(what, word)

    def _more(self) -> ChoiceRequest:
        """Return the request of a container that gets more CPUs.

        Those that it is leaving come first, and those that its pod leaves to it, unless another
        container is leaving them.
        """
        others = (each.cpus for name, each in self.grant.leaving.items() if name != self.name)
        idle = planning.reusable(self.pod, self.grant.parts, self.name) - CPUSet.union(others)
        usable = self.seen.cpus & self.seen.topology.online - self.has
        request = self._request(choosing.available(self.facts, self.seen), self.has)
        return replace(request, reusable=(self.grant.in_force(self.name) | idle) & usable)

    def _aligned(self, request: ChoiceRequest) -> ChoiceRequest:
        """Return the request with the NUMA nodes that the topology policy demands for it.

        Raises:
            PlacementError: there are no such nodes, or the devices of the pod are not known.
        """
        facts, pod = self.facts, self.pod
        if aligning.topology_policy(facts, pod) is TopologyPolicy.NONE:
            return request
        if pod.cgroup_uid not in facts.device_nodes:
            raise DevicesUnnamed
        part = aligning.part(facts, self.name)
        # With the scope pod, all containers lie on the same nodes.
        has = self.grant.assigned if part == WHOLE_POD else request.has
        wide = replace(request, count=request.count + len(has - request.has), has=has)
        offers = aligning.of_devices(facts, pod, part) + aligning.of_plugins(facts, pod, part)
        near = aligning.aligned(facts, self.seen, pod, wide, offers)
        return replace(request, nodes=near.nodes, reusable=near.reusable)

    def _check(self, made: Grants) -> None:
        """Check that the new CPUs leave some to share, and are none that an older pod waits for.

        Raises:
            PlacementError: they do not.
        """
        facts, seen = self.facts, self.seen
        if not facts.policy.extents(choosing.view(facts, seen.pods, made))[DEFAULT]:
            has = len(self.has)
            more = self.count - has
            raise NotEnoughCPUs(more, more - 1, has=has)
        stay = choosing.without_ending(seen.pods, made)
        for older in takewhile(lambda pod: pod is not self.pod, oldest_first(seen.pods)):
            refusal = seen.refused.get(older.cgroup_uid)
            waits = refusal is not None and refusal.holds and refusal.reachable
            if waits and not choosing.fits(facts, seen.pods, stay, older):
                raise CPUsAwaited(older)


def answered(
    sighted: Mapping[ContainerID, RuntimeContainer], ref: ContainerRef, count: int
) -> Mapping[ContainerID, RuntimeContainer]:
    """Return the containers of the runtime after it has the answer to a resize."""
    return {
        identifier: replace(each, owns=count) if (each.pod, each.name) == ref else each
        for identifier, each in sighted.items()
    }


def followed(facts: NodeFacts, pods: tuple[Pod, ...], before: Choices) -> Choices:
    """Return the decisions with the resizes that no agent has answered.

    The runtime has them from the kubelet, which resized while no agent was connected. One that does
    not fit changes nothing.
    """
    grants = before.grants
    for ref, count in unanswered(facts, grants):
        try:
            grants = resized(facts, choosing.view(facts, pods, grants, before), ref, count)
        except PlacementError:
            continue
    return before if grants is before.grants else replace(before, grants=grants)


def unanswered(facts: NodeFacts, grants: Grants) -> Iterator[tuple[ContainerRef, int]]:
    """Yield the containers whose request in the runtime is not what they have, with its CPUs.

    A container that has what its pod requests is none: the runtime may have failed to resize it
    after the agent had agreed, or it may have forgotten the resize, as CRI-O does when it starts
    again. The kubelet then resizes once more.
    """
    if not facts.policy.kind.resizes:
        return
    requested: defaultdict[ContainerRef, set[int]] = defaultdict(set)
    for sighted in facts.sighted.values():
        if sighted.owns:
            requested[ContainerRef(sighted.pod, sighted.name)].add(sighted.owns)
    for ref, counts in requested.items():
        grant = grants.chosen.get(ref.pod)
        # A container that starts again may be known twice for a moment.
        if grant and len(counts) == 1 and grant.resizable(ref.name):
            (count,) = counts
            has = len(grant.parts[ref.name])
            if has != count and has != _wished(facts, ref):
                yield ref, count


def _wished(facts: NodeFacts, ref: ContainerRef) -> int | None:
    """Return how many CPUs of its own a container requests in the spec of its pod."""
    pod = next((pod for pod in facts.pods or () if pod.cgroup_uid == ref.pod), None)
    return choosing.requested(facts, pod).get(ref.name) if pod else None


class Reason(Enum):
    """Why a container's own CPUs change; the word stands in the container's folder."""

    GROW = "grow"
    SHRINK = "shrink"
    COMPACT = "compact"
    """It gives CPUs back, and gets others for them."""
    OFFLINE = "offline"
    ONLINE = "online"
    REPAIR = "repair"
    """Another program has written its CPUs, and they are right again."""
    PLUGIN = "plugin"
    """A plugin has named other CPUs for it."""


@dataclass(frozen=True, slots=True)
class OwnCPUs:
    """The own CPUs of a container whose CPUs may change.

    Attributes:
        assigned: the CPUs that it must have, offline CPUs included.
        in_force: the online CPUs on which it may run now.
        baseline: the CPUs that it got at its creation, and that stay its own; empty if a plugin may
            take any.
        leaving: the CPUs that it gives back, offline CPUs included, while the notice lasts; else
            empty.
        notice_s: how long the container knows that CPUs leave before they are taken.
        settled: whether the kernel has the CPUs in force, and has moved the other pods off them.
        cause: why its CPUs change, where the CPUs alone do not tell; else None.
    """

    assigned: CPUSet
    in_force: CPUSet
    baseline: CPUSet
    leaving: CPUSet
    notice_s: float
    settled: bool = True
    cause: Reason | None = None


def own_cpus(
    now: Snapshot, runs: Mapping[ContainerRef, CPUSet] | None
) -> Mapping[ContainerRef, OwnCPUs]:
    """Return the CPUs of the containers whose own CPUs can change while they run, or have changed.

    A notice ends under every policy: it may have begun before an edit of the pool file. What a
    plugin says is in force at once: the plugin may give the old CPUs to another container in the
    same list.

    Args:
        now: the facts and the decisions.
        runs: container → the own CPUs that its cgroup has, of those that run; None if the cgroups
            have not been read.
    """
    facts, resolution = now
    online, crowded = resolution.online, _crowded(runs or {})
    found: dict[ContainerRef, OwnCPUs] = {}
    for uid, grant in resolution.view.chosen.items():
        pod = resolution.pods.get(uid)
        if pod is None:
            continue
        plugged = grant.source is Source.PLUGIN
        for name in _changing(facts, grant):
            ref, in_force = ContainerRef(uid, name), grant.in_force(name)
            found[ref] = OwnCPUs(
                grant.parts[name],
                in_force & online,
                CPUSet() if plugged else grant.baseline(name),
                in_force - grant.parts[name],
                notice_s(facts, pod),
                settled=runs is not None
                and runs.get(ref, in_force) & online == in_force & online
                and (grant.sharing is not Sharing.NONE or in_force.isdisjoint(crowded)),
                cause=Reason.PLUGIN if plugged else None,
            )
    return found


def _crowded(runs: Mapping[ContainerRef, CPUSet]) -> CPUSet:
    """Return the CPUs that several pods have, without those of their pools.

    The runtime may make a change after a resize that it was asked for before: then others get the
    new CPUs once more.
    """
    of_pods: defaultdict[str, CPUSet] = defaultdict(CPUSet)
    for ref, cpus in runs.items():
        of_pods[ref.pod] |= cpus
    seen = crowded = CPUSet()
    for cpus in of_pods.values():
        crowded |= seen & cpus
        seen |= cpus
    return crowded


def _changing(facts: NodeFacts, grant: Grant) -> Iterator[str]:
    """Yield the containers whose own CPUs can change while they run, or have changed."""
    resizes, plugged = facts.policy.kind.resizes, grant.source is Source.PLUGIN
    for name in grant.parts:
        if plugged or name in grant.baselines or (resizes and grant.resizable(name)):
            yield name


def notice_s(facts: NodeFacts, pod: Pod) -> int:
    """Return how long the containers of a pod may stay on CPUs that they lose."""
    most_s = facts.pools.cpu_manager.max_notice_s
    return most_s if pod.notice_s is None else min(pod.notice_s, most_s)


def changes_cpus(now: Snapshot) -> bool:
    """Return whether a container's own CPUs can change, or have changed, while it runs."""
    facts, resolution = now
    chosen = resolution.view.chosen.values()
    return any(name for grant in chosen for name in _changing(facts, grant))


def runs_on(
    resolution: Resolution, found: Iterable[FoundContainer]
) -> Mapping[ContainerRef, CPUSet]:
    """Return container → the CPUs that its cgroups have, without the pools' among them."""
    runs: dict[ContainerRef, CPUSet] = {}
    for container in found:
        placed = resolution.containers.get((container.pod, ContainerID(container.id)))
        if placed is not None:
            ref = ContainerRef(container.pod, placed.container.name)
            cpus = CPUSet.parse_or_empty(container.cpus) - placed.assignment.shared
            runs[ref] = runs.get(ref, CPUSet()) | cpus
    return runs
