"""Asks plugins of the QoS Resource Manager for what the containers of this node lack."""

from __future__ import annotations

import math
from collections import defaultdict
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from cpupool.core.resource_plugins import PluginError
from cpupool.core.workloads import ContainerKind, ContainerRef, oldest_first
from cpupool.manager import plugin_admission, plugin_requests
from cpupool.manager.plugin_admission import Heard
from cpupool.roles.attempts import Attempt
from cpupool.telemetry import log as logs
from cpupool.wire import katalyst

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from cpupool.core.cpu_manager import TopologyHint
    from cpupool.core.resource_plugins import Answers, Question
    from cpupool.core.workloads import Container, Pod
    from cpupool.kubelet.resource_plugin import ResourcePlugin
    from cpupool.manager.plugin_book import AnswerBook
    from cpupool.manager.resolve import Snapshot
    from cpupool.roles.plugin_preparer import PluginPreparer
    from cpupool.roles.plugin_worker import PluginWorker

log = logs.get(__name__)

_T = TypeVar("_T")


class PluginAdmitter:
    """Admits containers, each pod's one after the other; only one thread calls it.

    Args:
        book: takes the answers.
        plugins: returns resource → the plugin that serves it now.
        preparer: lets plugins prepare what they gave.
        snapshot: returns the node's facts and decisions.
        now_s: a monotonic clock.

    Attributes:
        refusals: container → why it has no answer.
        asked: the pods for which a plugin may hold something: the ids in their cgroups' names.
    """

    def __init__(
        self,
        book: AnswerBook,
        plugins: Callable[[], Mapping[str, PluginWorker]],
        preparer: PluginPreparer,
        snapshot: Callable[[], Snapshot],
        now_s: Callable[[], float],
    ) -> None:
        self._book = book
        self._plugins = plugins
        self._preparer = preparer
        self._snapshot = snapshot
        self._now_s = now_s
        self.refusals: dict[ContainerRef, str] = {}
        self.asked: set[str] = set()
        self._heard: defaultdict[ContainerRef, dict[str, Heard]] = defaultdict(dict)
        self._flying: defaultdict[ContainerRef, set[str]] = defaultdict(set)
        self._attempts: dict[ContainerRef, Attempt] = {}

    def admit(self, now: Snapshot) -> float:
        """Ask for what containers lack; return when the next attempt is due."""
        if not plugin_requests.awaited(now.facts):
            return math.inf
        for pod in oldest_first(now.resolution.view.pods):
            skipped = katalyst.waits_for_reconcile(pod) and not pod.running
            if pod.finished or pod.ending or skipped:
                continue
            for container in pod.containers:
                ended = pod.running and container.kind is ContainerKind.INIT
                if not (ended or self._has_all(now, pod, container)):
                    break
        return min((attempt.due_s for attempt in self._attempts.values()), default=math.inf)

    def allocate(
        self, worker: PluginWorker, pod: Pod, question: Question, hint: TopologyHint | None
    ) -> None:
        """Ask for what a container gets of one resource, unless that is asked already."""
        if question.resource in self._flying[question.container]:
            return
        self.asked.add(pod.cgroup_uid)
        self._ask(
            worker,
            question,
            lambda plugin: plugin.allocate(question, hint),
            partial(self._allocated, worker, pod, question, hint),
        )

    def lost(self, resource: str) -> None:
        """Note that another plugin serves a resource, or none: what was asked is not answered.

        What waits for its next attempt is tried at once: the refusals were the other plugin's.
        """
        self._attempts.clear()
        for flying in self._flying.values():
            flying.discard(resource)

    def forget(self, pod: str) -> None:
        """Forget a pod that has ended; `pod` is the id in its cgroup's name."""
        self.asked.discard(pod)
        _forget(self.refusals, pod)
        _forget(self._heard, pod)
        _forget(self._flying, pod)
        _forget(self._attempts, pod)

    def _has_all(self, now: Snapshot, pod: Pod, container: Container) -> bool:
        """Return whether a container has all answers; ask for what it lacks."""
        facts, grants = now.facts, now.resolution.grants
        ref = ContainerRef(pod.cgroup_uid, container.name)
        if not plugin_requests.lacking(facts, grants, pod, container):
            self.refusals.pop(ref, None)
            self._attempts.pop(ref, None)
            self._heard.pop(ref, None)
            return True
        if self._waits(pod):
            return False
        if self._preparer.awaits(ref):
            return False
        plugins = self._plugins()
        options = {resource: worker.options for resource, worker in plugins.items()}
        plan = plugin_admission.plan(now, pod, container, options, heard=self._heard)
        for question in plan.hints:
            self._ask(
                plugins[question.resource],
                question,
                partial(_hints, question),
                partial(self._hinted, question),
            )
        for question, hint in plan.allocate:
            self.allocate(plugins[question.resource], pod, question, hint)
        if plan.refused:
            self._refuse(ref, plan.refused)
        return False

    def _waits(self, pod: Pod) -> bool:
        """Return whether a question of a pod has no answer yet, or the next attempt is not due.

        Several containers of a pod may be asked for hints at one time.
        """
        refs = [ContainerRef(pod.cgroup_uid, each.name) for each in pod.containers]
        attempts = [self._attempts[ref] for ref in refs if ref in self._attempts]
        return any(self._flying.get(ref) for ref in refs) or any(
            self._now_s() < attempt.due_s for attempt in attempts
        )

    def _ask(
        self,
        worker: PluginWorker,
        question: Question,
        call: Callable[[ResourcePlugin], _T],
        done: Callable[[_T], None],
    ) -> None:
        flying, resource = self._flying[question.container], question.resource
        flying.add(resource)

        def finished(found: _T | PluginError) -> None:
            flying.discard(resource)
            if isinstance(found, PluginError):
                self._refuse(question.container, f"the plugin for {resource} {found.why}")
            else:
                done(found)

        worker.ask(call, finished)

    def _hinted(self, question: Question, heard: Heard) -> None:
        self._heard[question.container][question.resource] = heard

    def _allocated(
        self,
        worker: PluginWorker,
        pod: Pod,
        question: Question,
        hint: TopologyHint | None,
        answers: Answers,
    ) -> None:
        ref, resource = question.container, question.resource
        if worker.options.pre_start:
            self._preparer.given(question)
        has = self._book.of(ref).get(resource)
        given = self._book.asked_for(pod, question.quantity, answers, hint, has=has)
        self._book.take(self._snapshot(), {(ref, resource): given})
        self.refusals.pop(ref, None)

    def _refuse(self, ref: ContainerRef, why: str) -> None:
        """Note a refusal; the container is tried again after a pause, with new hints."""
        if self.refusals.get(ref) != why:
            log.warning("request refused", pod=ref.pod, container=ref.name, reason=why)
        self.refusals[ref] = why
        self._attempts[ref] = self._attempts.get(ref, Attempt(0.0)).refused(self._now_s())
        _forget(self._heard, ref.pod)


def _hints(question: Question, plugin: ResourcePlugin) -> Heard:
    """Return a plugin's hints; a refusal is a list without hints, as for the kubelet.

    Raises:
        PluginError: the plugin does not answer.
    """
    try:
        return Heard(plugin.hints(question))
    except PluginError as error:
        if not error.refused:
            raise
        return Heard((), f"the plugin for {question.resource} {error.why}")


def _forget(known: dict[ContainerRef, _T], pod: str) -> None:
    for ref in [ref for ref in known if ref.pod == pod]:
        del known[ref]
