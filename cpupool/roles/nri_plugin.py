"""The NRI plugin: decides what the container runtime hears before it starts a container.

Every answer comes from what is known: the container's own annotations, then memory. Where the
kubelet's word is missing, the cpusetter is asked to get it, and the answer waits, for a part of the
time after which a runtime drops a plugin. So it does where another pod still has the container's
CPUs. The API server is never asked.

Containerd ignores a failed update of another container, so the plugin reads the cgroups again
before the first instruction of a container with CPUs of its own.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from cpupool.core.errors import RemoteProtocolError
from cpupool.host.files import DirectoryWatch
from cpupool.roles.nri_answers import Answers
from cpupool.roles.nri_obstacles import Obstacles
from cpupool.roles.nri_wait import ConnectionWait, WaitRules
from cpupool.roles.wait_budget import WaitBudget
from cpupool.runtime.nri_messages import (
    Configured,
    CreateContainer,
    Ended,
    SandboxRemoved,
    SandboxStarted,
    StartContainer,
    Started,
    Synchronize,
    UpdateContainer,
)
from cpupool.telemetry import log as logs

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Iterator
    from pathlib import Path

    from cpupool.core.cpuset import CPUSet
    from cpupool.core.workloads import ContainerID, RuntimeContainer
    from cpupool.manager.manager import Manager
    from cpupool.manager.ports import EventSink, FoundContainer
    from cpupool.manager.resolve import Snapshot
    from cpupool.roles.nri_answers import MissingFacts
    from cpupool.roles.nri_obstacles import Obstacle
    from cpupool.runtime.nri import NRIRuntime
    from cpupool.runtime.nri_messages import Message
    from cpupool.telemetry.health import Health
    from cpupool.telemetry.metrics import Metrics

log = logs.get(__name__)

NAME: Final = "nri plugin"
_DEADLINE_S: Final = 2.0
"""As long as a runtime usually waits for an answer. Half of it may pass until a container can have
its CPUs."""
_PAUSES_S: Final = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
"""How long to wait after each attempt to reach the runtime; the last counts for all that follow."""
_LOOK_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class _Waiting:
    """A container that is to be created, or started.

    Attributes:
        message: what the runtime says of it.
        came_s: when that came.
        until_s: when it is answered at the latest; None before it is known that it must wait.
    """

    message: CreateContainer | StartContainer
    came_s: float
    until_s: float | None = None

    @property
    def container(self) -> Hashable:
        """What stays the same when the kubelet tries again, with another id."""
        known = self.message.container.known
        return known and (known.pod, known.name, type(self.message))

    def begun(self, budget: WaitBudget, now_s: float) -> _Waiting:
        """Return it with its time to wait."""
        if self.until_s is not None:
            return self
        deadline_s = min(self.message.deadline_s or _DEADLINE_S, _DEADLINE_S)
        latest_s = self.came_s + deadline_s / 2
        return replace(self, until_s=budget.until_s(self.container, latest_s, now_s))


class NRIPlugin:
    """Answers the container runtime; one thread runs it.

    Args:
        manager: decides where each container belongs.
        runtime: the container runtime.
        required: containers must be created this way, so that the node is not ready without.
        missing_facts: how to treat a container whose devices are unknown, or whose CPUs another pod
            has.
        ready: whether the owner of each CPU is known.
        with_memory: returns the NUMA nodes that have memory.
        found: walks every container directory, with the CPUs that it runs on now.
        look: asks for a sweep, which also gets the kubelet's word.
        appears: the folder in which the runtime makes its socket; None not to watch for that.
        events: where pods' owners learn that a container is held, or released.
        metrics: where requests are counted.
        health: hears that the loop turns.
        decided: returns the decisions, once their choices are recorded; None for no record.
        waits: for which pods it waits before it connects.
        now_s: a monotonic clock.
        time_s: the Unix time.
    """

    def __init__(
        self,
        manager: Manager,
        runtime: NRIRuntime,
        *,
        required: bool = False,
        missing_facts: MissingFacts,
        ready: Callable[[], bool],
        with_memory: Callable[[], CPUSet],
        found: Callable[[], Iterable[FoundContainer]],
        look: Callable[[], None],
        appears: Path | None = None,
        events: EventSink,
        metrics: Metrics,
        health: Health,
        decided: Callable[[], Snapshot] | None = None,
        waits: WaitRules = WaitRules(),  # noqa: B008 - it is frozen
        now_s: Callable[[], float] = time.monotonic,
        time_s: Callable[[], float] = time.time,
    ) -> None:
        self._manager = manager
        self._decided = decided or manager.snapshot
        self._runtime = runtime
        self._required = required
        self._ready = ready
        self._obstacles = Obstacles(runtime, ready=ready, found=found)
        self._answers = Answers(
            runtime,
            manager.names,
            missing_facts,
            ready=ready,
            with_memory=with_memory,
            forget=manager.forget_containers,
            look=self._look_later,
            events=events,
            metrics=metrics,
        )
        self._wait = ConnectionWait(
            manager,
            runtime,
            found=found,
            rules=waits,
            look=look,
            metrics=metrics,
            now_s=now_s,
            time_s=time_s,
        )
        self._look = look
        self._look_due = False
        self._watch = None if appears is None else DirectoryWatch(appears, self._appeared)
        self._metrics = metrics
        self._health = health
        self._now_s = now_s
        self._waiting: list[_Waiting] = []
        self._budget = WaitBudget()
        self._attempts = 0
        self._lost_why = ""
        self._woken = threading.Event()

    def run(self, stop: threading.Event) -> None:
        """Converse with the runtime until `stop` is set; `wake` after setting it returns at once.

        Raises:
            RemoteProtocolError: the runtime that has started this process has ended.
        """
        try:
            while not stop.is_set():
                self._health.beat(NAME)
                if self._watch:
                    self._watch.ensure()
                # Containers must not be corrected before it is known who owns which CPU.
                if not (self._runtime.launched or self._ready()):
                    self._wait.begin_anew()
                    self._rest(_LOOK_S)
                elif pause_s := self._wait.pause_s():
                    self._tell_connected(f"it {self._wait.waits}")
                    self._rest(min(pause_s, _LOOK_S))
                else:
                    self._attempt(stop)
        finally:
            if self._watch:
                self._watch.stop()

    @property
    def waits(self) -> str:
        """For which pod the connection waits, and until when; empty if it does not."""
        return self._wait.waits

    def wake(self) -> None:
        """Let the loop notice that it shall stop, or that it may connect now."""
        self._woken.set()
        self._runtime.wake()

    def facts_changed(self) -> None:
        """Look again at what waits for facts, or for a pod to end."""
        if self._waiting or self._wait.waits:
            self.wake()

    def _appeared(self, _path: Path) -> None:
        # A runtime that has restarted creates containers without waiting for its plugins.
        self.wake()

    def _attempt(self, stop: threading.Event) -> None:
        """Converse for as long as that goes well, and pause after it."""
        try:
            with self._runtime.attached():
                self._converse(stop)
        except RemoteProtocolError as error:
            self._tell_lost(str(error))
            if self._runtime.launched:
                raise
        if self._rest(_PAUSES_S[min(self._attempts, len(_PAUSES_S) - 1)]):
            # A runtime makes its socket before it listens, and may refuse the next attempt.
            self._attempts = 0
        else:
            self._attempts += 1

    def _converse(self, stop: threading.Event) -> None:
        try:
            while not stop.is_set():
                self._health.beat(NAME)
                with self._runtime.turn(self._patience_s()) as messages:
                    came_s = self._now_s()
                    self._tell(messages)
                    for message in messages:
                        self._hear(message, came_s)
                    self._answer_waiting()
                    asked = bool(messages and self._waiting)
                if asked or self._look_due:
                    self._look_due = False
                    self._look()
                if any(isinstance(message, SandboxStarted) for message in messages):
                    # A policy has chosen for the new pod, and nothing waits for the record yet.
                    self._decided()
        finally:
            self._waiting = []
            self._budget.count(self._now_s(), waits=False)

    def _look_later(self) -> None:
        """Ask for a sweep when the answers are out: it competes with them for the interpreter."""
        self._look_due = True

    def _rest(self, pause_s: float) -> bool:
        """Wait for as long; return whether `wake` has ended that."""
        woken = self._woken.wait(pause_s)
        # Before the next look at what there is to notice.
        self._woken.clear()
        return woken

    def _tell_lost(self, why: str) -> None:
        if self._lost_why != why:
            self._lost_why = why
            tell = log.warning if self._required else log.info
            tell("NRI is not connected", reason=why)
        self._tell_connected(why)

    def _tell_connected(self, why: str = "") -> None:
        self._metrics.nri_connected(connected=self._runtime.connected())
        if self._required:
            self._health.set(
                NAME, ok=self._runtime.connected(), message=why or "it is connecting; wait"
            )

    def _patience_s(self) -> float:
        if not self._waiting:
            return _LOOK_S
        until_s = min(waiting.until_s or waiting.came_s for waiting in self._waiting)
        return max(0.0, until_s - self._now_s())

    def _tell(self, messages: list[Message]) -> None:
        """Pass all that has come and gone to the manager at once, so that it decides once."""
        # The runtime does not name what it is about to create among what it has.
        current = (*(waiting.message for waiting in self._waiting), *messages)
        found = [container for message in current for container in _appeared(message)]
        every = any(isinstance(message, Synchronize) for message in messages)
        if found or every:
            self._manager.observe_containers(found, every=every)
        if gone := [id_ for message in messages for id_ in _disappeared(message)]:
            self._manager.forget_containers(gone)

    def _hear(self, message: Message, came_s: float) -> None:
        self._runtime.note(message)
        match message:
            case Configured():
                log.info(
                    "NRI runtime",
                    runtime=message.runtime,
                    version=message.version,
                    nri=message.nri or "older than 0.12",
                )
            case Synchronize():
                self._synchronize(message)
            case CreateContainer() | StartContainer():
                self._waiting.append(_Waiting(message, came_s))
            case Started():
                self._answers.started(message.container)
            case UpdateContainer():
                outcome = self._answers.update(message, self._decided())
                self._metrics.nri_answered("update", outcome, self._now_s() - came_s)
            case Ended():
                self._end(message.id)
            case _:
                # Sandboxes are the manager's only, and a runtime that goes down hangs up.
                pass

    def _synchronize(self, message: Synchronize) -> None:
        corrections = self._answers.corrections(self._decided())
        self._runtime.answer_synchronize(message, corrections)
        self._wait.begin_anew()
        self._lost_why, self._attempts = "", 0
        self._tell_connected()
        log.info("NRI connected", containers=len(self._runtime.containers))

    def _answer_waiting(self) -> None:
        now_s = self._now_s()
        waiting = []
        for came in self._waiting:
            now = self._decided()
            obstacle = self._obstacle(came.message, now)
            passes = obstacle is not None and not obstacle.refusal
            request = came.begun(self._budget, now_s) if passes else came
            if request.until_s is not None and passes and now_s < request.until_s:
                waiting.append(request)
                if isinstance(request.message, StartContainer):
                    self._runtime.delay_start(request.message)
            else:
                self._answer(request, obstacle, now)
                if obstacle is None:
                    self._budget.served(request.container)
                # The others may take a while: nothing waits for their decisions.
                self._runtime.flush()
        # Replaced at once: the thread that brings facts looks here.
        self._waiting = waiting
        self._budget.count(now_s, waits=bool(waiting))

    def _obstacle(
        self, message: CreateContainer | StartContainer, now: Snapshot
    ) -> Obstacle | None:
        if isinstance(message, StartContainer):
            return self._obstacles.to_start(message.container, now)
        return self._obstacles.to_creation(message.container, now)

    def _answer(self, request: _Waiting, obstacle: Obstacle | None, now: Snapshot) -> None:
        message = request.message
        if isinstance(message, StartContainer):
            asked, outcome = "start", self._answers.start(message, obstacle)
        else:
            asked, outcome = "create", self._answers.create(message, obstacle, now)
        self._metrics.nri_answered(asked, outcome, self._now_s() - request.came_s)

    def _end(self, identifier: ContainerID) -> None:
        self._answers.ended(identifier)
        ended = [waiting for waiting in self._waiting if waiting.message.container.id == identifier]
        for waiting in ended:
            self._waiting.remove(waiting)
            self._runtime.refuse(waiting.message, f"container {identifier} has ended meanwhile")


def _appeared(message: Message) -> Iterator[RuntimeContainer]:
    match message:
        case Synchronize(sandboxes=sandboxes):
            yield from sandboxes
            yield from (run.known for run in message.running if run.known is not None)
        case CreateContainer(sandbox=sandbox, container=container):
            yield from filter(None, (sandbox, container.known))
        case UpdateContainer(container=container) if container.known is not None:
            yield container.known
        case SandboxStarted(sandbox=sandbox):
            yield sandbox


def _disappeared(message: Message) -> Iterator[ContainerID]:
    match message:
        case Ended(id=identifier) | SandboxRemoved(id=identifier):
            yield identifier
