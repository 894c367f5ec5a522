"""The pod failer sets the phase of a pod to Failed if the pod cannot have CPUs of its own.

Only the pool file switches it on (`onMisfit: fail`), and only an overlay of the manifests gives the
agent the right.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from cpupool.agent.pod_writer import PodWriter, Words, Write
from cpupool.core.cpu_manager import Misfit
from cpupool.core.workloads import oldest_first
from cpupool.telemetry import log as logs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from cpupool.agent.ports import PodStatusSink
    from cpupool.core.errors import PlacementError
    from cpupool.core.workloads import Pod
    from cpupool.manager.resolve import Reader, Snapshot
    from cpupool.telemetry.health import Health

log = logs.get(__name__)

NAME: Final = "pod failer"
_AGAIN_S: Final = 10.0
"""The kubelet may write an older status over ours: the role then fails the pod again."""
_WORDS: Final = Words(
    forbidden="the agent may not fail pods, they stay held",
    remedy="apply the overlay daemonsets/fail-misfits, or change onMisfit",
    refused="pod not failed, it stays held",
)


class PodFailer(PodWriter[str]):
    """The role that fails misfits; a pod is a misfit until the watch shows its new phase.

    Args:
        manager: the node's state.
        pods: writes the status of pods.
        after_s: how long a pod is held before it fails.
        health: receives the beats of the loop.
        now_s: a monotonic clock.
    """

    def __init__(
        self,
        manager: Reader,
        pods: PodStatusSink,
        *,
        after_s: float,
        health: Health,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(NAME, _WORDS, interrupt=pods.interrupt, health=health, now_s=now_s)
        self._manager = manager
        self._pods = pods
        self._after_s = after_s

    def _may_write(self) -> bool:
        return self._manager.snapshot().facts.pools.cpu_manager.on_misfit is Misfit.FAIL

    def _wanted(self, now_s: float) -> Mapping[str, Write]:
        misfits = _misfits(self._manager.snapshot())
        return {pod.uid: self._write(pod, error, now_s) for pod, error in misfits}

    def _write(self, pod: Pod, error: PlacementError, now_s: float) -> Write:
        words, name = f"Pod was rejected: {error.as_kubelet}", f"{pod.namespace}/{pod.name}"
        return Write(
            pod,
            now_s + self._after_s,
            send=lambda: self._pods.fail(pod, error.reason, words),
            done=lambda: log.info("pod failed", pod=name, reason=error.reason, why=error),
            again_s=_AGAIN_S,
        )


def _misfits(snapshot: Snapshot) -> Iterator[tuple[Pod, PlacementError]]:
    """Yield the pods that the pool file wants to fail, the oldest first, with their refusals.

    A pod that fits once ending pods have left their CPUs stays held, because these CPUs come free
    soon. So does a pod whose devices the kubelet may still name. A pod whose containers may run
    does not fail.
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
