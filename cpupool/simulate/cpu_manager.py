"""A simulated CPU manager: the CPUs that its policy gives to pods, and the pods that own CPUs.

`manager/choosing.py` decides, as in the agent. As on a node, a pod that does not fit waits until it
fits. With `onMisfit: fail` the CPU manager refuses the pod. A resize that does not fit has only one
try, because no kubelet repeats it here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from cpupool.core.assignments import Step
from cpupool.core.cpu_manager import Misfit
from cpupool.core.cpuset import CPUSet
from cpupool.core.errors import PlacementError, PodRefused
from cpupool.core.grants import WHOLE_POD, PodOwner
from cpupool.core.names import POLICY_CPUS
from cpupool.core.workloads import ContainerID, ContainerRef
from cpupool.manager import choosing, compacting, resizing
from cpupool.manager.choosing import Choices
from cpupool.manager.compacting import Planner
from cpupool.manager.facts import NodeFacts
from cpupool.manager.guard import made
from cpupool.manager.report import InBubble
from cpupool.policies.built_in import assignable
from cpupool.simulate.pool import Room

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from cpupool.core.grants import Grant, Grants
    from cpupool.core.pools import NodePools
    from cpupool.core.topology import CPUTopology
    from cpupool.core.workloads import Pod


@dataclass(frozen=True, slots=True)
class Resized:
    """The answer of the CPU manager to a resize.

    Attributes:
        refused: why the container keeps the CPUs that it has; empty for another answer.
        ignored: whether it keeps them because the policy resizes no container.
        served: the pods that have other CPUs now.
    """

    refused: str = ""
    ignored: bool = False
    served: tuple[Served, ...] = ()


@dataclass(frozen=True, slots=True)
class Served:
    """A pod that has got CPUs of its own, or other ones.

    Attributes:
        pod: the pod.
        cpus: container → its CPUs; those of the whole pod where its containers share one set.
        reasons: container → why the policy chose its CPUs.
        waited_for: why it had to wait; empty if it did not wait until now.
        bubbles: container → its place in the bubble of its pod; empty without a bubble.
    """

    pod: Pod
    cpus: Mapping[str, CPUSet]
    reasons: Mapping[str, tuple[Step, ...]]
    waited_for: str
    bubbles: Mapping[str, InBubble]


@dataclass(frozen=True, slots=True)
class MoveRecord:
    """A move of a container that runs.

    Attributes:
        at_s: when it begins.
        ref: the container; the UID of its pod is `namespace/name`.
        before: the CPUs that it has.
        after: the CPUs that it gets.
        why: why it moves.
    """

    at_s: float
    ref: ContainerRef
    before: CPUSet
    after: CPUSet
    why: str


class SimulatedCPUManager:
    """The present state of the CPU manager.

    Args:
        topology: the machine.
        pools: its pool file, which is valid on the machine.

    Attributes:
        room: the CPUs that it can give.
        moves: the moves of containers, in the order of time.
    """

    def __init__(self, topology: CPUTopology, pools: NodePools) -> None:
        policy = made(pools, topology)
        self._facts = NodeFacts(
            pools=pools, configured=True, topology=topology, policy=policy, recovered=True
        )
        self._fails = pools.cpu_manager.on_misfit is Misfit.FAIL
        self._notices: dict[ContainerRef, float] = {}
        self._pods: dict[str, Pod] = {}
        self._choices = Choices()
        self._planner = Planner()
        self.moves: list[MoveRecord] = []
        self.room = Room.empty(topology, assignable(pools, topology) or CPUSet())

    @property
    def waiting(self) -> Mapping[str, str]:
        """The pods that wait: UID → why."""
        return self._refused(heals=True)

    @property
    def sharing(self) -> Mapping[str, str]:
        """The pods that share for good, because no CPUs can serve their request: UID → why."""
        return self._refused(heals=False)

    def _refused(self, *, heals: bool) -> Mapping[str, str]:
        refused = self._choices.refused.items()
        return {uid: each.error.as_kubelet for uid, each in refused if each.error.heals is heals}

    def requests(self, pod: Pod) -> Mapping[str, int]:
        """Return container → how many CPUs it requests, alone or with its whole pod.

        It is 0 for a container that shares a bubble with others of its pod.
        """
        requests = choosing.requested(self._facts, pod)
        if WHOLE_POD in requests and self._facts.pools.cpu_manager.bubbles:
            return {each.name: each.level_cpus for each in pod.containers}
        if WHOLE_POD in requests:
            return dict.fromkeys((each.name for each in pod.containers), requests[WHOLE_POD])
        return requests

    def start(self, pod: Pod, at_s: float) -> Iterator[Served]:
        """Start a pod; yield it once it has CPUs of its own.

        Raises:
            PodRefused: it does not fit, and the pool file wants such pods to fail.
        """
        if not self.requests(pod):
            return
        self._pods[pod.uid] = _started(pod, at_s)
        before = self._choices
        served = tuple(self._decide(before))
        refusal = self._choices.refused.get(pod.uid)
        if refusal and refusal.holds and self._fails:
            del self._pods[pod.uid]
            self._choices = before
            why, name = refusal.error, f"{pod.namespace}/{pod.name}"
            raise PodRefused(name, why.reason, why.as_kubelet)
        yield from served

    def end(self, pod: Pod) -> Iterator[Served]:
        """End a pod; yield the pods that get its CPUs."""
        if self._pods.pop(pod.uid, None) is None:
            return
        self._notices = {ref: at_s for ref, at_s in self._notices.items() if ref.pod != pod.uid}
        grants = self._choices.grants.without({PodOwner(pod.uid)})
        refused = {uid: why for uid, why in self._choices.refused.items() if uid != pod.uid}
        self._choices = Choices(grants, refused)
        self.room.free = self.room.layout.cpus - grants.cpus
        if refused:
            yield from self._decide(self._choices)

    def resize(self, pod: Pod, container: str, at_s: float) -> Resized:
        """Give a container of a running pod the CPUs that it requests now, if the policy does.

        Args:
            pod: the pod with its new requests.
            container: the container.
            at_s: the time.
        """
        before, earlier = self._choices, self._pods.get(pod.uid)
        started_s = earlier.created_s if earlier else None
        self._pods[pod.uid] = _started(pod, at_s if started_s is None else started_s)
        ref = ContainerRef(pod.uid, container)
        has = before.grants.part(pod.uid, POLICY_CPUS, container)
        count = self.requests(pod).get(container, 0)
        if has and len(has) != count:
            if not self._facts.policy.kind.resizes:
                return Resized(ignored=True)
            try:
                facts, pods = self._now()
                seen = choosing.view(facts, pods, before.grants, before)
                grants = resizing.resized(facts, seen, ref, count)
            except PlacementError as error:
                return Resized(refused=error.as_kubelet)
            self._choices = replace(before, grants=grants)
            self._notices.pop(ref, None)
            if container in grants.chosen[pod.uid].leaving:
                self._notices[ref] = at_s + resizing.notice_s(self._facts, pod)
            return Resized(served=tuple(self._decide(before)))
        served = tuple(self._decide(before))
        refusal = self._choices.refused.get(pod.uid)
        if refusal and pod.uid not in before.refused:
            # It runs already, so it goes on as before.
            self._choices = before
            if earlier:
                self._pods[pod.uid] = earlier
            else:
                del self._pods[pod.uid]
        return Resized(refusal.error.as_kubelet if refusal else "", served=served)

    def compact(self, at_s: float) -> Iterator[Served]:
        """Begin the moves that are worth their cost; yield the pods that have other CPUs."""
        if self._facts.pools.cpu_manager.compaction is None:
            return
        while begun := self._moved(at_s):
            before = self._choices
            self._choices = replace(before, grants=begun)
            yield from self._decide(before)

    def _moved(self, at_s: float) -> Grants | None:
        """Return the grants after a move has begun; None for no move."""
        facts, pods = self._now()
        view = choosing.view(facts, pods, self._choices.grants, self._choices)
        planned = self._planner.look(facts, view, at_s)
        if not planned or (begun := compacting.moved(facts, view, planned[0], int(at_s))) is None:
            return None
        grants, times = begun
        self._facts = replace(self._facts, moved_unix_s=times)
        (ref, had, has), why = planned[0].move, planned[0].why
        self.moves.append(MoveRecord(at_s, ref, had, has, why))
        grant = grants.chosen[ref.pod]
        if grant.leaving[ref.name].in_force:
            self._notices[ref] = at_s + resizing.notice_s(facts, self._pods[ref.pod])
            return grants
        return grants.replacing(grant.settled(ref.name, CPUSet()))

    @property
    def next_notice_s(self) -> float:
        """The time at which the next notice ends; infinite for none."""
        return min(self._notices.values(), default=math.inf)

    @property
    def next_change_s(self) -> float:
        """The time at which the next notice ends or a move is possible; infinite for none."""
        return min(self.next_notice_s, self._planner.again_unix_s)

    def end_notices(self, at_s: float) -> Iterator[Served]:
        """End the notices that last until now; yield the pods that get the CPUs."""
        before, grants = self._choices, self._choices.grants
        for ref in [ref for ref, end_s in self._notices.items() if end_s <= at_s]:
            del self._notices[ref]
            left = grants.chosen[ref.pod].narrowed(ref.name).settled(ref.name, CPUSet())
            grants = grants.replacing(left)
        self._choices = replace(before, grants=grants)
        yield from self._decide(before)

    def _now(self) -> tuple[NodeFacts, tuple[Pod, ...]]:
        # Devices of other plugins are not simulated: every node is as good for a pod.
        facts = replace(self._facts, device_nodes={uid: {} for uid in self._pods})
        return facts, tuple(self._pods.values())

    def _decide(self, before: Choices) -> Iterator[Served]:
        """Choose CPUs for pods that lack some; yield those that have others than before."""
        self._choices = choosing.choose(*self._now(), self._choices)
        grants = self._choices.grants
        self.room.free = self.room.layout.cpus - grants.cpus
        for uid, pod in self._pods.items():
            grant = grants.all.get((PodOwner(uid), POLICY_CPUS))
            if grant and grant.parts != before.grants.parts(uid, POLICY_CPUS):
                refusal = before.refused.get(uid)
                names = self.requests(pod)
                cpus = {name: grant.part(name) for name in names}
                reasons = {name: _reasons(grant, name) for name in names}
                waited_for = refusal.error.as_kubelet if refusal else ""
                yield Served(pod, cpus, reasons, waited_for, _places(grant, pod))


def _places(grant: Grant, pod: Pod) -> Mapping[str, InBubble]:
    """Return the place of each container in the bubble of its pod, if it has one."""
    if not grant.bubble:
        return {}
    return {each.name: InBubble(grant.cpus, grant.owns_part(each)) for each in pod.containers}


def _reasons(grant: Grant, container: str) -> tuple[Step, ...]:
    """Return why a container has its CPUs: their choice, and the resizes since."""
    resizes = grant.resizes.get(container, ())
    return (
        *grant.reason(container),
        *(Step(resize.rule, resize.what, resize.after) for resize in resizes),
    )


def _started(pod: Pod, at_s: float) -> Pod:
    """Return a pod whose containers the runtime has reported, with its age."""
    created = datetime.fromtimestamp(at_s, UTC).isoformat(timespec="microseconds")
    containers = tuple(
        replace(container, id=ContainerID(container.name)) for container in pod.containers
    )
    return replace(pod, containers=containers, created=created, created_s=at_s)
