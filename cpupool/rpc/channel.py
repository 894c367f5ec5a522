"""Calls to the kubelet and the container runtime: gRPC over unix sockets, without threads."""

from __future__ import annotations

import asyncio
import sys
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final, TypeVar

from google.protobuf.message import DecodeError
from grpclib import client
from grpclib.const import Status
from grpclib.encoding.base import CodecBase
from grpclib.exceptions import GRPCError, StreamTerminatedError
from h2.exceptions import H2Error

from cpupool.core.errors import RemoteProtocolError, without_frames
from cpupool.rpc import http2

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from google.protobuf.message import Message

T = TypeVar("T", bound="Message")

MAX_MESSAGE_BYTES: Final = 64 * 1024 * 1024
"""A node's podresources list names every milli-CPU of every container by its id."""

_REMEDIES: Final = {
    Status.UNAVAILABLE: "check that {peer} runs and that its folder is mounted",
    Status.DEADLINE_EXCEEDED: "check whether {peer} hangs",
    Status.UNIMPLEMENTED: "{peer} is too old or has this service switched off",
    Status.RESOURCE_EXHAUSTED: "ask less often",
}
_HUNG_UP: Final = (H2Error, OSError, StreamTerminatedError)
"""The errors of grpclib, h2 and the socket if the peer is away, or ends the connection."""


class CallFailed(Exception):
    """A call without a response.

    Attributes:
        status: why, as the peer says or this side has found.
        details: the reason in words; may be empty.
    """

    def __init__(self, status: Status, details: str) -> None:
        self.status = status
        self.details = details
        super().__init__(f"{status.name}: {details}")


class Codec(CodecBase):
    """Messages as bytes; one that is encoded already is sent unchanged."""

    __content_subtype__ = "proto"

    def encode(self, message: Message | bytes, message_type: object) -> bytes:
        """Return the bytes of a message."""
        del message_type
        return message if isinstance(message, bytes) else message.SerializeToString()

    def decode(self, data: bytes, message_type: object) -> bytes:
        """Return the bytes of a message: it is parsed when its bounds are known."""
        del message_type
        return data


class _Connecting(client.Channel):
    """The library's channel, whose connections have bounds."""

    def _protocol_factory(self) -> http2.Connection:
        return http2.Connection(client.Handler(), self._config, self._h2_config)


class Channel:
    """Calls of one thread to a peer; it connects with the first of them.

    Args:
        socket: the peer's socket.
        max_message_bytes: the largest answer that it accepts.
        loop: runs while a call waits, and only then.
    """

    def __init__(
        self, socket: Path, max_message_bytes: int, loop: asyncio.AbstractEventLoop
    ) -> None:
        self._socket = socket
        self._max_message_bytes = max_message_bytes
        self._loop = loop
        self._connection: client.Channel | None = None
        self._running: asyncio.Task[bytes] | None = None
        self._given_up = False

    def call(self, method: str, request: Message, answer: type[T], timeout_s: float) -> T:
        """Call a method and return its response.

        Args:
            method: its path, as `/v1beta1.Registration/Register`.
            request: the message for it.
            answer: the type of its response.
            timeout_s: how long to wait, with the time to connect.

        Raises:
            CallFailed: there is no response.
        """
        return parsed(answer, self.ask(method, request, timeout_s))

    def ask(self, method: str, request: Message, timeout_s: float) -> bytes:
        """Call a method and return the bytes of its response, for a caller that bounds them.

        Args:
            method: its path, as `/v1beta1.Registration/Register`.
            request: the message for it.
            timeout_s: how long to wait, with the time to connect.

        Raises:
            CallFailed: there is no response.
        """
        # The loop is this thread's: no callback comes between this and the run of the task.
        self._running = self._loop.create_task(self._call(method, request, timeout_s))
        if self._given_up:
            self._running.cancel()
        try:
            return self._loop.run_until_complete(self._running)
        except (asyncio.CancelledError, GRPCError, *_HUNG_UP) as error:
            status, words = _reason(error, timeout_s)
            without_frames(error)
        finally:
            # A task keeps its result.
            self._running = None
        raise CallFailed(status, words)

    def give_up(self) -> None:
        """End the present call and all later ones; any thread may ask for it."""
        self._given_up = True
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._cancel)

    def _cancel(self) -> None:
        if self._running is not None:
            self._running.cancel()

    async def _call(self, method: str, request: Message, timeout_s: float) -> bytes:
        if self._connection is None:
            self._connection = _Connecting(path=str(self._socket), codec=Codec())
        call: client.UnaryUnaryMethod[Any, bytes]
        call = client.UnaryUnaryMethod(self._connection, method, type(request), bytes)
        async with _opened(call.open(timeout=timeout_s)) as stream:
            await stream.send_message(request, end=True)
            http2.limit(stream, self._max_message_bytes)
            with _readable(KeyError, ValueError):
                await stream.recv_initial_metadata()
            with _readable(NotImplementedError):
                found = await stream.recv_message()
        if found is None:
            raise GRPCError(Status.INTERNAL, "the answer has no message")
        return found

    def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            self._connection.close()
            # A transport ends in the turn after its close.
            self._loop.run_until_complete(asyncio.sleep(0))


@asynccontextmanager
async def _opened(
    opening: client.Stream[Any, bytes],
) -> AsyncIterator[client.Stream[Any, bytes]]:
    """Open a stream; at its end the library reads the response's trailers, and its status again."""
    stream = await opening.__aenter__()
    try:
        yield stream
    except BaseException:
        with _readable(KeyError, ValueError):
            await opening.__aexit__(*sys.exc_info())
        raise
    with _readable(KeyError, ValueError):
        await opening.__aexit__(None, None, None)


@contextmanager
def _readable(*raised: type[Exception]) -> Iterator[None]:
    """Let one call of the library fail by a status where a response breaks the protocol.

    Args:
        raised: the errors of the call in that case.
    """
    try:
        yield
    except raised as error:
        raise GRPCError(Status.INTERNAL, _unreadable(error)) from error


def parsed(kind: type[T], data: bytes) -> T:
    """Return the message in the bytes of a response.

    Raises:
        CallFailed: they are no such message.
    """
    try:
        return kind.FromString(data)
    except DecodeError as error:
        words = _unreadable(error)
    # The error has no frame with the bytes: it may be kept for longer than they are.
    del data
    raise CallFailed(Status.INTERNAL, words)


def _reason(error: BaseException, timeout_s: float) -> tuple[Status, str]:
    match error:
        case asyncio.CancelledError():
            return Status.CANCELLED, "the call was given up"
        case GRPCError():
            return error.status, error.message or ""
        case TimeoutError():
            return Status.DEADLINE_EXCEEDED, f"no answer in {timeout_s:g} s"
        case _:
            return Status.UNAVAILABLE, str(error)


def _unreadable(error: Exception) -> str:
    return f"the answer is not readable ({type(error).__name__}: {error})"


@contextmanager
def opened(socket: Path, max_message_bytes: int = MAX_MESSAGE_BYTES) -> Iterator[Channel]:
    """Open a channel to a unix socket, for calls of this thread.

    Args:
        socket: the peer's socket.
        max_message_bytes: the largest answer that the channel accepts.
    """
    loop = asyncio.new_event_loop()
    try:
        channel = Channel(socket, max_message_bytes, loop)
        try:
            yield channel
        finally:
            channel.close()
    finally:
        loop.close()


@contextmanager
def dialled(
    socket: Path,
    purpose: str,
    peer: str = "the kubelet",
    max_message_bytes: int = MAX_MESSAGE_BYTES,
) -> Iterator[Channel]:
    """Open a channel for one purpose.

    A new channel for each reaches a restarted peer at once, and nothing is left of it at rest.

    Args:
        socket: the peer's socket.
        purpose: what the calls are for, as in `registering nokia.k8s.io/shared`.
        peer: the peer's name, for messages.
        max_message_bytes: the largest answer that the channel accepts.

    Raises:
        RemoteProtocolError: a call made inside failed.
    """
    try:
        with opened(socket, max_message_bytes) as channel:
            yield channel
    except CallFailed as failure:
        raise RemoteProtocolError(
            f"{purpose} on {socket} failed ({failure});"
            f" {_REMEDIES.get(failure.status, 'look at the log of {peer}').format(peer=peer)}"
        ) from failure
