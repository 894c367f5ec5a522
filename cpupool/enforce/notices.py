"""The notices for pods' owners: each is a log line once, and an Event if it lasts.

A container may be in a state that its owner must know, as confined or overwritten. Most such states
pass in seconds, and an Event for each would be noise: so a notice becomes an Event only later.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from cpupool.core import withheld
from cpupool.core.assignments import Cause, Placement
from cpupool.core.cgroups import POD_ITSELF
from cpupool.core.cpu_manager import MAX_NOTICE
from cpupool.core.cpuset import CPUSet
from cpupool.core.errors import PlacementError
from cpupool.core.grants import PodOwner
from cpupool.core.names import MOVES, NOTICE, STATIC_POD_MIRROR
from cpupool.core.pools import MILLI_PER_CPU
from cpupool.core.requests import ResourceKind
from cpupool.core.workloads import ContainerID, CPUMoves
from cpupool.manager import mirror_pods
from cpupool.manager.by_plugins import RequestRefused, RequestUnclear
from cpupool.policies.built_in import kind
from cpupool.telemetry import log as logs

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from cpupool.core.cpu_manager import CPUManager
    from cpupool.core.events import EventSink
    from cpupool.core.topology import CPUTopology
    from cpupool.core.workloads import Pod
    from cpupool.enforce.foreign_writers import Reason
    from cpupool.manager.facts import ContainerKey, NodeFacts
    from cpupool.manager.resolve import PlacedContainer, Resolution
    from cpupool.policies.base import CPUManagerPolicy
    from cpupool.policies.view import Refusal

log = logs.get(__name__)

_RESIZE_S: Final = 60.0
"""The kubelet may try a resize again that long (its sync of a pod)."""
_PASSES_S: Final = 2.0
"""The time before a state that may pass becomes an Event."""

_UNREADABLE: Final = "CPUAnnotationUnreadable"
_CONFINED: Final = {
    Cause.NO_POOL: (
        "CPUPoolMissing",
        "request a pool of this node, or add that one to the node's pool file",
    ),
    Cause.NO_DEVICES: (
        "CPUDevicesUnknown",
        "check that the agent sees the kubelet's folders, then create the pod again",
    ),
    Cause.CONTESTED: (
        "CPUContested",
        "find out why that pod does not end, or create this one again: it then gets other CPUs",
    ),
    Cause.ANSWER: (
        "CPUContested",
        "create this pod or that one again: the plugin then answers anew for it",
    ),
    Cause.NO_CPUS: (
        "CPUDevicesUnknown",
        "remove the other device plugin from the node, then create the pod again",
    ),
    Cause.OFFLINE: ("CPUOffline", "bring the pool's CPUs online, or create the pod again"),
    Cause.MISFIT: ("", PlacementError.remedy),
    Cause.ANNOTATION: (_UNREADABLE, "delete the pod, so that it is scheduled again"),
}
"""Cause → the Event's reason, and the remedy. A misfit has those of its refusal."""
RELEASED: Final = "CPUContainerReleased"
RESIZE_REFUSED: Final = "CPUResizeRefused"
OCCUPIED: Final = "CPUOccupied"
OCCUPIED_REMEDY: Final = (
    "look at the agent's log for the containers that stay on wrong CPUs, and at the container"
    " runtime"
)


@dataclass(frozen=True, slots=True)
class Notice:
    """A fact about one container that its owner must know.

    Attributes:
        event: the Event's reason.
        phrase: the log's words.
        pod: the pod that it concerns.
        container: its name; empty for a pod's sandbox, its own cgroup and a container that no
            source has reported yet.
        why: the fact.
        remedy: the remedy.
        lasts_s: the time after which it becomes an Event.
    """

    event: str
    phrase: str
    pod: Pod
    container: str
    why: str
    remedy: str
    lasts_s: float = 0.0


NoticeKey = tuple["ContainerKey", str]
"""A container instance and the Event's reason."""


def remedy(cause: Cause) -> str:
    """Return the remedy for a container that is confined for this cause."""
    return _CONFINED[cause][1]


def _may_pass(topology: CPUTopology) -> bool:
    """Return whether a CPU may come back in a moment: it is online before cgroups have it."""
    return bool(topology.withheld)


def _back(resolution: Resolution, placed: PlacedContainer) -> str:
    """Return the remedy for a container whose CPUs are offline or withheld."""
    view, uid = resolution.view, placed.pod.cgroup_uid
    parts, system = view.topology.withheld, view.pools.cpu_manager.system_pods
    if placed.pod.is_one_of(system):
        return f"{withheld.remedy(system.cpus, parts)}, or name others"
    own = (grant.cpus for grant in resolution.grants.of(PodOwner(uid)).values())
    pools = (view.pools.behind(resource) for resource in placed.container.requests)
    cpus = CPUSet.union((*own, *(pool.cpus for pool in pools if pool))) - view.topology.online
    if cpus.isdisjoint(withheld.all_of(parts)):
        return remedy(Cause.OFFLINE)
    return f"{withheld.remedy(cpus, parts)}, or create the pod again"


def about_placement(resolution: Resolution) -> Iterator[tuple[NoticeKey, Notice]]:
    """Yield a notice for each container that does not have what it requests."""
    for key, placed in resolution.containers.items():
        refusal = resolution.view.refused.get(placed.pod.cgroup_uid)
        for notice in (
            *_of(resolution, placed, refusal),
            *_about_pools_alone(resolution, placed),
        ):
            yield (key, notice.event), notice
    manager = resolution.view.pools.cpu_manager
    policy = kind(manager)
    for pod in {uid: resolution.pods[uid] for uid, _ in resolution.containers}.values():
        refusal = resolution.view.refused.get(pod.cgroup_uid)
        for notice in (
            *_about_request(pod, refusal),
            *_about_class(pod, policy),
            *(_about_words(pod, manager) if policy.resizes else ()),
        ):
            yield ((pod.cgroup_uid, POD_ITSELF), notice.event), notice


def about_mirrors(facts: NodeFacts) -> Iterator[tuple[NoticeKey, Notice]]:
    """Yield a notice for each pod that claims to mirror a static pod and does not."""
    for pod in mirror_pods.forged(facts.pods or (), facts.static):
        known = facts.static.get(pod.cgroup_uid)
        owner = f"pod {'/'.join(known.name)}" if known else "no pod that the kubelet has named"
        notice = Notice(
            "StaticPodForged",
            "pod is not the mirror of a static pod",
            pod,
            "",
            f"it says that it mirrors static pod {pod.cgroup_uid}, which is {owner}",
            f"delete the pod if the kubelet has not made it, or its annotation {STATIC_POD_MIRROR}",
            _PASSES_S,
        )
        yield ((pod.cgroup_uid, ContainerID(pod.uid)), notice.event), notice


def about_fight(
    resolution: Resolution, key: ContainerKey, writer: Reason
) -> Iterator[tuple[NoticeKey, Notice]]:
    """Yield that a program overwrites the CPUs of a container again and again."""
    pod = resolution.pods.get(key[0])
    if pod is not None:
        placed = resolution.containers.get(key)
        notice = Notice(
            "CPUSetContested",
            "cpuset is contested",
            pod,
            placed.container.name if placed else "",
            f"its CPUs are overwritten again and again, probably by {writer.culprit}",
            writer.remedy,
        )
        yield (key, notice.event), notice


def about_occupied(
    resolution: Resolution, key: ContainerKey, cpus: CPUSet
) -> Iterator[tuple[NoticeKey, Notice]]:
    """Yield that a container waits for exclusive CPUs: other pods have not left them."""
    placed = resolution.containers.get(key)
    if placed is not None:
        notice = Notice(
            OCCUPIED,
            "container waits for its CPUs",
            placed.pod,
            placed.container.name,
            f"other pods still run on its CPUs {cpus}",
            OCCUPIED_REMEDY,
            _PASSES_S,
        )
        yield (key, notice.event), notice


def about_unasked(
    resolution: Resolution, key: ContainerKey, nri_waits: str
) -> Iterator[tuple[NoticeKey, Notice]]:
    """Yield that a container with its own CPUs has started before NRI was connected."""
    placed = resolution.containers.get(key)
    if placed is not None and placed.assignment.exclusive:
        notice = Notice(
            RELEASED,
            "container has started without NRI",
            placed.pod,
            placed.container.name,
            f"it has started while the connection to NRI {nri_waits}, and ran on other CPUs until"
            " cpupool has moved it",
            "restart it if its first instructions must run on its own CPUs",
        )
        yield (key, notice.event), notice


def about_moved(resolution: Resolution, key: ContainerKey) -> Iterator[tuple[NoticeKey, Notice]]:
    """Yield that processes run in the cgroup of the pod, and do not go back by themselves."""
    pod = resolution.pods.get(key[0])
    if pod is not None:
        notice = Notice(
            "CPUProcessesMoved",
            "processes have left their container's cgroup",
            pod,
            "",
            "when the last CPU of a container went offline, the kernel moved its processes into "
            "the pod's cgroup (version 1); they share the CPUs of the pod and of the default pool",
            "restart that container once its CPUs are online",
        )
        yield (key, notice.event), notice


def _of(
    resolution: Resolution, placed: PlacedContainer, refusal: Refusal | None
) -> Iterator[Notice]:
    pod, name, assignment = placed.pod, placed.container.name, placed.assignment
    topology = resolution.view.topology
    if assignment.cause in _CONFINED:
        event, what_to_do = _CONFINED[assignment.cause]
        if assignment.cause is Cause.OFFLINE:
            what_to_do = _back(resolution, placed)
        # NRI holds the container, so its directory exists only for a moment.
        held = refusal is not None and refusal.holds
        gone = assignment.cause is Cause.OFFLINE and _may_pass(topology)
        lasts_s = _PASSES_S if held or gone or assignment.cause.may_pass else 0.0
        if refusal and assignment.cause is Cause.MISFIT:
            event, what_to_do = refusal.error.reason, refusal.error.remedy
        confined = assignment.placement is Placement.CONFINED
        phrase = f"container {'confined to the default pool' if confined else 'waits for CPUs'}"
        yield Notice(event, phrase, pod, name, assignment.reason, what_to_do, lasts_s)
    if assignment.reason and assignment.placement in {Placement.POLICY, Placement.PLUGIN}:
        yield from _about_resize(resolution, placed)
    if assignment.offline:
        yield Notice(
            "CPUOffline",
            "container lost CPUs",
            pod,
            name,
            f"its {withheld.why(assignment.offline, topology.withheld)}",
            f"{withheld.remedy(assignment.offline, topology.withheld)}, or create the pod again",
            _PASSES_S if _may_pass(topology) else 0.0,
        )
    if assignment.stale:
        yield Notice(
            "StaleSharedCPUs",
            "container keeps its old shared CPUs",
            pod,
            name,
            f"it stays on the shared CPUs {assignment.shared} that its pools had before: moved, "
            "its pinned threads would roam on this kernel",
            "restart it to take the pools' present CPUs",
        )
    if assignment.memory is not None and pod.memory_migrates is None:
        yield Notice(
            "MemoryMigrationUnreadable",
            "memory is not migrated",
            pod,
            name,
            "its memory stays where it is: the value of its annotation memory-migrates is neither"
            ' "true" nor "false"',
            'write "true" to let the memory of the running container move',
        )
    yield from _about_limit(placed)


def _about_resize(resolution: Resolution, placed: PlacedContainer) -> Iterator[Notice]:
    """Yield that an owner has other CPUs than it requests, if this does not pass by itself."""
    pod, name, reason = placed.pod, placed.container.name, placed.assignment.reason
    grant = resolution.view.chosen[pod.cgroup_uid]
    if grant.bubble or not resolution.inputs.node.policy.kind.resizes:
        remedy = "create the pod again to give it as many as it requests"
        yield Notice("CPUResizeIgnored", "resize changes no CPUs", pod, name, reason, remedy)
    elif not grant.leaving.get(name):
        yield Notice(
            "CPUResizeLeftAlone",
            "container is not resized",
            pod,
            name,
            reason,
            "look at the pod's conditions; where the agent does not answer the runtime by NRI, it"
            " cannot hold a resize: create the pod again",
            _RESIZE_S,
        )


def _about_pools_alone(resolution: Resolution, placed: PlacedContainer) -> Iterator[Notice]:
    """Yield that a container with pools gets no CPUs for its whole cpu request."""
    manager, container = resolution.view.pools.cpu_manager, placed.container
    pools = [pool for pool in container.requests if pool.kind is not ResourceKind.ADDITIONAL]
    if manager.chooses and pools and (whole := manager.eligible.cpus(container)):
        yield Notice(
            "CPURequestOfPoolsOnly",
            "container gets CPUs of its pools only",
            placed.pod,
            container.name,
            f"it requests {' and '.join(pools)}, so that the CPU manager policy {manager.policy}"
            f" gives it none for its cpu request of {whole}",
            "request either pools or whole CPUs in a container",
        )


def _about_words(pod: Pod, manager: CPUManager) -> Iterator[Notice]:
    """Yield which words about changes of its CPUs a pod has that the node does not follow."""
    longest = manager.max_notice_s
    if NOTICE in pod.misread or (pod.notice_s is not None and pod.notice_s > longest):
        yield Notice(
            "CPUNoticeIgnored",
            "pod gets the node's notice",
            pod,
            "",
            f"its containers know {longest} s before they lose CPUs, the most on this node: the"
            f" value of its annotation {NOTICE} is no whole number from 0 to {longest}",
            f"write such a number, or a larger {MAX_NOTICE} into the node's pool file",
        )
    if MOVES in pod.misread:
        yield Notice(
            "CPUMovesIgnored",
            "pod keeps the CPUs that it was created with",
            pod,
            "",
            "its containers keep the CPUs that they were created with: the value of its annotation"
            f" {MOVES} is none of {', '.join(moves.value for moves in CPUMoves)}",
            "write one of them",
        )


def _about_request(pod: Pod, refusal: Refusal | None) -> Iterator[Notice]:
    """Yield why a pod runs without its request: it is unclear, or a plugin has refused it."""
    if refusal and isinstance(refusal.error, RequestUnclear):
        yield Notice(
            refusal.error.reason,
            "pod does not say what it requests",
            pod,
            "",
            refusal.error.why,
            refusal.error.remedy,
            _PASSES_S,
        )
    elif refusal and isinstance(refusal.error, RequestRefused):
        yield Notice(
            refusal.error.reason,
            "container runs without an answer of its plugin",
            pod,
            refusal.error.container,
            refusal.error.why,
            "it shares CPUs meanwhile; the plugin's log has more",
            _PASSES_S,
        )


def _about_class(pod: Pod, policy: type[CPUManagerPolicy]) -> Iterator[Notice]:
    """Yield the labels, annotations and requests of a pod that do not go with its class."""
    if policy.reads_classes and pod.orchestration and pod.orchestration.ignored:
        yield Notice(
            _UNREADABLE,
            "labels or annotations have no effect",
            pod,
            "",
            f"it has no effect that {'; and that '.join(pod.orchestration.ignored)}",
            "correct it in a new pod",
        )
    if why := policy.irregular(pod):
        yield Notice(
            "CPUClassIrregular",
            "pod breaks a rule of its class",
            pod,
            "",
            why,
            "correct it in a new pod; the admission policies, or the webhook, refuse such pods",
        )


def _about_limit(placed: PlacedContainer) -> Iterator[Notice]:
    limit, written_milli = placed.assignment.limit, placed.container.limit_milli
    if limit is None or limit.milli is not None or written_milli is None:
        return
    requests = placed.container.requests
    exclusive = [pool for pool in requests if pool.kind is ResourceKind.EXCLUSIVE]
    own = sum(requests[pool] for pool in exclusive)
    if written_milli < own * MILLI_PER_CPU:
        yield Notice(
            "CPULimitIgnored",
            "cpu limit ignored",
            placed.pod,
            placed.container.name,
            f"its cpu limit of {written_milli}m is less than its exclusive CPUs ({own}), and"
            " throttles nothing: it keeps them all, without a quota",
            "for another number of CPUs request that number of"
            f" {' or '.join(exclusive)} in a new pod",
        )


class Notices:
    """Publishes each notice once, and again when its content changes or it comes back.

    Args:
        events: sends Events.

    Attributes:
        due_s: when a notice will have lasted long enough for its Event; infinite for never.
    """

    def __init__(self, events: EventSink) -> None:
        self.due_s = math.inf
        self._events = events
        self._said: dict[NoticeKey, _Said] = {}

    def publish(self, notices: Mapping[NoticeKey, Notice], now_s: float) -> None:
        """Publish the new ones among all present notices, and forget those that are over."""
        self._said = {key: said for key, said in self._said.items() if key in notices}
        self.due_s = math.inf
        for key, notice in notices.items():
            said = self._said.get(key)
            if said is None or said.why != notice.why:
                said = self._said[key] = _Said(notice.why, now_s + notice.lasts_s)
                log.warning(
                    notice.phrase,
                    pod=f"{notice.pod.namespace}/{notice.pod.name}",
                    container=notice.container,
                    reason=notice.why,
                )
            if said.sent:
                continue
            if now_s < said.due_s:
                self.due_s = min(self.due_s, said.due_s)
                continue
            said.sent = True
            what = f"container {notice.container}: " if notice.container else ""
            self._events.pod(notice.pod, notice.event, f"{what}{notice.why}; {notice.remedy}")


@dataclass(slots=True)
class _Said:
    why: str
    due_s: float
    sent: bool = False
