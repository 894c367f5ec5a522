"""The CPU annotator writes the CPUs that the agent chose into the pods of Koordinator's classes.

koord-scheduler and other readers of `resource-status` then know CPUs that no scheduler assigned.
Only a setting switches it on, and only an overlay of the manifests gives the agent the right.
The agent writes once for each choice, and never where a scheduler has written.
"""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Final

from cpupool.agent.pod_writer import PodWriter, Words, Write
from cpupool.manager import koordinator_annotations
from cpupool.policies.koordinator.pod_annotations import RESOURCE_STATUS, resource_status
from cpupool.telemetry import log as logs

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from cpupool.agent.ports import PodAnnotationSink
    from cpupool.core.cpuset import CPUSet
    from cpupool.core.workloads import Pod, PodUID
    from cpupool.manager.resolve import Reader
    from cpupool.telemetry.health import Health

log = logs.get(__name__)

NAME: Final = "CPU annotator"
_WORDS: Final = Words(
    forbidden="the agent may not annotate pods",
    remedy="apply the component daemonsets/resource-status, or --no-write-resource-status",
    refused="pod not annotated",
)


class CPUAnnotator(PodWriter["tuple[PodUID, CPUSet]"]):
    """The role that writes the annotation of pods.

    A choice whose annotation was removed is not written again.

    Args:
        manager: the node's state.
        pods: writes the annotations of pods.
        health: receives the beats of the loop.
        now_s: a monotonic clock.
    """

    def __init__(
        self,
        manager: Reader,
        pods: PodAnnotationSink,
        *,
        health: Health,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(NAME, _WORDS, interrupt=pods.interrupt, health=health, now_s=now_s)
        self._manager = manager
        self._pods = pods

    def _wanted(self, now_s: float) -> Mapping[tuple[PodUID, CPUSet], Write]:
        chosen = koordinator_annotations.chosen(self._manager.snapshot())
        return {(pod.uid, cpus): self._write(pod, cpus, now_s) for pod, cpus in chosen}

    def _write(self, pod: Pod, cpus: CPUSet, now_s: float) -> Write:
        orchestration = pod.orchestration
        return Write(
            pod,
            math.inf if orchestration and orchestration.published == cpus else now_s,
            send=lambda: self._pods.annotate(pod, RESOURCE_STATUS, resource_status(cpus)),
            done=lambda: log.info("pod annotated", pod=f"{pod.namespace}/{pod.name}", cpus=cpus),
        )
