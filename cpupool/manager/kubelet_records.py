"""The kubelet's records of the devices that it gave to containers: two, joined into one.

The checkpoint is a file of the device manager. It names a pod by its UID, or a static pod by the
hash in its cgroup's name; it has init containers, and keeps pods that have ended for a while.
podresources is an answer of the kubelet. It names a pod by its name, has the CPUs of the static CPU
manager, and names pods without devices, too; it lacks plain init containers.

* The agent believes the checkpoint before podresources, for each resource of a container: a name
  may still belong to an earlier pod. It believes podresources only about pods with a unique name
  (`of_containers`).
* It believes both before the annotation of a container (`believed_annotations.corrected`).
* It reads the checkpoint first, and asks the kubelet for podresources only if a fact is missing
  there: at once when a container waits for its devices, a moment later when none waits, and then
  with growing intervals (`KubeletRecords`). It takes longer where the annotation already says which
  shared pool a container uses: no CPU depends on which of its devices they are.
"""

from __future__ import annotations

import math
from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from cpupool.core.devices import (
    NATIVE_CPU,
    AllocatedDevices,
    DevicesByContainer,
    NodesOfDevices,
    PodDevices,
)
from cpupool.core.errors import CPUPoolError, DevicesUnnamed
from cpupool.core.names import KUBELET_CPUS
from cpupool.core.requests import ResourceKind
from cpupool.core.workloads import ContainerRef
from cpupool.manager import compacting, mirror_pods, served_requests, sightings
from cpupool.manager.asking import SOON_S, Retry

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping
    from collections.abc import Set as AbstractSet

    from cpupool.core.names import Names
    from cpupool.core.requests import Resource
    from cpupool.core.workloads import Container, Pod
    from cpupool.manager.asking import Sources
    from cpupool.manager.manager import Manager
    from cpupool.manager.ports import CheckpointSource, DeviceSource
    from cpupool.manager.resolve import Resolution


_SHARED_S: Final = 10.0
"""How long a question about devices of shared pools alone waits, for other pods' and for the end of
pods that live for some seconds."""


class KubeletRecords:
    """Brings the kubelet's records to the manager; for one thread.

    Args:
        manager: receives the records.
        podresources: the kubelet.
        checkpoint: its checkpoint file.
        sources: logs failures.

    Attributes:
        informed: whether a record has been read; a kubelet that has just started may have none.
    """

    def __init__(
        self,
        manager: Manager,
        podresources: DeviceSource,
        checkpoint: CheckpointSource,
        sources: Sources,
    ) -> None:
        self.informed = False
        self._manager = manager
        self._podresources = podresources
        self._checkpoint = checkpoint
        self._sources = sources
        self._recalled = False
        self._others = False
        self._retry = Retry()
        self._unconfirmed: tuple[ContainerRef, ...] = ()
        self._waiting: AbstractSet[ContainerRef | str] = frozenset()

    def ask_anew(self) -> None:
        """Ask at once: another kubelet runs."""
        self._retry = Retry()

    def ask_soon(self) -> None:
        """Ask in a moment: there are other pods."""
        self._others = True

    def recall(self, alive: Collection[str]) -> None:
        """Read the checkpoint from before this agent's start, once.

        It has the CPUs that Allocate announced to containers, which their annotations do not have.
        Devices of running pods that are not listed yet become promises. The checkpoint also names
        pods that have ended, until the kubelet gives out devices again.
        """
        if self._recalled:
            return
        pods, names = sightings.present(self._manager.snapshot().facts), self._manager.names
        known = {pod.cgroup_uid for pod in pods}
        # Where a pod lacks devices, `ask` asks again and logs a failure.
        with suppress(CPUPoolError):
            saved = self._checkpoint.by_pod_uid()
            self._manager.accept(of_containers(pods, names, {}, saved))
            for uid, containers in saved.items():
                if uid in known or uid not in alive:
                    continue
                for resources in containers.values():
                    for resource, given in of_pools(resources, names).items():
                        self._manager.promise(resource, given.ids, given.announced)
            self._recalled = True

    def ask(self, now_s: float, alive: Collection[str]) -> float:
        """Read the records if a fact is missing and the question is due.

        Args:
            now_s: the time on a monotonic clock.
            alive: the ids in the cgroup names of pods with a container's cgroup.

        Returns:
            When to ask next; infinite for never.
        """
        resolution = self._manager.snapshot().resolution
        if not self._lacks_records():
            self._waiting, self._retry = frozenset(), Retry(due_s=math.inf)
            return math.inf
        waiting = self._waiting_for_records()
        delay_s = _SHARED_S if self._only_shared() else SOON_S
        if not waiting <= self._waiting:
            self._retry = Retry()
        elif self._others or resolution.unconfirmed != self._unconfirmed:
            self._retry = self._retry.by(now_s + delay_s)
        self._others, self._waiting, self._unconfirmed = False, waiting, resolution.unconfirmed
        if self._retry.is_due(now_s):
            self._retry = self._retry.after(now_s, 0.0 if waiting else delay_s)
            self._read(alive)
        return self._retry.due_s if self._lacks_records() else math.inf

    def _read(self, alive: Collection[str]) -> None:
        (facts, resolution), names = self._manager.snapshot(), self._manager.names
        unnamed = self._unnamed() | compacting.unnamed(facts, resolution.view)
        # A runtime keeps sandboxes of pods that have ended: without a cgroup, a pod's devices may
        # belong to a newer pod with the same name.
        here = {*alive, *(pod.cgroup_uid for pod in facts.pods or ())}
        pods = [pod for pod in sightings.present(facts) if pod.cgroup_uid in here]
        saved = self._sources.ask("checkpoint", self._checkpoint.by_pod_uid)
        self._manager.accept(of_containers(pods, names, {}, saved or {}))
        live = None
        if self._lacks_records():
            live = self._sources.ask("podresources", self._podresources.by_pod_name)
            uncertain = mirror_pods.uncertain(facts.pods or (), facts.static)
            self._manager.name_static_pods(mirror_pods.recorded(uncertain, saved or {}, live or {}))
            present = sightings.present(self._manager.snapshot().facts)
            pods = [pod for pod in present if pod.cgroup_uid in here]
            self._manager.accept(of_containers(pods, names, live or {}, saved or {}))
            nodes = nodes_of_pods(pods, live or {}, saved or {})
            # Only these had started before the question, so the kubelet had admitted them.
            self._manager.observe(device_nodes={uid: nodes[uid] for uid in unnamed & nodes.keys()})
        # A kubelet that has just started names no pods for a moment.
        self.informed |= bool(live) or saved is not None

    def _waiting_for_records(self) -> AbstractSet[ContainerRef | str]:
        """Return the containers and pods whose CPUs depend on the kubelet's answer.

        A container with a hint has its CPUs already, and one that is not created needs none yet;
        but no container is touched before the first answer.
        """
        facts, resolution = self._manager.snapshot()
        missing = frozenset(resolution.missing)
        waiting = missing & _created(resolution) if missing and self.informed else missing
        return waiting | mirror_pods.uncertain(facts.pods or (), facts.static) | self._unnamed()

    def _lacks_records(self) -> bool:
        """Return whether the kubelet's records may have facts that are missing."""
        facts, resolution = self._manager.snapshot()
        uncertain = mirror_pods.uncertain(facts.pods or (), facts.static)
        unnamed = self._unnamed() or compacting.unnamed(facts, resolution.view)
        lacking = resolution.unconfirmed or uncertain or unnamed
        return bool(lacking) or served_requests.kubelet_gives(facts)

    def _only_shared(self) -> bool:
        """Return whether only devices of shared pools are missing that listed pods request."""
        facts, resolution = self._manager.snapshot()
        if mirror_pods.uncertain(facts.pods or (), facts.static) or self._unnamed():
            return False
        if served_requests.kubelet_gives(facts):
            return False
        return all(
            _requests_shared(resolution.pods[ref.pod], ref) for ref in resolution.unconfirmed
        )

    def _unnamed(self) -> frozenset[str]:
        """Return the pods whose CPUs must lie near devices that the kubelet has not named."""
        refused = self._manager.snapshot().resolution.view.refused
        errors = ((uid, refusal.error) for uid, refusal in refused.items())
        return frozenset(uid for uid, error in errors if isinstance(error, DevicesUnnamed))


def of_containers(
    pods: Iterable[Pod],
    names: Names,
    by_pod_name: Mapping[tuple[str, str], PodDevices],
    by_pod_uid: Mapping[str, PodDevices],
) -> DevicesByContainer:
    """Join the kubelet's records to our pods: the checkpoint by UID, podresources by name.

    The checkpoint comes first: a name may still belong to an earlier pod, whose successor a
    StatefulSet has already made. So the result has podresources' facts only about pods with a
    unique name. A pod that has finished holds nothing, although the checkpoint may name it for a
    while.
    """
    joined: dict[ContainerRef, Mapping[Resource, AllocatedDevices]] = {}
    for pod, live in _with_live(pods, by_pod_name):
        for container in pod.containers:
            resources = _recorded(pod, container, live or {}, by_pod_uid)
            by_pool = of_pools(resources, names)
            if own := resources.get(NATIVE_CPU):
                by_pool[KUBELET_CPUS] = own
            if by_pool:
                joined[ContainerRef(pod.cgroup_uid, container.name)] = by_pool
    return joined


def nodes_of_pods(
    pods: Iterable[Pod],
    by_pod_name: Mapping[tuple[str, str], PodDevices],
    by_pod_uid: Mapping[str, PodDevices],
) -> NodesOfDevices:
    """Return the NUMA nodes of the resources of the pods that podresources names.

    podresources also names pods without devices, so its answer is complete, but for plain init
    containers: only the checkpoint has their devices. Only a unique name identifies a pod here,
    too, as in `of_containers`.
    """
    return {
        pod.cgroup_uid: {
            container.name: frozenset(
                given.nodes
                for given in _recorded(pod, container, live, by_pod_uid).values()
                if given.nodes
            )
            for container in pod.containers
        }
        for pod, live in _with_live(pods, by_pod_name)
        if live is not None
    }


def _with_live(
    pods: Iterable[Pod], by_pod_name: Mapping[tuple[str, str], PodDevices]
) -> Iterator[tuple[Pod, PodDevices | None]]:
    """Yield pods that have not finished with their devices in podresources; None if unnamed."""
    listed = tuple(pod for pod in pods if not pod.finished)
    bearers = Counter((pod.namespace, pod.name) for pod in listed)
    for pod in listed:
        name = (pod.namespace, pod.name)
        yield pod, by_pod_name.get(name) if bearers[name] == 1 else None


def _recorded(
    pod: Pod, container: Container, live: PodDevices, by_pod_uid: Mapping[str, PodDevices]
) -> Mapping[str, AllocatedDevices]:
    # The kubelet identifies a static pod by its config hash, as in the cgroup's name.
    saved = by_pod_uid.get(pod.cgroup_uid, {})
    return {**live.get(container.name, {}), **saved.get(container.name, {})}


def of_pools(
    resources: Mapping[str, AllocatedDevices], names: Names
) -> dict[Resource, AllocatedDevices]:
    """Return the entries of our resources, under their references."""
    return {
        pool: allocated
        for resource, allocated in resources.items()
        if allocated.ids and (pool := names.pool_of(resource)) is not None
    }


def _requests_shared(pod: Pod, ref: ContainerRef) -> bool:
    """Return whether a container of a listed pod requests devices of shared pools alone."""
    named = [each for each in pod.containers if each.name == ref.name and not each.whole_cpus]
    kinds = {resource.kind for container in named for resource in container.requests}
    return pod.qos is not None and kinds == {ResourceKind.SHARED}


def _created(resolution: Resolution) -> AbstractSet[ContainerRef]:
    placed = resolution.containers.items()
    return {ContainerRef(pod, container.container.name) for (pod, _), container in placed}
