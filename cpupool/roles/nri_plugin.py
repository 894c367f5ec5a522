"""The NRI plugin: tells the container runtime each container's CPUs before it starts it.

Every answer comes from what is known: the container's own annotations, then memory. Where the
kubelet's word is missing, the cpusetter is asked to get it, and the answer waits, for a part of the
time after which a runtime drops a plugin. So it does where another pod still has the container's
CPUs. The API server is never asked.

One long class, since all of it is about one conversation and what that has told of containers,
under one lock.
"""

from __future__ import annotations

import threading
import time
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING, Final

from cpupool.core.assignments import Placement
from cpupool.core.cpuset import CPUSet
from cpupool.core.errors import (
    ContainerNotFound,
    CPUSetParseError,
    RemoteProtocolError,
    RuntimeBusy,
    RuntimeRefused,
    RuntimeSilent,
)
from cpupool.core.quota import PERIOD_US, UNLIMITED_US, Bandwidth
from cpupool.enforce import notices
from cpupool.roles.wait_budget import WaitBudget
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
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from cpupool.core.assignments import CPUAssignment
    from cpupool.core.workloads import ContainerID, Pod, RuntimeContainer
    from cpupool.manager.facts import ContainerKey
    from cpupool.manager.manager import Manager
    from cpupool.manager.ports import EventSink
    from cpupool.manager.resolve import Snapshot
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
"""As long as a runtime usually waits for an answer. Half of it may pass until one container
can have its CPUs."""
_REACHED_S: Final = 2.0
_UPDATED_S: Final = 0.4
"""The cpusetter has other containers, too; what the runtime answers later counts."""
_GIVEN_UP_S: Final = 5.0
"""How long after an update that is not answered the runtime is asked for another."""
_PAUSES_S: Final = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
"""How long to wait after each attempt to reach the runtime; the last counts for all that follow."""
_LOOK_S: Final = 30.0
_WAITS_ITSELF: Final = "it waits for an answer itself"


class MissingFacts(Enum):
    """What becomes of a container whose devices are unknown, or whose CPUs another pod has."""

    HOLD = "hold"
    """It is not created; the kubelet tries again."""
    RELEASE = "release"
    """It starts in the default pool, and is moved once it can have its CPUs."""


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


@dataclass(slots=True)
class _Move:
    """What the runtime has been asked for, when, and its answer once that has come.

    Attributes:
        given_up: the caller does not wait for the answer.
    """

    updates: Sequence[Update]
    asked_s: float
    answer: Updated | None = None
    given_up: bool = False


class NRIPlugin:
    """Answers the container runtime, and reaches it; satisfies `manager.ports.BatchingRuntime`.

    One thread runs it; any thread may call the methods of the port and `wake`.

    Args:
        manager: decides where each container belongs.
        socket: where the runtime takes plugins.
        launch: how the runtime has started this process as its plugin; None where it has not.
        required: containers must be created this way, so that the node is not ready without.
        missing_facts: what becomes of a container whose devices are unknown, or whose CPUs another
            pod has.
        ready: whether it is known who owns which CPU.
        look: asks for a sweep, which also gets the kubelet's word.
        events: where pods' owners learn that a container is held, or released.
        metrics: where requests are counted.
        health: hears that the loop turns.
        update_s: how long a caller waits for the runtime's answer to an update.
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
        events: EventSink,
        metrics: Metrics,
        health: Health,
        update_s: float = _UPDATED_S,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._manager = manager
        self._socket = socket
        self._launch = launch
        self._required = required
        self._missing_facts = missing_facts
        self._ready = ready
        self._look = look
        self._events = events
        self._metrics = metrics
        self._health = health
        self._update_s = update_s
        self._now_s = now_s
        self._changed = threading.Condition()
        self._session: Session | None = None
        self._connection: Connection | None = None
        self._synchronized = False
        self._containers: dict[ContainerID, _Container] = {}
        self._waiting: list[_Waiting] = []
        self._budget = WaitBudget()
        self._moves: dict[int, _Move] = {}
        self._may_lock_up = True
        self._expected: dict[ContainerID, CPUSet] = {}
        self._attempts = 0
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
            if self._rest(_PAUSES_S[min(self._attempts, len(_PAUSES_S) - 1)]):
                # A runtime makes its socket before it listens, and may refuse the next attempt.
                self._attempts = 0
            else:
                self._attempts += 1

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

    @property
    def may_lock_up(self) -> bool:
        """Whether a change that the runtime is asked for can lock it up for good."""
        return self._may_lock_up

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
            RuntimeSilent: it does not answer, or has not answered yet what it was asked before.
            RuntimeRefused: it did not.
        """
        self._change(Update(container, cpus, ignore_failure=False), f"CPUs {cpus}")

    def update_all(self, wanted: Mapping[ContainerID, CPUSet]) -> None:
        """Let the runtime set containers' CPUs in one call.

        Raises:
            RuntimeBusy: a request of the runtime waits for its answer.
            RuntimeSilent: it does not answer, or has not answered yet what it was asked before.
            RuntimeRefused: it has done nothing.
        """
        with self._changed:
            updates = [
                Update(container, cpus, ignore_failure=False)
                for container, cpus in wanted.items()
                if container in self._containers
            ]
            if updates:
                self._move(updates, f"CPUs {updates[0].cpus}")

    def limit(self, container: ContainerID, bandwidth: Bandwidth) -> None:
        """Let the runtime set how long a container may run in each period.

        Raises:
            ContainerNotFound: the runtime has never named it, or it has ended.
            RuntimeBusy: a request of the runtime waits for its answer.
            RuntimeSilent: it does not answer, or has not answered yet what it was asked before.
            RuntimeRefused: it did not.
        """
        update = Update(container, CPUSet(), bandwidth, ignore_failure=False)
        self._change(update, f"the CPU quota {bandwidth}")

    @contextmanager
    def expecting(self, container: ContainerID, cpus: CPUSet) -> Iterator[None]:
        """Let a change that cpupool makes over CRI meanwhile pass as it is.

        Args:
            container: what is changed.
            cpus: those that it is given; none where they stay.

        Raises:
            RuntimeBusy: a request of the runtime waits for its answer, and the call would wait for
                the same lock.
        """
        with self._changed:
            if self._waiting:
                what = f"CPUs {cpus}" if cpus else "a CPU quota"
                raise RuntimeBusy(container, what, _WAITS_ITSELF)
            self._expected[container] = cpus
        try:
            yield
            with self._changed:
                if cpus and container in self._containers:
                    self._containers[container].cpus = cpus
        finally:
            with self._changed:
                del self._expected[container]

    def _change(self, update: Update, what: str) -> None:
        with self._changed:
            if update.container not in self._containers:
                raise ContainerNotFound(update.container)
            if self._move([update], what).failed:
                raise RuntimeRefused(update.container, what, "look at its log")

    def _move(self, updates: Sequence[Update], what: str) -> Updated:
        """Ask the runtime for changes, and wait for its answer.

        Never while a request of the runtime waits for its answer: older runtimes would wait for
        each other then (containerd/nri, before 0.12.1).
        """
        container = updates[0].container
        if self._waiting:
            raise RuntimeBusy(container, what, _WAITS_ITSELF)
        session = self._session
        if session is None or not self._synchronized:
            raise RuntimeRefused(container, what, "NRI is not connected; look at the log for why")
        asked_s = self._now_s()
        silent = RuntimeSilent(container, what, "it does not answer; look at its log")
        if any(asked_s < move.asked_s + _GIVEN_UP_S for move in self._moves.values()):
            raise silent
        move = _Move(updates, asked_s)
        # At most one is not answered: of the one before nothing is expected any more.
        self._moves = {session.update(updates): move}
        try:
            self._flush()
        except RemoteProtocolError as error:
            raise RuntimeRefused(container, what, str(error)) from error
        # A container that waits for facts waits for the caller, too.
        self._changed.wait_for(
            lambda: move.answer or self._waiting or self._session is not session,
            self._update_s,
        )
        if move.answer is not None:
            if move.answer.error:
                raise RuntimeRefused(container, what, move.answer.error)
            return move.answer
        move.given_up = True
        if self._waiting:
            raise RuntimeBusy(container, what, _WAITS_ITSELF)
        raise silent

    def _rest(self, pause_s: float) -> bool:
        """Wait for as long; return whether `wake` has ended that."""
        woken = self._woken.wait(pause_s)
        # Before the next look at what there is to notice.
        self._woken.clear()
        return woken

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
                self._budget.count(self._now_s(), waits=False)
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
        until_s = min(one.until_s or one.came_s for one in self._waiting)
        return max(0.0, until_s - self._now_s())

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
                self._may_lock_up = message.may_lock_up
                log.info(
                    "NRI runtime",
                    runtime=message.runtime,
                    version=message.version,
                    nri=message.nri or "older than 0.12",
                )
            case Synchronize():
                self._synchronize(session, message)
            case CreateContainer():
                self._waiting.append(_Waiting(message, came_s))
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
        session.answer_synchronize(message.call, self._corrections(self._manager.snapshot()))
        # CRI-O and older versions of containerd may have told of a start before this.
        self._start_all()
        self._synchronized, self._lost_why, self._attempts = True, "", 0
        self._tell_connected()
        log.info("NRI connected", containers=len(self._containers))
        self._look()

    def _answer_waiting(self, session: Session) -> None:
        now_s = self._now_s()
        waiting = []
        for came in self._waiting:
            now = self._manager.snapshot()
            lacking = self._lacking(came.message.container, now)
            one = came.begun(self._budget, now_s) if lacking else came
            if one.until_s is not None and lacking and now_s < one.until_s:
                waiting.append(one)
            else:
                outcome = self._answer_create(session, one.message, lacking, now)
                self._metrics.nri_answered("create", outcome, self._now_s() - one.came_s)
                self._flush()
        # Replaced at once: whoever brings facts looks here from another thread.
        self._waiting = waiting
        self._budget.count(now_s, waits=bool(waiting))

    def _lacking(self, container: NRIContainer, now: Snapshot) -> _Lack | None:
        """Return what keeps a container that requests pools from its CPUs."""
        key = _key(container)
        if key is None or container.known is None:
            return None
        pod = now.resolution.pods.get(key[0])
        if container.known.devices and not (self._ready() or now.facts.configured):
            return _Lack(pod, "this node's pools are not known yet", "look at the agent's log")
        assignment = now.assignment(key)
        if assignment.cause is None or not assignment.cause.may_pass:
            return None
        return _Lack(pod, assignment.reason, notices.remedy(assignment.cause))

    def _answer_create(
        self, session: Session, message: CreateContainer, lacking: _Lack | None, now: Snapshot
    ) -> str:
        """Answer, and return the outcome in one word."""
        container = message.container
        if lacking:
            # What the node may need to work is never held.
            held = self._missing_facts is MissingFacts.HOLD and not lacking.essential
            told = _refusal(container, lacking) if held else _release(container, lacking)
            if lacking.pod:
                event = "CPUContainerHeld" if held else "CPUContainerReleased"
                self._events.pod(lacking.pod, event, told)
            if held:
                session.refuse(message.call, told)
                self._manager.lose_sight([container.id])
                return "held"
        key = _key(container)
        wanted = None if key is None else self._wanted(key, now)
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
        updates = list(self._corrections(now, near=wanted.exclusive)) if wanted.exclusive else []
        session.answer_create(message.call, adjustment, updates)
        self._containers[container.id] = _Container(key, wanted.cpus, started=False)
        return wanted.placement.value

    def _answer_update(self, session: Session, message: UpdateContainer, came_s: float) -> None:
        """Keep a container on its CPUs, whoever else updates it with whatever in mind.

        cpupool's own call passes as it is: where the container belongs may not be free yet.
        """
        outcome = "unchanged"
        updates: list[Update] = []
        key = _key(message.container)
        wanted = None if key is None else self._wanted(key, self._manager.snapshot())
        own = self._expected.get(message.container.id) == _cpus(message.asked.cpus)
        if key is not None and wanted is not None and not own:
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
        for update in () if answer.error else move.updates:
            container = self._containers.get(update.container)
            if container is not None and update.cpus and update.container not in answer.failed:
                container.cpus = update.cpus
        if move.given_up:
            self._look()

    def _corrections(self, now: Snapshot, near: CPUSet | None = None) -> Iterator[Update]:
        """Move the containers that the runtime has on other CPUs than they belong on.

        Args:
            now: where they belong.
            near: only those that are on one of these CPUs; None for all.
        """
        for identifier, container in self._containers.items():
            # One that runs, and whose CPUs the runtime does not have, is the cpusetter's.
            if container.started and not container.cpus:
                continue
            wanted = self._wanted(container.key, now)
            if wanted is None or wanted.cpus == container.cpus:
                continue
            if near is None or not near.isdisjoint(container.cpus):
                container.cpus = wanted.cpus
                yield Update(identifier, wanted.cpus)

    def _wanted(self, key: ContainerKey, now: Snapshot) -> CPUAssignment | None:
        """Say where a container belongs; None where that is not known well enough."""
        assignment = now.assignment(key)
        known = self._ready() or assignment.placement in {Placement.POOLS, Placement.POLICY}
        return assignment if known and assignment.cpus else None


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
