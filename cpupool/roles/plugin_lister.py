"""Asks plugins of the QoS Resource Manager what containers have now, every few seconds."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING

from cpupool.core.resource_plugins import PluginError
from cpupool.core.workloads import ContainerKind, ContainerRef
from cpupool.kubelet.resource_plugin import ResourcePlugin
from cpupool.manager import plugin_requests
from cpupool.telemetry import log as logs
from cpupool.telemetry.failures import Failures
from cpupool.wire import katalyst

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from cpupool.core.resource_plugins import Answers, Given
    from cpupool.core.workloads import Container, Pod
    from cpupool.manager.plugin_book import AnswerBook
    from cpupool.manager.resolve import Snapshot
    from cpupool.roles.plugin_admitter import PluginAdmitter
    from cpupool.roles.plugin_worker import PluginWorker

log = logs.get(__name__)


class PluginLister:
    """Follows what the plugins with `need_reconcile` list; only one thread calls it.

    Args:
        book: takes the answers.
        admitter: asks again for what a plugin has forgotten.
        snapshot: returns the node's facts and decisions.
        confirmed: called with the containers that a plugin lists.
        every_s: how often a plugin is asked.

    Attributes:
        unlisted: the resources whose plugin has not been heard yet. Such a plugin allocates
            nothing: an agent that was killed may have asked it without a record of the answer.
    """

    def __init__(
        self,
        book: AnswerBook,
        admitter: PluginAdmitter,
        snapshot: Callable[[], Snapshot],
        confirmed: Callable[[str, Iterable[ContainerRef]], None],
        every_s: float,
    ) -> None:
        self._book = book
        self._admitter = admitter
        self._snapshot = snapshot
        self._confirmed = confirmed
        self._every_s = every_s
        self.unlisted: set[str] = set()
        self._asked: set[str] = set()
        self._due_s: dict[str, float] = {}
        self._failures = Failures()

    def registered(self, resource: str, worker: PluginWorker | None) -> None:
        """Note that another plugin serves a resource, or none."""
        for known in (self.unlisted, self._asked):
            known.discard(resource)
        self._due_s.pop(resource, None)
        self._failures.ends(resource)
        if worker and worker.options.reconciled:
            self.unlisted.add(resource)

    def ask(self, plugins: Mapping[str, PluginWorker], now_s: float) -> float:
        """Ask the plugins that are due; return when one is due next.

        Args:
            plugins: resource → the plugin that serves it now.
            now_s: the time.
        """
        waits = []
        for resource, worker in plugins.items():
            # The answer to an earlier question wakes the loop.
            if not worker.options.reconciled or resource in self._asked:
                continue
            if now_s >= self._due_s.get(resource, now_s):
                self._due_s[resource] = now_s + self._every_s
                self._asked.add(resource)
                worker.ask(ResourcePlugin.allocations, partial(self._answered, resource, worker))
            waits.append(self._due_s[resource])
        return min(waits, default=math.inf)

    def _answered(
        self,
        resource: str,
        worker: PluginWorker,
        found: Mapping[ContainerRef, Answers] | PluginError,
    ) -> None:
        self._asked.discard(resource)
        self.unlisted.discard(resource)
        if isinstance(found, PluginError):
            if self._failures.begins(found, resource):
                log.warning("plugin lists nothing", resource=resource, reason=found)
            return
        if self._failures.ends(resource):
            log.info("plugin lists again", resource=resource)
        self._take(resource, worker, found)

    def _take(
        self, resource: str, worker: PluginWorker, listed: Mapping[ContainerRef, Answers]
    ) -> None:
        """Take what containers have now; a plugin that has forgotten one is asked again."""
        now = self._snapshot()
        changed: dict[tuple[ContainerRef, str], Given] = {}
        confirmed: list[ContainerRef] = []
        for pod, container, quantity in _requesting(now, resource):
            ref = ContainerRef(pod.cgroup_uid, container.name)
            has, found = self._book.of(ref).get(resource), listed.get(ref, {})
            if found:
                confirmed.append(ref)
                given = self._book.listed(pod, quantity, found, has)
                if has is None or has.kept or given.answers != has.answers:
                    changed[ref, resource] = given
            elif has is not None and (has.answers or has.refused):
                question = katalyst.question(pod, container, resource, quantity)
                self._admitter.allocate(worker, pod, question, has.hint)
        self._book.take(now, changed)
        self._confirmed(resource, confirmed)


def _requesting(now: Snapshot, resource: str) -> Iterator[tuple[Pod, Container, float]]:
    """Yield the containers that request a resource, without init containers, which end."""
    facts, grants = now.facts, now.resolution.grants
    for pod in now.resolution.view.pods:
        for container in pod.containers:
            asked = plugin_requests.asked(facts, grants, pod, container)
            if resource in asked and container.kind is not ContainerKind.INIT:
                yield pod, container, asked[resource]
