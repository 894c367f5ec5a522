"""The cpusetter: brings every container of the node onto its CPUs and keeps it there.

Level-triggered: a sweep compares what is with what should be and repairs any difference, whoever
made it. Events only say *look now*. The thread that runs `CPUSetter.run` is the only one that
writes cgroups.
"""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from cpupool.core.assignments import Placement
from cpupool.core.errors import CgroupNotFound, CPUPoolError, HostError
from cpupool.core.workloads import ContainerID
from cpupool.manager import apply, resolve

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from cpupool.core.cpuset import CPUSet
    from cpupool.core.workloads import ContainerRef
    from cpupool.manager.manager import Manager
    from cpupool.manager.ports import (
        CgroupTree,
        CheckpointSource,
        DeviceSource,
        FoundContainer,
        PodSource,
    )
    from cpupool.manager.resolve import ContainerKey, Resolution

log = logging.getLogger(__name__)

_Answer = TypeVar("_Answer")

_SETTLE_S = 0.02
"""Events come in bursts, a pod start is dozens: the first is served at once, the rest together."""
_STORM_S = 0.2
_PASSES = 3
"""A repair may widen an ancestor, and with it a container that inherits (cgroup v2), so a sweep
that repaired something looks again; more often only if somebody else keeps writing."""
_ASK_AGAIN_S = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
"""How long to wait before the kubelet is asked again for devices that it has not named."""


@dataclass(frozen=True, slots=True)
class Repair:
    """One container that was on the wrong CPUs.

    Attributes:
        path: its cgroup.
        found: the CPUs it ran on.
        wanted: the CPUs it belongs on.
        error: why it is still wrong; empty where it is right now.
    """

    path: str
    found: str
    wanted: CPUSet
    error: str = ""


@dataclass(frozen=True, slots=True)
class SweepReport:
    """What one sweep saw and did.

    Attributes:
        repairs: containers that were wrong.
        found: every container directory, as it was seen last.
        waiting_for: what must be known before any container is touched; empty once it is.
    """

    repairs: tuple[Repair, ...] = ()
    found: tuple[FoundContainer, ...] = ()
    waiting_for: str = ""


class CPUSetter:
    """Sweeps the container cgroups.

    Args:
        manager: decides where each container belongs.
        tree: the cgroups.
        pods: where the pods come from.
        devices: podresources.
        checkpoint: the kubelet's checkpoint file, for what podresources leaves out.
        interval_s: a sweep happens at least this often.
        swept: called after each sweep, on the sweeping thread.
        now_s: a monotonic clock.
    """

    def __init__(
        self,
        *,
        manager: Manager,
        tree: CgroupTree,
        pods: PodSource,
        devices: DeviceSource,
        checkpoint: CheckpointSource,
        interval_s: float,
        swept: Callable[[SweepReport], None],
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._manager = manager
        self._tree = tree
        self._pods = pods
        self._devices = devices
        self._checkpoint = checkpoint
        self._interval_s = interval_s
        self._swept = swept
        self._look = threading.Event()
        self._now_s = now_s
        self._failing: dict[str, str] = {}
        self._stuck: dict[str, str] = {}
        self._confined: Mapping[ContainerKey, str] = {}
        self._settle_s = _SETTLE_S
        self._resolution: Resolution | None = None
        self._texts: dict[ContainerKey, str] = {}
        self._asked: _Asked | None = None
        self._informed = False
        self._ready = threading.Event()

    @property
    def ready(self) -> bool:
        """Whether it is known who owns which CPU: the first sweep has been done."""
        return self._ready.is_set()

    def wake(self) -> None:
        """Ask for a sweep now."""
        self._look.set()

    def run(self, stop: threading.Event) -> None:
        """Sweep until `stop` is set; `wake` once more after setting it returns at once."""
        while not stop.is_set():
            self._look.clear()
            report = self.sweep()
            self._swept(report)
            if stop.wait(self._settle_s):
                return
            # Events that come on and on without moving anybody are answered ever more slowly.
            idle = not self._look.wait(self._interval_s)
            calm = idle or report.repairs
            self._settle_s = _SETTLE_S if calm else min(2 * self._settle_s, _STORM_S)

    def sweep(self) -> SweepReport:
        """Compare every container with where it belongs, and repair what differs."""
        found = self._ask("cgroups", self._walk)
        if found is None:
            return SweepReport(waiting_for="the cgroups")
        self._learn({container.pod for container in found})
        facts, resolution = self._manager.state()
        # Until the pods, and the kubelet's word on their devices, have been heard once, an
        # exclusive container cannot be told from any other: touching it might be the outage.
        if facts.pods is None:
            return SweepReport(waiting_for="the list of this node's pods")
        if not facts.pools.pools:
            return SweepReport(waiting_for="a pool file for this node")
        if resolution.missing and not self._informed:
            return SweepReport(waiting_for="the kubelet's word on its devices")
        self._ready.set()
        if facts.pods and not found:
            self._complain(
                "kubepods", "no pod has a cgroup here; set --cgroup-root as the kubelet has it"
            )
        repairs: list[Repair] = []
        for _ in range(_PASSES):
            looked_at = (self._look_at(container, resolution) for container in found)
            made = [repair for repair in looked_at if repair is not None]
            repairs += made
            if all(repair.error for repair in made):
                break
            found = self._ask("cgroups", self._walk) or found
        paths = {container.path for container in found}
        self._stuck = {path: why for path, why in self._stuck.items() if path in paths}
        self._tell_confined(resolution)
        return SweepReport(tuple(repairs), found)

    def _walk(self) -> tuple[FoundContainer, ...]:
        return tuple(self._tree.containers())

    def _look_at(self, container: FoundContainer, resolution: Resolution) -> Repair | None:
        key = (container.pod, ContainerID(container.id))
        if container.cpus == self._wanted_text(key, resolution):
            return None
        wanted = resolution.assignment(key).cpus
        if not wanted:
            self._tell_stuck(container, "no CPU of its pool is online and free")
            return None
        return self._repair(container, wanted)

    def _repair(self, container: FoundContainer, wanted: CPUSet) -> Repair | None:
        started_s = time.monotonic()
        try:
            apply.repair(self._tree, container.path, wanted)
        except CgroupNotFound:
            return None
        except HostError as error:
            self._tell_stuck(container, str(error))
            return Repair(container.path, container.cpus, wanted, str(error))
        self._stuck.pop(container.path, None)
        log.info(
            "cpuset repaired cgroup=%s found=%s cpus=%s ms=%.1f",
            container.path,
            container.cpus or "none",
            wanted,
            (time.monotonic() - started_s) * 1000,
        )
        return Repair(container.path, container.cpus, wanted)

    def _wanted_text(self, key: ContainerKey, resolution: Resolution) -> str:
        # Rendered once per resolution: an idle sweep compares texts and parses nothing.
        if self._resolution is not resolution:
            self._resolution, self._texts = resolution, {}
        text = self._texts.get(key)
        if text is None:
            text = self._texts[key] = str(resolution.assignment(key).cpus)
        return text

    def _tell_confined(self, resolution: Resolution) -> None:
        """Say of each container once, and again with another reason, that it is confined."""
        confined = {
            key: placed.assignment.reason
            for key, placed in resolution.containers.items()
            if placed.assignment.placement is Placement.CONFINED
        }
        for key, reason in confined.items():
            if self._confined.get(key) != reason:
                placed = resolution.containers[key]
                log.warning(
                    "container confined to the default pool pod=%s/%s container=%s reason=%s",
                    placed.pod.namespace,
                    placed.pod.name,
                    placed.container.name,
                    reason,
                )
        self._confined = confined

    def _learn(self, alive: set[str]) -> None:
        """Bring the pods and the kubelet's assignments to the manager, as far as they changed.

        A pod that owns CPUs and is listed no longer keeps them while its cgroup is there: it may be
        ending, or the list may be wrong.
        """
        listed = self._ask("pods", self._pods.pods)
        if listed is None:
            return
        facts, before = self._manager.state()
        uids = {pod.uid for pod in listed}
        ending = (
            pod
            for pod in facts.pods or ()
            if pod.uid not in uids and pod.uid in before.owned and pod.cgroup_uid in alive
        )
        pods = (*listed, *ending)
        if pods != facts.pods:
            self._manager.set_pods(pods)
            self._asked = None
        _, resolution = self._manager.state()
        if not resolution.missing or not self._may_ask(resolution.missing):
            return
        join = partial(resolve.join_devices, pods, self._manager.names)
        live = self._ask("podresources", self._devices.by_pod_name)
        self._manager.record_devices(join(live or {}, {}))
        saved = None
        if self._manager.state()[1].missing:
            saved = self._ask("checkpoint", self._checkpoint.by_pod_uid)
            self._manager.record_devices(join({}, saved or {}))
        # A kubelet that has just started names nobody for a moment.
        self._informed |= bool(live) or saved is not None

    def _may_ask(self, missing: tuple[ContainerRef, ...]) -> bool:
        """Ask at once about something new, and ever more seldom about the same."""
        now_s = self._now_s()
        if self._asked is None or self._asked.missing != missing:
            self._asked = _Asked(missing, 0, now_s)
        if now_s < self._asked.next_s:
            return False
        wait_s = _ASK_AGAIN_S[min(self._asked.times, len(_ASK_AGAIN_S) - 1)]
        self._asked = _Asked(missing, self._asked.times + 1, now_s + wait_s)
        return True

    def _ask(self, source: str, ask: Callable[[], _Answer]) -> _Answer | None:
        try:
            answer = ask()
        except CPUPoolError as error:
            self._complain(source, str(error))
            return None
        self._failing.pop(source, None)
        return answer

    def _complain(self, source: str, why: str) -> None:
        """Say once that a source cannot be read; what is known of it goes on counting."""
        if self._failing.get(source) != why:
            self._failing[source] = why
            log.warning("source cannot be read source=%s error=%s", source, why)

    def _tell_stuck(self, container: FoundContainer, why: str) -> None:
        """Say once that a container is not where it belongs."""
        if self._stuck.get(container.path) != why:
            self._stuck[container.path] = why
            log.warning("container stays on wrong CPUs cgroup=%s error=%s", container.path, why)


@dataclass(frozen=True, slots=True)
class _Asked:
    """How often the kubelet was asked about the same missing devices, and when it may be next."""

    missing: tuple[ContainerRef, ...]
    times: int
    next_s: float
