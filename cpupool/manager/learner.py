"""The learner: it brings the facts of pods, kubelet and container runtime to the manager.

The learner asks only where needed: the runtime only about containers that no source has reported,
the kubelet only about containers whose devices it has not named yet. It asks at once when a new
container needs the answer, and then with growing intervals. It repeats a question that had an
answer only about the CPUs of the kubelet's static CPU manager: another kubelet may give out others.
"""

from __future__ import annotations

import math
import threading
from typing import TYPE_CHECKING, Final

from cpupool.core.assignments import Cause
from cpupool.core.cgroups import POD_ITSELF
from cpupool.core.cpu_manager import Eligible
from cpupool.core.pod_resources import CPU
from cpupool.core.workloads import ContainerID, QoSClass
from cpupool.manager import (
    by_plugins,
    deferrable,
    mirror_pods,
    readiness,
    served_requests,
    sightings,
)
from cpupool.manager.asking import SOON_S, Retry, Sources
from cpupool.manager.kubelet_records import KubeletRecords
from cpupool.manager.promises import Expiry

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from cpupool.core.cgroups import FoundContainer
    from cpupool.core.orchestration import NodeRules
    from cpupool.core.workloads import Pod
    from cpupool.manager.manager import Manager
    from cpupool.manager.ports import CheckpointSource, ContainerSource, DeviceSource, PodSource
    from cpupool.manager.resolve import PlacedContainer, Snapshot

_KUBELET_STARTS_S: Final = 3.0
"""The time that a starting agent waits for the kubelet's CPU manager; an old one never answers."""


class Learner:
    """The source of all facts that the manager needs before it can place containers.

    One thread calls `learn`; any thread may call `kubelet_changed`, `can_wait` and `shares`.

    Args:
        manager: receives the facts.
        pods: the source of the pods.
        devices: podresources.
        checkpoint: the kubelet's checkpoint file.
        containers: the container runtime.
        nri: returns whether the runtime asks before it creates or updates a container.
        rules: returns what the node's labels and annotations say about its CPUs; None where that
            is not known.
    """

    def __init__(
        self,
        manager: Manager,
        *,
        pods: PodSource,
        devices: DeviceSource,
        checkpoint: CheckpointSource,
        containers: ContainerSource,
        nri: Callable[[], bool],
        rules: Callable[[], NodeRules | None] = lambda: None,
    ) -> None:
        self._due_s = self._recognises_s = math.inf
        self._manager = manager
        self._sources = Sources()
        self._pods = pods
        self._devices = devices
        self._records = KubeletRecords(manager, devices, checkpoint, self._sources)
        self._containers = containers
        self._nri = nri
        self._rules = rules
        self._started_s = math.inf
        self._new_kubelet = threading.Event()
        self._answered = self._answered_once = False
        self._cpu_manager = Retry()
        self._found: frozenset[ContainerID] = frozenset()
        self._unrecognised: frozenset[ContainerID] = frozenset()
        self._recognition = Retry()
        self._expiry = Expiry()

    @property
    def due_s(self) -> float:
        """When to ask next, if nothing happens before; infinite for never.

        By NRI the runtime names a new container without a question meanwhile.
        """
        named = self._unrecognised <= self._manager.snapshot().facts.sighted.keys()
        return self._due_s if named else min(self._due_s, self._recognises_s)

    def kubelet_changed(self) -> None:
        """Note that another kubelet runs now: it may have another configuration."""
        self._new_kubelet.set()

    def can_wait(self) -> bool:
        """Return whether the pods as they are listed leave every container where it is."""
        listed = self._pods.pods() if self._nri() else None
        return listed is not None and deferrable.moves_nothing(self._manager.snapshot(), listed)

    def shares(self, pod: str) -> bool:
        """Return whether it is known that a pod, by the id in its cgroup's name, only shares.

        The end of such a pod, and of its containers, leaves every other container where it is.
        """
        listed = self._pods.pods() if self._nri() else None
        found = next((each for each in listed or () if each.cgroup_uid == pod), None)
        now = self._manager.snapshot()
        found = found or now.resolution.pods.get(pod)
        return listed is not None and found is not None and deferrable.shares(now, found)

    def learn(self, found: Collection[FoundContainer], now_s: float) -> None:
        """Ask every source whose question is due.

        Args:
            found: every container that has a cgroup.
            now_s: the time on a monotonic clock.
        """
        self._due_s = self._recognises_s = math.inf
        self._started_s = min(self._started_s, now_s)
        if self._new_kubelet.is_set():
            self._new_kubelet.clear()
            self._cpu_manager, self._answered = Retry(), False
            self._records.ask_anew()
        self._ask_cpu_manager(now_s)
        if (rules := self._rules()) is not None:
            self._manager.observe(rules=rules)
            self._sources.complain("node", "; ".join(rules.faults))
        if (listed := self._sources.ask("pods", self._pods.pods)) is not None:
            alive = {container.pod for container in found}
            self._take_pods(listed, alive)
            self._records.recall(alive)
            self._recognise(found, now_s)
            self._due_s = min(self._due_s, self._records.ask(now_s, alive))
            self._find_idle(alive)
            self._forget_promises(now_s)

    def recall_choices(self, found: Collection[FoundContainer]) -> None:
        """Ask the runtime for what an earlier agent noted on running containers, once.

        The request of a pod may have changed since then; its QoS class never does.
        """
        now = self._manager.snapshot()
        there = {(container.pod, ContainerID(container.id)) for container in found}
        placed = now.resolution.containers
        asked = frozenset(key[1] for key in there & placed.keys() if _may_own(now, placed[key]))
        # By NRI the runtime has named them.
        if asked and not self._nri() and self._containers.connected():
            chosen = self._sources.ask("runtime", lambda: self._containers.chosen(asked))
            self._manager.observe_containers(chosen or ())

    @property
    def conflict(self) -> str:
        """The reason why cpupool cannot place containers beside the kubelet (`conflict`)."""
        return readiness.conflict(self._manager.snapshot())

    @property
    def places(self) -> bool:
        """Whether there is something to place; as `readiness.places`."""
        return readiness.places(self._manager.snapshot())

    def waiting_for(self, now_s: float) -> str:
        """Return what the agent must know before it touches any container; empty if it knows all.

        Args:
            now_s: the time on a monotonic clock.
        """
        return readiness.waiting_for(
            self._manager.snapshot(),
            kubelet_answers=self._answered_once or now_s >= self._started_s + _KUBELET_STARTS_S,
            records_read=self._records.informed,
            nri=self._nri(),
        )

    def _ask_cpu_manager(self, now_s: float) -> None:
        if self._answered:
            return
        if self._cpu_manager.is_due(now_s):
            self._cpu_manager = self._cpu_manager.after(now_s)
            cpus = self._sources.ask("cpu-manager", self._devices.allocatable_cpus)
            if cpus is not None:
                self._manager.observe(static_cpus=cpus)
                self._answered, self._answered_once = not cpus, True
        if not self._answered:
            self._due_s = min(self._due_s, self._cpu_manager.due_s)

    def _take_pods(self, listed: tuple[Pod, ...], alive: Collection[str]) -> None:
        """Take the pods; a known pod stays known while its cgroup exists.

        A pod that is no longer listed may be ending, or the list may be wrong.
        """
        facts, _ = self._manager.snapshot()
        uids = {pod.uid for pod in listed}
        known = mirror_pods.true(facts.pods or (), facts.static)
        ending = (pod for pod in known if pod.uid not in uids and pod.cgroup_uid in alive)
        pods = (*listed, *ending)
        if pods != facts.pods:
            self._manager.observe(pods=pods)
            self._records.ask_soon()

    def _recognise(self, found: Collection[FoundContainer], now_s: float) -> None:
        """Ask the runtime about containers that neither a pod nor the runtime has reported."""
        there = {
            ContainerID(container.id): container
            for container in found
            if container.id != POD_ITSELF
        }
        self._manager.forget_containers(self._found - there.keys())
        self._found = frozenset(there)
        facts, resolution = self._manager.snapshot()
        unknown = frozenset(
            identifier
            for identifier, container in there.items()
            if identifier not in facts.sighted
            and (container.pod, identifier) not in resolution.containers
        )
        # By NRI the runtime names each container before it creates it, and a sandbox after.
        pause_s = SOON_S if self._nri() else 0.0
        if self._unrecognised and self._unrecognised <= facts.sighted.keys():
            self._recognition = Retry(due_s=math.inf)
        if unknown != self._unrecognised:
            self._unrecognised, self._recognition = unknown, self._recognition.by(now_s + pause_s)
        if not unknown:
            self._recognition = Retry(due_s=math.inf)
        if not unknown or not self._containers.connected():
            return
        if self._recognition.is_due(now_s):
            self._recognition = self._recognition.after(now_s, pause_s)
            recognised = self._sources.ask("runtime", lambda: self._containers.recognise(unknown))
            if recognised:
                self._manager.observe_containers(recognised)
                self._unrecognised = unknown - {container.id for container in recognised}
        if self._unrecognised:
            self._recognises_s = self._recognition.due_s

    def _find_idle(self, alive: Collection[str]) -> None:
        """Find the pods without a container's cgroup, where two pods claim a CPU or one has ended.

        Only the default pool's CPUs stay with a pod that has ended.
        """
        facts, resolution = self._manager.snapshot()
        placed = resolution.containers.values()
        contested = any(container.assignment.cause is Cause.CONTESTED for container in placed)
        pods = sightings.present(facts)
        living = {pod.cgroup_uid for pod in pods if not pod.finished}
        idle = {uid for uid, grant in resolution.grants.of_pods if grant.source.of_default_pool}
        idle -= living
        if contested:
            idle.update(pod.cgroup_uid for pod in pods)
        self._manager.observe(idle=frozenset(idle.difference(alive)))

    def _forget_promises(self, now_s: float) -> None:
        if until := self._expiry.expired(self._manager.promised_until(), now_s):
            self._manager.release(until)


def _may_own(now: Snapshot, placed: PlacedContainer) -> bool:
    """Return whether a container may have CPUs of its own, whatever it requests today."""
    pod, grants = placed.pod, now.resolution.grants
    requests = now.facts.policy.requests(pod)
    guaranteed = pod.qos is QoSClass.GUARANTEED and any(
        map(served_requests.outside_pools, pod.containers)
    )
    eligible = now.facts.pools.cpu_manager.eligible
    limited = eligible is Eligible.CONTAINER and any(each.limit_milli for each in pod.containers)
    chosen = (
        guaranteed or limited or pod.orchestration or requests or served_requests.countable(pod)
    )
    return (
        bool(chosen)
        or pod.description.awaits_all
        or CPU in by_plugins.plugin_requests(now.facts, grants, pod, placed.container)
    )
