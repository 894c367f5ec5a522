"""The last words of plugins of the QoS Resource Manager, for the status and for metrics."""

from __future__ import annotations

import threading
import time
from functools import cache
from typing import TYPE_CHECKING, Final, NamedTuple

from cpupool.manager.report import NodeResource, PluginReport, PluginStatus
from cpupool.qrm.plugin_client import OF_CONTAINER

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

    from cpupool.qrm.plugin_client import PluginCall
    from cpupool.qrm.plugin_metrics import PluginMetrics
    from cpupool.qrm.plugin_worker import PluginWorker
    from cpupool.qrm.question_table import Row

_MINUTE: Final = "%Y-%m-%dT%H:%M:00Z"
"""A status without other news is written once a minute at most."""
_ALLOCATE: Final = "Allocate"
_OF_A_CONTAINER: Final = ("GetTopologyHints", _ALLOCATE, "PreStartContainer", OF_CONTAINER)
"""To refuse such a call is to answer it."""
_AWAITED: Final = frozenset(
    ("GetTopologyHints", _ALLOCATE, "PreStartContainer", "GetResourcesAllocation")
)
"""The calls for whose answers a container waits."""
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
        now_s: the clock of the questions.
    """

    def __init__(
        self,
        folders: Iterable[Path],
        metrics: PluginMetrics,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._folders = tuple(map(str, folders))
        self._metrics = metrics
        self._now_s = now_s
        self._lock = threading.Lock()
        self._sockets: tuple[tuple[str, str, str], ...] = ()
        self._answered: dict[str, float] = {}
        self._failures: dict[str, _Failing] = {}
        self._silent: dict[str, frozenset[str]] = {}
        self._rows: tuple[Row, ...] = ()
        self._node_resources: tuple[NodeResource, ...] = ()
        self._kept: object = None

    def called(self, call: PluginCall) -> None:
        """Take a call that has ended."""
        failure = call.failure
        outcome = "answered" if failure is None else "refused" if failure.refused else "failed"
        self._metrics.called(call.resource, call.method, outcome, call.seconds)
        with self._lock:
            self._hear(call)
            if failure and not (failure.refused and call.method in _OF_A_CONTAINER):
                self._failures[call.resource] = _Failing(
                    call.method, failure.why, refused=failure.refused
                )
                return
            failing = self._failures.get(call.resource)
            if failing and (failing.method == call.method or not failing.refused):
                del self._failures[call.resource]
            self._answered[call.resource] = self._now_s()

    def _hear(self, call: PluginCall) -> None:
        """Note whether a plugin answers a call for which containers wait.

        One that lists may still be mute when it is to allocate; one that allocates is not mute.
        """
        silent = self._silent.pop(call.resource, frozenset())
        if call.failure and not call.failure.refused:
            silent |= _AWAITED & {call.method}
        else:
            silent -= _AWAITED if call.method == _ALLOCATE else {call.method}
        if silent:
            self._silent[call.resource] = silent

    @property
    def silent(self) -> frozenset[str]:
        """The resources whose plugin leaves a call without an answer for which containers wait.

        What else it says, as to programs that read podresources, is no sign for a container.
        """
        with self._lock:
            return frozenset(self._silent)

    def registered(self, resource: str) -> None:
        """Note that a plugin serves a resource, perhaps in the place of another."""
        self._metrics.registered(resource)
        with self._lock:
            self._failures.pop(resource, None)
            self._silent.pop(resource, None)

    def keep(
        self, workers: Iterable[PluginWorker], known: Iterable[str], table: Iterable[Row] = ()
    ) -> bool:
        """Take the plugins that are there, the resources that have had one, and the questions.

        Return whether a plugin has come, has gone, fails, or answers again.
        """
        rows = tuple(table)
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
            self._sockets, self._rows = sockets, rows
            kept, self._kept = self._kept, (sockets, self._failing())
            return kept != self._kept

    def in_node(self, resources: tuple[NodeResource, ...]) -> None:
        """Take what plugins offer for the node's status, and what of it is there."""
        with self._lock:
            self._node_resources = resources

    def report(self) -> PluginReport:
        """Return all of it, for the status."""
        # The clock of the machine may be set at any time.
        ahead_s = time.time() - self._now_s()

        @cache
        def minute(now_s: float | None) -> str:
            return "" if now_s is None else time.strftime(_MINUTE, time.gmtime(now_s + ahead_s))

        with self._lock:
            failing = self._failing()
            plugins = tuple(
                PluginStatus(
                    socket,
                    resource,
                    complaint or failing.get(resource, ""),
                    minute(self._answered.get(resource)),
                )
                for socket, resource, complaint in self._sockets
            )
            confirmed = {
                (row.container, row.resource): at
                for row in self._rows
                if (at := minute(row.confirmed_s))
            }
            return PluginReport(self._folders, plugins, confirmed, self._node_resources)

    def _failing(self) -> Mapping[str, str]:
        return {resource: failing.why for resource, failing in self._failures.items()}
