"""The plugin's side of NRI against a runtime that is as strict as the Go implementation."""

from __future__ import annotations

import struct
import threading
from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self

import pytest

from cpupool.api import nri_pb2, ttrpc_pb2
from cpupool.core.cpuset import CPUSet
from cpupool.core.errors import RemoteProtocolError
from cpupool.core.names import Names
from cpupool.runtime.nri.connection import Connection
from cpupool.runtime.nri.messages import (
    Adjustment,
    CreateContainer,
    Message,
    Synchronize,
    Update,
    UpdateContainer,
)
from cpupool.runtime.nri.session import Session
from tests.nri_frames import frames
from tests.nri_pods import Container, Pod
from tests.nri_runtime import FIRST_EVENTS, PLUGIN, FakeRuntime, Refused
from tests.waiting import DEADLINE_S

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PODS = [Pod(uid=f"00000000-0000-0000-0000-{number:012}", name=f"p{number}") for number in range(5)]
CONTAINERS = [Container(pod, f"c{number}") for number, pod in enumerate(PODS)]


@dataclass
class SmallPlugin:
    """Puts each container on the CPUs that its devices name, and refuses those without."""

    socket: Path
    heard: list[Message] = field(default_factory=list)
    error: RemoteProtocolError | None = None
    session: Session = field(default_factory=lambda: Session("small", "07", Names()))

    def __enter__(self) -> Self:
        self.connection = Connection.to(self.socket, DEADLINE_S)
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self.run)
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.ended.set()
        self.connection.wake()
        self.thread.join(DEADLINE_S)
        assert not self.thread.is_alive()

    def run(self) -> None:
        with closing(self.connection):
            try:
                self.session.register()
                while not self.ended.is_set():
                    self.connection.send(self.session.outgoing())
                    data = self.connection.receive(DEADLINE_S)
                    if data == b"":
                        return
                    for message in self.session.receive(data or b""):
                        self.heard.append(message)
                        self.answer(message)
            except RemoteProtocolError as error:
                self.error = error

    def answer(self, message: Message) -> None:
        match message:
            case Synchronize():
                self.session.answer_synchronize(
                    message.call, [Update(one.id, CPUSet.of(0)) for one in message.containers]
                )
            case CreateContainer():
                devices = message.container.known and message.container.known.devices
                if devices:
                    cpus = CPUSet(int(one) for ids in devices.values() for one in ids)
                    self.session.answer_create(message.call, Adjustment(cpus))
                else:
                    self.session.refuse(message.call, "no devices")
            case UpdateContainer():
                self.session.answer_update(message.call, [])


@pytest.mark.parametrize(
    ("dedicated", "events"), [(True, (1 << 14) - 1), (False, FIRST_EVENTS)], ids=["new", "old"]
)
@pytest.mark.parametrize("parts", [1, 3])
def test_a_container_lives_and_ends(
    folder: Path, *, dedicated: bool, events: int, parts: int
) -> None:
    path = folder / "nri.sock"
    with FakeRuntime(path, dedicated=dedicated, events=events) as runtime, SmallPlugin(path) as own:
        plugin = runtime.accept()
        assert plugin.registered.result() == nri_pb2.RegisterPluginRequest(
            plugin_name="small", plugin_idx="07"
        )
        plugin.configure()
        updates = plugin.synchronize(CONTAINERS, parts=parts)
        new = Container(PODS[0], "new", devices={"exclusive_a": "2-3"})
        plugin.run_sandbox(new.pod)
        created = plugin.create(new)
        plugin.start(new)
        plugin.update(new, cpus="0-7")
        plugin.stop(new)
        plugin.remove(new)
        plugin.remove_sandbox(new.pod)
        plugin.shut_down()

    assert [one.container_id for one in updates] == [one.id for one in CONTAINERS]
    assert created.adjust.linux.resources.cpu.cpus == "2-3"
    assert [type(message).__name__ for message in own.heard] == [
        "Registered",
        "Configured",
        "Synchronize",
        "SandboxStarted",
        "CreateContainer",
        "Started",
        "UpdateContainer",
        "Ended",
        "Ended",
        "SandboxRemoved",
        "Shutdown",
    ]


def test_a_hundred_creations_at_once_are_all_answered_rightly(folder: Path) -> None:
    path = folder / "nri.sock"
    with FakeRuntime(path) as runtime, SmallPlugin(path):
        plugin = runtime.welcome()
        asked = [
            Container(PODS[0], f"n{number}", devices={"exclusive_a": str(number)} if number else {})
            for number in range(100)
        ]
        answers = plugin.create_many(asked)

        with pytest.raises(Refused, match="cpupool: no devices"):
            answers[0].result(DEADLINE_S)
        assert [one.result(DEADLINE_S).adjust.linux.resources.cpu.cpus for one in answers[1:]] == [
            str(number) for number in range(1, 100)
        ]


def test_the_bytes_may_trickle(folder: Path) -> None:
    path = folder / "nri.sock"
    request = ttrpc_pb2.Request(
        service=PLUGIN,
        method="CreateContainer",
        payload=nri_pb2.CreateContainerRequest(
            pod=PODS[0].message(),
            container=Container(PODS[0], "c", devices={"exclusive_a": "1"}).message(),
        ).SerializeToString(),
    ).SerializeToString()
    with FakeRuntime(path) as runtime, SmallPlugin(path):
        answer = runtime.welcome().call_with(
            lambda call: (bytes([byte]) for byte in frames(1, call, 1, request))
        )
        created = nri_pb2.CreateContainerResponse.FromString(answer.result(DEADLINE_S))

    assert created.adjust.linux.resources.cpu.cpus == "1"


def test_a_runtime_that_goes_away_in_the_middle_of_a_frame_is_the_end_and_nothing_else(
    folder: Path,
) -> None:
    path = folder / "nri.sock"
    with FakeRuntime(path) as runtime, SmallPlugin(path) as own:
        plugin = runtime.welcome()
        plugin.write(frames(1, 99, 1, bytes(10_000))[:5000])
        plugin.hang_up()
        own.thread.join(DEADLINE_S)

        assert not own.thread.is_alive()


def test_a_frame_that_is_too_long_costs_its_own_call_only(folder: Path) -> None:
    def too_long(call: int) -> Iterator[bytes]:
        length = (4 << 20) + 1
        frame = struct.pack(">IIBB", length, call, 1, 0) + bytes(length)
        for at in range(0, len(frame), 1 << 20):
            piece = frame[at : at + (1 << 20)]
            yield struct.pack(">II", 1, len(piece)) + piece

    path = folder / "nri.sock"
    with FakeRuntime(path) as runtime, SmallPlugin(path):
        plugin = runtime.welcome()
        with pytest.raises(Refused, match="more than 4 MiB"):
            plugin.call_with(too_long).result(DEADLINE_S)
        assert plugin.create(Container(PODS[0], "c", devices={"exclusive_a": "1"}))


def test_what_no_runtime_sends_ends_this_conversation_only(folder: Path) -> None:
    path = folder / "nri.sock"
    with FakeRuntime(path) as runtime:
        with SmallPlugin(path) as own:
            plugin = runtime.accept()
            plugin.write(b"\xff" * 8)
            assert plugin.closed.wait(DEADLINE_S)
            own.thread.join(DEADLINE_S)
            assert isinstance(own.error, RemoteProtocolError)
        with SmallPlugin(path):
            runtime.welcome(CONTAINERS)
