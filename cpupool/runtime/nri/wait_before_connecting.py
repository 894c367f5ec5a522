"""The wait before the NRI plugin connects: it does not connect while a pod ends.

containerd holds a lock while it stops a container, for the whole grace period. A plugin that
registers waits for this lock, and every later call of the runtime waits behind the plugin: no pod
starts. So the plugin waits for pods that end, for a limited time.

Source: StopContainer in containerd, internal/cri/server/container_stop.go; BlockPluginSync and
acceptPluginConnections in containerd/nri, pkg/adaptation/adaptation.go.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from cpupool.core.errors import HostError
from cpupool.core.workloads import ContainerID
from cpupool.runtime.nri.connection import identity
from cpupool.telemetry import log as logs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from cpupool.core.cgroups import FoundContainer
    from cpupool.core.workloads import Pod
    from cpupool.manager.resolve import Reader
    from cpupool.runtime.nri.adapter import NRIRuntime
    from cpupool.telemetry.metrics import Metrics

log = logs.get(__name__)

_LATE_S: Final = 5.0
"""The time for the end of a pod after its grace period. A pod that takes longer is stuck."""


@dataclass(frozen=True, slots=True)
class WaitRules:
    """The pods for which the plugin waits, and the longest wait.

    Attributes:
        bound_s: the longest wait for all pods together; 0 to wait for none.
        own_pod: `namespace/name` of the agent's pod, for which it does not wait; empty for none.
    """

    bound_s: float = 30.0
    own_pod: str = ""


@dataclass(frozen=True, slots=True)
class _Bound:
    """The end of a wait, on the monotonic clock and as Unix time."""

    now_s: float
    time_s: float


class ConnectionWait:
    """Decides how long the plugin waits before it connects; one thread calls it.

    A runtime that has made its socket since the last connection stops no container yet, so the
    plugin connects to it at once.

    Args:
        manager: knows the pods.
        runtime: the container runtime.
        found: walks every container directory.
        rules: the pods for which to wait, and the longest wait.
        look: asks for a sweep, after which the status shows the wait.
        metrics: shows the wait.
        now_s: a monotonic clock.
        time_s: the Unix time, as of the API server's timestamps.

    Attributes:
        waits: the pod for which the plugin waits, and the end of the wait; empty if it does not.
    """

    def __init__(
        self,
        manager: Reader,
        runtime: NRIRuntime,
        *,
        found: Callable[[], Iterable[FoundContainer]],
        rules: WaitRules,
        look: Callable[[], None],
        metrics: Metrics,
        now_s: Callable[[], float],
        time_s: Callable[[], float] = time.time,
    ) -> None:
        self.waits = ""
        self._manager = manager
        self._runtime = runtime
        self._found = found
        self._rules = rules
        self._look = look
        self._metrics = metrics
        self._now_s = now_s
        self._time_s = time_s
        self._met = identity(runtime.socket)
        self._bound: _Bound | None = None
        """The end of the wait; None while the plugin need not connect."""

    def begin_anew(self) -> None:
        """Forget the wait: the plugin has connected, or need not connect yet."""
        self._met, self._bound = identity(self._runtime.socket), None

    def pause_s(self) -> float:
        """Return the seconds until the caller asks again, at most; 0 to connect now."""
        if not self._may_wait():
            return self._connect()
        now_s, time_s, bound_s = self._now_s(), self._time_s(), self._rules.bound_s
        self._bound = self._bound or _Bound(now_s + bound_s, time_s + bound_s)
        pod = self._last_to_end(time_s)
        if pod is None or pod.ends_s is None:
            return self._connect()
        if now_s >= self._bound.now_s:
            return self._connect(pod)
        until_s = min(self._bound.time_s, pod.ends_s + _LATE_S)
        self._tell(f"{pod.namespace}/{pod.name}", until_s)
        # By its own clock each is still to come: the two may part while it waits.
        return min(self._bound.now_s - now_s, pod.ends_s + _LATE_S - time_s)

    def _may_wait(self) -> bool:
        """Return whether the runtime may have begun to stop containers before it is reached."""
        offered = identity(self._runtime.socket)
        met = offered is not None and offered == self._met
        return met and self._rules.bound_s > 0 and not self._runtime.launched

    def _last_to_end(self, time_s: float) -> Pod | None:
        """Return the pod that ends and has most time to do so, if containers of it are there."""
        now = self._manager.snapshot()
        ending = [
            pod
            for pod in now.facts.pods or ()
            if pod.ends_s is not None
            and time_s < pod.ends_s + _LATE_S
            and f"{pod.namespace}/{pod.name}" != self._rules.own_pod
        ]
        if not ending:
            return None
        try:
            found = {(each.pod, ContainerID(each.id)) for each in self._found()}
        except HostError:
            return None
        # A sandbox is no container of a pod; the runtime stops it without a grace period.
        alive = {key[0] for key in found & now.resolution.containers.keys()}
        return max(
            (pod for pod in ending if pod.cgroup_uid in alive),
            key=lambda pod: pod.ends_s or 0.0,
            default=None,
        )

    def _connect(self, despite: Pod | None = None) -> float:
        """End the wait, and return 0.

        Args:
            despite: a pod that still ends.
        """
        if self.waits:
            if despite is not None:
                log.warning(
                    "nri: connects while a pod ends",
                    pod=f"{despite.namespace}/{despite.name}",
                    reason="the longest wait is over; the runtime may start no pod until it ends",
                    remedy="a larger --nri-wait",
                )
            self._tell()
        return 0.0

    def _tell(self, pod: str = "", until_s: float = 0.0) -> None:
        """Show the pod for which the plugin waits, and the end of the wait; empty for none."""
        text = f"waits for {pod} until {_shown(until_s)}" if pod else ""
        if text == self.waits:
            return
        self.waits = text
        self._metrics.nri_waits(pod, until_s)
        phrase = f"nri: {text or 'waits no longer'}"
        log.info(phrase)
        self._look()


def _shown(time_s: float) -> str:
    return datetime.fromtimestamp(time_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
