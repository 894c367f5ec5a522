"""The container runtime as its NRI plugin reaches it: the conversation, and the containers.

Two threads use it. The NRI plugin's thread runs the conversation and answers the runtime. The
cpusetter's thread asks the runtime for changes meanwhile. One lock protects the session, the socket
and the containers.
"""

from __future__ import annotations

import threading
import time
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from cpupool.core.cpuset import CPUSet
from cpupool.core.errors import (
    ContainerNotFound,
    RemoteProtocolError,
    RuntimeBusy,
    RuntimeRefused,
    RuntimeSilent,
)
from cpupool.core.names import NRI_PLUGIN
from cpupool.core.properties import NO_PROPERTIES
from cpupool.runtime.nri.connection import Connection
from cpupool.runtime.nri.containers import Containers, KnownContainer
from cpupool.runtime.nri.messages import (
    Configured,
    Ended,
    Started,
    Synchronize,
    Update,
    UpdateContainer,
    Updated,
)
from cpupool.runtime.nri.session import NO_MEMORY, MemoryOf, Session

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from cpupool.core.names import Names
    from cpupool.core.properties import Properties
    from cpupool.core.workloads import ContainerID
    from cpupool.manager.facts import ContainerKey
    from cpupool.runtime.nri.connection import Launch
    from cpupool.runtime.nri.messages import (
        Adjustment,
        CreateContainer,
        Message,
        StartContainer,
    )

_INDEX: Final = "50"
"""The plugin's place in the runtime's order. Any place serves: only one plugin may set CPUs."""
_REACHED_S: Final = 2.0
_UPDATED_S: Final = 0.4
"""The cpusetter goes on after this time. A later answer of the runtime is valid, too."""
_LOST_S: Final = 60.0
"""The runtime has lost a request that has no answer after this time, and makes no change for it."""
_GIVEN_UP_S: Final = 5.0
"""The pause after an update without a response, before the next update."""
_WAITS_ITSELF: Final = "it waits for an answer itself"
OUTDATED: Final = "they have another owner by now"


@dataclass(slots=True)
class _Request:
    """Updates that the runtime has to make, the time of the request, and its response.

    Attributes:
        given_up: the caller does not wait for the response.
    """

    updates: Sequence[Update]
    asked_s: float
    answer: Updated | None = None
    given_up: bool = False


class NRIRuntime:
    """Speaks NRI with the container runtime; satisfies `enforce.ports.BatchingRuntime`.

    One thread attaches, takes turns and answers; any thread may call `wake` and the methods of the
    port.

    Args:
        socket: the runtime's socket for plugins.
        names: the names of the annotations of allocations.
        launch: the runtime's start of this process as its plugin; None if it has not.
        look: asks for a sweep, because the runtime reports no containers any more.
        allows: returns whether a container may have some CPUs by the decisions of now.
        started: called with each container that has started; None to call `look`.
        memory: container → its memory nodes, which each update repeats.
        update_s: the time in which the runtime must answer an update.
        now_s: a monotonic clock.

    Attributes:
        socket: the same.
        containers: the runtime's containers, each with its CPUs; for reads within a turn.
        launched: whether the runtime has started this process.
        may_lock_up: whether a request for a change can lock the runtime up for good.
    """

    def __init__(
        self,
        socket: Path,
        names: Names,
        *,
        look: Callable[[], None],
        allows: Callable[[ContainerKey, CPUSet], bool],
        started: Callable[[ContainerID], None] | None = None,
        launch: Launch | None = None,
        memory: MemoryOf = NO_MEMORY,
        update_s: float = _UPDATED_S,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self.containers = Containers()
        self.socket, self._look = socket, look
        self._started = started or (lambda _container: look())
        self._names, self._launch, self._memory = names, launch, memory
        self._allows = allows
        self._update_s, self._now_s = update_s, now_s
        self._changed = threading.Condition()
        self._session: Session | None = None
        self._connection: Connection | None = None
        self._synchronized = False
        self.may_lock_up, self.launched = True, launch is not None
        self._requests: dict[int, _Request] = {}
        self._expected: dict[ContainerID, Update] = {}

    @contextmanager
    def attached(self) -> Iterator[None]:
        """Connect to the runtime and register; its containers stay known after the end.

        Raises:
            RemoteProtocolError: it cannot be reached, or ends the conversation.
        """
        launch = self._launch
        name, index = (launch.name, launch.index) if launch else (NRI_PLUGIN, _INDEX)
        session = Session(name, index, self._names, self._memory)
        with closing(
            Connection.inherited(launch.fd) if launch else Connection.to(self.socket, _REACHED_S)
        ) as connection:
            try:
                with self._changed:
                    self._session, self._connection = session, connection
                    session.register()
                    self.flush()
                yield
            finally:
                with self._changed:
                    lost, self._synchronized = self._synchronized, False
                    self._session = self._connection = None
                    self._requests.clear()
                    self.containers.start_all()
                    self._changed.notify_all()
                if lost:
                    self._look()

    @contextmanager
    def turn(self, timeout_s: float) -> Iterator[list[Message]]:
        """Wait for messages of the runtime, and yield them; the responses go out before the end.

        Callers of the port wait meanwhile. The caller passes each message to `note`, in its order.

        Args:
            timeout_s: the longest wait; `wake` ends it, too.

        Raises:
            RemoteProtocolError: the conversation is over.
        """
        session, connection = self._attachment()
        data = connection.receive(timeout_s)
        if data == b"":
            raise RemoteProtocolError("the container runtime has ended the NRI connection")
        with self._changed:
            yield session.receive(data) if data else []
            self.flush()
            self._changed.notify_all()

    def wake(self) -> None:
        """End the wait of a turn."""
        with self._changed:
            if self._connection is not None:
                self._connection.wake()

    def note(self, message: Message) -> None:
        """Record the facts in a message about the runtime and its containers; within a turn."""
        match message:
            case Configured():
                self.may_lock_up = message.may_lock_up
            case Synchronize():
                self.containers = Containers.named(message.running)
            case Started():
                if self.containers.start(message.container.id):
                    self._started(message.container.id)
            case Ended():
                self.containers.end(message.id)
            case Updated():
                self._take_answer(message)

    def flush(self) -> None:
        """Send the responses so far; within a turn, which sends them at its end."""
        if self._session is not None and self._connection is not None:
            data = self._session.outgoing()
            if data:
                self._connection.send(data)

    def answer_synchronize(self, message: Synchronize, updates: Iterable[Update]) -> None:
        """Let the runtime correct containers that run already; the connection is complete now."""
        self._attachment()[0].answer_synchronize(message.call, updates)
        # CRI-O and old versions of containerd may name a start before this.
        self.containers.start_all()
        self._synchronized = True
        self._look()

    def answer_create(
        self,
        message: CreateContainer,
        adjustment: Adjustment | None,
        updates: Iterable[Update] = (),
    ) -> None:
        """Let the runtime create a container, adjusted, and change others before."""
        container = message.container
        self._attachment()[0].answer_create(message.call, adjustment, updates)
        if container.key is not None:
            self.containers[container.id] = KnownContainer(
                container.key,
                adjustment.cpus if adjustment else container.cpu.cpu_set,
                started=adjustment is None,
            )

    def refuse(self, message: CreateContainer | StartContainer | UpdateContainer, why: str) -> None:
        """Let the runtime fail to do what it asks; the kubelet shows why, and tries again.

        CRI-O starts a container nevertheless.
        """
        if not isinstance(message, UpdateContainer):
            self.containers.delayed.discard(message.container.id)
        self._attachment()[0].refuse(message.call, why)

    def delay_start(self, message: StartContainer) -> None:
        """Leave a start unanswered until other containers have left the container's CPUs."""
        self.containers.delayed.add(message.container.id)

    def answer_start(self, message: StartContainer) -> None:
        """Let the runtime start a container."""
        self.containers.delayed.discard(message.container.id)
        self._attachment()[0].answer_start(message.call)

    def answer_update(
        self, message: UpdateContainer, update: Update | None, others: Iterable[Update] = ()
    ) -> None:
        """Let the runtime go on with an update of a container, and change others before.

        Args:
            message: the runtime's request.
            update: the values of this container; None leaves them as they are asked for.
            others: changes of other containers: a runtime makes changes in their order.
        """
        container = message.container
        own = [update] if update else []
        self._attachment()[0].answer_update(message.call, [*others, *own])
        if update and container.key is not None:
            self.containers[container.id] = KnownContainer(
                container.key, update.cpus, started=not self.starting(container.id)
            )

    def expects(self, message: UpdateContainer) -> bool:
        """Return whether an update is the one that cpupool makes over CRI."""
        expected, asked = self._expected.get(message.container.id), message.asked
        if expected is None:
            return False
        wanted = expected.properties
        quota_us = wanted.bandwidth.quota_us if wanted.bandwidth else None
        # The kubelet's own update has shares and a quota: it may come meanwhile.
        return (expected.cpus, wanted.shares, quota_us) == (
            asked.cpu_set,
            asked.shares,
            asked.quota_us or None,
        )

    def awaits(self) -> bool:
        """Return whether a request of the runtime has no response after the present turn."""
        with self._changed:
            return self._session is not None and self._session.owes

    def connected(self) -> bool:
        """Return whether the runtime has named its containers, and hears of their CPUs."""
        return self._synchronized

    def cpu_list(self, container: ContainerID) -> str | None:
        """Return the CPU list that the runtime has for a container, as far as it is known."""
        known = self.containers.get(container)
        return str(known.cpus) if known else None

    def starting(self, container: ContainerID) -> bool:
        """Return whether the runtime is still bringing a new container onto its CPUs."""
        return self.containers.starting(container)

    @property
    def unanswered(self) -> bool:
        """Whether the runtime may still make a change that it has not answered.

        It makes none to a container that has ended, and none that it has lost.
        """
        with self._changed:
            return any(
                update.container in self.containers
                for request in self._open(self._now_s()).values()
                for update in request.updates
            )

    def _open(self, now_s: float) -> dict[int, _Request]:
        """Return the requests that the runtime may still answer."""
        requests = self._requests.items()
        return {call: each for call, each in requests if now_s < each.asked_s + _LOST_S}

    @property
    def delays(self) -> bool:
        """Whether the start of a container waits, and the runtime takes no change meanwhile."""
        return bool(self.containers.delayed)

    def update(self, container: ContainerID, cpus: CPUSet) -> None:
        """Let the runtime set a container's CPUs; raises as the port says."""
        self._change(Update(container, cpus, ignore_failure=False), f"CPUs {cpus}")

    def update_all(self, wanted: Mapping[ContainerID, CPUSet]) -> None:
        """Let the runtime set containers' CPUs in one call; raises as the port says."""
        with self._changed:
            updates = [
                Update(container, cpus, ignore_failure=False)
                for container, cpus in wanted.items()
                if (known := self.containers.get(container)) and self._allows(known.key, cpus)
            ]
            if updates:
                self._ask(updates, f"CPUs {updates[0].cpus}")

    def adjust(self, container: ContainerID, properties: Properties) -> None:
        """Let the runtime set properties of a container; raises as the port says."""
        update = Update(container, CPUSet(), properties, ignore_failure=False)
        self._change(update, str(properties))

    @contextmanager
    def expecting(
        self, container: ContainerID, cpus: CPUSet, properties: Properties = NO_PROPERTIES
    ) -> Iterator[None]:
        """Let a change that cpupool makes over CRI meanwhile pass, as the port says."""
        with self._changed:
            # The runtime would wait for the same lock.
            if self.awaits():
                what = f"CPUs {cpus}" if cpus else "its properties"
                raise RuntimeBusy(container, what, _WAITS_ITSELF)
            self._expected[container] = Update(container, cpus, properties)
        try:
            yield
            with self._changed:
                if cpus and container in self.containers:
                    self.containers[container].cpus = cpus
        finally:
            with self._changed:
                del self._expected[container]

    def _attachment(self) -> tuple[Session, Connection]:
        if self._session is None or self._connection is None:
            raise RemoteProtocolError("the NRI connection is not made; attach first")
        return self._session, self._connection

    def _change(self, update: Update, what: str) -> None:
        with self._changed:
            known = self.containers.get(update.container)
            if known is None:
                raise ContainerNotFound(update.container)
            # An answer to the runtime may have given the CPUs away, and none is given meanwhile.
            if not self._allows(known.key, update.cpus):
                raise RuntimeBusy(update.container, what, OUTDATED)
            if self._ask([update], what).failed:
                raise RuntimeRefused(update.container, what, "look at its log")

    def _ask(self, updates: Sequence[Update], what: str) -> Updated:
        """Ask the runtime for changes, and wait for its response.

        It asks only while no request of the runtime waits for a response. Otherwise older runtimes
        wait for us as we wait for them (containerd/nri, before 0.12.1).
        """
        container = updates[0].container
        if self.awaits():
            raise RuntimeBusy(container, what, _WAITS_ITSELF)
        session = self._session
        if session is None or not self._synchronized:
            raise RuntimeRefused(container, what, "NRI is not connected; look at the log for why")
        asked_s = self._now_s()
        silent = RuntimeSilent(container, what, "it does not answer; look at its log")
        if any(asked_s < request.asked_s + _GIVEN_UP_S for request in self._requests.values()):
            raise silent
        request = _Request(updates, asked_s)
        self._requests = {**self._open(asked_s), session.update(updates): request}
        try:
            self.flush()
        except RemoteProtocolError as error:
            raise RuntimeRefused(container, what, str(error)) from error

        def over() -> bool:
            # A container that waits for facts waits for the caller, too.
            return bool(request.answer or self.awaits() or self._session is not session)

        self._changed.wait_for(over, self._update_s)
        if request.answer is not None:
            if request.answer.error:
                raise RuntimeRefused(container, what, request.answer.error)
            return request.answer
        request.given_up = True
        if self.awaits():
            raise RuntimeBusy(container, what, _WAITS_ITSELF)
        raise silent

    def _take_answer(self, answer: Updated) -> None:
        request = self._requests.pop(answer.call, None)
        if request is None:
            return
        request.answer = answer
        for update in () if answer.error else request.updates:
            known = self.containers.get(update.container)
            if known is not None and update.cpus and update.container not in answer.failed:
                known.cpus = update.cpus
        if request.given_up:
            self._look()
