"""Asks each plugin of the QoS Resource Manager what is not about one question, again and again.

What all containers have now, what the node has for its status, and to forget the pods that have
ended. A plugin is asked each of them once at a time, and a failure that lasts is logged once.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

from cpupool.core.workloads import ContainerKind, ContainerRef
from cpupool.loops.attempts import Attempt
from cpupool.manager import by_plugins
from cpupool.policies.qrm.questions import Question
from cpupool.qrm.node_resources import PluginAmounts
from cpupool.qrm.plugin_client import PluginError
from cpupool.qrm.question_table import GRACE_S
from cpupool.telemetry import log as logs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from cpupool.core.plugin_facts import AnswerParts, RecordedAnswer
    from cpupool.core.workloads import Container, Pod
    from cpupool.manager.resolve import Snapshot
    from cpupool.qrm.answer_book import AnswerBook
    from cpupool.qrm.plugin_admitter import PluginAdmitter
    from cpupool.qrm.plugin_client import ResourcePlugin
    from cpupool.qrm.plugin_worker import PluginWorker
    from cpupool.qrm.question_table import QuestionTable

log = logs.get(__name__)

_T = TypeVar("_T")
_OFFER_S: Final = 10.0
"""The kubelet makes the node's status as often."""
_REMOVE_S: Final = 1.0
"""For how long a plugin forgets ended pods before other questions have their turn."""


class _Round(Enum):
    """A question to a plugin; the value says that it fails."""

    LIST = "plugin lists nothing"
    OFFER = "plugin does not say what the node has"
    REMOVE = "plugin forgets no pod"


@dataclass(slots=True)
class _Turn:
    """A round of one plugin.

    Attributes:
        asked: whether it is asked, and has not answered.
        due_s: when to ask it next.
        failed: the attempt after the last failures.
        why: how the last call has failed; empty if it has not.
    """

    asked: bool = False
    due_s: float = -math.inf
    failed: Attempt = field(default_factory=lambda: Attempt(-math.inf))
    why: str = ""


class PluginRounds:
    """The rounds of all plugins; only one thread calls it, and any may call `offers`.

    Args:
        table: the questions.
        book: judges the answers that a plugin lists.
        admitter: asks again for what a plugin has forgotten.
        snapshot: returns the node's facts and decisions.
        offered: called after plugins offer something else for the node.
        every_s: how often a plugin is asked what containers have.
    """

    def __init__(
        self,
        table: QuestionTable,
        book: AnswerBook,
        admitter: PluginAdmitter,
        snapshot: Callable[[], Snapshot],
        *,
        offered: Callable[[], None],
        every_s: float,
    ) -> None:
        self._table = table
        self._book = book
        self._admitter = admitter
        self._snapshot = snapshot
        self._offered = offered
        self._every_s = {_Round.LIST: every_s, _Round.OFFER: _OFFER_S, _Round.REMOVE: 0.0}
        self._offers = PluginAmounts({})
        self._complete_s: float | None = None
        self._turns: dict[tuple[str, _Round], _Turn] = {}

    def registered(self, resource: str) -> None:
        """Note that another plugin serves a resource, or none: it is asked everything at once."""
        for of in _Round:
            self._turns.pop((resource, of), None)

    def reconcile(self, plugins: Mapping[str, PluginWorker]) -> float:
        """Ask the plugins with `need_reconcile` what containers have; return when one is due."""
        lists = {name: worker for name, worker in plugins.items() if worker.options.reconciled}
        for name, worker in lists.items():
            done = partial(self._listed, name, worker)
            self._ask(name, _Round.LIST, worker, lambda each: each.allocations(), done)
        return self._due_s(lists, _Round.LIST)

    def offers(self) -> PluginAmounts:
        """Return what plugins say that the node has."""
        return self._offers

    def offer(self, plugins: Mapping[str, PluginWorker]) -> float:
        """Ask plugins what the node has, for its status; return when one is due.

        The last good answer stays until its plugin has been gone for some minutes.
        """
        now_s, has = self._table.now_s(), self._offers.by_plugin
        if self._complete_s is None:
            self._complete_s = now_s + GRACE_S
        kept = {name: has[name] for name in has if name in plugins or name in self._table.lost_s}
        self._take_offers(PluginAmounts(kept, now_s >= self._complete_s))
        for name, worker in plugins.items():
            done = partial(self._has_offered, name)
            self._ask(name, _Round.OFFER, worker, lambda each: each.node_resources(), done)
        return min(self._due_s(plugins, _Round.OFFER), now_s + _OFFER_S)

    def remove(self, plugins: Mapping[str, PluginWorker]) -> float:
        """Let plugins forget the pods that have ended; return when one is asked, or none is needed.

        One that refuses, or hangs, is asked later and later, for some minutes: a dead one must cost
        nothing, and one that only hangs here must not hold up what containers wait for.
        """
        pods = {name: ending for name in plugins if (ending := self._table.ending(name))}
        for name, ending in pods.items():
            gone: list[str] = []
            done = partial(self._removed, name, ending, gone)
            self._ask(name, _Round.REMOVE, plugins[name], partial(_remove, ending, gone), done)
        return min(self._due_s(pods, _Round.REMOVE), self._table.grace_s())

    def _ask(
        self,
        resource: str,
        of: _Round,
        worker: PluginWorker,
        call: Callable[[ResourcePlugin], _T],
        done: Callable[[_T | PluginError], None],
    ) -> None:
        """Ask a plugin, if its turn is due."""
        turn, now_s = self._turns.setdefault((resource, of), _Turn()), self._table.now_s()
        if turn.asked or now_s < turn.due_s:
            return
        turn.asked, turn.due_s = True, now_s + self._every_s[of]

        def finished(found: _T | PluginError) -> None:
            turn.asked = False
            before, turn.why = turn.why, str(found) if isinstance(found, PluginError) else ""
            if turn.why and turn.why != before:
                log.warning(of.value, resource=resource, reason=turn.why)
            elif before and not turn.why:
                log.info("plugin works again", resource=resource, before=of.value)
            done(found)

        worker.ask(call, finished)

    def _due_s(self, resources: Iterable[str], of: _Round) -> float:
        """Return when one of some plugins is asked next; an answer wakes the loop."""
        turns = (self._turns[resource, of] for resource in resources)
        return min((turn.due_s for turn in turns if not turn.asked), default=math.inf)

    def _listed(
        self,
        resource: str,
        worker: PluginWorker,
        listed: Mapping[ContainerRef, AnswerParts] | PluginError,
    ) -> None:
        """Take what containers have now; a plugin that has forgotten one is asked again."""
        self._table.unlisted.discard(resource)
        if isinstance(listed, PluginError):
            return
        now, now_s = self._snapshot(), self._table.now_s()
        changed: dict[tuple[ContainerRef, str], RecordedAnswer] = {}
        for pod, container, quantity in _requesting(now, resource):
            ref = ContainerRef(pod.cgroup_uid, container.name)
            row, found = self._table.row(ref, resource), listed.get(ref, {})
            has = row.answer
            if found:
                row.confirmed_s = now_s
                if has is None or has.kept or found != has.parts:
                    given = self._book.listed(pod, quantity, found, has)
                    if has is None or has.kept or given.parts != has.parts:
                        changed[ref, resource] = given
            elif has is not None and (has.parts or has.refused):
                question = Question.of(pod, container, resource, quantity)
                self._admitter.allocate(worker, pod, question, has.hint)
        self._book.take(now, changed)

    def _has_offered(self, resource: str, found: Mapping[str, float] | PluginError) -> None:
        if isinstance(found, PluginError):
            return
        # NaN differs from itself, as if the plugin said something new each time; this one object
        # does not, within a mapping. What is no amount is refused for the node's status, by name.
        found = {name: math.nan if math.isnan(amount) else amount for name, amount in found.items()}
        has = self._offers
        self._take_offers(has._replace(by_plugin={**has.by_plugin, resource: found}))

    def _take_offers(self, offers: PluginAmounts) -> None:
        if offers != self._offers:
            self._offers = offers
            self._offered()

    def _removed(
        self,
        resource: str,
        pods: Sequence[str],
        gone: Sequence[str],
        failure: PluginError | None,
    ) -> None:
        turn = self._turns[resource, _Round.REMOVE]
        self._table.forgot(resource, gone, failed=pods[len(gone)] if failure else "")
        turn.failed = turn.failed.refused(self._table.now_s()) if failure else Attempt(-math.inf)
        turn.due_s = turn.failed.due_s


def _remove(pods: Sequence[str], gone: list[str], plugin: ResourcePlugin) -> None:
    """Let a plugin forget ended pods, until a call fails or its turn is over.

    Raises:
        PluginError: it does not forget the pod that follows those in `gone`.
    """
    until_s = time.monotonic() + _REMOVE_S
    for pod in pods:
        plugin.remove(pod)
        gone.append(pod)
        if time.monotonic() > until_s:
            break


def _requesting(now: Snapshot, resource: str) -> Iterator[tuple[Pod, Container, float]]:
    """Yield the containers that request a resource, without init containers, which end."""
    rules, grants = by_plugins.Awaited.of(now.facts), now.resolution.grants
    for pod in now.resolution.view.pods:
        for container in pod.containers:
            asked = by_plugins.plugin_requests_by(rules, grants, pod, container)
            if resource in asked and container.kind is not ContainerKind.INIT:
                yield pod, container, asked[resource]
