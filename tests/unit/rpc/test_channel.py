"""Calls over gRPC: to grpc's own server, and to peers that break the protocol."""

from __future__ import annotations

import gc
import socket
import struct
import threading
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import grpc
import pytest
from grpclib.const import Status
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import StreamEnded
from h2.exceptions import ProtocolError

from cpupool.api.podresources_pb2 import ListPodResourcesRequest as Request
from cpupool.api.podresources_pb2 import ListPodResourcesResponse as Answer
from cpupool.rpc.channel import CallFailed, Channel, Codec, opened
from tests import http2_frames as frames
from tests.waiting import DEADLINE_S

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

BEGIN = ((":status", "200"), ("content-type", "application/grpc"))
END = (("grpc-status", "0"),)
EMPTY = b"\0\0\0\0\0"
FEW_BYTES = 1000


def ask(channel: Channel, timeout_s: float = DEADLINE_S) -> Answer:
    return channel.call("/a.B/C", Request(), Answer, timeout_s)


@contextmanager
def serving(path: Path, answer: bytes | Callable[[], bytes]) -> Iterator[grpc.Server]:
    """Serve one method with grpc's own server."""
    handler: grpc.RpcMethodHandler[bytes, bytes]
    handler = grpc.unary_unary_rpc_method_handler(
        lambda _request, _context: answer if isinstance(answer, bytes) else answer()
    )
    server = grpc.server(ThreadPoolExecutor(2))
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("a.B", {"C": handler}),))
    server.add_insecure_port(f"unix:{path}")
    server.start()
    try:
        yield server
    finally:
        server.stop(None).wait(DEADLINE_S)


def test_a_channel_follows_a_peer_that_starts_again(folder: Path) -> None:
    path = folder / "a.sock"
    with opened(path) as channel:
        for name in ("one", "two"):
            answer = Answer()
            answer.pod_resources.add(name=name)
            data = answer.SerializeToString()
            with serving(path, data):
                assert ask(channel) == answer
                assert ask(channel) == answer
            with pytest.raises(CallFailed) as failed:
                ask(channel)
            assert failed.value.status is Status.UNAVAILABLE


def test_a_peer_that_answers_many_calls_does_not_flood(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cpupool.rpc.http2._ALLOWANCE", 100.0)
    monkeypatch.setattr("cpupool.rpc.http2._ALLOWANCE_PER_S", 0.0)
    with serving(folder / "a.sock", b""), opened(folder / "a.sock") as channel:
        for _ in range(100):
            assert ask(channel) == Answer()


@pytest.mark.parametrize("more", [0, 1])
def test_an_answer_has_a_greatest_length(folder: Path, more: int) -> None:
    answer = Answer()
    answer.pod_resources.add(name="x" * 3 * 2**20)
    length = answer.ByteSize()
    with (
        serving(folder / "a.sock", answer.SerializeToString()),
        opened(folder / "a.sock", length - more) as channel,
    ):
        if not more:
            assert ask(channel) == answer
            return
        with pytest.raises(CallFailed, match=f"has {length} bytes, more than {length - 1}") as long:
            ask(channel)
    assert long.value.status is Status.RESOURCE_EXHAUSTED


def test_another_thread_gives_a_call_up(folder: Path) -> None:
    asked, release = threading.Event(), threading.Event()

    def hang() -> bytes:
        asked.set()
        release.wait(DEADLINE_S)
        return b""

    with serving(folder / "a.sock", hang), opened(folder / "a.sock") as channel:

        def end() -> None:
            asked.wait(DEADLINE_S)
            channel.give_up()

        thread = threading.Thread(target=end)
        thread.start()
        for _ in range(2):
            with pytest.raises(CallFailed) as failed:
                ask(channel)
            assert failed.value.status is Status.CANCELLED
        thread.join()
        release.set()
    channel.give_up()


@contextmanager
def peer(path: Path, behave: Callable[[socket.socket], None]) -> Iterator[None]:
    """Accept one connection and behave in it; then wait until the client has closed it."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()

        def accept() -> None:
            # A client that has seen enough closes the connection.
            with suppress(OSError, ProtocolError), listener.accept()[0] as connection:
                connection.settimeout(DEADLINE_S)
                behave(connection)

        thread = threading.Thread(target=accept)
        thread.start()
        yield
        thread.join()


@contextmanager
def answering(path: Path, answer: Callable[[H2Connection, int], None]) -> Iterator[None]:
    """Speak HTTP/2, and answer one request with any frames."""

    def behave(connection: socket.socket) -> None:
        http = H2Connection(H2Configuration(client_side=False, validate_outbound_headers=False))
        http.initiate_connection()
        connection.sendall(http.data_to_send())
        while data := connection.recv(1 << 16):
            for event in http.receive_data(data):
                if isinstance(event, StreamEnded):
                    answer(http, event.stream_id)
            connection.sendall(http.data_to_send())

    with peer(path, behave):
        yield


def message(*pieces: bytes, end: tuple[tuple[str, str], ...] = END) -> Callable[..., None]:
    """Return what answers with these bytes as its messages."""

    def answer(http: H2Connection, stream: int) -> None:
        http.send_headers(stream, BEGIN)
        for piece in pieces:
            http.send_data(stream, piece)
        http.send_headers(stream, end, end_stream=True)

    return answer


@pytest.mark.parametrize(
    ("answer", "status"),
    [
        pytest.param(message(EMPTY), Status.OK, id="an answer"),
        pytest.param(message(b"\0\0", b"\0\0", b"\0"), Status.OK, id="an answer in pieces"),
        pytest.param(message(), Status.INTERNAL, id="no answer"),
        pytest.param(message(b"\0\0\0\0\2x"), Status.INTERNAL, id="an answer that is cut"),
        pytest.param(message(b"\0\0"), Status.INTERNAL, id="a length that is cut"),
        pytest.param(message(b"\0\0\0\0\1\xff"), Status.INTERNAL, id="no message"),
        pytest.param(message(b"\1\0\0\0\0"), Status.INTERNAL, id="a compressed answer"),
        pytest.param(message(b"\0\0\0\x03\xe9"), Status.RESOURCE_EXHAUSTED, id="a byte too much"),
        pytest.param(message(EMPTY, end=(("grpc-status", "x"),)), Status.UNKNOWN, id="status x"),
        pytest.param(message(EMPTY, end=(("a", "b"),)), Status.UNKNOWN, id="no status"),
        pytest.param(message(EMPTY, end=(("grpc-status", "99"),)), Status.UNKNOWN, id="status 99"),
        pytest.param(
            lambda http, stream: http.send_headers(stream, BEGIN[1:], end_stream=True),
            Status.INTERNAL,
            id="no HTTP status",
        ),
        pytest.param(
            lambda http, stream: http.send_headers(stream, [(":status", "503")], end_stream=True),
            Status.UNAVAILABLE,
            id="a web server that is too busy",
        ),
        pytest.param(
            lambda http, stream: http.reset_stream(stream), Status.UNAVAILABLE, id="a reset"
        ),
        pytest.param(
            lambda http, _stream: http.close_connection(), Status.UNAVAILABLE, id="a goodbye"
        ),
    ],
)
def test_what_is_no_answer_is_one_kind_of_error(
    folder: Path, answer: Callable[[H2Connection, int], None], status: Status
) -> None:
    found, words = Status.OK, ""
    with answering(folder / "a.sock", answer), opened(folder / "a.sock", FEW_BYTES) as channel:
        try:
            assert ask(channel) == Answer()
        except CallFailed as failed:
            found, words = failed.status, failed.details
    assert found is status, words


def test_what_is_too_long_is_not_waited_for(folder: Path) -> None:
    def promise(http: H2Connection, stream: int) -> None:
        http.send_headers(stream, BEGIN)
        http.send_data(stream, b"\0\xff\xff\xff\xffx")

    with (
        answering(folder / "a.sock", promise),
        opened(folder / "a.sock", FEW_BYTES) as channel,
        pytest.raises(CallFailed, match="has 4294967295 bytes, more than 1000") as long,
    ):
        ask(channel)
    assert long.value.status is Status.RESOURCE_EXHAUSTED


@pytest.mark.parametrize("bytes_", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\xff" * 3000])
def test_a_peer_that_does_not_speak_http2_is_away(folder: Path, bytes_: bytes) -> None:
    with (
        peer(folder / "a.sock", lambda connection: connection.sendall(bytes_)),
        opened(folder / "a.sock") as channel,
        pytest.raises(CallFailed) as failed,
    ):
        ask(channel)
    assert failed.value.status is Status.UNAVAILABLE


def test_a_peer_that_is_silent_costs_the_deadline(folder: Path) -> None:
    release = threading.Event()

    def wait(_connection: socket.socket) -> None:
        release.wait(DEADLINE_S)

    with (
        peer(folder / "a.sock", wait),
        opened(folder / "a.sock") as channel,
    ):
        with pytest.raises(CallFailed) as failed:
            ask(channel, 0.05)
        release.set()
    assert failed.value.status is Status.DEADLINE_EXCEEDED


ANSWER_BEGINS = frames.frame(frames.HEADERS, frames.END_HEADERS, 1, frames.encoded(BEGIN))
EARLY_HINTS = frames.frame(
    frames.HEADERS, frames.END_HEADERS, 1, frames.encoded([(":status", "103")])
)
PING = frames.frame(frames.PING, content=bytes(8))


def sending(*data: bytes) -> Callable[[socket.socket], None]:
    """Return what sends bytes once the request is there, and reads all that comes meanwhile."""

    def behave(connection: socket.socket) -> None:
        for kind, flags, *_ in frames.Frames(connection, frames.PREFACE):
            if kind == frames.DATA and flags & frames.END_STREAM:
                break
        reader = threading.Thread(target=_read_all, args=(connection,))
        reader.start()
        with suppress(OSError):
            for piece in data:
                connection.sendall(piece)
        reader.join()

    return behave


def _read_all(connection: socket.socket) -> None:
    with suppress(OSError):
        while connection.recv(1 << 16):
            pass


@pytest.mark.parametrize(
    "flood",
    [
        pytest.param(PING * 30_000, id="pings"),
        pytest.param(frames.frame(frames.SETTINGS) * 30_000, id="settings"),
        pytest.param(EARLY_HINTS * 30_000, id="early headers without an end"),
        pytest.param(
            ANSWER_BEGINS + frames.frame(frames.DATA, stream=1) * 30_000, id="data without a byte"
        ),
        pytest.param(
            frames.frame(frames.HEADERS, stream=1)
            + frames.frame(frames.CONTINUATION, stream=1, content=bytes(16_000)) * 100,
            id="headers without an end",
        ),
        pytest.param(
            frames.frame(
                5,  # PUSH_PROMISE
                frames.END_HEADERS,
                1,
                struct.pack(">I", 2) + frames.call_headers("/a.B/C"),
            ),
            id="a call that the server makes itself",
        ),
    ],
)
def test_a_server_that_floods_is_away(folder: Path, flood: bytes) -> None:
    with (
        peer(folder / "a.sock", sending(flood)),
        opened(folder / "a.sock") as channel,
        pytest.raises(CallFailed) as failed,
    ):
        ask(channel)
    assert failed.value.status is Status.UNAVAILABLE


def test_frames_and_headers_that_grpc_does_not_know_are_passed_over(folder: Path) -> None:
    answer = (
        *(frames.frame(frames.UNKNOWN, content=b"x"), EARLY_HINTS, ANSWER_BEGINS),
        frames.frame(frames.DATA, stream=1, content=EMPTY),
        frames.frame(
            frames.HEADERS, frames.END_HEADERS | frames.END_STREAM, 1, frames.encoded(END)
        ),
    )
    with peer(folder / "a.sock", sending(*answer)), opened(folder / "a.sock") as channel:
        assert ask(channel) == Answer()


LONG = struct.pack(">BI", 0, 500_000) + bytes(500_000)


@pytest.mark.parametrize(
    ("answer", "most_bytes"),
    [
        pytest.param(message(LONG[:50_000], end=(("grpc-status", "13"),)), 10**6, id="refused"),
        pytest.param(message(LONG[:50_000], end=(("a-bin", "x"),)), 10**6, id="bad trailers"),
        pytest.param(message(LONG[:50_000]), 10**6, id="cut"),
        pytest.param(message(LONG[:50_000]), 10**5, id="too long"),
        pytest.param(
            message(struct.pack(">BI", 0, 50_000) + b"\xff" * 50_000), 10**6, id="unreadable"
        ),
        pytest.param(
            message(struct.pack(">BI", 0, 50_000) + bytes(50_000), end=(("grpc-status", "13"),)),
            10**6,
            id="an answer, and an error",
        ),
        pytest.param(message(EMPTY, bytes(60_000)), 10**6, id="more than the answer"),
    ],
)
def test_an_answer_that_is_refused_leaves_nothing(
    folder: Path, answer: Callable[[H2Connection, int], None], most_bytes: int
) -> None:
    """Without the collector: an error may be kept, but not what its frames have."""
    kept, errors = list[int](), list[CallFailed]()
    gc.collect()
    gc.disable()
    tracemalloc.start()
    try:
        for number in range(15):
            path = folder / f"{number}.sock"
            with answering(path, answer), opened(path, most_bytes) as channel:
                try:
                    ask(channel)
                except CallFailed as failed:
                    errors.append(failed)
            if number in {4, 14}:
                kept.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
        gc.enable()
    # The peer of this test is among what is left of each.
    assert (kept[1] - kept[0]) / 10 < 50_000


@pytest.mark.parametrize("bug", [AttributeError, AssertionError, KeyError, ValueError])
def test_a_bug_of_ours_is_none_of_the_peers(
    folder: Path, monkeypatch: pytest.MonkeyPatch, bug: type[Exception]
) -> None:
    def broken(*_arguments: object) -> bytes:
        raise bug("ours")

    monkeypatch.setattr(Codec, "encode", broken)
    with (
        serving(folder / "a.sock", b""),
        opened(folder / "a.sock") as channel,
        pytest.raises(bug, match="ours"),
    ):
        ask(channel)
