"""The NRI plugin: tells the container runtime each container's CPUs before it starts it.

Every answer comes from what is known: the container's own annotations, then memory. Where the
kubelet's word is missing, the cpusetter is asked to get it, and the answer waits, for a part of the
time after which a runtime drops a plugin. The API server is never asked.

One long class, since all of it is about one conversation and what that has told of containers,
under one lock.
"""

from __future__ import annotations

import threading
import time
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Final

from cpupool.core.assignments import Cause, Placement
from cpupool.core.cpuset import CPUSet
from cpupool.core.errors import (
    ContainerNotFound,
    CPUSetParseError,
    RemoteProtocolError,
    RuntimeBusy,
    RuntimeRefused,
)
from cpupool.core.quota import PERIOD_US, UNLIMITED_US, Bandwidth
from cpupool.runtime.nri_connection import Connection
from cpupool.runtime.nri_messages import (
    Adjustment,
    Configured,
    ContainerState,
    CreateContainer,
    Ended,
    SandboxRemoved,
    SandboxStarted,
    Started,
    Synchronize,
    Update,
    UpdateContainer,
    Updated,
)
from cpupool.runtime.nri_session import Session
from cpupool.telemetry import log as logs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from cpupool.core.assignments import CPUAssignment
    from cpupool.core.workloads import ContainerID, RuntimeContainer
    from cpupool.manager.manager import Manager
    from cpupool.manager.resolve import ContainerKey
    from cpupool.runtime.nri_connection import Launch
    from cpupool.runtime.nri_messages import Message, NRIContainer
    from cpupool.telemetry.health import Health
    from cpupool.telemetry.metrics import Metrics

log = logs.get(__name__)

NAME: Final = "nri plugin"
_PLUGIN: Final = "cpupool"
_INDEX: Final = "50"
"""Its place among the runtime's plugins. Any will do: no two of them may set a container's CPUs."""
_DEADLINE_S: Final = 2.0
"""As long as a runtime usually waits for an answer. Half of it may pass for the kubelet's word."""
_REACHED_S: Final = 2.0
_UPDATED_S: Final = 5.0
_FIRST_PAUSE_S: Final = 0.1
_LAST_PAUSE_S: Final = 5.0
_LOOK_S: Final = 30.0


class MissingFacts(Enum):
    """What becomes of a container whose devices nobody can name."""

    HOLD = "hold"
    """It is not created; the kubelet tries again."""
    RELEASE = "release"
    """It starts in the default pool, and is moved once its devices are known."""


@dataclass(slots=True)
class _Container:
    """A container that the runtime has.

    Attributes:
        key: the ids in its cgroup's path.
        cpus: those that the runtime has for it; none where it has no list.
        started: it runs, or could: the runtime has brought it onto its CPUs.
    """

    key: ContainerKey
    cpus: CPUSet
    started: bool


@dataclass(frozen=True, slots=True)
class _Waiting:
    """A container that is to be created, since when, and when it is answered at the latest."""

    message: CreateContainer
    came_s: float
    until_s: float

    @classmethod
    def since(cls, message: CreateContainer, now_s: float) -> _Waiting:
        deadline_s = message.deadline_s or _DEADLINE_S
        return cls(message, now_s, now_s + min(deadline_s, _DEADLINE_S) / 2)


@dataclass(slots=True)
class _Move:
    """What the runtime has been asked for, and its answer once that has come."""

    update: Update
    answer: Updated | None = None


class NRIPlugin:
    """Answers the container runtime, and reaches it; satisfies `manager.ports.ContainerRuntime`.

    One thread runs it; any thread may call the methods of the port and `wake`.

    Args:
        manager: decides where each container belongs.
        socket: where the runtime takes plugins.
        launch: how the runtime has started this process as its plugin; None where it has not.
        required: containers must be created this way, so that the node is not ready without.
        missing_facts: what becomes of a container whose devices nobody can name.
        ready: whether it is known who owns which CPU.
        look: asks for a sweep, which also gets the kubelet's word.
        metrics: where requests are counted.
        health: hears that the loop turns.
        now_s: a monotonic clock.
    """

    def __init__(
        self,
        manager: Manager,
        socket: Path,
        *,
        launch: Launch | None = None,
        required: bool = False,
        missing_facts: MissingFacts,
        ready: Callable[[], bool],
        look: Callable[[], None],
        metrics: Metrics,
        health: Health,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._manager = manager
        self._socket = socket
        self._launch = launch
        self._required = required
        self._missing_facts = missing_facts
        self._ready = ready
        self._look = look
        self._metrics = metrics
        self._health = health
        self._now_s = now_s
        self._changed = threading.Condition()
        self._session: Session | None = None
        self._connection: Connection | None = None
        self._synchronized = False
        self._containers: dict[ContainerID, _Container] = {}
        self._waiting: list[_Waiting] = []
        self._moves: dict[int, _Move] = {}
        self._pause_s = _FIRST_PAUSE_S
        self._lost_why = ""
        self._woken = threading.Event()

    def run(self, stop: threading.Event) -> None:
        """Converse with the runtime until `stop` is set; `wake` after setting it returns at once.

        Raises:
            RemoteProtocolError: the runtime that has started this process has ended.
        """
        while not stop.is_set():
            self._health.beat(NAME)
            # Whoever corrects containers without knowing who owns which CPU takes them from owners.
            if not (self._launch or self._ready()):
                self._rest(_LOOK_S)
                continue
            try:
                with closing(self._reach()) as connection, self._attached(connection) as session:
                    self._converse(connection, session, stop)
            except RemoteProtocolError as error:
                self._tell_lost(str(error))
                if self._launch:
                    raise
            self._rest(self._pause_s)
            self._pause_s = min(2 * self._pause_s, _LAST_PAUSE_S)

    def wake(self) -> None:
        """Let the loop notice that it shall stop, or that it may connect now."""
        self._woken.set()
        with self._changed:
            if self._connection is not None:
                self._connection.wake()

    def facts_changed(self) -> None:
        """Look again at what waits for facts."""
        if self._waiting:
            self.wake()

    def connected(self) -> bool:
        """Tell whether the runtime has named its containers, and hears of their CPUs."""
        return self._synchronized

    def held(self, container: ContainerID) -> str | None:
        """Give the CPU list that the runtime has for a container, as far as it has told."""
        known = self._containers.get(container)
        return str(known.cpus) if known else None

    def starting(self, container: ContainerID) -> bool:
        """Tell whether the runtime has been told its CPUs and is still bringing it onto them."""
        known = self._containers.get(container)
        return known is not None and not known.started

    def update(self, container: ContainerID, cpus: CPUSet) -> None:
        """Let the runtime set a container's CPUs.

        Raises:
            ContainerNotFound: the runtime has never named it, or it has ended.
            RuntimeBusy: a request of the runtime waits for its answer.
            RuntimeRefused: it did not, or does not answer.
        """
        self._move(Update(container, cpus, ignore_failure=False), f"CPUs {cpus}")

    def limit(self, container: ContainerID, bandwidth: Bandwidth) -> None:
        """Let the runtime set how long a container may run in each period.

        Raises:
            ContainerNotFound: the runtime has never named it, or it has ended.
            RuntimeBusy: a request of the runtime waits for its answer.
            RuntimeRefused: it did not, or does not answer.
        """
        update = Update(container, CPUSet(), bandwidth, ignore_failure=False)
        self._move(update, f"the CPU quota {bandwidth}")

    def _move(self, update: Update, what: str) -> None:
        """Ask the runtime for a change, and wait for its answer.

        Never while a request of the runtime waits for its answer: older runtimes would wait for
        each other then (containerd/nri, before 0.12.1).
        """
        container = update.container
        with self._changed:
            if container not in self._containers:
                raise ContainerNotFound(container)
            if self._waiting:
                raise RuntimeBusy(container, what, "it waits for an answer itself")
            session = self._session
            if session is None or not self._synchronized:
                raise RuntimeRefused(
                    container, what, "NRI is not connected; look at the log for why"
                )
            move = _Move(update)
            self._moves[session.update([update])] = move
            try:
                self._flush()
            except RemoteProtocolError as error:
                raise RuntimeRefused(container, what, str(error)) from error
            # A container that waits for facts waits for the caller, too.
            self._changed.wait_for(
                lambda: move.answer or self._waiting or self._session is not session, _UPDATED_S
            )
            if move.answer is None and self._waiting:
                raise RuntimeBusy(container, what, "it waits for an answer itself")
            if move.answer is None:
                raise RuntimeRefused(container, what, "it does not answer; look at its log")
            if move.answer.error or move.answer.failed:
                raise RuntimeRefused(container, what, move.answer.error or "look at its log")

    def _rest(self, pause_s: float) -> None:
        self._woken.wait(pause_s)
        # Before the next look at what there is to notice.
        self._woken.clear()

    def _reach(self) -> Connection:
        if self._launch:
            return Connection.inherited(self._launch.fd)
        return Connection.to(self._socket, _REACHED_S)

    @contextmanager
    def _attached(self, connection: Connection) -> Iterator[Session]:
        name, index = (self._launch.name, self._launch.index) if self._launch else (_PLUGIN, _INDEX)
        session = Session(name, index, self._manager.names)
        try:
            with self._changed:
                self._session, self._connection = session, connection
                session.register()
                self._flush()
            yield session
        finally:
            with self._changed:
                lost, self._synchronized = self._synchronized, False
                self._session = self._connection = None
                self._waiting.clear()
                self._moves.clear()
                self._start_all()
                self._changed.notify_all()
            if lost:
                self._look()

    def _converse(self, connection: Connection, session: Session, stop: threading.Event) -> None:
        while not stop.is_set():
            self._health.beat(NAME)
            data = connection.receive(self._patience_s())
            if data == b"":
                raise RemoteProtocolError("the container runtime has ended the NRI connection")
            with self._changed:
                came_s = self._now_s()
                messages = session.receive(data) if data else []
                self._tell(messages)
                for message in messages:
                    self._hear(session, message, came_s)
                self._answer_waiting(session)
                self._flush()
                self._changed.notify_all()
                asked = bool(messages and self._waiting)
            if asked:
                self._look()

    def _tell_lost(self, why: str) -> None:
        if self._lost_why != why:
            self._lost_why = why
            tell = log.warning if self._required else log.info
            tell("NRI is not connected", reason=why)
        self._tell_connected(why)

    def _tell_connected(self, why: str = "") -> None:
        self._metrics.nri_connected(connected=self._synchronized)
        if self._required:
            self._health.set(NAME, ok=self._synchronized, message=why or "it is connecting; wait")

    def _flush(self) -> None:
        if self._session is not None and self._connection is not None:
            data = self._session.outgoing()
            if data:
                self._connection.send(data)

    def _patience_s(self) -> float:
        if not self._waiting:
            return _LOOK_S
        return max(0.0, min(one.until_s for one in self._waiting) - self._now_s())

    def _tell(self, messages: list[Message]) -> None:
        """Tell the manager of all that has come and gone at once, so that it decides once."""
        # The runtime does not name what it is about to create among what it has.
        heard = (*(one.message for one in self._waiting), *messages)
        found = [one for message in heard for one in _come(message)]
        every = any(isinstance(message, Synchronize) for message in messages)
        if found or every:
            self._manager.sight(found, every=every)
        if gone := [one for message in messages for one in _gone(message)]:
            self._manager.lose_sight(gone)

    def _hear(self, session: Session, message: Message, came_s: float) -> None:
        match message:
            case Configured():
                log.info("NRI runtime", runtime=message.runtime, version=message.version)
            case Synchronize():
                self._synchronize(session, message)
            case CreateContainer():
                self._waiting.append(_Waiting.since(message, came_s))
            case UpdateContainer():
                self._answer_update(session, message, came_s)
            case Started():
                self._started(message.container.id)
            case Ended():
                self._end(session, message.container.id)
            case Updated():
                self._moved(message)
            case _:
                # Sandboxes are the manager's only, and a runtime that goes down hangs up.
                pass

    def _synchronize(self, session: Session, message: Synchronize) -> None:
        self._containers = {
            one.id: _Container(
                key, _cpus(one.cpu.cpus), started=one.state is not ContainerState.CREATED
            )
            for one in _running(message)
            if (key := _key(one)) is not None
        }
        session.answer_synchronize(message.call, self._corrections())
        # CRI-O and older versions of containerd may have told of a start before this.
        self._start_all()
        self._synchronized, self._lost_why, self._pause_s = True, "", _FIRST_PAUSE_S
        self._tell_connected()
        log.info("NRI connected", containers=len(self._containers))
        self._look()

    def _answer_waiting(self, session: Session) -> None:
        now_s = self._now_s()
        waiting = []
        for one in self._waiting:
            lacking = self._lacking(one.message.container)
            if lacking and now_s < one.until_s:
                waiting.append(one)
            else:
                outcome = self._answer_create(session, one.message, lacking)
                self._metrics.nri_answered("create", outcome, self._now_s() - one.came_s)
                self._flush()
        # Replaced at once: whoever brings facts looks here from another thread.
        self._waiting = waiting

    def _lacking(self, container: NRIContainer) -> str:
        """Say what must be known before a container that requests pools can be created."""
        key = _key(container)
        if key is None or container.known is None:
            return ""
        if container.known.devices and not (self._ready() or self._manager.state()[0].configured):
            return "this node's pools are not known yet"
        assignment = self._assignment(key)
        return assignment.reason if assignment.cause is Cause.NO_DEVICES else ""

    def _answer_create(self, session: Session, message: CreateContainer, lacking: str) -> str:
        """Answer, and give the outcome in one word."""
        container = message.container
        if lacking and self._missing_facts is MissingFacts.HOLD:
            session.refuse(message.call, _refusal(container, lacking))
            self._manager.lose_sight([container.id])
            return "held"
        key = _key(container)
        wanted = None if key is None else self._wanted(key)
        if key is None or wanted is None:
            session.answer_create(message.call, None)
            if key is not None:
                has = _cpus(container.cpu.cpus)
                self._containers[container.id] = _Container(key, has, started=True)
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
        updates = list(self._corrections(near=wanted.exclusive)) if wanted.exclusive else []
        session.answer_create(message.call, adjustment, updates)
        self._containers[container.id] = _Container(key, wanted.cpus, started=False)
        return wanted.placement.value

    def _answer_update(self, session: Session, message: UpdateContainer, came_s: float) -> None:
        """Keep a container on its CPUs, whoever updates it with whatever in mind."""
        outcome = "unchanged"
        updates: list[Update] = []
        key = _key(message.container)
        wanted = None if key is None else self._wanted(key)
        if key is not None and wanted is not None:
            outcome = wanted.placement.value
            # Neither None nor 0 changes what the container has.
            asked, has = message.asked, message.container.cpu
            bandwidth = _bandwidth(
                wanted, asked.quota_us or has.quota_us, asked.period_us or has.period_us
            )
            updates.append(Update(message.container.id, wanted.cpus, bandwidth))
            self._containers[message.container.id] = _Container(
                key, wanted.cpus, started=not self.starting(message.container.id)
            )
        session.answer_update(message.call, updates)
        self._metrics.nri_answered("update", outcome, self._now_s() - came_s)

    def _started(self, identifier: ContainerID) -> None:
        container = self._containers.get(identifier)
        if container is not None:
            container.started = True
            self._look()

    def _start_all(self) -> None:
        """Judge each container as it is found: nobody may tell any more that it has started."""
        for container in self._containers.values():
            container.started = True

    def _end(self, session: Session, identifier: ContainerID) -> None:
        self._containers.pop(identifier, None)
        for one in [one for one in self._waiting if one.message.container.id == identifier]:
            self._waiting.remove(one)
            session.refuse(one.message.call, f"container {identifier} has ended meanwhile")

    def _moved(self, answer: Updated) -> None:
        move = self._moves.pop(answer.call, None)
        if move is None:
            return
        move.answer = answer
        container = self._containers.get(move.update.container)
        moved = move.update.cpus and not (answer.error or answer.failed)
        if container is not None and moved:
            container.cpus = move.update.cpus

    def _corrections(self, near: CPUSet | None = None) -> Iterator[Update]:
        """Move the containers that the runtime has on other CPUs than they belong on.

        Args:
            near: only those that are on one of these CPUs; None for all.
        """
        for identifier, container in self._containers.items():
            # One that runs, and whose CPUs the runtime does not have, is the cpusetter's.
            if container.started and not container.cpus:
                continue
            wanted = self._wanted(container.key)
            if wanted is None or wanted.cpus == container.cpus:
                continue
            if near is None or not near.isdisjoint(container.cpus):
                container.cpus = wanted.cpus
                yield Update(identifier, wanted.cpus)

    def _wanted(self, key: ContainerKey) -> CPUAssignment | None:
        """Say where a container belongs; None where that is not known well enough."""
        assignment = self._assignment(key)
        known = self._ready() or assignment.placement is Placement.POOLS
        return assignment if known and assignment.cpus else None

    def _assignment(self, key: ContainerKey) -> CPUAssignment:
        return self._manager.state()[1].assignment(key)


def _come(message: Message) -> Iterator[RuntimeContainer]:
    match message:
        case Synchronize(sandboxes=sandboxes):
            yield from sandboxes
            yield from (one.known for one in _running(message) if one.known is not None)
        case CreateContainer(sandbox=sandbox, container=container):
            yield from (one for one in (sandbox, container.known) if one is not None)
        case UpdateContainer(container=container) if container.known is not None:
            yield container.known
        case SandboxStarted(sandbox=sandbox):
            yield sandbox


def _gone(message: Message) -> Iterator[ContainerID]:
    match message:
        case Ended(container=container):
            yield container.id
        case SandboxRemoved(id=identifier):
            yield identifier


def _running(message: Synchronize) -> Iterator[NRIContainer]:
    return (one for one in message.containers if one.state is not ContainerState.STOPPED)


def _key(container: NRIContainer) -> ContainerKey | None:
    return None if container.known is None else (container.known.pod, container.id)


def _bandwidth(
    wanted: CPUAssignment, quota_us: int | None, period_us: int | None
) -> Bandwidth | None:
    """Say how long a container may run that is to have this quota; None for no change."""
    asked = Bandwidth(quota_us or UNLIMITED_US, period_us or PERIOD_US)
    start = asked if wanted.limit is None else wanted.limit.start(asked)
    return None if start == asked else start


def _cpus(text: str) -> CPUSet:
    with suppress(CPUSetParseError):
        return CPUSet.parse(text)
    return CPUSet()


def _refusal(container: NRIContainer, reason: str) -> str:
    known = container.known
    who = f"{known.namespace}/{known.pod_name}/{known.name}" if known else container.id
    return (
        f"container {who} is held: {reason}; the kubelet tries again. Check that the agent sees the"
        " kubelet's folders, or let it start in the default pool (--nri-missing-facts=release)"
    )
