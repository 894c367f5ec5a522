"""The grants of CPUs that the node's CPU manager policy gives to containers.

A choice depends on earlier choices. So the agent chooses once for a whole pod, and keeps the choice
until the pod has ended. The placement of each container follows from the grants (`resolve`).

Theory of operation. `choose` takes the facts and the earlier grants. It goes through the pods that
have no choice yet, the oldest first. For each pod:

1. `_ChoiceKey` has the facts about the pod that decide its choice. As long as the grants stay the
   same, two pods with equal keys have the same result: if one does not fit, the other does not fit
   either. So `choose` tries a key again only after the grants have changed.
2. If the CPUs must lie near devices, `_attempted` waits until the kubelet has named the devices. It
   also refuses a choice that uses CPUs for which an older pod waits (`CPUsAwaited`, step 5).
3. `_plans` yields plans. A plan has an order of the pod's containers, and says whether all of them
   lie on the same NUMA nodes. Containers that run at different times can have the same CPUs, so the
   order decides how many CPUs the pod owns. `_chosen` takes the plan with the fewest CPUs.
4. `_with` gives one container its CPUs. The policy narrows the request by its own rules, `aligning`
   adds the NUMA nodes of other resources, the policy chooses (`_choice`), and `guard` checks the
   choice. The result is a new state (`_Choosing`), in which these CPUs have an owner.
5. A pod that does not fit gets a `Refusal`. `onMisfit` decides whether the pod waits or shares. The
   refusal is *reachable* if the pod fits after all ending pods have left their CPUs. Such a pod
   stays before younger pods.

`offered` makes the first steps of the same choice in advance, for the questions to plugins.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Self

from cpupool.core import default_pool
from cpupool.core.assignments import CPUAssignment, Placement
from cpupool.core.cpu_manager import Misfit, TopologyPolicy
from cpupool.core.cpuset import CPUSet
from cpupool.core.errors import (
    DevicesUnnamed,
    NotEnoughCPUs,
    PlacementError,
    SMTAlignmentError,
    TopologyAffinityError,
)
from cpupool.core.grants import WHOLE_POD, Grant, Grants, PodOwner, Source
from cpupool.core.names import POLICY_CPUS
from cpupool.core.workloads import oldest_first
from cpupool.manager import aligning, by_plugins, guard, home_nodes, planning, served_requests
from cpupool.policies.barred import barred
from cpupool.policies.base import ChoiceRequest
from cpupool.policies.pools.policy import PoolsPolicy
from cpupool.policies.view import DEFAULT, NodeView, Refusal

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from cpupool.core.orchestration import Orchestration
    from cpupool.core.workloads import ContainerKind, Pod
    from cpupool.manager.facts import NodeFacts
    from cpupool.policies.base import Choice


class CPUsAwaited(PlacementError):
    """CPUs that an older pod waits for."""

    def __init__(self, older: Pod) -> None:
        what = f"the free CPUs are kept for the older pod {older.namespace}/{older.name}"
        super().__init__(f"{what}, which waits for more; wait until it has started", what)


@dataclass(frozen=True, slots=True)
class Choices:
    """The choices of the CPU manager policy: the grants, and the pods that it could not serve.

    Attributes:
        grants: the owners of CPUs.
        refused: the id in a pod's cgroup name → why the pod has no CPUs of its own.
        homes: the id in a pod's cgroup name → the one NUMA node whose shared CPUs the pod has.
    """

    grants: Grants = field(default_factory=Grants)
    refused: Mapping[str, Refusal] = field(default_factory=dict)
    homes: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, view: NodeView) -> Self:
        """Return the choices that a view shows."""
        return cls(view.grants, view.refused, view.homes)


def view(
    facts: NodeFacts, pods: tuple[Pod, ...], grants: Grants, decided: Choices | None = None
) -> NodeView:
    """Return the policies' view of a node.

    Args:
        facts: the node's facts.
        pods: all pods of the node.
        grants: the owners of CPUs.
        decided: the other choices; None for none.
    """
    bare = NodeView(
        facts.topology,
        facts.pools,
        default_pool.declared(facts.pools, facts.topology),
        grants,
        barred=barred(facts.topology, grants, facts.blocked),
        pods=pods,
        refused=decided.refused if decided else {},
        rules=facts.rules,
        homes=decided.homes if decided else {},
        sizes=facts.sizes,
        answered=facts.plugins.shared,
        claimed=facts.plugins.own,
    )
    extents = {**PoolsPolicy().extents(bare), **facts.policy.extents(bare)}
    extents[DEFAULT] = (
        extents[DEFAULT]
        or bare.free
        or default_pool.substitute(facts.pools, facts.topology, bare.common)
    )
    if served_requests.kubelet_owns(facts):
        default = CPUAssignment(Placement.KUBELET)
    elif facts.pools.places or any(grants.of_pods):
        default = CPUAssignment(Placement.DEFAULT, default=extents[DEFAULT])
    else:
        # No pool, no policy and no grant: the agent leaves containers where they are.
        default = CPUAssignment(Placement.DEFAULT)
    return replace(bare, extents=extents, default=default)


def choose(
    facts: NodeFacts, pods: tuple[Pod, ...], before: Choices, *, all_run: bool = False
) -> Choices:
    """Return the grants with a choice for every pod that runs or starts, and has no choice yet.

    The oldest pod comes first. A later pod does not get CPUs that an older pod, which does not fit
    now, will need once the pods that are ending have left theirs.

    Args:
        facts: the node's facts; a pod starts when the container runtime reports it.
        pods: all pods of the node.
        before: the owners of CPUs, and the earlier refusals.
        all_run: whether the known containers run already, so that none of them can be held; a pod
            with a sandbox alone can.
    """
    grants, sighted = before.grants, facts.sighted.values()
    starting = {container.pod for container in sighted}
    concerned = [
        pod
        for pod in pods
        if pod.cgroup_uid in starting or any(container.id for container in pod.containers)
    ]
    refused = dict(by_plugins.refusals(facts, grants, concerned))
    if not facts.pools.cpu_manager.chooses:
        return Choices(grants, refused)
    with_containers = {container.pod for container in sighted if container.name}
    awaited: dict[_ChoiceKey, Pod] = {}
    # Many held pods are replicas: while the grants stay, an equal key fails for the same reason.
    failed: dict[_ChoiceKey, tuple[PlacementError, bool]] = {}
    for pod in oldest_first(pod for pod in concerned if _undecided(facts, grants, pod)):
        uid, requests = pod.cgroup_uid, requested(facts, pod)
        aligns = aligning.topology_policy(facts, pod) is not TopologyPolicy.NONE
        if aligns and uid in refused and refused[uid].holds:
            # Its CPUs lie near the resources that a plugin will give to it.
            continue
        key = _ChoiceKey.of(facts, grants, pod, requests)
        if key not in failed:
            made = _attempted(facts, pods, grants, pod, awaited.values())
            if isinstance(made, Grants):
                grants = made
                failed.clear()
                continue
            failed[key] = made, fits(facts, pods, without_ending(pods, grants), pod)
        error, reachable = failed[key]
        reported = any(container.id for container in pod.containers)
        runs = all_run and (uid in with_containers or reported)
        waits = error.heals and facts.pools.cpu_manager.on_misfit is not Misfit.SHARE
        shares = runs or pod.essential or not waits
        shared = uid in before.refused and not before.refused[uid].holds
        refused[uid] = Refusal(error, not (shares or shared), reachable)
        if reachable:
            awaited.setdefault(key, pod)
    stay = home_nodes.chosen(facts.policy, pods, before.homes, lambda: view(facts, pods, grants))
    return Choices(grants, refused, stay)


def _undecided(facts: NodeFacts, grants: Grants, pod: Pod) -> bool:
    """Return whether a container of a pod gets CPUs of its own, and has none.

    A pod keeps what an earlier policy gave to its containers, or to the pod as a whole.
    """
    has = grants.chosen.get(pod.cgroup_uid)
    if has is None:
        return bool(facts.policy.requests(pod) and requested(facts, pod))
    if has.whole or {each.name for each in pod.containers} <= has.parts.keys():
        return False
    requests = requested(facts, pod).keys()
    return WHOLE_POD not in requests and not requests <= has.parts.keys()


def requested(facts: NodeFacts, pod: Pod) -> Mapping[str, int]:
    """Return container → number of its own CPUs, without containers that request pools.

    Without the whole pod, too, if one of its containers requests a pool: the set would be its.
    """
    if pod.finished or served_requests.served_by_kubelet(facts, pod):
        return {}
    requests = facts.policy.requests(pod)
    if not requests or all(map(served_requests.outside_pools, pod.containers)):
        return requests
    outside = {each.name for each in pod.containers if served_requests.outside_pools(each)}
    return {name: count for name, count in requests.items() if name in outside}


def available(facts: NodeFacts, seen: NodeView) -> CPUSet:
    """Return the CPUs that the policy can give: free CPUs of the default pool."""
    return facts.policy.available(seen) & seen.free


@dataclass(frozen=True, slots=True)
class _ChoiceKey:
    """The facts of a pod on which a choice for it depends: on one node, equal keys fail equally.

    Attributes:
        containers: kind and number of CPUs of each container, in the order of choosing; for a pod
            that has CPUs as a whole, the same for it, and for the parts of its containers.
        near: the NUMA nodes of each container's devices; None before the kubelet has named them.
        given: the NUMA nodes of the resources that plugins gave to each container.
        orchestration: the rules for its CPUs in labels and annotations of the pod.
        owner: the pod, if it has CPUs already; otherwise empty.
    """

    containers: tuple[tuple[ContainerKind | None, int], ...]
    near: tuple[tuple[aligning.NodeHints, ...], ...] | None
    given: tuple[tuple[aligning.NodeHints, ...], ...]
    orchestration: Orchestration | None
    owner: str

    @classmethod
    def of(cls, facts: NodeFacts, grants: Grants, pod: Pod, requests: Mapping[str, int]) -> Self:
        """Return the key of a pod."""
        uid = pod.cgroup_uid
        kinds = {container.name: container.kind for container in pod.containers}
        named = facts.device_nodes.get(uid)
        parts = pod.containers if WHOLE_POD in requests else ()
        return cls(
            (
                *((kinds.get(name), count) for name, count in requests.items()),
                *((each.kind, each.level_cpus) for each in parts),
            ),
            None
            if named is None
            else tuple(aligning.of_devices(facts, pod, name) for name in requests),
            tuple(aligning.of_plugins(facts, pod, name) for name in requests),
            pod.orchestration,
            uid if grants.parts(uid, POLICY_CPUS) else "",
        )


def _attempted(
    facts: NodeFacts, pods: tuple[Pod, ...], grants: Grants, pod: Pod, awaited: Iterable[Pod]
) -> Grants | PlacementError:
    """Return the grants with those of one pod, or why it does not get CPUs of its own.

    The error has no traceback: the state keeps the error, and the frames of a traceback would keep
    every earlier state.
    """
    try:
        if (
            aligning.topology_policy(facts, pod) is not TopologyPolicy.NONE
            and pod.cgroup_uid not in facts.device_nodes
        ):
            raise DevicesUnnamed
        made = _chosen(facts, pods, grants, pod)
        if older_pods := tuple(awaited):
            stay = without_ending(pods, made)
            for older in older_pods:
                if not fits(facts, pods, stay, older):
                    raise CPUsAwaited(older)
    except PlacementError as error:
        return error.with_traceback(None)
    return made


def fits(facts: NodeFacts, pods: tuple[Pod, ...], grants: Grants, pod: Pod) -> bool:
    """Return whether a pod could have its CPUs beside these grants."""
    try:
        _chosen(facts, pods, grants, pod)
    except PlacementError:
        return False
    return True


def unserved(
    facts: NodeFacts, pods: tuple[Pod, ...], grants: Grants, waiting: Iterable[Pod]
) -> list[Pod]:
    """Return which of some pods do not fit once the CPUs that are being left are free.

    Args:
        facts: the node's facts.
        pods: all pods of the node.
        grants: the owners of CPUs.
        waiting: the pods; each gets CPUs before those after it.
    """
    stay, left = without_ending(pods, grants), []
    for pod in waiting:
        try:
            stay = _chosen(facts, pods, stay, pod)
        except PlacementError:
            left.append(pod)
    return left


def without_ending(pods: tuple[Pod, ...], grants: Grants) -> Grants:
    """Return the grants without those of pods that are ending, and without CPUs that are left."""
    stay = {pod.cgroup_uid for pod in pods if not (pod.ending or pod.finished)}
    ending = {PodOwner(uid) for uid, _ in grants.of_pods if uid not in stay}
    return grants.without(ending).relieved()


def _chosen(facts: NodeFacts, pods: tuple[Pod, ...], grants: Grants, pod: Pod) -> Grants:
    """Return the grants with those of one pod: of several plans the one with the fewest CPUs.

    Raises:
        PlacementError: the pod does not fit, or its CPUs would leave none to share.
    """
    uid, fewest = pod.cgroup_uid, planning.most_at_once(pod, requested(facts, pod))
    made: list[Grants] = []
    refusals: list[PlacementError] = []
    for start, order in _plans(facts, _Choosing(grants, view(facts, pods, grants)), pod):
        state = start
        try:
            for name in order:
                state = _with(facts, pods, state, pod, name)
        except PlacementError as error:
            refusals.append(error)
            continue
        made.append(state.grants)
        if _size(state.grants, uid) <= fewest:
            break
    if not made:
        raise refusals[0]
    return min(made, key=lambda plan: _size(plan, uid))


def _plans(
    facts: NodeFacts, start: _Choosing, pod: Pod
) -> Iterator[tuple[_Choosing, tuple[str, ...]]]:
    """Yield the plans for a pod, the best first: the start, and the order of its containers.

    Raises:
        TopologyAffinityError: the pod lies on the same NUMA nodes, and there are none.
    """
    requests = requested(facts, pod)
    names = planning.lacking(pod, requests, start.grants.parts(pod.cgroup_uid, POLICY_CPUS))
    orders = tuple(planning.orders(pod, requests, names))
    if aligning.at_once(facts):
        start = _at_once(facts, start, pod)
    for order in orders:
        yield start, order
    if not start.at_once and len(orders) > 1:
        # On one NUMA node every container is aligned, and can have CPUs of every other.
        with suppress(TopologyAffinityError):
            together = _at_once(facts, start, pod)
            if together.nodes and len(together.nodes) == 1:
                yield together, orders[0]


def _at_once(facts: NodeFacts, start: _Choosing, pod: Pod) -> _Choosing:
    """Return the start for a pod whose containers lie on the same NUMA nodes.

    Raises:
        TopologyAffinityError: there are no such nodes.
    """
    near = _near(facts, start, pod, _request_at_once(facts, start, pod), WHOLE_POD)
    return replace(start, at_once=True, nodes=near.nodes)


def _size(grants: Grants, uid: str) -> int:
    return len(CPUSet.union(grants.parts(uid, POLICY_CPUS).values()))


def offered(
    facts: NodeFacts, pods: tuple[Pod, ...], grants: Grants, pod: Pod, container: str
) -> tuple[aligning.NodeHints, ...]:
    """Return the NUMA nodes on which the own CPUs of a container can lie; None for any.

    The first offer costs the pod the fewest CPUs; a later one serves where that one cannot. The
    agent asks plugins in the order of the containers, so the containers before have CPUs already.

    Raises:
        PlacementError: a container before it does not fit.
    """
    requests = requested(facts, pod)
    part = WHOLE_POD if WHOLE_POD in requests else container
    state = _Choosing(grants, view(facts, pods, grants))
    if requests and aligning.at_once(facts):
        request = _request_at_once(facts, state, pod)
    elif part not in requests:
        return (None,)
    else:
        before = list(requests)[: list(requests).index(part)]
        has = grants.parts(pod.cgroup_uid, POLICY_CPUS)
        for name in planning.lacking(pod, requests, has):
            if name in before:
                state = _with(facts, pods, state, pod, name)
        request = facts.policy.narrowed(state.seen, _request(facts, state, pod, part))
        request = replace(request, has=grants.part(pod.cgroup_uid, POLICY_CPUS, part))
    return tuple(aligning.of_cpus(facts, each) for each in aligning.ways(request))


@dataclass(frozen=True, slots=True)
class _Choosing:
    """A pod whose containers get their CPUs one after the other.

    Attributes:
        grants: the grants with those of the containers before.
        seen: the policies' view with these.
        at_once: whether the whole pod is aligned at once.
        nodes: its NUMA nodes then; None for any.
    """

    grants: Grants
    seen: NodeView
    at_once: bool = False
    nodes: frozenset[int] | None = None


def _request(facts: NodeFacts, state: _Choosing, pod: Pod, name: str) -> ChoiceRequest:
    requests, free = requested(facts, pod), available(facts, state.seen)
    if name not in requests:
        # A policy of a package says something else at each time.
        what = f"has requested CPUs for {name or 'the pod'}, and then none"
        raise guard.PolicyFailed(facts.pools.cpu_manager.policy, what)
    left = planning.reusable(pod, state.grants.parts(pod.cgroup_uid, POLICY_CPUS), name)
    left &= state.seen.cpus & state.seen.topology.online
    return ChoiceRequest(POLICY_CPUS, requests[name], free, left, pod=pod)


def _request_at_once(facts: NodeFacts, state: _Choosing, pod: Pod) -> ChoiceRequest:
    """Return the request of all containers of a pod, as if they were one.

    Source: GetPodTopologyHints in the kubelet's policy_static.go.
    """
    count = planning.most_at_once(pod, requested(facts, pod))
    has = CPUSet.union(state.grants.parts(pod.cgroup_uid, POLICY_CPUS).values())
    free = available(facts, state.seen)
    if len(has) == count:
        return ChoiceRequest(POLICY_CPUS, count, free, has=has, pod=pod)
    return ChoiceRequest(POLICY_CPUS, count, free, has, pod=pod)


def _near(
    facts: NodeFacts, state: _Choosing, pod: Pod, request: ChoiceRequest, part: str
) -> ChoiceRequest:
    """Return a request with NUMA nodes that suit the other resources of a container or a pod.

    Raises:
        TopologyAffinityError: there are no such nodes.
    """
    offers = aligning.of_devices(facts, pod, part) + aligning.of_plugins(facts, pod, part)
    return aligning.aligned(facts, state.seen, pod, request, offers)


def _with(
    facts: NodeFacts, pods: tuple[Pod, ...], state: _Choosing, pod: Pod, name: str
) -> _Choosing:
    """Return the state after a container has its CPUs.

    Raises:
        PlacementError: it does not fit, or its CPUs would leave none to share.
    """
    seen = state.seen
    request = facts.policy.narrowed(seen, _request(facts, state, pod, name))
    request = (
        replace(request, nodes=state.nodes)
        if state.at_once
        else _near(facts, state, pod, request, name)
    )
    choice = guard.checked(facts.pools.cpu_manager.policy, request, _choice(facts, seen, request))
    parts = {name: choice.cpus, **choice.parts}
    if choice.bubble:
        parts = dict(planning.of_bubble(pod, choice.cpus, choice.parts))
    claim = replace(granted(facts, pod, parts), bubble=choice.bubble)
    made = state.grants.adding([replace(claim, reasons={name: choice.steps})])
    after = view(facts, pods, made)
    if not facts.policy.extents(after)[DEFAULT]:
        raise NotEnoughCPUs(request.count, len(request.reusable) + len(seen.extents[DEFAULT]) - 1)
    return replace(state, grants=made, seen=after)


def _choice(facts: NodeFacts, seen: NodeView, request: ChoiceRequest) -> Choice:
    """Let the policy choose; CPUs that the pod leaves to the container come before free CPUs.

    Raises:
        PlacementError: the container does not fit.
    """
    policy, left = facts.policy, request.reusable
    every = replace(request, available=request.available | left, reusable=CPUSet())
    best = policy.choose(seen, every)
    more = request.count - len(left)
    if len(best.cpus - left) <= max(0, more):
        return best
    try:
        if more <= 0:
            return policy.choose(seen, replace(every, available=left))
        found = policy.choose(seen, replace(every, available=request.available, count=more))
    except SMTAlignmentError:
        # The CPUs that the pod leaves to the container are no whole cores.
        return best
    return replace(found, cpus=left | found.cpus)


def granted(facts: NodeFacts, pod: Pod, parts: Mapping[str, CPUSet]) -> Grant:
    """Return the grant of CPUs that the policy chose for a pod: container → CPUs."""
    owner, sharing = PodOwner(pod.cgroup_uid), facts.policy.sharing(pod)
    return Grant(owner, POLICY_CPUS, Source.POLICY, parts, sharing, whole_cores=False)
