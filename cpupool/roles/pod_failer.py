"""The pod failer: it sets the phase of pods to Failed that cannot have CPUs of their own.

Only the pool file switches it on (`onMisfit: fail`), and only an overlay of the manifests gives the
agent the right. Level-triggered: each step takes one pod from the latest snapshot.
"""

from __future__ import annotations

import math
import threading
import time
from typing import TYPE_CHECKING, Final

from cpupool.core.cpu_manager import Misfit
from cpupool.core.workloads import oldest_first
from cpupool.kube.client import APIError
from cpupool.roles.attempts import PAUSE_S, Attempt
from cpupool.telemetry import log as logs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from cpupool.core.errors import PlacementError
    from cpupool.core.workloads import Pod
    from cpupool.manager.manager import Manager
    from cpupool.manager.ports import PodStatusSink
    from cpupool.manager.resolve import Snapshot
    from cpupool.telemetry.health import Health

log = logs.get(__name__)

NAME: Final = "pod failer"
_IDLE_S: Final = 60.0
_FORBIDDEN: Final = 403


class PodFailer:
    """The role that fails misfits. One thread runs it; any thread may call `look` and `wake`.

    Args:
        manager: the node's state.
        pods: writes the status of pods.
        after_s: how long a pod is held before it fails.
        health: receives the beats of the loop.
        now_s: a monotonic clock.
    """

    def __init__(
        self,
        manager: Manager,
        pods: PodStatusSink,
        *,
        after_s: float,
        health: Health,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._manager = manager
        self._pods = pods
        self._after_s = after_s
        self._health = health
        self._now_s = now_s
        self._held: dict[str, Attempt] = {}
        self._complaint = ""
        self._wake = threading.Event()

    def look(self) -> None:
        """Look at the pods now: one may have become a misfit."""
        self._wake.set()

    def wake(self) -> None:
        """End a request or a wait, so that `run` notices that it must end."""
        self._wake.set()
        self._pods.interrupt()

    def run(self, stop: threading.Event) -> None:
        """Fail misfits until `stop` is set; `wake` after setting it returns at once."""
        while not stop.is_set():
            self._health.beat(NAME)
            wait_s = self.step()
            self._wake.wait(wait_s)
            self._wake.clear()

    def step(self) -> float:
        """Fail the pod that is due first, if one is due; return the seconds to the next step."""
        now_s = self._now_s()
        misfits: dict[str, tuple[Pod, PlacementError]] = {
            pod.uid: (pod, error) for pod, error in _misfits(self._manager.snapshot())
        }
        new = Attempt(now_s + self._after_s)
        self._held = {uid: self._held.get(uid, new) for uid in misfits}
        if not misfits:
            return _IDLE_S
        uid = min(self._held, key=lambda uid: self._held[uid].due_s)
        due_s = self._held[uid].due_s
        if due_s > now_s:
            return min(due_s - now_s, _IDLE_S)
        self._fail(*misfits[uid], now_s)
        return PAUSE_S

    def _fail(self, pod: Pod, error: PlacementError, now_s: float) -> None:
        name = f"{pod.namespace}/{pod.name}"
        try:
            self._pods.fail(pod, error.reason, f"Pod was rejected: {error.as_kubelet}")
        except APIError as refusal:
            self._held[pod.uid] = self._held[pod.uid].refused(now_s)
            self._complain(name, refusal)
            return
        # The pod is a misfit until the watch shows its new phase.
        self._held[pod.uid] = Attempt(math.inf)
        self._complaint = ""
        log.info("pod failed", pod=name, reason=error.reason, why=error)

    def _complain(self, pod: str, refusal: APIError) -> None:
        """Log a refusal once; without the right, the refusals of all pods are one."""
        complaint = "" if refusal.status == _FORBIDDEN else f"{pod}: "
        complaint += str(refusal.status or refusal)
        if complaint == self._complaint:
            return
        self._complaint = complaint
        if refusal.status == _FORBIDDEN:
            remedy = "apply the overlay daemonsets/fail-misfits, or change onMisfit"
            log.warning("the agent may not fail pods, they stay held", reason=refusal, so=remedy)
        else:
            log.warning("pod not failed, it stays held", pod=pod, reason=refusal)


def _misfits(snapshot: Snapshot) -> Iterator[tuple[Pod, PlacementError]]:
    """Yield the pods that the pool file wants to fail, the oldest first, with their refusals.

    A pod that fits once ending pods have left their CPUs stays held: their CPUs come free soon. The
    kubelet may still name the devices of another one. No pod fails whose containers may run.
    """
    facts, resolution = snapshot
    if facts.pools.cpu_manager.on_misfit is not Misfit.FAIL:
        return
    started = {uid for uid, _ in resolution.containers}
    refused = resolution.view.refused
    for pod in oldest_first(resolution.view.pods):
        refusal = refused.get(pod.cgroup_uid)
        if refusal is None or not refusal.holds or refusal.reachable or refusal.error.passes:
            continue
        listed = pod.qos is not None
        if listed and not (pod.essential or pod.ending or pod.cgroup_uid in started):
            yield pod, refusal.error
