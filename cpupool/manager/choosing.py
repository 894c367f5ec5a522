"""The grants of CPUs that the node's CPU manager policy gives to containers.

A choice depends on earlier choices, so the agent makes it once, for a whole pod, and keeps it until
the pod has ended. The placement of each container follows from the grants (`resolve`).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Self

from cpupool.core.assignments import CPUAssignment, Placement
from cpupool.core.cpu_manager import Misfit, TopologyPolicy
from cpupool.core.cpuset import CPUSet
from cpupool.core.errors import (
    DevicesUnnamed,
    NotEnoughCPUs,
    PlacementError,
)
from cpupool.core.grants import WHOLE_POD, Grant, Grants, PodOwner, Source
from cpupool.core.names import POLICY_CPUS
from cpupool.core.workloads import ContainerKind, oldest_first, pod_request_milli
from cpupool.manager import aligning, homes, plugin_requests, requested
from cpupool.policies.base import DEFAULT, Ask, NodeView, Refusal
from cpupool.policies.pools import PoolsPolicy
from cpupool.telemetry import log as logs

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from cpupool.core.koordinator import Orchestration
    from cpupool.core.workloads import Pod
    from cpupool.manager.facts import NodeFacts

log = logs.get(__name__)


class CPUsAwaited(PlacementError):
    """CPUs that an older pod waits for."""

    def __init__(self, older: Pod) -> None:
        what = f"the free CPUs are kept for the older pod {older.namespace}/{older.name}"
        super().__init__(f"{what}, which waits for more; wait until it has started", what)


@dataclass(frozen=True, slots=True)
class Admission:
    """The grants of the CPU manager policy, and the pods that it could not serve.

    Attributes:
        grants: who owns which CPUs.
        refused: the id in a pod's cgroup name → why the pod has no CPUs of its own.
        homes: the id in a pod's cgroup name → the one NUMA node whose shared CPUs the pod has.
    """

    grants: Grants = field(default_factory=Grants)
    refused: Mapping[str, Refusal] = field(default_factory=dict)
    homes: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, view: NodeView) -> Self:
        """Return the decisions that a view shows."""
        return cls(view.grants, view.refused, view.homes)


def view(
    facts: NodeFacts, pods: tuple[Pod, ...], grants: Grants, decided: Admission | None = None
) -> NodeView:
    """Return the policies' view of a node.

    Args:
        facts: the node's facts.
        pods: all pods of the node.
        grants: who owns which CPUs.
        decided: the other decisions; None for none.
    """
    whole = CPUSet.union(grant.cpus for grant in grants if grant.whole_cores)
    bare = NodeView(
        facts.topology,
        facts.pools,
        facts.pools.default_cpus(facts.topology),
        grants,
        barred=facts.topology.with_siblings(whole) | grants.cpus | facts.blocked,
        pods=pods,
        refused=decided.refused if decided else {},
        rules=facts.rules,
        homes=decided.homes if decided else {},
        sizes=facts.sizes,
        answered=facts.plugins.shared,
        claimed=facts.plugins.own,
    )
    extents = {**PoolsPolicy().extents(bare), **facts.policy.extents(bare)}
    extents[DEFAULT] = extents[DEFAULT] or _substitute(bare)
    if requested.kubelet_owns(facts):
        default = CPUAssignment(Placement.KUBELET)
    elif facts.pools.places or any(grants.of_pods):
        default = CPUAssignment(Placement.DEFAULT, default=extents[DEFAULT])
    else:
        # No pool, no policy and no grant: the agent leaves containers where they are.
        default = CPUAssignment(Placement.DEFAULT)
    return replace(bare, extents=extents, default=default)


def admit(
    facts: NodeFacts, pods: tuple[Pod, ...], before: Admission, *, all_run: bool = False
) -> Admission:
    """Return the grants with a choice for every pod that runs or starts, and has no choice yet.

    The oldest pod comes first. A later pod does not get CPUs that an older pod, which does not fit
    now, will need once the pods that are ending have left theirs.

    Args:
        facts: the node's facts; a pod starts when the container runtime reports it.
        pods: all pods of the node.
        before: who owns which CPUs, and the earlier refusals.
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
    refused = dict(plugin_requests.refusals(facts, grants, concerned))
    if not facts.pools.cpu_manager.chooses:
        return Admission(grants, refused)
    with_containers = {container.pod for container in sighted if container.name}
    awaited: dict[_Need, Pod] = {}
    # Many held pods are replicas: while the grants stay, an equal need fails for the same reason.
    failed: dict[_Need, tuple[PlacementError, bool]] = {}
    for pod in oldest_first(pod for pod in concerned if _undecided(facts, grants, pod)):
        uid, wants = pod.cgroup_uid, wanted(facts, pod)
        aligns = aligning.topology_policy(facts, pod) is not TopologyPolicy.NONE
        if aligns and uid in refused and refused[uid].holds:
            # Its CPUs lie near what a plugin will give it.
            continue
        need = _Need.of(facts, grants, pod, wants)
        if need not in failed:
            made = _attempted(facts, pods, grants, pod, awaited.values())
            if isinstance(made, Grants):
                grants = made
                failed.clear()
                continue
            failed[need] = made, _fits(facts, pods, _without_ending(pods, grants), pod)
        error, reachable = failed[need]
        reported = any(container.id for container in pod.containers)
        runs = all_run and (uid in with_containers or reported)
        waits = error.heals and facts.pools.cpu_manager.on_misfit is not Misfit.SHARE
        shares = runs or pod.essential or not waits
        shared = uid in before.refused and not before.refused[uid].holds
        refused[uid] = Refusal(error, not (shares or shared), reachable)
        if reachable:
            awaited.setdefault(need, pod)
    stay = homes.chosen(facts.policy, pods, before.homes, lambda: view(facts, pods, grants))
    return Admission(grants, refused, stay)


def _substitute(bare: NodeView) -> CPUSet:
    """Return CPUs in place of a shared set that is empty.

    With the default pool offline, the kernel would let its containers run on every CPU of the
    cgroup above. CPUs of no pool are better; the last choice is every CPU that no pod owns.
    """
    common = bare.common
    unlisted = common - CPUSet.union(pool.reach(bare.topology) for pool in bare.pools)
    return bare.free or unlisted or common


def _undecided(facts: NodeFacts, grants: Grants, pod: Pod) -> bool:
    """Return whether a container of a pod gets CPUs of its own, and has none.

    A pod keeps what an earlier policy gave to its containers, or to the pod as a whole.
    """
    has = grants.chosen.get(pod.cgroup_uid)
    if has is None:
        return bool(facts.policy.wants(pod) and wanted(facts, pod))
    if WHOLE_POD in has.parts or {each.name for each in pod.containers} <= has.parts.keys():
        return False
    wants = wanted(facts, pod).keys()
    return WHOLE_POD not in wants and not wants <= has.parts.keys()


def wanted(facts: NodeFacts, pod: Pod) -> Mapping[str, int]:
    """Return container → number of its own CPUs, without containers that request pools."""
    if pod.finished or requested.served_by_kubelet(facts, pod):
        return {}
    wants = facts.policy.wants(pod)
    native = requested.countable(pod) if wants else {}
    return {name: count for name, count in wants.items() if name in native}


def available(facts: NodeFacts, seen: NodeView) -> CPUSet:
    """Return the CPUs that the policy can give: free CPUs of the default pool."""
    return facts.policy.available(seen) & seen.free


@dataclass(frozen=True, slots=True)
class _Need:
    """What a choice for a pod depends on, apart from the node: equal needs fail equally.

    Attributes:
        containers: kind and number of CPUs of each container, in the order of choosing.
        near: the NUMA nodes of each container's devices; None before the kubelet has named them.
        given: the NUMA nodes of what plugins gave each container.
        orchestration: what Koordinator's labels and annotations say of the pod.
        owner: the pod, if it has CPUs already; otherwise empty.
    """

    containers: tuple[tuple[ContainerKind | None, int], ...]
    near: tuple[tuple[aligning.Offer, ...], ...] | None
    given: tuple[tuple[aligning.Offer, ...], ...]
    orchestration: Orchestration | None
    owner: str

    @classmethod
    def of(cls, facts: NodeFacts, grants: Grants, pod: Pod, wants: Mapping[str, int]) -> Self:
        """Return the need of a pod."""
        uid = pod.cgroup_uid
        kinds = {container.name: container.kind for container in pod.containers}
        named = facts.device_nodes.get(uid)
        return cls(
            tuple((kinds.get(name), count) for name, count in wants.items()),
            None
            if named is None
            else tuple(aligning.of_devices(facts, pod, name) for name in wants),
            tuple(aligning.of_plugins(facts, pod, name) for name in wants),
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
            stay = _without_ending(pods, made)
            for older in older_pods:
                if not _fits(facts, pods, stay, older):
                    raise CPUsAwaited(older)
    except PlacementError as error:
        return error.with_traceback(None)
    return made


def _fits(facts: NodeFacts, pods: tuple[Pod, ...], grants: Grants, pod: Pod) -> bool:
    try:
        _chosen(facts, pods, grants, pod)
    except PlacementError:
        return False
    return True


def _without_ending(pods: tuple[Pod, ...], grants: Grants) -> Grants:
    """Return the grants without those of pods that are ending, or have ended."""
    stay = {pod.cgroup_uid for pod in pods if not (pod.ending or pod.finished)}
    return grants.without({PodOwner(uid) for uid, _ in grants.of_pods if uid not in stay})


def _chosen(facts: NodeFacts, pods: tuple[Pod, ...], grants: Grants, pod: Pod) -> Grants:
    """Return the grants with those of one pod.

    Raises:
        PlacementError: the pod does not fit, or its CPUs would leave none to share.
    """
    state = _Choosing(grants, view(facts, pods, grants))
    if aligning.at_once(facts):
        ask = _ask_at_once(facts, state, pod)
        state = replace(state, nodes=_near(facts, state, pod, ask, WHOLE_POD).nodes)
    for name in wanted(facts, pod):
        state = _with(facts, pods, state, pod, name)
    return state.grants


def offered(
    facts: NodeFacts, pods: tuple[Pod, ...], grants: Grants, pod: Pod, container: str
) -> aligning.Offer:
    """Return the NUMA nodes on which the own CPUs of a container can lie; None for any.

    Raises:
        PlacementError: a container before it does not fit.
    """
    wants = wanted(facts, pod)
    part = WHOLE_POD if WHOLE_POD in wants else container
    state = _Choosing(grants, view(facts, pods, grants))
    if wants and aligning.at_once(facts):
        ask = _ask_at_once(facts, state, pod)
    elif part not in wants:
        return None
    else:
        for name in list(wants)[: list(wants).index(part)]:
            state = _with(facts, pods, state, pod, name)
        ask = facts.policy.narrowed(state.seen, _ask(facts, state, pod, part))
        ask = replace(ask, has=grants.part(pod.cgroup_uid, POLICY_CPUS, part))
    own = facts.policy.hints(ask)
    return None if own is None else tuple(own.hints)


@dataclass(frozen=True, slots=True)
class _Choosing:
    """A pod whose containers get their CPUs one after the other.

    Attributes:
        grants: the grants with those of the containers before.
        seen: the policies' view with these.
        left: the CPUs that init containers leave to the others.
        nodes: the NUMA nodes of the whole pod, if it is aligned at once; None for any.
    """

    grants: Grants
    seen: NodeView
    left: CPUSet = field(default_factory=CPUSet)
    nodes: frozenset[int] | None = None


def _ask(facts: NodeFacts, state: _Choosing, pod: Pod, name: str) -> Ask:
    count, free = wanted(facts, pod)[name], available(facts, state.seen)
    return Ask(POLICY_CPUS, count, free, state.left, pod=pod)


def _ask_at_once(facts: NodeFacts, state: _Choosing, pod: Pod) -> Ask:
    """Return the request of all containers of a pod, as if they were one.

    Source: GetPodTopologyHints in the kubelet's policy_static.go.
    """
    wants = wanted(facts, pod)
    asked = [(each.kind, wants.get(each.name, 0)) for each in pod.containers]
    count = pod_request_milli(asked)
    has = CPUSet.union(state.grants.parts(pod.cgroup_uid, POLICY_CPUS).values())
    free = available(facts, state.seen)
    if len(has) == count:
        return Ask(POLICY_CPUS, count, free, has=has, pod=pod)
    return Ask(POLICY_CPUS, count, free, has, pod=pod)


def _near(facts: NodeFacts, state: _Choosing, pod: Pod, ask: Ask, part: str) -> Ask:
    """Return a request with the NUMA nodes that go with what a container, or a pod, has beside.

    Raises:
        TopologyAffinityError: there are no such nodes.
    """
    offers = aligning.of_devices(facts, pod, part) + aligning.of_plugins(facts, pod, part)
    return aligning.aligned(facts, state.seen, pod, ask, offers)


def _with(
    facts: NodeFacts, pods: tuple[Pod, ...], state: _Choosing, pod: Pod, name: str
) -> _Choosing:
    """Return the state after a container has its CPUs.

    Raises:
        PlacementError: it does not fit, or its CPUs would leave none to share.
    """
    kinds = {container.name: container.kind for container in pod.containers}
    made, seen, left = state.grants, state.seen, state.left
    parts = made.parts(pod.cgroup_uid, POLICY_CPUS)
    ends = kinds.get(name) is ContainerKind.INIT
    if (cpus := parts.get(name)) is None:
        if ends and any(kinds.get(part) is ContainerKind.APP for part in parts):
            # The init container ended before this agent started.
            return state
        ask = _ask(facts, state, pod, name)
        near = facts.policy.narrowed(seen, ask)
        if aligning.at_once(facts):
            near = replace(near, nodes=state.nodes)
        else:
            near = _near(facts, state, pod, near, name)
        choice = facts.policy.choose(seen, near)
        cpus = choice.cpus
        if len(cpus) != ask.count or not cpus <= ask.available | left:
            log.error("policy has chosen CPUs that it cannot give", pod=pod.name, cpus=cpus)
            raise NotEnoughCPUs(ask.count, len(ask.available))
        claim = granted(facts, pod, {name: cpus, **choice.parts})
        made = made.adding([replace(claim, reasons=choice.steps)])
        shared = seen.extents[DEFAULT]
        seen = view(facts, pods, made)
        if not facts.policy.extents(seen)[DEFAULT]:
            raise NotEnoughCPUs(ask.count, len(shared) - 1)
    # An init container ends before the others start, and leaves its CPUs to them. A resize may ask
    # for a choice after they have theirs.
    lasting = (has for part, has in parts.items() if kinds.get(part) is not ContainerKind.INIT)
    left = (left | cpus) - CPUSet.union(lasting) if ends else left - cpus
    return replace(state, grants=made, seen=seen, left=left)


def granted(facts: NodeFacts, pod: Pod, parts: Mapping[str, CPUSet]) -> Grant:
    """Return the grant of CPUs that the policy chose for a pod: container → CPUs."""
    owner, sharing = PodOwner(pod.cgroup_uid), facts.policy.sharing(pod)
    return Grant(owner, POLICY_CPUS, Source.POLICY, parts, sharing, whole_cores=False)
