"""The learner: it brings the facts of pods, kubelet and container runtime to the manager.

The learner asks only where needed: the runtime only about containers that no source has reported,
the kubelet only about containers whose devices it has not named yet. It asks at once when a new
container needs the answer, and then with growing intervals. Only the CPUs of the kubelet's static
CPU manager are asked for repeatedly: another kubelet may give out other CPUs.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeVar

from cpupool.core.assignments import Cause
from cpupool.core.errors import CPUPoolError, DevicesUnnamed, RuntimeAwaitsAnswer
from cpupool.core.resources import CPU
from cpupool.core.workloads import ContainerID, ContainerRef, QoSClass
from cpupool.manager import (
    kubelet_conflict,
    plugin_requests,
    requested,
    resolve,
    sightings,
    static_pods,
)
from cpupool.manager.ports import POD_ITSELF
from cpupool.telemetry import log as logs
from cpupool.telemetry.failures import Failures
from cpupool.wire import katalyst
from cpupool.wire.katalyst import QoSLevel

if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from collections.abc import Set as AbstractSet

    from cpupool.core.koordinator import NodeRules
    from cpupool.core.workloads import Pod
    from cpupool.manager.manager import Manager
    from cpupool.manager.ports import (
        CheckpointSource,
        ContainerSource,
        DeviceSource,
        FoundContainer,
        PodSource,
    )
    from cpupool.manager.resolve import PlacedContainer, Resolution, Snapshot

log = logs.get(__name__)

_Answer = TypeVar("_Answer")

_ASK_AGAIN_S: Final = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
"""How long to wait before the agent repeats a question that had no answer."""
_SOON_S: Final = 0.5
"""How long a question waits that no container waits for: one answer then serves a burst of pods."""
_KUBELET_STARTS_S: Final = 3.0
"""How long a starting agent waits for the kubelet's CPU manager; an old kubelet never answers."""
_PROMISES_LAST_S: Final = 60.0
"""A pod appears within this time after the kubelet gave it devices, or never."""

POOL_FILE: Final = "a pool file for this node"
NRI: Final = (
    "NRI: the next update of the kubelet's static CPU manager would undo what cpupool writes;"
    " enable NRI in the container runtime, and leave out --enforcement"
)


class Sources:
    """A log of failing sources: each failure is logged once, and again with another reason."""

    def __init__(self) -> None:
        self._failures = Failures()

    def ask(self, source: str, question: Callable[[], _Answer]) -> _Answer | None:
        """Return the answer, or None where there is none now: known facts stay valid."""
        try:
            answer = question()
        except RuntimeAwaitsAnswer:
            # That is no failure: the question is repeated.
            return None
        except CPUPoolError as error:
            self.complain(source, str(error))
            return None
        self._failures.ends(source)
        return answer

    def complain(self, source: str, why: str) -> None:
        """Log once that a source gives no useful answer."""
        if not why:
            self._failures.ends(source)
        elif self._failures.begins(why, source):
            log.warning("source cannot be read", source=source, error=why)


class Learner:
    """The source of all facts that the manager needs before it can place containers.

    One thread calls `learn`; any thread may call `kubelet_changed`.

    Args:
        manager: receives the facts.
        pods: the source of the pods.
        devices: podresources.
        checkpoint: the kubelet's checkpoint file.
        containers: the container runtime.
        nri: returns whether the runtime asks before it creates or updates a container.
        rules: returns what Koordinator's words say of the node; None where it is not known.

    Attributes:
        due_s: when to ask next, if nothing happens before; infinite for never.
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
        self.due_s = math.inf
        self._manager = manager
        self._sources = Sources()
        self._pods = pods
        self._devices = devices
        self._checkpoint = checkpoint
        self._containers = containers
        self._nri = nri
        self._rules = rules
        self._started_s = math.inf
        self._new_kubelet = threading.Event()
        self._answered = self._answered_once = False
        self._cpu_manager = _Retry()
        self._unconfirmed: tuple[ContainerRef, ...] = ()
        self._waiting: AbstractSet[ContainerRef | str] = frozenset()
        self._assignments = _Retry()
        self._found: frozenset[ContainerID] = frozenset()
        self._unrecognised: frozenset[ContainerID] = frozenset()
        self._recognition = _Retry()
        self._informed = False
        self._recalled = False
        self._promised_until = 0
        self._promised: deque[tuple[float, int]] = deque()

    def kubelet_changed(self) -> None:
        """Note that another kubelet runs now: it may have another configuration."""
        self._new_kubelet.set()

    def learn(self, found: Collection[FoundContainer], now_s: float) -> None:
        """Ask every source whose question is due.

        Args:
            found: every container that has a cgroup.
            now_s: the time on a monotonic clock.
        """
        self.due_s = math.inf
        self._started_s = min(self._started_s, now_s)
        if self._new_kubelet.is_set():
            self._new_kubelet.clear()
            self._cpu_manager, self._assignments = _Retry(), _Retry()
            self._answered = False
        self._ask_cpu_manager(now_s)
        if (rules := self._rules()) is not None:
            self._manager.observe(rules=rules)
            self._sources.complain("node", "; ".join(rules.faults))
        if (listed := self._sources.ask("pods", self._pods.pods)) is not None:
            alive = {container.pod for container in found}
            self._take_pods(listed, alive, now_s)
            self._recall(alive)
            self._recognise(found, now_s)
            self._ask_devices(now_s, alive)
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
        """What must end, and how, because the kubelet places containers, too; empty if it does not.

        There is no conflict where there is nothing to place.
        """
        return kubelet_conflict.found(self._manager.snapshot()) if self.places else ""

    def waiting_for(self, now_s: float) -> str:
        """Return what the agent must know before it touches any container; empty if it knows all.

        Before the agent has read the pods and the kubelet's devices once, it cannot distinguish an
        exclusive container from others: a wrong write might cause an outage.
        """
        facts, resolution = self._manager.snapshot()
        if facts.pods is None:
            return "the list of this node's pods"
        if self.conflict:
            return self.conflict
        if not self._answered_once and now_s < self._started_s + _KUBELET_STARTS_S:
            return "the kubelet's answer about its CPU manager"
        if resolution.missing and not self._informed:
            return "the kubelet's records of its devices"
        if requested.kubelet_gives(facts) and not self._nri():
            return NRI
        # Last: by now the agent knows which devices of removed pools pods hold, and lists them.
        return "" if self.places else POOL_FILE

    @property
    def places(self) -> bool:
        """Return whether there is something to place, or pods own CPUs of an earlier pool file."""
        facts, resolution = self._manager.snapshot()
        return facts.pools.places or (facts.configured and any(resolution.grants.of_pods))

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
            self.due_s = min(self.due_s, self._cpu_manager.due_s)

    def _take_pods(self, listed: tuple[Pod, ...], alive: Collection[str], now_s: float) -> None:
        """Take the pods; a known pod stays known while its cgroup exists.

        A pod that is no longer listed may be ending, or the list may be wrong.
        """
        facts, _ = self._manager.snapshot()
        uids = {pod.uid for pod in listed}
        known = static_pods.true(facts.pods or (), facts.static)
        ending = (pod for pod in known if pod.uid not in uids and pod.cgroup_uid in alive)
        pods = (*listed, *ending)
        if pods != facts.pods:
            self._manager.observe(pods=pods)
            self._assignments = self._assignments.by(now_s + _SOON_S)

    def _recall(self, alive: Collection[str]) -> None:
        """Read the kubelet's checkpoint from before this agent's start, once.

        It has the CPUs that Allocate announced to containers, which their annotations do not have.
        Devices of running pods that are not listed yet become promises. The checkpoint also names
        pods that have ended, until the kubelet gives out devices again.
        """
        if self._recalled:
            return
        pods, names = sightings.present(self._manager.snapshot().facts), self._manager.names
        known = {pod.cgroup_uid for pod in pods}
        # Where a pod lacks devices, `_ask_devices` asks again and logs a failure.
        with suppress(CPUPoolError):
            saved = self._checkpoint.by_pod_uid()
            self._manager.accept(resolve.join_devices(pods, names, {}, saved))
            for uid, containers in saved.items():
                if uid in known or uid not in alive:
                    continue
                for resources in containers.values():
                    for resource, given in resolve.of_pools(resources, names).items():
                        self._manager.promise(resource, given.ids, given.announced)
            self._recalled = True

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
        pause_s = _SOON_S if self._nri() else 0.0
        if unknown != self._unrecognised:
            self._unrecognised, self._recognition = unknown, self._recognition.by(now_s + pause_s)
        if not unknown:
            self._recognition = _Retry(due_s=math.inf)
        if not unknown or not self._containers.connected():
            return
        if self._recognition.is_due(now_s):
            self._recognition = self._recognition.after(now_s, pause_s)
            recognised = self._sources.ask("runtime", lambda: self._containers.recognise(unknown))
            if recognised:
                self._manager.observe_containers(recognised)
                self._unrecognised = unknown - {container.id for container in recognised}
        if self._unrecognised:
            self.due_s = min(self.due_s, self._recognition.due_s)

    def _ask_devices(self, now_s: float, alive: Collection[str]) -> None:
        facts, resolution = self._manager.snapshot()
        if not self._lacks_records():
            self._waiting, self._assignments = frozenset(), _Retry(due_s=math.inf)
            return
        waiting, unnamed = self._waiting_for_records(), self._unnamed()
        if not waiting <= self._waiting:
            self._assignments = _Retry()
        elif resolution.unconfirmed != self._unconfirmed:
            self._assignments = self._assignments.by(now_s + _SOON_S)
        self._waiting, self._unconfirmed = waiting, resolution.unconfirmed
        if self._assignments.is_due(now_s):
            self._assignments = self._assignments.after(now_s, 0.0 if waiting else _SOON_S)
            # A runtime keeps sandboxes of pods that have ended: without a cgroup, a pod's devices
            # may belong to a newer pod with the same name.
            here = {*alive, *(pod.cgroup_uid for pod in facts.pods or ())}
            pods = [pod for pod in sightings.present(facts) if pod.cgroup_uid in here]
            names = self._manager.names
            saved = self._sources.ask("checkpoint", self._checkpoint.by_pod_uid)
            self._manager.accept(resolve.join_devices(pods, names, {}, saved or {}))
            live = None
            if self._lacks_records():
                live = self._sources.ask("podresources", self._devices.by_pod_name)
                uncertain = static_pods.uncertain(facts.pods or (), facts.static)
                self._manager.name_static_pods(
                    static_pods.recorded(uncertain, saved or {}, live or {})
                )
                present = sightings.present(self._manager.snapshot().facts)
                pods = [pod for pod in present if pod.cgroup_uid in here]
                self._manager.accept(resolve.join_devices(pods, names, live or {}, saved or {}))
                nodes = resolve.join_nodes(pods, live or {}, saved or {})
                # Only these had started before the question, so the kubelet had admitted them.
                self._manager.observe(
                    device_nodes={uid: nodes[uid] for uid in unnamed & nodes.keys()}
                )
            # A kubelet that has just started names no pods for a moment.
            self._informed |= bool(live) or saved is not None
        if self._lacks_records():
            self.due_s = min(self.due_s, self._assignments.due_s)

    def _waiting_for_records(self) -> AbstractSet[ContainerRef | str]:
        """Return the containers and pods whose CPUs depend on the kubelet's answer.

        A container with a hint has its CPUs already, and one that is not created needs none yet;
        but no container is touched before the first answer.
        """
        facts, resolution = self._manager.snapshot()
        missing = frozenset(resolution.missing)
        waiting = missing & _created(resolution) if missing and self._informed else missing
        return waiting | static_pods.uncertain(facts.pods or (), facts.static) | self._unnamed()

    def _lacks_records(self) -> bool:
        """Return whether the kubelet's records may have facts that are missing."""
        facts, resolution = self._manager.snapshot()
        uncertain = static_pods.uncertain(facts.pods or (), facts.static)
        lacking = resolution.unconfirmed or uncertain or self._unnamed()
        return bool(lacking) or requested.kubelet_gives(facts)

    def _unnamed(self) -> frozenset[str]:
        """Return the pods whose CPUs must lie near devices that the kubelet has not named."""
        refused = self._manager.snapshot().resolution.view.refused
        errors = ((uid, refusal.error) for uid, refusal in refused.items())
        return frozenset(uid for uid, error in errors if isinstance(error, DevicesUnnamed))

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
        until = self._manager.promised_until()
        if until != self._promised_until:
            self._promised_until = until
            self._promised.append((now_s, until))
        while self._promised and now_s - self._promised[0][0] >= _PROMISES_LAST_S:
            self._manager.release(self._promised.popleft()[1])


@dataclass(frozen=True, slots=True)
class _Retry:
    """How often a question had no answer, and when to ask it next."""

    times: int = 0
    due_s: float = -math.inf

    def is_due(self, now_s: float) -> bool:
        return now_s >= self.due_s

    def by(self, due_s: float) -> _Retry:
        """Return the first try of a question that is asked at this time at the latest."""
        return _Retry(due_s=min(self.due_s, due_s))

    def after(self, now_s: float, at_least_s: float = 0.0) -> _Retry:
        wait_s = _ASK_AGAIN_S[min(self.times, len(_ASK_AGAIN_S) - 1)]
        return _Retry(self.times + 1, now_s + max(wait_s, at_least_s))


def _created(resolution: Resolution) -> AbstractSet[ContainerRef]:
    placed = resolution.containers.items()
    return {ContainerRef(pod, container.container.name) for (pod, _), container in placed}


def _may_own(now: Snapshot, placed: PlacedContainer) -> bool:
    """Return whether a container may have CPUs of its own, whatever it requests today."""
    pod, grants = placed.pod, now.resolution.grants
    guaranteed = pod.qos is QoSClass.GUARANTEED and any(
        map(requested.outside_pools, pod.containers)
    )
    chosen = guaranteed or pod.orchestration or requested.countable(pod)
    return (
        bool(chosen)
        or katalyst.qos_level(pod) is not QoSLevel.SHARED
        or CPU in plugin_requests.asked(now.facts, grants, pod, placed.container)
    )
