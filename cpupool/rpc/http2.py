"""HTTP/2 connections for gRPC, with bounds for the memory and the work that one peer can cause.

grpclib and h2 bound the data of one stream. They also keep memory for each stream that a peer
resets, for each frame without data, for each setting, and for each response that a peer does not
read. They have no bound for this memory. The bounds here hold for a connection, and with `Room` for
all connections of a loop.

Source: RFC 9113, section 10.5 (denial-of-service considerations); CVE-2023-44487 (rapid reset),
CVE-2019-9512 to 9518 (floods of pings, settings, resets and empty frames).
"""

from __future__ import annotations

import asyncio
import struct
import time
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, Final, cast

from grpclib import protocol
from grpclib.const import Status
from grpclib.exceptions import GRPCError, StreamTerminatedError
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.events import DataReceived, StreamEnded, StreamReset
from h2.exceptions import ProtocolError
from h2.settings import SettingCodes, Settings

from cpupool.core.errors import without_frames

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from grpclib.config import Configuration
    from grpclib.server import Stream as ServerStream
    from grpclib.utils import Wrapper
    from h2.config import H2Configuration
    from h2.events import Event

_MOST_STREAMS: Final = 16
"""The most open streams of a connection. The kubelet has one, and asks one question beside it."""
_HEADERS_BYTES: Final = {False: 16 * 1024, True: 64 * 1024}
"""The limit for the headers of a request, and of an answer with a plugin's or a runtime's words."""
_TABLE_BYTES: Final = 4096
"""The size of the table of sent headers, as RFC 7541 has it without a setting."""
_FRAME_BYTES: Final = 16 * 1024
"""The most that is read, or sent, before the bounds are looked at; RFC 9113 has it as the frame."""
_MOST_SETTINGS: Final = 64
"""The number of different settings that a peer may set; the registry of the IANA has 15."""
_ALLOWANCE: Final = 10_000.0
_ALLOWANCE_PER_S: Final = 1_000.0
_RESET_COST: Final = 100.0
"""A frame without data costs one: so a hundred resets at once, and ten a second, are in order."""
_CALL_EARNS: Final = 10.0
"""The headers, trailers, ends, window updates and pings that a peer may send for one call; grpc-go
sends five. So there is no bound for correct calls: the agent asks a runtime for thousands of
containers in a row."""


class Room:
    """The bytes of the messages that connections of one loop receive or send at present.

    A message that needs more than there is left ends the connections that have waited longest: what
    is read and written at once never waits.

    Args:
        most_bytes: of all messages together; a single one may have more.
    """

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._held: dict[object, tuple[int, Callable[[str], None]]] = {}

    @contextmanager
    def hold(self, length: int, end: Callable[[str], None]) -> Iterator[None]:
        """Count a message as long as it waits for its peer.

        Args:
            length: its bytes.
            end: ends the connection; called with the reason.
        """
        while self._held and self._bytes() + length > self._most_bytes:
            _, make_way = self._held.pop(next(iter(self._held)))
            make_way("it has waited longest, and other messages need the memory")
        message = object()
        self._held[message] = length, end
        try:
            yield
        finally:
            self._held.pop(message, None)

    def _bytes(self) -> int:
        return sum(length for length, _ in self._held.values())


class _H2(H2Connection):
    """The library's connection; each bound applies at once, not once the peer has agreed."""

    MAX_CLOSED_STREAMS = 256

    def __init__(self, config: H2Configuration) -> None:
        super().__init__(config)
        client = config.client_side
        values = {
            SettingCodes.MAX_CONCURRENT_STREAMS: _MOST_STREAMS,
            SettingCodes.MAX_HEADER_LIST_SIZE: _HEADERS_BYTES[client],
            SettingCodes.ENABLE_PUSH: 0,
        }
        self.local_settings = Settings(client=client, initial_values=values)
        self.decoder.max_header_list_size = _HEADERS_BYTES[client]

    def curb(self) -> bool:
        """Take back what the peer's settings have made larger; return whether they are bearable."""
        self.max_outbound_frame_size = min(self.max_outbound_frame_size, _FRAME_BYTES)
        self.encoder.header_table_size = min(self.encoder.header_table_size, _TABLE_BYTES)
        return len(self.remote_settings) <= _MOST_SETTINGS


class _Buffer(protocol.Buffer):
    """The bytes that a peer has sent on a stream; the library would keep objects for each frame.

    Attributes:
        most_bytes: the longest message that is read.
    """

    def __init__(self, connection: _Connection, stream: int) -> None:
        super().__init__(lambda size: connection.ack(stream, size))
        self.most_bytes: int | None = None
        self._connection = connection
        self._stream = stream
        self._data = bytearray()
        self._unread_bytes = 0
        self._came = asyncio.Event()
        self._ended = False
        self._in_message = False

    def add(self, data: bytes, ack_size: int) -> None:
        """Take the bytes that have come."""
        self._data += data
        self._unread_bytes += ack_size
        self._came.set()

    def eof(self) -> None:
        """Note that the peer sends nothing more."""
        self._ended = True
        self._came.set()

    async def read(self, size: int) -> bytes:
        """Return the next bytes: in turn the prefix of a message, and the message.

        Return nothing if the peer has ended the stream between two messages.

        Raises:
            GRPCError: the stream ends in a message, or the message is too long.
        """
        if self._in_message and self.most_bytes is not None and size > self.most_bytes:
            words = f"the message has {size} bytes, more than {self.most_bytes}"
            raise GRPCError(Status.RESOURCE_EXHAUSTED, words)
        with self._connection.holding(size):
            while len(self._data) < size and not self._ended:
                self._came.clear()
                self._acknowledge()
                await self._came.wait()
        if not (self._in_message or self._data):
            return b""
        if len(self._data) < size:
            raise GRPCError(Status.INTERNAL, f"the {self._connection.receives} is cut")
        self._in_message = not self._in_message
        found = bytes(memoryview(self._data)[:size])
        del self._data[:size]
        self._acknowledge()
        return found

    def unacked_size(self) -> int:
        """Return how many read bytes the peer has not heard of yet, and forget the number."""
        size, self._unread_bytes = self._unread_bytes, 0
        return size

    def clear(self) -> None:
        """Drop the bytes that have come."""
        self._data.clear()

    def _acknowledge(self) -> None:
        self._connection.ack(self._stream, self.unacked_size())


class Stream(protocol.Stream):
    """The library's stream, with a buffer of bytes."""

    buffer: _Buffer
    _error: StreamTerminatedError | None = None

    def init_stream(self, stream_id: int, connection: protocol.Connection) -> None:
        """Begin; the number of the stream is known."""
        super().init_stream(stream_id, connection)
        self.buffer = _Buffer(cast("_Connection", connection), stream_id)

    def __terminated__(self, reason: str) -> None:
        self._error = StreamTerminatedError(reason)
        if self.wrapper is not None:
            self.wrapper.cancel(self._error)

    def forget(self) -> None:
        """Let go of the frames in the error that has ended the stream."""
        if self._error:
            without_frames(self._error)


class _Connection(protocol.Connection):
    """The library's connection, which loses its transport when it is closed.

    Attributes:
        receives: the name of the peer's messages.
        end: ends the connection and its streams.
    """

    def __init__(
        self, h2: _H2, transport: asyncio.Transport, config: Configuration, room: Room | None
    ) -> None:
        super().__init__(h2, transport, config=config)
        self._room = room
        self.receives: Final = "answer" if h2.config.client_side else "request"
        self.end: Callable[[str], None] = _nothing

    def holding(self, length: int) -> AbstractContextManager[None]:
        """Count a message as long as it waits for the peer."""
        return nullcontext() if self._room is None else self._room.hold(length, self.end)

    def create_stream(
        self, *, stream_id: int | None = None, wrapper: Wrapper | None = None
    ) -> Stream:
        """Return a stream.

        Raises:
            StreamTerminatedError: the connection is closed.
        """
        if self.is_closing():
            raise StreamTerminatedError("the connection is closed")
        transport = self._transport
        return Stream(self, self._connection, transport, stream_id=stream_id, wrapper=wrapper)

    def ack(self, stream_id: int, size: int) -> None:
        """Let the peer send as many bytes again."""
        if not self.is_closing():
            super().ack(stream_id, size)

    def flush(self) -> None:
        """Send the bytes that the library has ready."""
        if not self.is_closing():
            super().flush()

    def close(self) -> None:
        """Close the connection at once: a peer that does not read would keep it open."""
        if not self.is_closing() and self._transport.get_write_buffer_size():
            self._transport.abort()
        super().close()
        # It refers to this object, whose memory is to be free at once.
        self.end = _nothing


class _Processor(protocol.EventsProcessor):
    """The library's handling of events; a stream that has ended leaves nothing."""

    connection: _Connection
    streams: dict[int, Stream]  # type: ignore[assignment]

    def register(self, stream: Stream) -> Callable[[], None]:  # type: ignore[override]
        """Know a stream from now on; return a function that forgets it, also if called twice."""
        release = super().register(stream)

        def release_once() -> None:
            if stream.id in self.streams:
                release()
            stream.buffer.clear()

        return release_once

    def process(self, event: Event) -> None:
        """Handle an event; one of a kind that gRPC does not need is none."""
        if not self.connection.is_closing() and type(event) in self.processors:
            super().process(event)

    def process_stream_reset(self, event: StreamReset) -> None:
        """End a stream; the task of one that is reset at once ends before it can release it."""
        stream = self.streams.get(event.stream_id)
        super().process_stream_reset(event)
        if stream is not None and event.stream_id in self.streams:
            del self.streams[event.stream_id]
            self.connection.stream_close_waiter.set()
            self.connection.ack(event.stream_id, stream.buffer.unacked_size())

    def close(self, reason: str = "the connection is closed") -> None:
        """End every stream, and drop the bytes that have come on it."""
        super().close(reason)
        for stream in self.streams.values():
            stream.buffer.clear()
        self.streams.clear()


class Connection(protocol.H2Protocol):
    """A peer's connection to this process, or this process's to a peer.

    It ends with ENHANCE_YOUR_CALM where the peer resets streams, or sends frames without data,
    again and again. While the peer does not read, this side reads nothing more from it.

    Args:
        handler: takes the peer's requests; the library's.
        config: the library's.
        h2_config: the library's.
        room: counts the messages that wait for the peer; None for a peer that is asked one question
            at a time.
        opened: called with the connection once the peer can be answered.
        lost: called with the connection at its end.
        now_s: a monotonic clock.
    """

    processor: _Processor
    connection: _Connection

    def __init__(
        self,
        handler: protocol.AbstractHandler,
        config: Configuration,
        h2_config: H2Configuration,
        *,
        room: Room | None = None,
        opened: Callable[[Connection], None] = lambda _connection: None,
        lost: Callable[[Connection], None] = lambda _connection: None,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(handler, config, h2_config)
        self._room = room
        self._opened = opened
        self._lost = lost
        self._now_s = now_s
        self._allowance = _ALLOWANCE
        self._counted_s = now_s()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Greet the peer."""
        self._transport = cast("asyncio.Transport", transport)
        self._h2 = _H2(self.h2_config)
        self._h2.initiate_connection()
        self.connection = _Connection(self._h2, self._transport, self.config, self._room)
        self.processor = _Processor(self.handler, self.connection)
        self.connection.end = self.processor.close
        self.connection.flush()
        self.connection.initialize()
        self._opened(self)

    def connection_lost(self, exc: BaseException | None) -> None:
        """End every stream."""
        super().connection_lost(exc)
        self._lost(self)

    def data_received(self, data: bytes) -> None:
        """Take the bytes that have come in pieces: one that exceeds a bound ends the connection."""
        for start in range(0, len(data), _FRAME_BYTES):
            if self.connection.is_closing():
                return
            self._take(data[start : start + _FRAME_BYTES])

    def pause_writing(self) -> None:
        """Read nothing more: each frame that is read may have a response that the peer leaves."""
        super().pause_writing()
        self._transport.pause_reading()

    def resume_writing(self) -> None:
        """Read on."""
        super().resume_writing()
        self._transport.resume_reading()

    def _take(self, data: bytes) -> None:
        try:
            events = self.connection.feed(data)
        except ProtocolError as error:
            self._end(f"what the peer sends is not HTTP/2 ({error})")
            return
        except UnicodeDecodeError as error:
            self._h2.close_connection(ErrorCodes.PROTOCOL_ERROR)
            self._end(f"the peer's headers are not text ({error})")
            return
        if not self._h2.curb():
            self._calm("it makes settings without an end")
            return
        self.connection.flush()
        for event in events:
            self._allow(event)
            self.processor.process(event)
        self.connection.flush()

    def _allow(self, event: Event) -> None:
        if isinstance(event, DataReceived) and event.data:
            return
        now_s = self._now_s()
        earned = (now_s - self._counted_s) * _ALLOWANCE_PER_S
        if isinstance(event, StreamEnded):
            earned += _CALL_EARNS
        self._counted_s = now_s
        self._allowance = min(_ALLOWANCE, self._allowance + earned)
        self._allowance -= _RESET_COST if isinstance(event, StreamReset) else 1.0
        if self._allowance < 0.0 and not self.connection.is_closing():
            self._calm("it resets streams, or sends frames without data, again and again")

    def _calm(self, why: str) -> None:
        self._h2.close_connection(ErrorCodes.ENHANCE_YOUR_CALM)
        self._end(f"the peer must calm down: {why}")

    def _end(self, why: str) -> None:
        self.connection.flush()
        self.processor.close(why)


def _nothing(_reason: str) -> None:
    """Do nothing: the connection has ended."""


def limit(stream: Any, most_bytes: int) -> None:  # noqa: ANN401  # a client's or a server's stream
    """Let a stream fail at a message that is too long, before the message is in memory."""
    stream._stream.buffer.most_bytes = most_bytes  # noqa: SLF001  # no other way to the buffer


def holding(stream: ServerStream[bytes, bytes], length: int) -> AbstractContextManager[None]:
    """Count a message as long as it waits for the peer of a stream."""
    connection: _Connection = stream._stream.connection  # type: ignore[assignment]  # noqa: SLF001
    return connection.holding(length)


async def send(stream: ServerStream[bytes, bytes], message: bytes) -> None:
    """Send one message of many; the library would copy it for each stream."""
    await stream._stream.send_data(struct.pack(">BI", 0, len(message)))  # noqa: SLF001
    await stream._stream.send_data(message)  # noqa: SLF001
