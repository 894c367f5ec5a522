"""The NRI plugin: decides what the container runtime hears before it starts a container.

Every answer comes from what is known: the container's own annotations, then memory. Where the
kubelet's word is missing, the cpusetter is asked to get it, and the answer waits, for a part of the
time after which a runtime drops a plugin. So it does where another pod still has the container's
CPUs. The API server is never asked.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING, Final

from cpupool.core.assignments import Placement
from cpupool.core.errors import RemoteProtocolError
from cpupool.core.quota import PERIOD_US, UNLIMITED_US, Bandwidth
from cpupool.enforce import notices
from cpupool.host.files import DirectoryWatch
from cpupool.roles.wait_budget import WaitBudget
from cpupool.runtime.nri_messages import (
    Adjustment,
    Configured,
    CreateContainer,
    Ended,
    SandboxRemoved,
    SandboxStarted,
    Synchronize,
    Update,
    UpdateContainer,
)
from cpupool.telemetry import log as logs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from cpupool.core.assignments import CPUAssignment
    from cpupool.core.cpuset import CPUSet
    from cpupool.core.workloads import ContainerID, Pod, RuntimeContainer
    from cpupool.manager.facts import ContainerKey
    from cpupool.manager.manager import Manager
    from cpupool.manager.ports import EventSink
    from cpupool.manager.resolve import Snapshot
    from cpupool.runtime.nri import NRIRuntime
    from cpupool.runtime.nri_messages import Message, NRIContainer
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


class MissingFacts(Enum):
    """How to treat a container whose devices are unknown, or whose CPUs another pod has."""

    HOLD = "hold"
    """It is not created; the kubelet tries again."""
    RELEASE = "release"
    """It starts in the default pool, and is moved once it can have its CPUs."""


@dataclass(frozen=True, slots=True)
class _Waiting:
    """A container that is to be created.

    Attributes:
        message: what the runtime says of it.
        came_s: when that came.
        until_s: when it is answered at the latest; None before it is known that it must wait.
    """

    message: CreateContainer
    came_s: float
    until_s: float | None = None

    def begun(self, budget: WaitBudget, now_s: float) -> _Waiting:
        """Return it with its time to wait."""
        if self.until_s is not None:
            return self
        deadline_s = min(self.message.deadline_s or _DEADLINE_S, _DEADLINE_S)
        known = self.message.container.known
        # The kubelet's next try has another id.
        container = known and (known.pod, known.name)
        return replace(self, until_s=budget.until_s(container, self.came_s + deadline_s / 2, now_s))


@dataclass(frozen=True, slots=True)
class _Lack:
    """Why a container cannot have its CPUs.

    Attributes:
        pod: its pod, where that is known.
        why: the fact.
        remedy: what to do if that lasts.
    """

    pod: Pod | None
    why: str
    remedy: str

    @property
    def essential(self) -> bool:
        """Whether the node may need the container to work."""
        return self.pod is not None and self.pod.essential


class NRIPlugin:
    """Answers the container runtime; one thread runs it.

    Args:
        manager: decides where each container belongs.
        runtime: the container runtime.
        required: containers must be created this way, so that the node is not ready without.
        missing_facts: how to treat a container whose devices are unknown, or whose CPUs another pod
            has.
        ready: whether the owner of each CPU is known.
        look: asks for a sweep, which also gets the kubelet's word.
        appears: the folder in which the runtime makes its socket; None not to watch for that.
        events: where pods' owners learn that a container is held, or released.
        metrics: where requests are counted.
        health: hears that the loop turns.
        now_s: a monotonic clock.
    """

    def __init__(
        self,
        manager: Manager,
        runtime: NRIRuntime,
        *,
        required: bool = False,
        missing_facts: MissingFacts,
        ready: Callable[[], bool],
        look: Callable[[], None],
        appears: Path | None = None,
        events: EventSink,
        metrics: Metrics,
        health: Health,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._manager = manager
        self._runtime = runtime
        self._required = required
        self._missing_facts = missing_facts
        self._ready = ready
        self._look = look
        self._watch = None if appears is None else DirectoryWatch(appears, self._appeared)
        self._events = events
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
                    self._rest(_LOOK_S)
                    continue
                self._attempt(stop)
        finally:
            if self._watch:
                self._watch.stop()

    def wake(self) -> None:
        """Let the loop notice that it shall stop, or that it may connect now."""
        self._woken.set()
        self._runtime.wake()

    def facts_changed(self) -> None:
        """Look again at what waits for facts."""
        if self._waiting:
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
                if asked:
                    self._look()
        finally:
            self._waiting = []
            self._budget.count(self._now_s(), waits=False)

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
            case CreateContainer():
                self._waiting.append(_Waiting(message, came_s))
            case UpdateContainer():
                self._answer_update(message, came_s)
            case Ended():
                self._end(message.container.id)
            case _:
                # Sandboxes are the manager's only, and a runtime that goes down hangs up.
                pass

    def _synchronize(self, message: Synchronize) -> None:
        corrections = self._corrections(self._manager.snapshot())
        self._runtime.answer_synchronize(message, corrections)
        self._lost_why, self._attempts = "", 0
        self._tell_connected()
        log.info("NRI connected", containers=len(self._runtime.containers))

    def _answer_waiting(self) -> None:
        now_s = self._now_s()
        waiting = []
        for came in self._waiting:
            now = self._manager.snapshot()
            lacking = self._lacking(came.message.container, now)
            request = came.begun(self._budget, now_s) if lacking else came
            if request.until_s is not None and lacking and now_s < request.until_s:
                waiting.append(request)
            else:
                outcome = self._answer_create(request.message, lacking, now)
                self._metrics.nri_answered("create", outcome, self._now_s() - request.came_s)
                # The others may take a while: nothing waits for their decisions.
                self._runtime.flush()
        # Replaced at once: the thread that brings facts looks here.
        self._waiting = waiting
        self._budget.count(now_s, waits=bool(waiting))

    def _lacking(self, container: NRIContainer, now: Snapshot) -> _Lack | None:
        """Return what keeps a container that requests pools from its CPUs."""
        key = container.key
        if key is None or container.known is None:
            return None
        pod = now.resolution.pods.get(key[0])
        if container.known.devices and not (self._ready() or now.facts.configured):
            return _Lack(pod, "this node's pools are not known yet", "look at the agent's log")
        assignment = now.assignment(key)
        if assignment.cause is None or not assignment.cause.may_pass:
            return None
        return _Lack(pod, assignment.reason, notices.remedy(assignment.cause))

    def _answer_create(self, message: CreateContainer, lacking: _Lack | None, now: Snapshot) -> str:
        """Answer, and return the outcome as a word."""
        container = message.container
        if lacking:
            # What the node may need to work is never held.
            held = self._missing_facts is MissingFacts.HOLD and not lacking.essential
            why = _refusal(container, lacking) if held else _release(container, lacking)
            if lacking.pod:
                event = "CPUContainerHeld" if held else "CPUContainerReleased"
                self._events.pod(lacking.pod, event, why)
            if held:
                self._runtime.refuse_create(message, why)
                self._manager.forget_containers([container.id])
                return "held"
        wanted = self._wanted(container.key, now)
        if wanted is None:
            self._runtime.answer_create(message, None)
            return "unchanged"
        adjustment = Adjustment(
            wanted.cpus,
            _bandwidth(wanted, container.cpu.quota_us, container.cpu.period_us),
            {
                name: value
                for name, value in wanted.environment.items()
                if container.environment.get(name) != value
            },
        )
        updates = list(self._corrections(now, near=wanted.exclusive)) if wanted.exclusive else []
        self._runtime.answer_create(message, adjustment, updates)
        return wanted.placement.value

    def _answer_update(self, message: UpdateContainer, came_s: float) -> None:
        """Keep a container on its CPUs, whatever an update by another program sets.

        cpupool's own call passes as it is: where the container belongs may not be free yet.
        """
        container, outcome, update = message.container, "unchanged", None
        wanted = self._wanted(container.key, self._manager.snapshot())
        if wanted is not None and not self._runtime.expects(message):
            outcome = wanted.placement.value
            # Neither None nor 0 changes what the container has.
            asked, has = message.asked, container.cpu
            bandwidth = _bandwidth(
                wanted, asked.quota_us or has.quota_us, asked.period_us or has.period_us
            )
            update = Update(container.id, wanted.cpus, bandwidth)
        self._runtime.answer_update(message, update)
        self._metrics.nri_answered("update", outcome, self._now_s() - came_s)

    def _end(self, identifier: ContainerID) -> None:
        ended = [waiting for waiting in self._waiting if waiting.message.container.id == identifier]
        for waiting in ended:
            self._waiting.remove(waiting)
            self._runtime.refuse_create(
                waiting.message, f"container {identifier} has ended meanwhile"
            )

    def _corrections(self, now: Snapshot, near: CPUSet | None = None) -> Iterator[Update]:
        """Move the containers that the runtime has on other CPUs than they belong on.

        Args:
            now: where they belong.
            near: only those that are on one of these CPUs; None for all.
        """
        for identifier, container in self._runtime.containers.items():
            # The cpusetter has the containers that run and for which the runtime has no CPUs.
            if container.started and not container.cpus:
                continue
            wanted = self._wanted(container.key, now)
            if wanted is None or wanted.cpus == container.cpus:
                continue
            if near is None or not near.isdisjoint(container.cpus):
                container.cpus = wanted.cpus
                yield Update(identifier, wanted.cpus)

    def _wanted(self, key: ContainerKey | None, now: Snapshot) -> CPUAssignment | None:
        """Return where a container belongs; None where that is not known well enough."""
        if key is None:
            return None
        assignment = now.assignment(key)
        known = self._ready() or assignment.placement in {Placement.POOLS, Placement.POLICY}
        return assignment if known and assignment.cpus else None


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
        case Ended(container=container):
            yield container.id
        case SandboxRemoved(id=identifier):
            yield identifier


def _bandwidth(
    wanted: CPUAssignment, quota_us: int | None, period_us: int | None
) -> Bandwidth | None:
    """Return the CPU time that a container starts with; None for no change."""
    asked = Bandwidth(quota_us or UNLIMITED_US, period_us or PERIOD_US)
    start = asked if wanted.limit is None else wanted.limit.start(asked)
    return None if start == asked else start


def _refusal(container: NRIContainer, lacking: _Lack) -> str:
    return (
        f"container {_name(container)} is held: {lacking.why}; the kubelet tries again. If it stays"
        f" so, {lacking.remedy}; --nri-missing-facts=release would start it in the default pool"
    )


def _release(container: NRIContainer, lacking: _Lack) -> str:
    return (
        f"container {_name(container)} starts in the default pool: {lacking.why}; it is moved when"
        f" that has changed. If it stays so, {lacking.remedy}"
    )


def _name(container: NRIContainer) -> str:
    known = container.known
    return f"{known.namespace}/{known.pod_name}/{known.name}" if known else container.id
