"""The resource manager: plugins of the QoS Resource Manager decide, cpupool enforces.

Level-triggered: each look compares the requests of this node's pods with the answers, and asks for
what is missing. The plugins answer in threads of their own, and only the thread of this role knows
the answers: no lock is held over a call. An answer is judged, recorded, and only then a fact.
"""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack
from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING, Final

from cpupool.core.cpuset import CPUSet
from cpupool.core.errors import HostFileError
from cpupool.core.grants import Source
from cpupool.core.resource_plugins import PluginFacts
from cpupool.kubelet.plugin_door import plugin_door
from cpupool.manager.plugin_book import AnswerBook
from cpupool.roles.plugin_admitter import PluginAdmitter
from cpupool.roles.plugin_lister import PluginLister
from cpupool.roles.plugin_offers import GRACE_S
from cpupool.roles.plugin_preparer import PluginPreparer
from cpupool.roles.plugin_registry import PluginRegistry, refusal
from cpupool.roles.plugin_remover import PluginRemover
from cpupool.roles.plugin_reports import PluginReports
from cpupool.telemetry import log as logs
from cpupool.telemetry.failures import Failures

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    from cpupool.core.resource_plugins import ServedAs
    from cpupool.core.workloads import ContainerRef
    from cpupool.host.answer_record import AnswerRecord
    from cpupool.kubelet.resource_plugin import Introduction
    from cpupool.kubelet.serving import ServedSocket
    from cpupool.manager.manager import Manager
    from cpupool.manager.plugin_recovery import Recovery
    from cpupool.manager.ports import EventSink, FoundContainer
    from cpupool.manager.resolve import Snapshot
    from cpupool.policies.plugin_answers import Broken
    from cpupool.roles.answer_import import AnswerImport
    from cpupool.roles.plugin_offers import PluginOffers
    from cpupool.roles.plugin_worker import PluginWorker
    from cpupool.telemetry.health import Health
    from cpupool.telemetry.metrics import Metrics
    from cpupool.wire.cpu_manager_state import State

log = logs.get(__name__)

NAME: Final = "resource manager"
_LOST: Final = "there is no record of its plugin's answer"
RECONCILE_S: Final = 3.0
"""As the kubelet's flag of the proposal."""
_LOOK_S: Final = 30.0


class ResourceManager:
    """The role. One thread runs it; any thread may call `look`, `recall` and `take_over`.

    Args:
        manager: the node's state.
        folders: as for `PluginRegistry`; the first is our own, with the door. Without any folder
            no plugin is asked.
        record: the file with the answers.
        imports: the answers of another manager, which count on a node without a record.
        events: where is said which plugin is refused, and which answer.
        metrics: where answers are counted.
        health: receives the beats of the loop.
        changed: called when there are other plugins or answers, or a plugin begins or ends to fail.
        v2: whether the node has cgroup version 2.
        names: as for `PluginFacts`.
        doors: what else is served while plugins are asked.
        offers: asks plugins what the node has; None to ask none.
        reconcile_s: how often plugins are asked for what containers have now.
        now_s: a monotonic clock.

    Attributes:
        reports: what plugins have said last.
        offers: as the argument.
    """

    def __init__(
        self,
        manager: Manager,
        folders: Iterable[Path],
        record: AnswerRecord,
        imports: AnswerImport,
        *,
        events: EventSink,
        metrics: Metrics,
        health: Health,
        changed: Callable[[], None],
        v2: bool = True,
        names: Mapping[str, ServedAs] | None = None,
        doors: Iterable[ServedSocket] = (),
        offers: PluginOffers | None = None,
        reconcile_s: float = RECONCILE_S,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        folders = tuple(folders)
        ours = (plugin_door(folders[0], self._knocked),) if folders else ()
        self._doors = (*ours, *doors)
        self._enabled = bool(folders)
        self.offers = offers
        self._manager = manager
        self._record, self._imports = record, imports
        self._events = events
        self._metrics, self._health = metrics, health
        self._changed = changed
        self._names = names or {}
        self._now_s = now_s
        self._inbox: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self.reports = PluginReports(folders, metrics.plugins)
        self._registry = PluginRegistry(
            folders,
            self._post,
            changed=self.look,
            registered=self._registered,
            refuses=lambda resource: self._refusal(resource, self._served()),
            observe=self.reports.called,
            started=health.watch,
        )
        self._book = AnswerBook(manager.names, self._broken, v2=v2)
        self._preparer = PluginPreparer(self._book, lambda: self._registry.plugins, now_s)
        self._admitter = PluginAdmitter(
            self._book, self._listed_once, self._preparer, manager.snapshot, now_s
        )
        self._recalled = threading.Event()
        # The answers are known to the thread of `run`, and to the one that takes over.
        self._turn = threading.Lock()
        self._lost_s: dict[str, float] = {}
        self._remover = PluginRemover(now_s)
        self._lister = PluginLister(
            self._book, self._admitter, manager.snapshot, self.reports.confirmed, reconcile_s
        )
        self._failures = Failures()
        self._published: object = None
        self._wake = threading.Event()

    def look(self) -> None:
        """Look now: pods, plugins or their answers are others, or `run` is to notice a stop."""
        self._wake.set()

    wake = look

    def recall(self) -> None:
        """Take the answers that an earlier agent recorded, before any container is placed."""
        if not self._recalled.is_set():
            self._book.load(self._record.read())
            waits = self._enabled and self._record.absent and self._imports.find()
            self._manager.observe(plugins=self._facts())
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
        self._recalled.set()
        self.look()

    def run(self, stop: threading.Event) -> None:
        """Ask plugins until `stop` is set; `wake` after setting it returns at once."""
        with ExitStack() as opened:
            opened.callback(self._registry.stop)
            doors = [opened.enter_context(door) for door in self._doors]
            for door in doors:
                self._health.watch(door.thread)
            while not stop.is_set():
                self._health.beat(NAME)
                for door in doors:
                    _keep(door, self._failures)
                self._wake.wait(self.step())
                self._wake.clear()

    def step(self) -> float:
        """Take what has come, and ask for what is missing; return the seconds to the next step."""
        with self._turn:
            return self._step() if self._recalled.is_set() else _LOOK_S

    def _step(self) -> float:
        self._registry.look()
        # What comes meanwhile is for the next step: a flood must not hold up the beats.
        for _ in range(self._inbox.qsize()):
            self._inbox.get_nowait()()
        now, now_s = self._manager.snapshot(), self._now_s()
        if self.reports.keep(self._registry.workers, self._served()):
            self._changed()
        if now.facts.pods is None:
            return _LOOK_S
        last_s = now_s - GRACE_S
        self._lost_s = {name: at_s for name, at_s in self._lost_s.items() if at_s > last_s}
        self._book.judge_again(now)
        self._say(self._book.recover_late(now))
        due_s = self._remove_ended(now)
        self._publish()
        now = self._manager.snapshot()
        due_s = min(due_s, self._preparer.prepare(now))
        if now.facts.configured and (now.facts.recovered or not now.facts.pools.places):
            # Before that it is not known whose `cpu` plugins decide: what they list would count
            # for no container, and they would be asked again. Nor is it known how hints are merged,
            # and which CPUs containers have by answers that are lost.
            listed_s = self._lister.ask(self._registry.plugins, now_s)
            due_s = min(due_s, self._admitter.admit(now), listed_s)
        self._publish()
        if self.offers:
            due_s = min(due_s, self.offers.ask(self._registry.plugins, self._lost_s, now_s))
        return max(0.0, min(_LOOK_S, due_s - now_s))

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
        self._admitter.lost(resource)
        self._preparer.lost(resource)
        self._remover.lost(resource)
        self._lister.registered(resource, worker)
        if worker is None:
            self._lost_s[resource] = self._now_s()
            return
        self.reports.registered(resource)
        self._lost_s.pop(resource, None)

    def _listed_once(self) -> Mapping[str, PluginWorker]:
        """Return the plugins that may allocate: one that lists does so first."""
        plugins, unlisted = self._registry.plugins, self._lister.unlisted
        return {name: worker for name, worker in plugins.items() if name not in unlisted}

    def _broken(self, ref: ContainerRef, resource: str, broken: Broken) -> None:
        self._metrics.plugins.answer_refused(resource, broken.rule.value)
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
        recorded = self._book.resources.values()
        known = (self._lost_s, self._imports.resources, *recorded)
        return frozenset(self._registry.plugins).union(*known)

    def _facts(self) -> PluginFacts:
        unprepared = self._preparer.unprepared
        given = {
            ref: {
                resource: each for resource, each in by.items() if (ref, resource) not in unprepared
            }
            for ref, by in self._book.record.items()
        }
        refusals = {**self._admitter.refusals, **self._preparer.refusals}
        prepared = self._preparer.prepared
        return PluginFacts(
            self._served(), given, refusals, self._names, prepared, enabled=self._enabled
        )

    def _publish(self) -> None:
        """Record the answers, and only then make them facts."""
        state = (
            self._book.changes,
            self._preparer.unprepared,
            self._preparer.prepared,
            {**self._admitter.refusals, **self._preparer.refusals},
            frozenset(self._registry.plugins).union(self._lost_s),
        )
        if state == self._published:
            return
        try:
            self._record.write(self._book.record)
        except HostFileError as error:
            _complain(self._failures, "record", str(error))
        else:
            _complain(self._failures, "record", "")
            self._published = state
        facts, before = self._facts(), self._manager.snapshot().facts.plugins
        if facts != before:
            self._manager.observe(plugins=facts)
            self._changed()
        if facts.served != before.served:
            log.info("plugins answer", resources=",".join(sorted(facts.served)) or "none")

    def _remove_ended(self, now: Snapshot) -> float:
        """Forget the pods that have ended, once none of their containers has CPUs.

        Return when a plugin is next asked to forget one.
        """
        view = now.resolution.view
        here = {pod.cgroup_uid for pod in view.pods if not pod.finished}
        here |= {uid for uid, grant in view.grants.of_pods if grant.source is Source.PLUGIN}
        answered = self._book.resources
        ended = {
            uid: answered.get(uid, set()) for uid in (answered.keys() | self._admitter.asked) - here
        }
        done, due_s = self._remover.remove(ended, self._registry.plugins, self._lost_s.keys())
        for uid in done:
            for known in (self._book, self._admitter, self._preparer, self.reports):
                known.forget(uid)
        return due_s


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
