"""Lets plugins of the QoS Resource Manager prepare each start of a container, if they want to.

A plugin prepares an answer ahead, before the answer counts, so that the first start needs no call.
The next start is prepared when the runtime is about to create the container again. A preparation
serves one instance: a try to create the container that fails before its preparation is done leaves
it to the next try.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from cpupool.core.resource_plugins import PluginError
from cpupool.core.workloads import ContainerRef
from cpupool.manager import plugin_requests
from cpupool.roles.attempts import Attempt
from cpupool.telemetry import log as logs
from cpupool.wire import katalyst

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from cpupool.core.resource_plugins import Question
    from cpupool.core.workloads import ContainerID, RuntimeContainer
    from cpupool.manager.plugin_book import AnswerBook
    from cpupool.manager.resolve import Snapshot
    from cpupool.roles.plugin_worker import PluginWorker

log = logs.get(__name__)


@dataclass(slots=True)
class _Preparation:
    """What a plugin has prepared of one answer.

    Attributes:
        question: the request.
        counts: whether the answer counts.
        ready: whether the next instance is prepared.
        served: the instances that were prepared.
        asked: whether the plugin is asked, and has not answered.
        attempt: when to ask again after a failure.
        refused: why the plugin did not prepare it; empty if it did, or was not asked.
    """

    question: Question
    counts: bool = False
    ready: bool = False
    served: frozenset[ContainerID] = frozenset()
    asked: bool = False
    attempt: Attempt = field(default_factory=lambda: Attempt(0.0))
    refused: str = ""

    def serve(self, instances: list[ContainerID]) -> bool:
        """Give the preparation to the newest instance without one; return whether one is lacking.

        Args:
            instances: the container's instances that are there, the newest last.
        """
        new = [each for each in instances if each not in self.served]
        if self.ready and new:
            self.served = self.served.intersection(instances) | {new[-1]}
            self.ready = False
            return False
        return not self.ready and bool(new or not self.served)


class PluginPreparer:
    """Asks plugins before each start of a container; only one thread calls it.

    Args:
        book: the answers.
        plugins: returns resource → the plugin that serves it now.
        now_s: a monotonic clock.
    """

    def __init__(
        self,
        book: AnswerBook,
        plugins: Callable[[], Mapping[str, PluginWorker]],
        now_s: Callable[[], float],
    ) -> None:
        self._book = book
        self._plugins = plugins
        self._now_s = now_s
        self._known: dict[tuple[ContainerRef, str], _Preparation] = {}

    @property
    def unprepared(self) -> frozenset[tuple[ContainerRef, str]]:
        """The answers that do not count, because their plugins have not prepared them yet."""
        return frozenset(key for key, each in self._known.items() if not each.counts)

    @property
    def prepared(self) -> Mapping[ContainerRef, frozenset[ContainerID]]:
        """Container → the instances for which all is prepared."""
        found: dict[ContainerRef, frozenset[ContainerID]] = {}
        for (ref, _), each in self._known.items():
            found[ref] = found.get(ref, each.served) & each.served
        return found

    @property
    def refusals(self) -> Mapping[ContainerRef, str]:
        """Container → why a plugin does not prepare it."""
        return {ref: each.refused for (ref, _), each in self._known.items() if each.refused}

    def given(self, question: Question) -> None:
        """Note an answer, which counts once its plugin has prepared it."""
        self._known[question.container, question.resource] = _Preparation(question)

    def awaits(self, ref: ContainerRef) -> bool:
        """Return whether an answer for a container does not count yet."""
        return any(of == ref for of, _ in self.unprepared)

    def lost(self, resource: str) -> None:
        """Note that another plugin serves a resource, or none: what was asked is not answered."""
        for (_, name), each in self._known.items():
            if name == resource:
                each.asked = False

    def forget(self, pod: str) -> None:
        """Forget a pod that has ended; `pod` is the id in its cgroup's name."""
        self._known = {key: each for key, each in self._known.items() if key[0].pod != pod}

    def prepare(self, now: Snapshot) -> float:
        """Ask for what is not prepared; return when the next attempt is due."""
        there = self._plugins()
        plugins = {name: each for name, each in there.items() if each.options.pre_start}
        # A plugin that has returned may not want to prepare any more.
        idle = there.keys() - plugins.keys()
        self._known = {key: each for key, each in self._known.items() if key[1] not in idle}
        if plugins:
            self._adopt(now, plugins)
        instances = _instances(now.facts.sighted) if self._known else {}
        due_s = math.inf
        for (ref, resource), each in self._known.items():
            lacks = each.serve(instances.get(ref, []))
            if not lacks or each.asked or resource not in plugins:
                continue
            if each.attempt.due_s <= self._now_s():
                self._ask(plugins[resource], each)
            else:
                due_s = min(due_s, each.attempt.due_s)
        return due_s

    def _adopt(self, now: Snapshot, plugins: Mapping[str, PluginWorker]) -> None:
        """Take over the answers that an earlier agent recorded: its plugins prepared what runs."""
        facts, grants = now.facts, now.resolution.grants
        for pod in now.resolution.view.pods:
            for container in pod.containers:
                ref = ContainerRef(pod.cgroup_uid, container.name)
                for resource in self._book.of(ref).keys() & plugins.keys():
                    if (ref, resource) in self._known:
                        continue
                    quantity = plugin_requests.asked(facts, grants, pod, container).get(resource)
                    if quantity is not None:
                        question = katalyst.question(pod, container, resource, quantity)
                        runs = frozenset([container.id] if container.id else [])
                        self._known[ref, resource] = _Preparation(
                            question, counts=True, served=runs
                        )

    def _ask(self, worker: PluginWorker, each: _Preparation) -> None:
        each.asked = True
        question = each.question

        def finished(found: PluginError | None) -> None:
            each.asked = False
            if isinstance(found, PluginError):
                why = f"the plugin for {question.resource} {found.why}"
                if each.refused != why:
                    ref = question.container
                    log.warning("start not prepared", pod=ref.pod, container=ref.name, reason=why)
                each.refused, each.attempt = why, each.attempt.refused(self._now_s())
                return
            each.counts = each.ready = True
            each.refused, each.attempt = "", Attempt(0.0)

        worker.ask(lambda plugin: plugin.before_start(question), finished)


def _instances(
    sighted: Mapping[ContainerID, RuntimeContainer],
) -> Mapping[ContainerRef, list[ContainerID]]:
    found: defaultdict[ContainerRef, list[ContainerID]] = defaultdict(list)
    for identifier, container in sighted.items():
        found[ContainerRef(container.pod, container.name)].append(identifier)
    return found
