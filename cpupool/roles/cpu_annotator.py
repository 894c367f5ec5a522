"""The CPU annotator: it writes which CPUs the agent chose into the pods of Koordinator's classes.

koord-scheduler and other readers of `resource-status` then know CPUs that no scheduler assigned.
Only a setting switches it on, and only an overlay of the manifests gives the agent the right.
Level-triggered: each step takes one pod from the latest snapshot. The agent writes once for each
choice, and never where a scheduler has written.
"""

from __future__ import annotations

import math
import threading
import time
from typing import TYPE_CHECKING, Final

from cpupool.kube.client import APIError
from cpupool.manager import koordinator
from cpupool.roles.attempts import PAUSE_S, Attempt
from cpupool.telemetry import log as logs
from cpupool.wire.orchestration import RESOURCE_STATUS, resource_status

if TYPE_CHECKING:
    from collections.abc import Callable

    from cpupool.core.cpuset import CPUSet
    from cpupool.core.workloads import Pod, PodUID
    from cpupool.manager.manager import Manager
    from cpupool.manager.ports import PodAnnotationSink
    from cpupool.telemetry.health import Health

log = logs.get(__name__)

NAME: Final = "CPU annotator"
_IDLE_S: Final = 60.0
_FORBIDDEN: Final = 403


class CPUAnnotator:
    """The role that annotates pods. One thread runs it; any thread may call `look` and `wake`.

    Args:
        manager: the node's state.
        pods: writes the annotations of pods.
        health: receives the beats of the loop.
        now_s: a monotonic clock.
    """

    def __init__(
        self,
        manager: Manager,
        pods: PodAnnotationSink,
        *,
        health: Health,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._manager = manager
        self._pods = pods
        self._health = health
        self._now_s = now_s
        self._attempts: dict[tuple[PodUID, CPUSet], Attempt] = {}
        self._complaint = ""
        self._wake = threading.Event()

    def look(self) -> None:
        """Look at the pods now: one may have got CPUs."""
        self._wake.set()

    def wake(self) -> None:
        """End a request or a wait, so that `run` notices that it must end."""
        self._wake.set()
        self._pods.interrupt()

    def run(self, stop: threading.Event) -> None:
        """Annotate pods until `stop` is set; `wake` after setting it returns at once."""
        while not stop.is_set():
            self._health.beat(NAME)
            wait_s = self.step()
            self._wake.wait(wait_s)
            self._wake.clear()

    def step(self) -> float:
        """Annotate the pod that is due first, if one is due; return the seconds to the next step.

        A choice whose annotation was removed is not written again.
        """
        now_s = self._now_s()
        chosen = {
            (pod.uid, cpus): pod for pod, cpus in koordinator.chosen(self._manager.snapshot())
        }
        self._attempts = {
            choice: self._attempts.get(choice) or _first(choice[1], pod, now_s)
            for choice, pod in chosen.items()
        }
        if not self._attempts:
            return _IDLE_S
        choice = min(self._attempts, key=lambda each: self._attempts[each].due_s)
        due_s = self._attempts[choice].due_s
        if due_s > now_s:
            return min(due_s - now_s, _IDLE_S)
        self._annotate(choice, chosen[choice], now_s)
        return PAUSE_S

    def _annotate(self, choice: tuple[PodUID, CPUSet], pod: Pod, now_s: float) -> None:
        _, cpus = choice
        name = f"{pod.namespace}/{pod.name}"
        try:
            self._pods.annotate(pod, RESOURCE_STATUS, resource_status(cpus))
        except APIError as refusal:
            self._attempts[choice] = self._attempts[choice].refused(now_s)
            self._complain(name, refusal)
            return
        self._attempts[choice] = Attempt(math.inf)
        self._complaint = ""
        log.info("pod annotated", pod=name, cpus=cpus)

    def _complain(self, pod: str, refusal: APIError) -> None:
        """Log a refusal once; without the right, the refusals of all pods are one."""
        complaint = "" if refusal.status == _FORBIDDEN else f"{pod}: "
        complaint += str(refusal.status or refusal)
        if complaint == self._complaint:
            return
        self._complaint = complaint
        if refusal.status == _FORBIDDEN:
            remedy = "apply the component daemonsets/resource-status, or --no-write-resource-status"
            log.warning("the agent may not annotate pods", reason=refusal, so=remedy)
        else:
            log.warning("pod not annotated", pod=pod, reason=refusal)


def _first(choice: CPUSet, pod: Pod, now_s: float) -> Attempt:
    """Return the attempt for a new choice: none where the pod has it already."""
    told = pod.orchestration
    return Attempt(math.inf if told and told.published == choice else now_s)
