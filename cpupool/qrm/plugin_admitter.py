"""Asks plugins of the QoS Resource Manager for what the containers of this node lack.

A plugin that prepares starts is asked for that before its answer is a fact, so that the first start
needs no call. The next start is prepared once the instance before has gone, or when the runtime is
about to create the container again. A preparation serves one instance: a try to create the
container that fails before its preparation is done leaves it to the next try.
"""

from __future__ import annotations

import math
from collections import defaultdict
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

from cpupool.core.workloads import ContainerKind, ContainerRef, oldest_first
from cpupool.manager import by_plugins
from cpupool.policies.qrm.questions import Question
from cpupool.qrm import next_questions
from cpupool.qrm.plugin_client import PluginError
from cpupool.qrm.question_table import Call, Event, HintsAnswer, Start
from cpupool.telemetry import log as logs

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from cpupool.core.cpu_manager import TopologyHint
    from cpupool.core.plugin_facts import AnswerParts
    from cpupool.core.workloads import Container, ContainerID, Pod
    from cpupool.manager.by_plugins import Awaited
    from cpupool.manager.resolve import Snapshot
    from cpupool.qrm.answer_book import AnswerBook
    from cpupool.qrm.plugin_client import ResourcePlugin
    from cpupool.qrm.plugin_worker import PluginWorker
    from cpupool.qrm.question_table import QuestionTable, Row

log = logs.get(__name__)

_T = TypeVar("_T")
_FREE: Final = (Call.QUIET, Call.HINTED)
"""In other states another call is about the question, and a new one must wait."""


class PluginAdmitter:
    """Admits containers, each pod's one after the other; only one thread calls it.

    Args:
        table: the questions.
        book: judges the answers.
        snapshot: returns the node's facts and decisions.
    """

    def __init__(
        self, table: QuestionTable, book: AnswerBook, snapshot: Callable[[], Snapshot]
    ) -> None:
        self._table = table
        self._book = book
        self._snapshot = snapshot
        # The moment, and the changes of the table, at which no container lacked an answer.
        self._complete: tuple[Snapshot, int] | None = None

    def admit(self, now: Snapshot, plugins: Mapping[str, PluginWorker]) -> float:
        """Ask for what containers lack; return when the next attempt is due."""
        rules = by_plugins.Awaited.of(now.facts)
        if not rules.resources or self._is_complete(now):
            return math.inf
        complete = True
        for pod in oldest_first(now.resolution.view.pods):
            skipped = pod.description.starts_early and not pod.running
            if pod.finished or pod.ending or skipped:
                continue
            for container in pod.containers:
                ended = pod.running and container.kind is ContainerKind.INIT
                if not (ended or self._has_all(now, pod, container, rules, plugins)):
                    complete = False
                    # A container that runs holds up no other one.
                    if not pod.running:
                        break
        # What is heard later may be about a container that has all by then.
        complete = complete and all(row.call is Call.QUIET for row in self._table)
        self._complete = (now, self._table.changes) if complete else None
        return self._table.next_s()

    def _is_complete(self, now: Snapshot) -> bool:
        """Return whether nothing has changed since no container lacked an answer."""
        if self._complete is None:
            return False
        before, changes = self._complete
        same = before.facts is now.facts and before.resolution is now.resolution
        return same and changes == self._table.changes

    def prepare(self, now: Snapshot, plugins: Mapping[str, PluginWorker]) -> float:
        """Ask for the starts that are not prepared; return when the next attempt is due."""
        prepares = {name: each for name, each in plugins.items() if each.options.pre_start}
        if prepares:
            self._adopt(now, prepares)
        rows = [(row, row.prepares) for row in self._table if row.start is not Start.FREE]
        instances: defaultdict[ContainerRef, list[ContainerID]] = defaultdict(list)
        for identifier, each in now.facts.sighted.items() if rows else ():
            instances[ContainerRef(each.pod, each.name)].append(identifier)
        due_s, starts = math.inf, _starting(now) if rows else {}
        for row, question in rows:
            if row.resource in plugins.keys() - prepares.keys():
                # A plugin that has returned may not want to prepare any more.
                self._table.move(row, Event.RELEASE)
                continue
            # The runtime may not have named yet what runs: so it is in an agent that has started.
            runs = row.served.intersection([starts.get(row.container)])
            lacks = self._table.serve(row, [*runs, *instances[row.container]])
            if not lacks or row.call not in _FREE or row.resource not in prepares:
                continue
            if row.container not in starts:
                continue
            if question and row.attempt.due_s <= self._table.now_s():
                self._prepare(prepares[row.resource], row, question)
            else:
                due_s = min(due_s, row.attempt.due_s)
        return due_s

    def allocate(
        self, worker: PluginWorker, pod: Pod, question: Question, hint: TopologyHint | None
    ) -> None:
        """Ask for what a container gets of one resource, unless something is asked already."""
        row = self._table.row(question.container, question.resource)
        if row.call not in _FREE:
            return
        self._table.move(row, Event.ASK)

        def answered(answers: AnswerParts) -> None:
            self._table.hear(row, Event.ANSWERED)
            if worker.options.pre_start:
                self._table.prepare(row, question)
            given = self._book.asked_for(pod, question.quantity, answers, hint, has=row.answer)
            row.confirmed_s = self._table.now_s()
            self._book.take(self._snapshot(), {(row.container, row.resource): given})
            self._table.answered(row)

        self._ask(worker, row, lambda plugin: plugin.allocate(question, hint), answered)

    def _has_all(
        self,
        now: Snapshot,
        pod: Pod,
        container: Container,
        rules: Awaited,
        plugins: Mapping[str, PluginWorker],
    ) -> bool:
        """Return whether a container has all answers; ask for what it lacks."""
        ref = ContainerRef(pod.cgroup_uid, container.name)
        if not by_plugins.lacking(now.facts, now.resolution.grants, pod, container, rules):
            self._table.has_all(ref)
            return True
        refs = [ContainerRef(pod.cgroup_uid, each.name) for each in pod.containers]
        tried = [ref] if pod.running else refs
        due = any(row.start is Start.DUE for row in self._table.of(ref))
        if due or self._table.waits(refs, tried):
            return False
        options = {resource: worker.options for resource, worker in plugins.items()}
        heard = {
            each: {row.resource: row.hints for row in self._table.of(each) if row.hints}
            for each in refs
        }
        plan = next_questions.plan(
            now, pod, container, options, heard=heard, unlisted=self._table.unlisted
        )
        for question in plan.hints:
            self._ask_hints(plugins[question.resource], question)
        for question, hint in plan.allocate:
            self.allocate(plugins[question.resource], pod, question, hint)
        if plan.refused:
            self._refuse(ref, plan.refused)
        return False

    def _ask_hints(self, worker: PluginWorker, question: Question) -> None:
        row = self._table.row(question.container, question.resource)
        if row.call is not Call.QUIET:
            return
        self._table.move(row, Event.ASK_HINTS)

        def heard(found: HintsAnswer) -> None:
            if self._table.hear(row, Event.HEARD):
                row.hints = found

        self._ask(worker, row, partial(_hints, question), heard)

    def _ask(
        self,
        worker: PluginWorker,
        row: Row,
        call: Callable[[ResourcePlugin], _T],
        answered: Callable[[_T], None],
    ) -> None:
        def finished(found: _T | PluginError) -> None:
            if not isinstance(found, PluginError):
                answered(found)
            elif self._table.hear(row, Event.REFUSED):
                why = f"the plugin for {row.resource} {found.why}"
                self._refuse(row.container, why, row.resource)

        worker.ask(call, finished)

    def _refuse(self, ref: ContainerRef, why: str, resource: str = "") -> None:
        """Note a refusal; the container is tried again after a pause, with new hints."""
        if self._table.refuse(ref, why, resource):
            log.warning("request refused", pod=ref.pod, container=ref.name, reason=why)

    def _prepare(self, worker: PluginWorker, row: Row, question: Question) -> None:
        self._table.move(row, Event.PREPARE)

        def finished(found: PluginError | None) -> None:
            if not self._table.hear(row, Event.REFUSED if found else Event.PREPARED):
                return
            why = f"the plugin for {row.resource} {found.why}" if found else ""
            if self._table.unprepared(row, why) and why:
                ref = row.container
                log.warning("start not prepared", pod=ref.pod, container=ref.name, reason=why)

        worker.ask(lambda plugin: plugin.before_start(question), finished)

    def _adopt(self, now: Snapshot, plugins: Mapping[str, PluginWorker]) -> None:
        """Take over the answers that an earlier agent recorded: its plugins prepared what runs."""
        facts, grants = now.facts, now.resolution.grants
        for pod in now.resolution.view.pods:
            for container in pod.containers:
                ref = ContainerRef(pod.cgroup_uid, container.name)
                for row in self._table.of(ref):
                    if not row.answer or row.start is not Start.FREE or row.resource not in plugins:
                        continue
                    quantity = by_plugins.plugin_requests(facts, grants, pod, container).get(
                        row.resource
                    )
                    if quantity is not None:
                        question = Question.of(pod, container, row.resource, quantity)
                        runs = frozenset([container.id] if container.id else [])
                        self._table.prepare(row, question, runs)


def _starting(now: Snapshot) -> Mapping[ContainerRef, ContainerID | None]:
    """Return the containers that may start, perhaps again, with the instance that runs."""
    return {
        ContainerRef(pod.cgroup_uid, container.name): container.id
        for pod in now.resolution.view.pods
        if not (pod.finished or pod.ending)
        for container in pod.containers
        if not (pod.running and container.kind is ContainerKind.INIT)
    }


def _hints(question: Question, plugin: ResourcePlugin) -> HintsAnswer:
    """Return a plugin's hints; a refusal is a list without hints, as in the kubelet.

    Raises:
        PluginError: the plugin does not answer.
    """
    try:
        return HintsAnswer(plugin.hints(question))
    except PluginError as error:
        if not error.refused:
            raise
        return HintsAnswer((), f"the plugin for {question.resource} {error.why}")
