"""The resource manager: plugins of the QoS Resource Manager decide, cpupool enforces.

Level-triggered: each look compares the requests of this node's pods with the answers, and asks for
what is missing. The plugins answer in threads of their own, and only the thread of this role knows
the answers: no lock is held over a call. The role checks an answer and records it. Then the answer
is a fact.
"""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Final, Self

from cpupool.config.settings import served_as
from cpupool.core.cpuset import CPUSet
from cpupool.core.errors import HostFileError
from cpupool.core.grants import Source
from cpupool.core.plugin_facts import PluginFacts
from cpupool.loops.step_loop import StepLoop
from cpupool.qrm.answer_book import AnswerBook
from cpupool.qrm.plugin_admitter import PluginAdmitter
from cpupool.qrm.plugin_metrics import PluginMetrics
from cpupool.qrm.plugin_registry import PluginRegistry, refusal
from cpupool.qrm.plugin_reports import PluginReports
from cpupool.qrm.plugin_rounds import PluginRounds
from cpupool.qrm.question_table import QuestionTable, Start
from cpupool.qrm.registration import registration_socket
from cpupool.telemetry import log as logs
from cpupool.telemetry.failures import Failures

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from cpupool.config.settings import AgentSettings
    from cpupool.core.cgroups import FoundContainer
    from cpupool.core.plugin_facts import Record, ServedAs
    from cpupool.core.workloads import ContainerRef
    from cpupool.host.record_file import RecordFile
    from cpupool.loops.telemetry import Telemetry
    from cpupool.manager.manager import Manager
    from cpupool.manager.resolve import Snapshot
    from cpupool.qrm.answer_import import AnswerImport
    from cpupool.qrm.answer_recovery import Recovery
    from cpupool.qrm.bad_answers import Broken
    from cpupool.qrm.plugin_client import Introduction, ResourcePlugin
    from cpupool.qrm.plugin_worker import PluginWorker
    from cpupool.rpc.serving import ServedSocket
    from cpupool.wire.cpu_manager_state import State

log = logs.get(__name__)

NAME: Final = "resource manager"
_LOST: Final = "there is no record of its plugin's answer"
RECONCILE_S: Final = 3.0
"""The default of the kubelet's flag in the proposal."""
_LOOK_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class PluginSettings:
    """The agent's settings for plugins.

    Attributes:
        folders: where plugins make their sockets (`PluginRegistry`). The first is cpupool's own,
            with the socket on which plugins call Register. Without any folder no plugin is asked.
        names: the same attribute of `PluginFacts`.
        reconcile_s: how often plugins are asked for what containers have now.
        of_node: whether plugins are asked what the node has, too.
    """

    folders: tuple[Path, ...] = ()
    names: Mapping[str, ServedAs] = field(default_factory=dict)
    reconcile_s: float = RECONCILE_S
    of_node: bool = False

    @classmethod
    def of(cls, given: AgentSettings) -> Self:
        """Return what the agent's settings say of plugins."""
        named = given.resource_plugin_folders.split(",") if given.resource_plugins else ()
        return cls(
            folders=tuple(Path(given.host_root) / name.strip().lstrip("/") for name in named),
            names=served_as(given.resource_plugin_names),
            reconcile_s=given.resource_plugin_reconcile_s,
            of_node=given.write_node_resources,
        )


class ResourceManager(StepLoop):
    """The role. One thread runs it; any thread may call `look`, `recall` and `take_over`.

    Args:
        manager: the node's state.
        settings: which plugins are asked, and what for.
        record: the file with the answers.
        imports: the answers of another manager, for a node without a record.
        telemetry: takes Events about refused plugins and answers, their metrics, and the beats of
            the loop.
        changed: called when the plugins or the answers have changed, or a plugin begins or ends to
            fail.
        v2: whether the node has cgroup version 2.
        doors: the other sockets that this role serves while it runs.
        now_s: a monotonic clock.

    Attributes:
        reports: what plugins have said last.
        offers: returns what plugins say that the node has; None if none is asked.
    """

    def __init__(
        self,
        manager: Manager,
        settings: PluginSettings,
        record: RecordFile[Record],
        imports: AnswerImport,
        *,
        telemetry: Telemetry,
        changed: Callable[[], None],
        v2: bool = True,
        doors: Iterable[ServedSocket] = (),
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(partial(telemetry.health.beat, NAME))
        folders, self._names = settings.folders, settings.names
        ours = (registration_socket(folders[0], self._knocked),) if folders else ()
        self._doors = (*ours, *doors)
        self._open_doors: tuple[ServedSocket, ...] = ()
        self._enabled = bool(folders)
        self._manager = manager
        self._record, self._imports = record, imports
        self._events = telemetry.events
        self._metrics, self._health = PluginMetrics(telemetry.metrics.registry), telemetry.health
        self._changed = changed
        self._inbox: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self.reports = PluginReports(folders, self._metrics, now_s)
        self._registry = PluginRegistry(
            folders,
            self._post,
            changed=self.look,
            registered=self._registered,
            refuses=lambda resource: self._refusal(resource, self._served()),
            observe=self.reports.called,
            started=self._health.watch,
        )
        self._table = QuestionTable(now_s)
        self._book = AnswerBook(self._table, manager.names, self._broken, v2=v2)
        self._admitter = PluginAdmitter(self._table, self._book, manager.snapshot)
        self._rounds = PluginRounds(
            self._table,
            self._book,
            self._admitter,
            manager.snapshot,
            offered=changed,
            every_s=settings.reconcile_s,
        )
        self.offers = self._rounds.offers if settings.of_node else None
        self._recalled = threading.Event()
        # The answers are known to the thread of `run`, and to the one that takes over.
        self._turn = threading.Lock()
        self._failures = Failures()
        self._published: object = None

    look = StepLoop.wake

    @property
    def plugins(self) -> Mapping[str, ResourcePlugin]:
        """Resource → what asks the plugin that serves it now; any thread may read it."""
        workers = dict(self._registry.plugins)
        return {name: worker.plugin for name, worker in workers.items() if worker.plugin}

    def recall(self) -> None:
        """Take the answers that an earlier agent recorded, before any container is placed."""
        if not self._recalled.is_set():
            self._book.load(self._record.read())
            waits = self._enabled and self._record.absent and self._imports.find()
            self._manager.observe(plugins=self._facts(self._table.record))
            if not waits:
                self._begin()

    def take_over(
        self, found: Sequence[FoundContainer] = (), recorded: State | None = None
    ) -> None:
        """Take what is known of answers beside the record: pods are known, and no container moved.

        Import answers, if there are some, and find the CPUs of containers without a record.

        Args:
            found: every directory of a container, with its present CPUs.
            recorded: what an earlier agent has recorded of its choices.
        """
        with self._turn:
            if not self._recalled.is_set():
                self._imports.hand_over(self._manager.snapshot(), self._book)
            chosen = {
                uid: CPUSet.union(parts.values())
                for uid, parts in (recorded.entries if recorded else {}).items()
            }
            recovery = self._book.recover(self._manager.snapshot(), found, chosen)
            self._publish()
        self._begin()
        self._say(recovery)

    def _say(self, recovery: Recovery) -> None:
        """Write Events about answers that are lost."""
        for ref, kept in recovery.kept.items():
            said = f"container {ref.name} keeps {kept.fact}, and what else it has: {_LOST}"
            self._events.pod(kept.pod, "PluginAnswerKept", f"{said}; start the plugin")
        for ref, pod in recovery.lost.items():
            why = f"container {ref.name} shares CPUs until its plugin answers: {_LOST}, and its"
            remedy = "start the plugin, or create the pod again"
            said = f"{why} annotation and its cgroup name no CPUs that it can have alone; {remedy}"
            self._events.pod(pod, "PluginAnswerLost", said)

    def _begin(self) -> None:
        """Let the loop have the answers, which only its thread knows from now on."""
        self._table.recalled()
        self._recalled.set()
        self.look()

    def run(self, stop: threading.Event) -> None:
        """Ask plugins until `stop` is set; `wake` after setting it returns at once."""
        with ExitStack() as opened:
            opened.callback(self._registry.stop)
            self._open_doors = tuple(opened.enter_context(door) for door in self._doors)
            for door in self._open_doors:
                self._health.watch(door.thread)
            super().run(stop)

    def step(self) -> float:
        """Take what has come, and ask for what is missing; return the seconds to the next step."""
        for door in self._open_doors:
            _keep(door, self._failures)
        with self._turn:
            return self._step() if self._recalled.is_set() else _LOOK_S

    def _step(self) -> float:
        self._registry.look()
        # What comes meanwhile is for the next step: a flood must not hold up the beats.
        for _ in range(self._inbox.qsize()):
            self._inbox.get_nowait()()
        now, plugins = self._manager.snapshot(), self._registry.plugins
        if self.reports.keep(self._registry.workers, self._served(), self._table):
            self._changed()
        if now.facts.pods is None:
            return _LOOK_S
        self._book.judge_again(now)
        if now.facts.recovered:
            # What is found before that would be no record of an earlier agent for `take_over`.
            self._say(self._book.recover_late(now))
        due_s = self._remove_ended(now)
        self._publish()
        now = self._manager.snapshot()
        due_s = min(due_s, self._admitter.prepare(now, plugins))
        if now.facts.configured and (now.facts.recovered or not now.facts.pools.places):
            # Before that it is not known whose `cpu` plugins decide: their lists would be
            # for no container, and they would be asked again. Nor is it known how hints are merged,
            # and which CPUs containers have by answers that are lost.
            listed_s = self._rounds.reconcile(plugins)
            due_s = min(due_s, self._admitter.admit(now, plugins), listed_s)
        self._publish()
        if self.offers:
            due_s = min(due_s, self._rounds.offer(plugins))
        return max(0.0, min(_LOOK_S, due_s - self._table.now_s()))

    def _knocked(self, known: Introduction) -> str:
        """Take a plugin that registers; return why it is refused. Any thread may call it."""
        if not (
            why := self._refusal(known.resource, self._manager.snapshot().facts.plugins.served)
        ):
            self._post(partial(self._registry.register, known))
        return why

    def _refusal(self, resource: str, served: frozenset[str]) -> str:
        """Return why no plugin may serve a resource, and say it; any thread may call it."""
        if why := refusal(resource, served, self._manager.names):
            self._events.node("PluginRefused", why)
        return why

    def _post(self, work: Callable[[], None]) -> None:
        self._inbox.put(work)
        self.look()

    def _registered(self, resource: str, worker: PluginWorker | None) -> None:
        lists = worker is not None and worker.options.reconciled
        self._table.registered(resource, serves=worker is not None, lists=lists)
        self._rounds.registered(resource)
        if worker is not None:
            self.reports.registered(resource)

    def _broken(self, ref: ContainerRef, resource: str, broken: Broken) -> None:
        self._metrics.answer_refused(resource, broken.rule.value)
        log.warning(
            "answer refused",
            pod=ref.pod,
            container=ref.name,
            resource=resource,
            rule=broken.rule.value,
            reason=broken.why,
        )
        # A container that does not run is held, and an import says itself what it refuses.
        if self._recalled.is_set():
            said = f"container {ref.name}: {broken.why}; it keeps what it has: correct the plugin"
            for pod in self._manager.snapshot().resolution.view.pods:
                if pod.cgroup_uid == ref.pod and pod.running:
                    self._events.pod(pod, "PluginAnswerRefused", said)

    def _served(self) -> frozenset[str]:
        answered = (row.resource for row in self._table if row.answer is not None)
        known = (self._table.lost_s, self._imports.resources, answered)
        return frozenset(self._registry.plugins).union(*known)

    def _facts(self, record: Record) -> PluginFacts:
        """Return the facts; an answer is none before its plugin has prepared the start."""
        given = dict(record)
        for row in self._table:
            if row.start is Start.DUE:
                answers = given.pop(row.container, {})
                if left := {name: each for name, each in answers.items() if name != row.resource}:
                    given[row.container] = left
        return PluginFacts(
            self._served(),
            given,
            self._table.refusals,
            self._names,
            self._table.prepared,
            self._table.ready,
            enabled=self._enabled,
            answering=self._answering(),
            expected=self._enabled and self._registry.expected,
        )

    def _answering(self) -> frozenset[str]:
        return frozenset(self._registry.plugins) - self.reports.silent

    def _publish(self) -> None:
        """Record the answers, and only then make them facts."""
        state = (
            self._table.changes,
            frozenset(self._registry.plugins).union(self._table.lost_s),
            self._answering(),
            self._registry.expected,
        )
        if state == self._published:
            return
        record = self._table.record
        try:
            self._record.write(record)
        except HostFileError as error:
            _complain(self._failures, "record", str(error))
        else:
            _complain(self._failures, "record", "")
            self._published = state
        facts, before = self._facts(record), self._manager.snapshot().facts.plugins
        if facts != before:
            self._manager.observe(plugins=facts)
            self._changed()
        if facts.served != before.served:
            log.info("plugins answer", resources=",".join(sorted(facts.served)) or "none")

    def _remove_ended(self, now: Snapshot) -> float:
        """Forget the pods that have ended, once none of their containers has CPUs.

        Return when a plugin is next asked to forget one.
        """
        view, plugins = now.resolution.view, self._registry.plugins
        here = {pod.cgroup_uid for pod in view.pods if not pod.finished}
        here |= {uid for uid, grant in view.grants.of_pods if grant.source is Source.PLUGIN}
        self._table.follow(here, plugins.keys())
        return self._rounds.remove(plugins)


def _keep(door: ServedSocket, failures: Failures) -> None:
    try:
        door.ensure()
    except HostFileError as error:
        _complain(failures, str(door.path), str(error))
    else:
        _complain(failures, str(door.path), "")


def _complain(failures: Failures, about: str, why: str) -> None:
    """Log a failure once, and its end."""
    if why and failures.begins(why, about):
        log.warning("resource manager", about=about, reason=why)
    elif not why and failures.ends(about):
        log.info("resource manager: it works again", about=about)
