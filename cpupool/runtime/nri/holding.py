"""The obstacles for which a container is held: the runtime does not create or start it now.

The kubelet then tries again. A creation is held by the first of these obstacles that is there
(`Obstacles.to_creation`):

1. The container has devices of a pool, and the node's pools are not known yet.
2. The CPU manager policy or a plugin refuses its pod, or a plugin has yet to answer for it, and no
   container of the pod runs.
3. It may request CPUs of its own, or for a plugin's resource, and its pod is not listed yet or the
   agent has just started.
4. A plugin has yet to prepare this start of it.
5. The kubelet has not named its devices, or another pod still has their CPUs.

A start is held while others run on the container's own CPUs (`Obstacles.to_start`). A pod that the
node may need is never held. With `--nri-missing-facts=release` only a refusal by the policy holds.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Final

from cpupool.core.cpu_manager import CPU_MANAGER, ON_MISFIT
from cpupool.core.cpuset import CPUSet
from cpupool.core.errors import HostError
from cpupool.core.grants import WHOLE_POD
from cpupool.core.names import ENABLE_SHARED_CPUS
from cpupool.core.workloads import ContainerRef
from cpupool.enforce import notices
from cpupool.enforce.intruders import intruders
from cpupool.manager import by_plugins

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from cpupool.core.cgroups import FoundContainer
    from cpupool.core.workloads import Pod
    from cpupool.enforce.intruders import Intruder
    from cpupool.manager.resolve import Resolution, Snapshot
    from cpupool.runtime.nri.adapter import NRIRuntime
    from cpupool.runtime.nri.messages import NamedContainer, NRIContainer


_RELEASE: Final = "--nri-missing-facts=release"
_JUST_STARTED: Final = "the agent has just started, and does not know yet which CPUs have an owner"
_SHOWN: Final = 3
"""The most containers that a message names."""


class MissingFacts(Enum):
    """The treatment of a container whose devices are unknown, or whose CPUs another pod has."""

    HOLD = "hold"
    """It is not created; the kubelet tries again."""
    RELEASE = "release"
    """It starts in the default pool, and is moved once it can have its CPUs."""


@dataclass(frozen=True, slots=True)
class Obstacle:
    """The reason why a container cannot have its CPUs, or not alone.

    Attributes:
        pod: its pod, if it is known.
        why: the fact.
        remedy: the remedy if it lasts.
        refusal: the reason of the Event about a pod that the CPU manager policy refuses; empty for
            an obstacle that may pass in a moment.
        settable: whether a setting would start the container in the default pool.
        soon: whether the obstacle waits for the agent itself alone.
    """

    pod: Pod | None
    why: str
    remedy: str
    refusal: str = ""
    settable: bool = True
    soon: bool = False

    def keeps(self, missing_facts: MissingFacts) -> bool:
        """Return whether the container is held; never where the node may need it to work."""
        held = bool(self.refusal) or missing_facts is MissingFacts.HOLD
        return held and not (self.pod is not None and self.pod.essential)

    def holds(self, container: NRIContainer) -> str:
        """Return the text about a container that is not created."""
        held = f"container {container.title} is held: {self.why}; the kubelet tries again"
        setting = f"{CPU_MANAGER}.{ON_MISFIT}: share" if self.refusal else _RELEASE
        start = f"; {setting} would start it in the default pool" if self.settable else ""
        return f"{held}. If it stays so, {self.remedy}{start}"

    def releases(self, container: NRIContainer) -> str:
        """Return the text about a container that is created in the default pool."""
        return (
            f"container {container.title} starts in the default pool: {self.why}; cpupool moves it"
            f" when that changes. If it stays so, {self.remedy}"
        )

    def stops(self, container: NamedContainer) -> str:
        """Return the text about a container that is not started."""
        stopped = f"container {container.title} is not started: {self.why}"
        return f"{stopped}; the kubelet tries again. If it stays so, {self.remedy}"

    def allows(self, container: NamedContainer) -> str:
        """Return the text about a container that starts before others have left."""
        return f"container {container.title} has started: {self.why}; {self.remedy}"


class Obstacles:
    """Finds the obstacle of a container.

    Args:
        runtime: the container runtime.
        ready: whether the owner of each CPU is known.
        found: walks every container directory, with the CPUs that it runs on now.
    """

    def __init__(
        self,
        runtime: NRIRuntime,
        *,
        ready: Callable[[], bool],
        found: Callable[[], Iterable[FoundContainer]],
    ) -> None:
        self._runtime = runtime
        self._ready = ready
        self._found = found

    def to_creation(self, container: NRIContainer, now: Snapshot) -> Obstacle | None:
        """Return the obstacle for a container that is created; None for none."""
        known, key = container.known, container.key
        if known is None or key is None:
            return None
        pod = now.resolution.pods.get(known.pod)
        if known.devices and not (self._ready() or now.facts.configured):
            return Obstacle(pod, "this node's pools are not known yet", "look at the agent's log")
        if refused := self._refused(pod, now):
            return refused
        unknown = _unknown(container, pod, now) or _unanswered(container, pod, now)
        if unknown := unknown or _unprepared(container, now):
            ready = ContainerRef(known.pod, known.name) in now.facts.plugins.ready
            remedy = "look at the agent's log for what it waits for"
            return Obstacle(pod, unknown, remedy, soon=ready)
        assignment = now.assignment(key)
        if assignment.cause is None or not assignment.cause.may_pass:
            return None
        return Obstacle(pod, assignment.reason, notices.remedy(assignment.cause))

    def to_start(self, container: NamedContainer, now: Snapshot) -> Obstacle | None:
        """Return the obstacle for a container that starts; None if it is alone on its own CPUs.

        A container without own CPUs costs no look at the cgroups, unless its CPUs have changed
        since its creation: the runtime may have made its cgroup with the CPUs before.
        """
        key = container.key
        if key is None:
            return None
        known = self._runtime.containers.get(container.id)
        moved = known is not None and known.moved
        if not (moved or now.assignment(key).exclusive) or now.resolution.view.kubelet_places:
            return None
        pod = now.resolution.pods.get(key[0])
        try:
            there = list(intruders(now.resolution, self._found(), key, self._runtime.starting))
        except HostError as error:
            return Obstacle(pod, str(error), notices.OCCUPIED_REMEDY)
        if not there:
            return None
        cpus = CPUSet.union(intruder.cpus for intruder in there)
        if all(intruder.key == key for intruder in there):
            why = f"its cgroup still has CPUs {cpus} of another pod"
        else:
            names = ", ".join(_named(intruder, now.resolution) for intruder in there[:_SHOWN])
            more = f" and {len(there) - _SHOWN} more" if len(there) > _SHOWN else ""
            why = f"other containers still run on its CPUs {cpus}: {names}{more}"
        return Obstacle(pod, why, notices.OCCUPIED_REMEDY)

    def _refused(self, pod: Pod | None, now: Snapshot) -> Obstacle | None:
        """Return why the CPU manager policy refuses a pod without a running container."""
        refusal = pod and now.resolution.view.refused.get(pod.cgroup_uid)
        if (
            not pod
            or not refusal
            or not refusal.holds
            or self._runtime.containers.runs(pod.cgroup_uid)
        ):
            return None
        error = refusal.error
        word = "" if error.passes else error.reason
        return Obstacle(pod, error.as_kubelet, error.remedy, word, settable=error.heals)


def _unknown(container: NRIContainer, pod: Pod | None, now: Snapshot) -> str:
    """Return the missing fact about a container that may request CPUs of its own; empty for none.

    The kubelet's numbers show the request of a container whose pod is not listed yet.
    """
    known, manager = container.known, now.facts.pools.cpu_manager
    if known is None or not manager.chooses or (pod and pod.is_one_of(manager.system_pods)):
        return ""
    listed = pod is not None and pod.qos is not None
    spec = [found for found in pod.containers if found.name == known.name] if pod else []
    asks = (
        manager.eligible.cpus(container)
        or container.orchestrated
        # Each container of a pod with a bubble runs there, whatever it requests itself.
        or (manager.bubbles and container.guaranteed)
    )
    today = now.facts.policy.requests(pod).keys() if pod else set()
    if not (asks or any(map(manager.eligible.cpus, spec)) or today & {known.name, WHOLE_POD}):
        return ""
    if not now.facts.recovered:
        return _JUST_STARTED
    # A container of a pool has its CPUs from there. OpenShift's resource only adds to CPUs that it
    # owns.
    if not listed and known.devices.keys() <= {ENABLE_SHARED_CPUS}:
        return "the API server has not listed its pod yet, which may request CPUs of its own"
    return ""


def _unanswered(container: NRIContainer, pod: Pod | None, now: Snapshot) -> str:
    """Return the missing fact about a container that may request a plugin's resource.

    It is empty if no plugin serves a resource, and for a static pod: without the API server no list
    has that pod.
    """
    if not by_plugins.awaited(now.facts) or container.static:
        return ""
    if pod is None or pod.qos is None:
        return "the API server has not listed its pod yet, which may request a plugin's resource"
    unclear = container.known and by_plugins.unclear(now.facts, pod, container.known.name)
    return _JUST_STARTED if unclear else ""


def _unprepared(container: NRIContainer, now: Snapshot) -> str:
    """Return that a plugin has yet to prepare this start of a container; empty if not."""
    if container.known is None:
        return ""
    ref, plugins = ContainerRef(container.known.pod, container.known.name), now.facts.plugins
    if ref not in plugins.prepared or container.id in plugins.prepared[ref]:
        return ""
    return plugins.refusals.get(ref) or "its plugin has not prepared this start yet"


def _named(intruder: Intruder, resolution: Resolution) -> str:
    placed = resolution.containers.get(intruder.key)
    pod = placed.pod if placed else resolution.pods.get(intruder.key[0])
    if pod is None:
        return intruder.path
    return f"{pod.namespace}/{pod.name}/{placed.container.name if placed else ''}"
