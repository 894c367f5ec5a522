"""The conversation with the container runtime: it takes the reports, and answers the calls.

Every response comes from known facts: first the container's own annotations, then the facts in
memory. If the kubelet has not named the devices yet, the conversation asks the cpusetter for them,
and the response waits. It waits at most half of the time after which a runtime drops a plugin. A
response waits in the same way while another pod still has the container's CPUs. No response needs
the API server.

Containerd does not report that the update of another container has failed. So the plugin reads the
cgroups again before the first instruction of a container with CPUs of its own.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from cpupool.core.errors import PlacementError
from cpupool.core.workloads import ContainerRef
from cpupool.runtime.nri import resizing
from cpupool.runtime.nri.messages import (
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
from cpupool.runtime.nri.wait_budget import WaitBudget, longest_s
from cpupool.telemetry import log as logs

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator

    from cpupool.core.workloads import ContainerID, RuntimeContainer
    from cpupool.manager.manager import Manager
    from cpupool.manager.resolve import Snapshot
    from cpupool.runtime.nri.adapter import NRIRuntime
    from cpupool.runtime.nri.holding import Obstacle, Obstacles
    from cpupool.runtime.nri.messages import Message
    from cpupool.runtime.nri.responses import Responses
    from cpupool.telemetry.metrics import Metrics

log = logs.get(__name__)

_IDLE_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class _Waiting:
    """A request to create or start a container.

    Attributes:
        message: the runtime's message.
        came_s: the time of the message.
        until_s: the latest time of the response; None before it is known that it must wait.
    """

    message: CreateContainer | StartContainer
    came_s: float
    until_s: float | None = None

    @property
    def container(self) -> Hashable:
        """The key that stays the same when the kubelet tries again, with another id."""
        known = self.message.container.known
        return known and (known.pod, known.name, type(self.message))

    def begun(self, budget: WaitBudget, now_s: float, *, soon: bool) -> _Waiting:
        """Return it with the end of its wait, which is short if the missing fact comes soon."""
        if self.until_s is not None:
            return self
        latest_s = self.came_s + longest_s(self.message.deadline_s)
        return replace(self, until_s=budget.until_s(self.container, latest_s, now_s, soon=soon))


class Conversation:
    """Takes the runtime's messages, and answers them; one thread calls it.

    Args:
        manager: decides where each container belongs.
        runtime: the container runtime.
        obstacles: finds the reasons to hold a container.
        responses: makes the responses about single containers.
        look: asks for a sweep, which also asks the kubelet.
        metrics: counts requests.
        decided: returns the decisions, once their choices are recorded; None for no record.
        now_s: a monotonic clock.
        unix_s: the wall clock.
    """

    def __init__(
        self,
        manager: Manager,
        runtime: NRIRuntime,
        obstacles: Obstacles,
        responses: Responses,
        *,
        look: Callable[[], None],
        metrics: Metrics,
        decided: Callable[[], Snapshot] | None = None,
        now_s: Callable[[], float] = time.monotonic,
        unix_s: Callable[[], float] = time.time,
    ) -> None:
        self._manager = manager
        self._runtime = runtime
        self._obstacles = obstacles
        self._responses = responses
        self._look = look
        self._metrics = metrics
        self._decided = decided or manager.snapshot
        self._now_s = now_s
        self._unix_s = unix_s
        self._waiting: list[_Waiting] = []
        self._budget = WaitBudget()

    @property
    def waits(self) -> bool:
        """Whether the runtime waits for a response; any thread may ask."""
        return bool(self._waiting)

    def turn(self, connected: Callable[[], None]) -> None:
        """Wait for a message of the runtime, or until a response is due; then answer.

        Args:
            connected: called once the runtime has named all its containers.

        Raises:
            RemoteProtocolError: the runtime cannot be reached any more.
        """
        with self._runtime.turn(self._patience_s()) as messages:
            came_s = self._now_s()
            self._tell(messages)
            for message in messages:
                self._hear(message, came_s, connected)
            self._answer_waiting()
            asked = bool(messages and self._waiting)
        # When the responses are out: a sweep competes with them for the interpreter.
        if self._responses.take_look() or asked:
            self._look()
        if any(isinstance(message, SandboxStarted) for message in messages):
            # A policy has chosen for the new pod, and nothing waits for the record yet.
            self._decided()

    def end(self) -> None:
        """Forget the runtime's requests, because the runtime is gone."""
        self._waiting = []
        self._budget.count(self._now_s(), waits=False)

    def _patience_s(self) -> float:
        if not self._waiting:
            return _IDLE_S
        until_s = min(waiting.until_s or waiting.came_s for waiting in self._waiting)
        return max(0.0, until_s - self._now_s())

    def _tell(self, messages: list[Message]) -> None:
        """Pass all changes of containers to the manager in one call, so that it decides once."""
        # The runtime's list lacks the container that it is about to create.
        current = (*(waiting.message for waiting in self._waiting), *messages)
        found = [container for message in current for container in _appeared(message)]
        every = any(isinstance(message, Synchronize) for message in messages)
        if found or every:
            self._manager.observe_containers(found, every=every)
        if gone := [id_ for message in messages for id_ in _disappeared(message)]:
            self._manager.forget_containers(gone)

    def _hear(self, message: Message, came_s: float, connected: Callable[[], None]) -> None:
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
                corrections = self._responses.corrections(self._decided())
                self._runtime.answer_synchronize(message, corrections)
                connected()
            case CreateContainer() | StartContainer():
                if isinstance(message, CreateContainer) and (known := message.container.known):
                    # After a resize the kubelet may create it again, as its pod's author wishes.
                    ref, count = ContainerRef(known.pod, known.name), known.owns or 0
                    self._manager.begin(ref, count, int(self._unix_s()))
                self._waiting.append(_Waiting(message, came_s))
            case Started():
                self._responses.started(message.container)
            case UpdateContainer():
                outcome = self._update(message)
                self._metrics.nri_answered("update", outcome, self._now_s() - came_s)
            case Ended():
                self._end(message.id)
            case _:
                # Sandboxes are the manager's only, and a runtime that goes down hangs up.
                pass

    def _answer_waiting(self) -> None:
        now_s = self._now_s()
        waiting = []
        for came in self._waiting:
            now = self._decided()
            obstacle = self._obstacle(came.message, now)
            request, passes = came, obstacle is not None and not obstacle.refusal
            if obstacle and passes:
                request = came.begun(self._budget, now_s, soon=obstacle.soon)
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
            asked, outcome = "start", self._responses.start(message, obstacle)
        else:
            asked, outcome = "create", self._responses.create(message, obstacle, now)
        self._metrics.nri_answered(asked, outcome, self._now_s() - request.came_s)

    def _update(self, message: UpdateContainer) -> str:
        """Answer an update, which may ask for another number of own CPUs; return the outcome."""
        known, before = message.container.known, self._decided()
        if known is None or self._runtime.expects(message):
            return self._responses.update(message, before)
        try:
            count = resizing.asked(message, before)
            if count is not None:
                ref = ContainerRef(known.pod, known.name)
                self._manager.resize(ref, count, int(self._unix_s()))
        except PlacementError as error:
            return self._responses.refuse_resize(message, error, before)
        if message.owns not in {None, known.owns}:
            self._manager.observe_containers([replace(known, owns=message.owns)])
        had = None if count is None else before.assignment((known.pod, known.id)).exclusive
        return self._responses.update(message, self._decided(), had)

    def _end(self, identifier: ContainerID) -> None:
        self._responses.ended(identifier)
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
