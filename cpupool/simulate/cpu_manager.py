"""A simulated CPU manager: the CPUs that its policy gives out, and the pods that own some.

The decisions are the agent's, in `manager/choosing.py`. As on a node, a pod that does not fit waits
until it fits; or, with `onMisfit: fail`, it is refused.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from cpupool.core.cpu_manager import Misfit
from cpupool.core.cpuset import CPUSet
from cpupool.core.errors import PodRefused
from cpupool.core.grants import WHOLE_POD, PodOwner
from cpupool.core.names import POLICY_CPUS
from cpupool.core.workloads import ContainerID
from cpupool.manager import choosing
from cpupool.manager.choosing import Choices
from cpupool.manager.facts import NodeFacts
from cpupool.manager.guard import made
from cpupool.policies.built_in import assignable
from cpupool.simulate.pool import Room

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from cpupool.core.assignments import Step
    from cpupool.core.pools import NodePools
    from cpupool.core.topology import CPUTopology
    from cpupool.core.workloads import Pod


@dataclass(frozen=True, slots=True)
class Served:
    """A pod that has got CPUs of its own.

    Attributes:
        pod: the pod.
        cpus: container → its CPUs; those of the whole pod where its containers share one set.
        reasons: container → why the policy chose its CPUs.
        waited_for: why it had to wait; empty if it had its CPUs at once.
    """

    pod: Pod
    cpus: Mapping[str, CPUSet]
    reasons: Mapping[str, tuple[Step, ...]]
    waited_for: str


class SimulatedCPUManager:
    """The present state of the CPU manager.

    Args:
        topology: the machine.
        pools: its pool file, which is valid on the machine.
    """

    def __init__(self, topology: CPUTopology, pools: NodePools) -> None:
        policy = made(pools, topology)
        self._facts = NodeFacts(
            pools=pools, configured=True, topology=topology, policy=policy, recovered=True
        )
        self._fails = pools.cpu_manager.on_misfit is Misfit.FAIL
        self._pods: dict[str, Pod] = {}
        self._choices = Choices()
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
        """Return container → how many CPUs the policy gives it, alone or with its whole pod."""
        requests = choosing.requested(self._facts, pod)
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
        served = tuple(self._decide())
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
        grants = self._choices.grants.without({PodOwner(pod.uid)})
        refused = {uid: why for uid, why in self._choices.refused.items() if uid != pod.uid}
        self._choices = Choices(grants, refused)
        self.room.free = self.room.layout.cpus - grants.cpus
        if refused:
            yield from self._decide()

    def _decide(self) -> Iterator[Served]:
        before, pods = self._choices, tuple(self._pods.values())
        # Devices of other plugins are not simulated: every node is as good for a pod.
        facts = replace(self._facts, device_nodes={uid: {} for uid in self._pods})
        self._choices = choosing.choose(facts, pods, before)
        grants = self._choices.grants
        self.room.free = self.room.layout.cpus - grants.cpus
        for uid, pod in self._pods.items():
            grant = grants.all.get((PodOwner(uid), POLICY_CPUS))
            if grant and grant.parts and not before.grants.parts(uid, POLICY_CPUS):
                refusal = before.refused.get(uid)
                names = self.requests(pod)
                cpus = {name: grant.part(name) for name in names}
                reasons = {name: grant.reason(name) for name in names}
                yield Served(pod, cpus, reasons, refusal.error.as_kubelet if refusal else "")


def _started(pod: Pod, at_s: float) -> Pod:
    """Return a pod whose containers the runtime has reported, with its age."""
    created = datetime.fromtimestamp(at_s, UTC).isoformat(timespec="microseconds")
    containers = tuple(
        replace(container, id=ContainerID(container.name)) for container in pod.containers
    )
    return replace(pod, containers=containers, created=created)
