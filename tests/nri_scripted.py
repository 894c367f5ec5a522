"""A scripted NRI plugin for the runtime of the embedded node; it speaks the agent's side."""

from __future__ import annotations

import os
import threading
from contextlib import closing
from typing import TYPE_CHECKING

from cpupool.core.cpuset import CPUSet
from cpupool.core.names import Names
from cpupool.runtime.nri.connection import Connection
from cpupool.runtime.nri.messages import (
    Adjustment,
    CreateContainer,
    Ended,
    SandboxRemoved,
    SandboxStarted,
    StartContainer,
    Started,
    Synchronize,
    Update,
    UpdateContainer,
    Updated,
)
from cpupool.runtime.nri.session import Session
from tests.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from cpupool.core.workloads import ContainerID
    from cpupool.runtime.nri.messages import Message, NRIContainer

CPU = CPUSet.of(CPUSet(os.sched_getaffinity(0)).first)
"""The CPU with which the plugin lets each container begin."""


class Plugin:
    """A plugin that answers every question as its attributes say.

    Attributes:
        heard: the events, as a word and the name of a container or a pod.
        containers: name → its last id.
        names: id → name.
        refuses: the container that it does not let the runtime create.
        stops: the container that it does not let the runtime start.
        leaves: the container at whose creation it hangs up.
        updates: what it changes with the next creation.
        keeps: the container whose resources it lets nobody change.
        answers: returns its updates for a container whose resources change.
        leaving: called before it hangs up.
    """

    def __init__(self, socket: Path, connected: Callable[[], bool]) -> None:
        self.heard: list[tuple[str, str]] = []
        self.containers: dict[str, ContainerID] = {}
        self.names: dict[ContainerID, str] = {}
        self.seen: dict[str, NRIContainer] = {}
        self.running: list[str] = []
        self.updated: list[Updated] = []
        self.refuses = self.stops = self.leaves = self.keeps = ""
        self.updates: list[Update] = []
        self.answers: Callable[[ContainerID], Sequence[Update]] = lambda _container: ()
        self.leaving: Callable[[], None] = lambda: None
        self._connection = Connection.to(socket, 1)
        self._session = Session("test", "10", Names())
        self._lock = threading.Lock()
        self._ended = False
        self._session.register()
        self._thread = threading.Thread(target=self._run, name="plugin")
        self._thread.start()
        eventually(connected, "the plugin is synchronised")

    def update(self, *updates: Update) -> None:
        with self._lock:
            self._session.update(updates)
            self._connection.send(self._session.outgoing())

    def close(self) -> None:
        self._ended = True
        self._connection.wake()
        self._thread.join()

    def _run(self) -> None:
        with closing(self._connection):
            while not self._ended:
                with self._lock:
                    self._connection.send(self._session.outgoing())
                if (data := self._connection.receive(None)) == b"":
                    return
                with self._lock:
                    for message in self._session.receive(data or b""):
                        self._hear(message)

    def _hear(self, message: Message) -> None:
        match message:
            case Synchronize():
                named = {one.known.name: one for one in message.containers if one.known}
                self.running = list(named)
                self.seen.update(named)
                self._session.answer_synchronize(message.call, ())
            case CreateContainer(container=container) if container.known:
                self._create(message.call, container, container.known.name)
            case StartContainer(container=container) if container.known:
                name = container.known.name
                self.heard.append(("start", name))
                if name == self.stops:
                    self._session.refuse(message.call, "occupied")
                else:
                    self._session.answer_start(message.call)
            case UpdateContainer(container=container) if container.known:
                self._change(message.call, container, container.known.name)
            case _:
                self._told(message)

    def _told(self, message: Message) -> None:
        match message:
            case Started(container=container) if container.known:
                self.heard.append(("Started", container.known.name))
            case Ended(id=identifier):
                self.heard.append(("Ended", self.names[identifier]))
            case SandboxStarted(sandbox=sandbox):
                self.heard.append(("sandbox", sandbox.pod_name))
            case SandboxRemoved():
                self.heard.append(("sandbox removed", ""))
            case Updated():
                self.updated.append(message)

    def _create(self, call: int, container: NRIContainer, name: str) -> None:
        self.heard.append(("create", name))
        self.seen[name] = container
        if name == self.leaves:
            self.leaving()
            self._ended = True
        elif name == self.refuses:
            self._session.refuse(call, "no CPUs")
        else:
            self.containers[name] = container.id
            self.names[container.id] = name
            adjustment = Adjustment(CPU, {"EXCLUSIVE_CPUS": str(CPU)}, {"a/b": "c"})
            self._session.answer_create(call, adjustment, self.updates)

    def _change(self, call: int, container: NRIContainer, name: str) -> None:
        self.heard.append(("update", name))
        self.seen[name] = container
        if name == self.leaves:
            self._ended = True
        elif name == self.keeps:
            self._session.refuse(call, "no CPUs to grow")
        else:
            self._session.answer_update(call, self.answers(container.id))
