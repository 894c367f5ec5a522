"""Compaction: the moves of running containers to other CPUs of their own.

`Planner` says when the agent looks for moves: while a pod waits for CPUs, and after CPUs were
released. `policies/dynamic/compaction.py` says which containers move. `moved` begins one move: the
container owns its old and its new CPUs, and the rest is as in a resize (`manager/resizing.py`). A
move begins only if no change of any container is pending. After the first of two moves the agent
plans again. So an agent that restarts between the moves loses nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from cpupool.core.cpu_manager import Misfit
from cpupool.core.cpuset import CPUSet
from cpupool.core.errors import NotEnoughCPUs, SMTAlignmentError, TopologyAffinityError
from cpupool.core.workloads import ContainerRef, CPUMoves, oldest_first
from cpupool.manager import aligning, choosing, resizing
from cpupool.manager.choosing import CPUsAwaited
from cpupool.policies.dynamic import compaction
from cpupool.policies.dynamic.compaction import Arrangement, Movable
from cpupool.policies.dynamic.policy import DynamicPolicy
from cpupool.policies.layout import Level
from cpupool.policies.static.policy import take
from cpupool.policies.view import DEFAULT

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from cpupool.core.grants import Grant, Grants
    from cpupool.core.workloads import Container, Pod
    from cpupool.manager.facts import NodeFacts
    from cpupool.policies.dynamic.compaction import Move, Plan
    from cpupool.policies.layout import Layout
    from cpupool.policies.view import NodeView

_HOUR_S: Final = 3600
_MOST_WAITING: Final = 4
"""How many waiting pods a plan serves at most, the oldest."""
_WAITS_FOR_CPUS: Final = (NotEnoughCPUs, SMTAlignmentError, TopologyAffinityError, CPUsAwaited)


@dataclass(frozen=True, slots=True)
class PlannedMove:
    """A move that is worth its cost.

    Attributes:
        move: the container, and its CPUs.
        why: what gets better by it, or by the moves after it.
    """

    move: Move
    why: str


@dataclass(frozen=True, slots=True)
class Outlook:
    """What compaction would do now.

    Attributes:
        moves: in their order; empty if none is worth its cost, or none may be.
        again_unix_s: when more may be possible because time has passed; infinite for never.
    """

    moves: tuple[PlannedMove, ...] = ()
    again_unix_s: float = math.inf


class Planner:
    """Plans moves while a pod waits, and after CPUs were released. One thread uses it.

    A new planner looks once in any case: CPUs may have been released before.

    Attributes:
        again_unix_s: when to look again even if nothing changes; infinite for never.
    """

    def __init__(self) -> None:
        self._owned = CPUSet()
        self._released = True
        self._seen: NodeView | None = None
        self._seen_unix_s = -math.inf
        self.again_unix_s = math.inf

    def look(self, facts: NodeFacts, view: NodeView, unix_s: float) -> tuple[PlannedMove, ...]:
        """Return the moves to carry out now, in their order; begin the first of them alone."""
        self._released |= bool(self._owned - view.grants.cpus)
        self._owned = view.grants.cpus
        # An admin, or a time server, can set the clock back.
        if view is self._seen and self._seen_unix_s <= unix_s < self.again_unix_s:
            return ()
        self._seen, self._seen_unix_s = view, unix_s
        if _pending(view):
            self.again_unix_s = math.inf
            return ()
        found = outlook(facts, view, unix_s, released=self._released)
        self.again_unix_s = found.again_unix_s
        if not found.moves and found.again_unix_s == math.inf:
            self._released = False
        return found.moves


def outlook(facts: NodeFacts, view: NodeView, unix_s: float, *, released: bool) -> Outlook:
    """Return the moves that are worth their cost now.

    A plan that serves no waiting pod uses at most half of the moves of an hour, and leaves the
    others for pods that wait. It leaves no NUMA node, where the memory of a container is.

    Args:
        facts: the node's facts.
        view: the policies' view of the node.
        unix_s: the time now.
        released: whether moves may also bring CPUs closer together.
    """
    settings, layout = facts.pools.cpu_manager.compaction, _layout(facts)
    if settings is None or layout is None:
        return Outlook()
    waiting = _waiting(facts, view)
    if not (waiting or released):
        return Outlook()
    since = dict(_movable(layout, view))
    recent = _recent(facts, unix_s)
    left = settings.moves_per_hour - len(recent)
    young = {ref for ref, at_s in since.items() if _lasts(at_s, settings.minimum_age_s, unix_s)}
    again = [since[ref] + settings.minimum_age_s for ref in young]
    again += [at_s + _HOUR_S for at_s in recent] if since else []
    movable = {
        ref: Movable(view.chosen[ref.pod].parts[ref.name], _reach(layout, facts, view, ref))
        for ref in since
        if ref not in young
    }
    start = Arrangement(
        layout,
        facts.pools.cpu_manager.options,
        compaction.spread(layout, (cpus for _, _, cpus in _owners(view))),
        choosing.available(facts, view) & layout.cpus,
        facts.policy.extents(view)[DEFAULT],
        movable,
        lambda moves: len(_unserved(facts, view, moves, waiting)),
    )
    if waiting and left > 0 and (plan := compaction.plan(start, left, for_waiting=True)):
        unserved = _unserved(facts, view, plan.moves, waiting)
        served = [pod for pod in _unserved(facts, view, (), waiting) if pod not in unserved]
        names = " and ".join(f"{pod.namespace}/{pod.name}" for pod in served)
        who, whose = ("pod", "its") if len(served) == 1 else ("pods", "their")
        return Outlook(_because(plan, f"so that {who} {names} can have {whose} CPUs"))
    spare = left - settings.moves_per_hour // 2
    if released and spare > 0:
        near = {
            ref: each._replace(reach=each.reach & compaction.reach(layout, each.cpus, Level.NODE))
            for ref, each in movable.items()
        }
        if plan := compaction.plan(replace(start, movable=near), spare, for_waiting=False):
            return Outlook(_because(plan, plan.gain.value))
    return Outlook(again_unix_s=min(again, default=math.inf))


def _because(plan: Plan, why: str) -> tuple[PlannedMove, ...]:
    return tuple(PlannedMove(move, why) for move in plan.moves)


def moved(
    facts: NodeFacts, view: NodeView, planned: PlannedMove, unix_s: int
) -> tuple[Grants, tuple[int, ...]] | None:
    """Return the grants after a move has begun, and the times of the moves of the last hour.

    Returns:
        None if the move is not possible on the node as it is now.
    """
    ref, before, after = planned.move
    layout, grant = _layout(facts), view.chosen.get(ref.pod)
    if layout is None or grant is None or _pending(view) or grant.parts.get(ref.name) != before:
        return None
    if ref not in dict(_movable(layout, view)):
        return None
    if not after - before <= choosing.available(facts, view) & _reach(layout, facts, view, ref):
        return None
    began = grant.baseline(ref.name)
    more = take(layout, facts.pools.cpu_manager.options, after - before, len(began - after))
    baseline = began & after | more.cpus
    grant = grant.moving(ref.name, after, baseline, unix_s, planned.why)
    if not resizing.notice_s(facts, _pod(view, ref.pod)):
        grant = grant.narrowed(ref.name)
    made = view.grants.replacing(grant)
    if not facts.policy.extents(choosing.view(facts, view.pods, made))[DEFAULT]:
        return None
    return made, (*_recent(facts, unix_s), unix_s)


def unnamed(facts: NodeFacts, view: NodeView) -> frozenset[str]:
    """Return the pods that may leave their NUMA nodes if the kubelet has named no devices there."""
    if facts.pools.cpu_manager.compaction is None:
        return frozenset()
    return frozenset(
        pod.cgroup_uid
        for pod in view.pods
        if pod.cpu_moves is CPUMoves.ANY
        and not pod.finished
        and pod.cgroup_uid in view.chosen
        and pod.cgroup_uid not in facts.device_nodes
    )


def _recent(facts: NodeFacts, unix_s: float) -> tuple[int, ...]:
    """Return when the moves of the last hour have begun."""
    return tuple(each for each in facts.moved_unix_s if _lasts(each, _HOUR_S, unix_s))


def _lasts(since_s: float, for_s: float, unix_s: float) -> bool:
    """Return whether a time lasts that has begun.

    Where the clock was wrong, it may have begun in the future. A time that lies further ahead than
    it lasts is over, so a wrong clock stops no move for longer than twice the time.
    """
    # The sum is the time at which the agent looks again, and a difference can be rounded down.
    return since_s - for_s < unix_s < since_s + for_s


def _layout(facts: NodeFacts) -> Layout | None:
    """Return the machine of the policy; None if the policy moves no container."""
    policy, settings = facts.policy, facts.pools.cpu_manager.compaction
    if settings is None or not isinstance(policy, DynamicPolicy) or policy.options.spreading:
        return None
    return policy.layout


def _pending(view: NodeView) -> bool:
    """Return whether a container has not left CPUs yet that it gives back."""
    return any(grant.leaving for grant in view.chosen.values())


def _pod(view: NodeView, uid: str) -> Pod:
    return next(pod for pod in view.pods if pod.cgroup_uid == uid)


def _waiting(facts: NodeFacts, view: NodeView) -> list[Pod]:
    """Return the oldest pods that wait for CPUs; none where such pods fail."""
    if facts.pools.cpu_manager.on_misfit is Misfit.FAIL:
        return []
    waiting = (
        pod
        for pod in view.pods
        if not (pod.ending or pod.finished)
        and (refusal := view.refused.get(pod.cgroup_uid))
        and refusal.error.heals
        and isinstance(refusal.error, _WAITS_FOR_CPUS)
    )
    return oldest_first(waiting)[:_MOST_WAITING]


def _unserved(
    facts: NodeFacts, view: NodeView, moves: tuple[Move, ...], waiting: list[Pod]
) -> list[Pod]:
    """Return which of some pods do not fit after these moves."""
    if not waiting:
        return []
    grants = view.grants
    for ref, _, after in moves:
        grant = grants.chosen[ref.pod].changing(ref.name, after)
        # The next move may take what this one has left.
        grants = grants.replacing(grant).relieved()
    return choosing.unserved(facts, view.pods, grants, waiting)


def _owners(view: NodeView) -> Iterator[tuple[ContainerRef, Grant, CPUSet]]:
    for uid, grant in view.chosen.items():
        for name, cpus in grant.parts.items():
            yield ContainerRef(uid, name), grant, cpus


def _movable(layout: Layout, view: NodeView) -> Iterator[tuple[ContainerRef, float]]:
    """Yield the containers that may move, with the time since when they have their CPUs."""
    pods = {pod.cgroup_uid: pod for pod in view.pods}
    for ref, grant, cpus in _owners(view):
        pod = pods.get(ref.pod)
        if pod is None or pod.cpu_moves is CPUMoves.NEVER or pod.ending or pod.finished:
            continue
        if pod.created_s is None:
            continue
        container = next((each for each in pod.containers if each.name == ref.name), None)
        if container is None or not container.id or not grant.resizable(ref.name):
            continue
        others = (part for name, part in grant.parts.items() if name != ref.name)
        alone = cpus.isdisjoint(CPUSet.union(others))
        if alone and cpus <= layout.cpus and _may_move(pod, container):
            last = grant.resizes.get(ref.name, ())
            yield ref, max((pod.created_s, *(each.unix_s for each in last if each.unix_s)))


def _may_move(pod: Pod, container: Container) -> bool:
    """Return whether a container without load balancing, if it is one, may move all the same."""
    return container.balanced or pod.cpu_moves is CPUMoves.ANY


def _reach(layout: Layout, facts: NodeFacts, view: NodeView, ref: ContainerRef) -> CPUSet:
    """Return the CPUs among which a container may move.

    The NUMA nodes of devices, of memory and of the resources of plugins are not left. If the
    kubelet has not named them, they may be anywhere. Nor are the nodes left of a pod whose
    containers lie on the same ones.
    """
    grant, moves = view.chosen[ref.pod], _pod(view, ref.pod).cpu_moves
    cpus = grant.parts[ref.name]
    if moves is CPUMoves.SAME_L3:
        return compaction.reach(layout, cpus, Level.UNCORE)
    if moves is CPUMoves.SAME_NUMA or _tied(facts, ref.pod):
        return compaction.reach(layout, cpus, Level.NODE)
    if aligning.at_once(facts) and len(grant.parts) > 1:
        return compaction.reach(layout, grant.assigned, Level.NODE)
    return layout.cpus


def _tied(facts: NodeFacts, uid: str) -> bool:
    named: Mapping[str, object] | None = facts.device_nodes.get(uid)
    near = (
        answer.near(facts.topology.nodes)
        for ref, by_resource in facts.plugins.answers.items()
        if ref.pod == uid
        for answer in by_resource.values()
    )
    return named is None or any(named.values()) or any(near)
