"""A peer that breaks HTTP/2, or uses it against this process, costs a bounded amount of memory."""

from __future__ import annotations

import asyncio
import gc
import struct
import tracemalloc
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

from cpupool.api.deviceplugin_pb2 import AllocateRequest, Empty
from cpupool.rpc.http2 import Room
from cpupool.rpc.methods import streaming, unary
from cpupool.rpc.serving import Server, ServingLoop
from tests import http2_frames as frames
from tests.http2_frames import CALM, Frames, connected
from tests.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterator
    from pathlib import Path

    from google.protobuf.message import Message
    from grpclib.const import Handler

ASK, LIST = "/a.B/Ask", "/a.B/List"
KIB, MIB = 1024, 1024 * 1024
LIST_BYTES = MIB


class Service:
    """Answers at once, and has a list that is longer than any window."""

    def __init__(self) -> None:
        self.asked = 0
        self.listed = 0

    def __mapping__(self) -> dict[str, Handler]:
        return dict((unary(ASK, AllocateRequest, self._ask), streaming(LIST, Empty, self._list)))

    def _ask(self, _request: AllocateRequest) -> Message:
        self.asked += 1
        return Empty()

    async def _list(self, _request: Empty) -> AsyncGenerator[bytes, None]:
        self.listed += 1
        yield bytes(LIST_BYTES)
        await asyncio.Event().wait()


@dataclass
class Served:
    path: Path
    loop: ServingLoop
    server: Server
    service: Service = field(default_factory=Service)

    def ask(self) -> None:
        """Ask as a client that keeps the rules, and wait for the answer."""
        with connected(self.path) as client:
            client.sendall(frames.call(1, ASK))
            Frames(client).until(frames.DATA, 1)

    def connections(self) -> list[set[int]]:
        """Return the streams that the server knows, of each connection."""

        async def look() -> list[set[int]]:
            # What a task leaves when it ends is gone in the turn after.
            await asyncio.sleep(0)
            return [set(each.processor.streams) for each in self.server._connections]

        return self.loop.call(look())

    def traced_bytes(self, *, collected: bool = True) -> int:
        """Return the memory in use; not collected, with what lies in circles."""

        async def look() -> int:
            await asyncio.sleep(0)
            if collected:
                gc.collect()
            return tracemalloc.get_traced_memory()[0]

        return self.loop.call(look())


@contextmanager
def serving(path: Path, room: Room | None = None) -> Iterator[Served]:
    service = Service()
    with ServingLoop(name="tests") as loop:
        server = loop.call(_made(service, room))
        loop.call(server.begin(path))
        try:
            yield Served(path, loop, server, service)
        finally:
            loop.call(server.end())


async def _made(service: Service, room: Room | None) -> Server:
    return Server(service, room=room)


@pytest.fixture
def served(folder: Path) -> Iterator[Served]:
    with serving(folder / "a.sock") as made:
        yield made


@pytest.fixture
def traced() -> Iterator[None]:
    tracemalloc.start()
    yield
    tracemalloc.stop()


@contextmanager
def uncollected() -> Iterator[None]:
    """Trace memory without the collector: what lies in a circle counts."""
    gc.collect()
    gc.disable()
    tracemalloc.start()
    try:
        yield
    finally:
        tracemalloc.stop()
        gc.enable()


@pytest.mark.usefixtures("traced")
@pytest.mark.parametrize("together", [True, False])
def test_a_stream_that_is_reset_leaves_nothing(served: Served, together: bool) -> None:
    """Together with its reset, its task ends before it has begun."""
    calls, kept = 90, list[int]()
    with connected(served.path) as client:
        answers = Frames(client)
        for number in range(1, 2 * calls, 2):
            if number in {21, 2 * calls - 1}:
                client.sendall(frames.call(number, ASK))
                answers.until(frames.DATA, number)
                eventually(lambda: served.connections() == [set()], "the streams are forgotten")
                kept.append(served.traced_bytes())
            elif together:
                client.sendall(frames.request(number, LIST) + frames.reset(number))
            else:
                client.sendall(frames.request(number, LIST))
                eventually(lambda: served.connections() != [set()], "the stream")
                client.sendall(frames.reset(number))
    # h2 remembers how a stream has ended, of the last 256.
    assert (kept[1] - kept[0]) / (calls - 11) < 500


@pytest.mark.parametrize(
    ("flood", "many"),
    [
        pytest.param(
            lambda n: frames.request(2 * n + 1, LIST) + frames.reset(2 * n + 1), 1000, id="resets"
        ),
        pytest.param(lambda _: frames.frame(frames.PING, content=bytes(8)), 30_000, id="pings"),
        pytest.param(lambda _: frames.frame(frames.SETTINGS), 30_000, id="settings"),
        pytest.param(
            lambda n: frames.frame(frames.SETTINGS, content=frames.setting(0x1000 + n, 1)),
            200,
            id="other settings each time",
        ),
        pytest.param(
            lambda _: frames.frame(frames.WINDOW_UPDATE, content=struct.pack(">I", 1)),
            30_000,
            id="window updates",
        ),
        pytest.param(
            lambda _: frames.frame(frames.PRIORITY, stream=3, content=struct.pack(">IB", 0, 1)),
            30_000,
            id="priorities",
        ),
        pytest.param(lambda _: frames.frame(frames.UNKNOWN), 30_000, id="frames of no known type"),
        pytest.param(
            lambda n: frames.request(1, ASK) if not n else frames.frame(frames.DATA, stream=1),
            30_000,
            id="data without a byte",
        ),
        pytest.param(
            # Twice the end of a stream: this side resets it.
            lambda n: (
                frames.call(2 * n + 1, LIST)
                + frames.frame(frames.WINDOW_UPDATE, 0, 2 * n + 1, struct.pack(">I", 2**31 - 1))
            ),
            1000,
            id="resets that this side must make",
        ),
    ],
)
def test_a_flood_ends_its_connection_and_no_other(served: Served, flood: object, many: int) -> None:
    assert callable(flood)
    data = b"".join(map(flood, range(many)))
    with connected(served.path) as other:
        assert frames.goodbye(served.path, data) == CALM
        other.sendall(frames.call(1, ASK))
        Frames(other).until(frames.DATA, 1)
    eventually(lambda: served.connections() == [], "both are gone")


def test_calls_in_order_are_no_flood(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients send a ping and a window update for an answer."""
    monkeypatch.setattr("cpupool.rpc.http2._ALLOWANCE", 100.0)
    monkeypatch.setattr("cpupool.rpc.http2._ALLOWANCE_PER_S", 0.0)
    around = frames.frame(frames.PING, content=bytes(8)) + frames.frame(
        frames.WINDOW_UPDATE, content=struct.pack(">I", 5)
    )
    with connected(served.path) as client:
        answers = Frames(client)
        for number in range(1, 400, 2):
            client.sendall(frames.call(number, ASK) + around)
            answers.until(frames.DATA, number)


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(
            b"".join(frames.request(n, LIST) for n in range(1, 36, 2)), id="more streams at once"
        ),
        pytest.param(frames.request(1, LIST, ("a", "b" * 17_000)), id="long headers"),
        pytest.param(
            frames.frame(frames.HEADERS, stream=1)
            + b"".join(frames.frame(frames.CONTINUATION, stream=1) for _ in range(100)),
            id="headers without an end",
        ),
        pytest.param(frames.frame(frames.DATA, stream=1, content=bytes(17_000)), id="a long frame"),
        pytest.param(
            frames.request(1, ASK)
            + b"".join(
                frames.frame(frames.DATA, stream=1, content=b"\0\0\x30\0\0" + bytes(16_000))
                for _ in range(5)
            ),
            id="more than the window",
        ),
        pytest.param(frames.request(1, "/\xff"), id="headers that are no text"),
    ],
)
def test_what_exceeds_a_bound_ends_its_connection(served: Served, data: bytes) -> None:
    assert frames.goodbye(served.path, data) not in {None, 0}
    served.ask()


@pytest.mark.parametrize(
    ("name", "value"),
    [("grpc-timeout", "0n"), ("grpc-timeout", "9" * 400 + "S"), ("x-bin", "a")],
)
def test_a_header_that_cannot_be_used_costs_no_answer_and_no_traceback(
    served: Served, caplog: pytest.LogCaptureFixture, name: str, value: str
) -> None:
    with connected(served.path) as client:
        client.sendall(
            frames.request(1, ASK, (name, value))
            + frames.frame(frames.DATA, frames.END_STREAM, 1, bytes(5))
        )
        Frames(client).until(frames.DATA, 1)
    assert caplog.records == []


def test_frames_and_settings_that_grpc_does_not_know_are_passed_over(served: Served) -> None:
    odd = frames.frame(frames.UNKNOWN, content=b"x") + frames.frame(
        frames.SETTINGS, content=frames.setting(0x0A0A, 1)
    )
    with connected(served.path) as client:
        client.sendall(odd + frames.call(1, ASK))
        Frames(client).until(frames.DATA, 1)


@pytest.mark.usefixtures("traced")
def test_a_message_in_the_smallest_frames_takes_its_own_length(served: Served) -> None:
    length = 20_000
    piece = frames.frame(frames.DATA, stream=1, content=b"\0")
    with connected(served.path) as client:
        client.sendall(frames.request(1, ASK))
        eventually(lambda: served.connections() == [{1}], "the call")
        before = served.traced_bytes()
        client.sendall(frames.frame(frames.DATA, stream=1, content=struct.pack(">BI", 0, length)))
        client.sendall(piece * (length - 1))
        answers = Frames(client)
        # A ping is answered after all that came before it.
        client.sendall(frames.frame(frames.PING, content=bytes(8)))
        answers.until(frames.PING)
        assert length < served.traced_bytes() - before < 5 * length
        client.sendall(frames.frame(frames.DATA, frames.END_STREAM, 1, b"\0"))
        answers.until(frames.HEADERS, 1)


def test_who_does_not_read_is_not_read_either(served: Served) -> None:
    pings = frames.frame(frames.PING, content=bytes(8)) * 1000
    sent = 0

    async def reads() -> bool:
        # One that is fast has ended its connection by then.
        return any(each._transport.is_reading() for each in served.server._connections)

    def is_left_alone() -> bool:
        nonlocal sent
        with suppress(BlockingIOError, ConnectionError):
            while sent < 8 * MIB:
                sent += client.send(pings)
        return not served.loop.call(reads())

    with connected(served.path) as client:
        Frames(client).until(frames.SETTINGS)
        client.setblocking(False)
        eventually(is_left_alone, "the end of reading")
        served.ask()
    # As much as the kernel keeps, and not what this process would.
    assert sent < 4 * MIB


def test_the_peers_settings_make_nothing_larger_here(served: Served) -> None:
    with connected(served.path) as client:
        larger = frames.setting(1, 2**31) + frames.setting(5, 2**24 - 1)
        window = frames.setting(4, 2**31 - 1)
        client.sendall(frames.frame(frames.SETTINGS, content=larger + window))
        client.sendall(frames.frame(frames.WINDOW_UPDATE, content=struct.pack(">I", 2**30)))
        client.sendall(frames.call(1, LIST))
        answers = Frames(client)
        answers.until(frames.HEADERS, 1)
        got = 0
        while got < LIST_BYTES:
            content = answers.until(frames.DATA, 1)[1]
            assert len(content) <= 16 * KIB
            got += len(content)

        async def table() -> int:
            (connection,) = served.server._connections
            return connection._h2.encoder.header_table_size

        assert served.loop.call(table()) == 4096


def test_lists_that_nobody_reads_have_a_bound_together(folder: Path) -> None:
    """The oldest connection makes way; one that reads is served."""
    with (
        uncollected(),
        serving(folder / "a.sock", Room(4 * LIST_BYTES)) as served,
        ExitStack() as opened,
    ):
        clients = [opened.enter_context(connected(served.path)) for _ in range(3)]
        for client in clients:
            client.sendall(b"".join(frames.call(n, LIST) for n in (1, 3)))
        eventually(lambda: served.service.listed == 6, "the lists")
        # 4 lists have room: the 5th ended the first connection, the 6th found room then.
        eventually(lambda: served.connections() == [{1, 3}, {1, 3}], "the oldest has ended")
        assert served.traced_bytes(collected=False) < 5 * LIST_BYTES
        with connected(served.path) as reader:
            window = frames.setting(4, 2**31 - 1)
            reader.sendall(frames.frame(frames.SETTINGS, content=window))
            reader.sendall(frames.frame(frames.WINDOW_UPDATE, content=struct.pack(">I", 2**30)))
            reader.sendall(frames.call(1, LIST))
            answers, got = Frames(reader), 0
            while got < LIST_BYTES:
                got += len(answers.until(frames.DATA, 1)[1])


def test_one_connection_more_ends_the_oldest_without_a_call(served: Served) -> None:
    with connected(served.path) as listening, ExitStack() as opened:
        listening.sendall(frames.call(1, LIST))
        answers = Frames(listening)
        answers.until(frames.DATA, 1)
        first = opened.enter_context(connected(served.path))
        eventually(lambda: len(served.connections()) == 2, "the first of the idle")
        for _ in range(15):
            opened.enter_context(connected(served.path))
        assert next(kind for kind, *_ in Frames(first)) == frames.SETTINGS
        eventually(lambda: len(served.connections()) == 16, "the others")
        assert served.connections()[0] == {1}


def test_with_a_call_on_each_the_oldest_ends(served: Served) -> None:
    with ExitStack() as opened:
        clients = []
        for _ in range(17):
            clients.append(opened.enter_context(connected(served.path)))
            clients[-1].sendall(frames.call(1, LIST))
            eventually(lambda: all(served.connections()), "the call")
        eventually(lambda: len(served.connections()) == 16, "the youngest")
        for _ in Frames(clients[0]):
            pass
        Frames(clients[-1]).until(frames.DATA, 1)


def test_a_connection_that_has_ended_takes_no_other_memory(served: Served) -> None:
    """Without the collector: what lies in a circle would stay until it runs."""
    with uncollected():
        kept = []
        for number in range(30):
            data = frames.request(1, ASK) + b"".join(
                frames.frame(frames.DATA, stream=1, content=b"\0\0\x10\0\0" + bytes(16_000))
                for _ in range(4)
            )
            with connected(served.path) as client:
                client.sendall(data)
                eventually(lambda: served.connections() == [{1}], "the call")
            eventually(lambda: served.connections() == [], "its end")
            if number in {9, 29}:
                kept.append(served.traced_bytes(collected=False))
    assert (kept[1] - kept[0]) / 20 < 40 * KIB
