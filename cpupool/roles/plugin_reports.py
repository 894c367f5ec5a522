"""What plugins of the QoS Resource Manager have said last, for the status and for metrics."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Final, NamedTuple

from cpupool.manager.report import NodeResource, PluginReport, PluginStatus

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

    from cpupool.core.workloads import ContainerRef
    from cpupool.kubelet.resource_plugin import PluginCall
    from cpupool.roles.plugin_worker import PluginWorker
    from cpupool.telemetry.plugin_metrics import PluginMetrics

_MINUTE: Final = "%Y-%m-%dT%H:%M:00Z"
"""A status without other news is written once a minute at most."""
_OF_A_CONTAINER: Final = ("GetTopologyHints", "Allocate", "PreStartContainer")
"""To refuse such a call is to answer it."""
_REPLACED: Final = "has been replaced by another plugin"


class _Failing(NamedTuple):
    """Why a plugin's last call has failed.

    Attributes:
        method: the call's.
        why: the reason in words.
        refused: whether the plugin has answered.
    """

    method: str
    why: str
    refused: bool


class PluginReports:
    """Takes what plugins say. Any thread may call it.

    Args:
        folders: where plugins register.
        metrics: where calls are counted.
        clock_s: the time in seconds since 1970.
    """

    def __init__(
        self,
        folders: Iterable[Path],
        metrics: PluginMetrics,
        clock_s: Callable[[], float] = time.time,
    ) -> None:
        self._folders = tuple(map(str, folders))
        self._metrics = metrics
        self._clock_s = clock_s
        self._lock = threading.Lock()
        self._sockets: tuple[tuple[str, str, str], ...] = ()
        self._answered: dict[str, str] = {}
        self._failures: dict[str, _Failing] = {}
        self._confirmed: dict[tuple[ContainerRef, str], str] = {}
        self._node_resources: tuple[NodeResource, ...] = ()
        self._kept: object = None

    def called(self, call: PluginCall) -> None:
        """Take a call that has ended."""
        failure = call.failure
        outcome = "answered" if failure is None else "refused" if failure.refused else "failed"
        self._metrics.called(call.resource, call.method, outcome, call.seconds)
        now = self._now()
        with self._lock:
            if failure and not (failure.refused and call.method in _OF_A_CONTAINER):
                self._failures[call.resource] = _Failing(
                    call.method, failure.why, refused=failure.refused
                )
                return
            failing = self._failures.get(call.resource)
            if failing and (failing.method == call.method or not failing.refused):
                del self._failures[call.resource]
            self._answered[call.resource] = now
            if failure is None and call.allocated:
                self._confirmed[call.allocated, call.resource] = now

    def confirmed(self, resource: str, containers: Iterable[ContainerRef]) -> None:
        """Note that a plugin has listed containers of this node."""
        now = self._now()
        with self._lock:
            self._confirmed |= {(ref, resource): now for ref in containers}

    def registered(self, resource: str) -> None:
        """Note that a plugin serves a resource, perhaps in the place of another."""
        self._metrics.registered(resource)
        with self._lock:
            self._failures.pop(resource, None)

    def keep(self, workers: Iterable[PluginWorker], known: Iterable[str]) -> bool:
        """Take the plugins that are there now, and the resources that have had one.

        Return whether a plugin has come, has gone, fails, or answers again.
        """
        sockets = tuple(
            (
                str(worker.socket),
                worker.resource,
                worker.complaint or (_REPLACED if worker.closed else ""),
            )
            for worker in workers
        )
        served = {resource for _, resource, why in sockets if resource and not why}
        known = served.union(known)
        self._metrics.serve(served, known)
        with self._lock:
            for resource in self._answered.keys() - known:
                del self._answered[resource]
            self._sockets = sockets
            kept, self._kept = self._kept, (sockets, self._failing())
            return kept != self._kept

    def in_node(self, resources: tuple[NodeResource, ...]) -> None:
        """Take what plugins offer for the node's status, and what of it is there."""
        with self._lock:
            self._node_resources = resources

    def forget(self, pod: str) -> None:
        """Forget a pod that has ended; `pod` is the id in its cgroup's name."""
        with self._lock:
            for key in [key for key in self._confirmed if key[0].pod == pod]:
                del self._confirmed[key]

    def report(self) -> PluginReport:
        """Return all of it, for the status."""
        with self._lock:
            failing = self._failing()
            plugins = tuple(
                PluginStatus(
                    socket,
                    resource,
                    complaint or failing.get(resource, ""),
                    self._answered.get(resource, ""),
                )
                for socket, resource, complaint in self._sockets
            )
            return PluginReport(self._folders, plugins, dict(self._confirmed), self._node_resources)

    def _failing(self) -> Mapping[str, str]:
        return {resource: failing.why for resource, failing in self._failures.items()}

    def _now(self) -> str:
        return time.strftime(_MINUTE, time.gmtime(self._clock_s()))
