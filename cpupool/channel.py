"""Calls to the kubelet and the container runtime: gRPC over unix sockets, without threads."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final, TypeVar

from google.protobuf.message import DecodeError
from grpclib import client
from grpclib.const import Status
from grpclib.encoding.base import CodecBase
from grpclib.exceptions import GRPCError, StreamTerminatedError
from h2.exceptions import H2Error

from cpupool.core.errors import RemoteProtocolError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from google.protobuf.message import Message
    from grpclib.stream import StreamIterator

T = TypeVar("T", bound="Message")

MAX_MESSAGE_BYTES: Final = 64 * 1024 * 1024
"""A node's podresources list names every milli-CPU of every container by its id."""

_REMEDIES: Final = {
    Status.UNAVAILABLE: "check that {peer} runs and that its folder is mounted",
    Status.DEADLINE_EXCEEDED: "check whether {peer} hangs",
    Status.UNIMPLEMENTED: "{peer} is too old or has this service switched off",
    Status.RESOURCE_EXHAUSTED: "ask less often",
}
_HUNG_UP: Final = (AttributeError, H2Error, OSError, StreamTerminatedError)
"""What grpclib raises if the peer ends the connection: an AttributeError for its lost transport."""
_UNREADABLE: Final = (AssertionError, DecodeError, KeyError, NotImplementedError, ValueError)
"""What grpclib and a message's type raise if an answer breaks the protocol."""


class CallFailed(Exception):
    """A call without an answer.

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

    def decode(self, data: bytes, message_type: type[T]) -> T:
        """Return a message.

        Raises:
            DecodeError: it is not of this type.
        """
        return message_type.FromString(data)


def limit(stream: StreamIterator[Any], max_message_bytes: int) -> None:
    """Let a stream fail at a message that is too long, before the message is in memory.

    grpclib itself keeps whatever a peer sends.
    """
    buffer: Any = stream._stream.buffer  # type: ignore[attr-defined]  # noqa: SLF001  # no other way
    read = buffer.read

    async def limited(length: int) -> bytes:
        if length > max_message_bytes:
            words = f"the message has {length} bytes, more than {max_message_bytes}"
            raise GRPCError(Status.RESOURCE_EXHAUSTED, words)
        found: bytes = await read(length)
        return found

    buffer.read = limited


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
        self._running: asyncio.Task[Any] | None = None
        self._given_up = False

    def call(self, method: str, request: Message, answer: type[T], timeout_s: float) -> T:
        """Call a method and return its answer.

        Args:
            method: its path, as `/v1beta1.Registration/Register`.
            request: the message for it.
            answer: the type of its answer.
            timeout_s: how long to wait, with the time to connect.

        Raises:
            CallFailed: there is no answer.
        """
        running = self._loop.create_task(self._call(method, request, answer, timeout_s))
        self._running = running
        if self._given_up:
            running.cancel()
        try:
            return self._loop.run_until_complete(running)
        except asyncio.CancelledError as error:
            raise CallFailed(Status.CANCELLED, "the call was given up") from error
        except GRPCError as error:
            raise CallFailed(error.status, error.message or "") from error
        except TimeoutError as error:
            words = f"no answer in {timeout_s:g} s"
            raise CallFailed(Status.DEADLINE_EXCEEDED, words) from error
        except _HUNG_UP as error:
            raise CallFailed(Status.UNAVAILABLE, str(error)) from error
        except _UNREADABLE as error:
            words = f"the answer is not readable ({type(error).__name__}: {error})"
            raise CallFailed(Status.INTERNAL, words) from error

    def give_up(self) -> None:
        """End the present call and all later ones; any thread may ask for it."""
        self._given_up = True
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._cancel)

    def _cancel(self) -> None:
        if self._running is not None:
            self._running.cancel()

    async def _call(self, method: str, request: Message, answer: type[T], timeout_s: float) -> T:
        if self._connection is None:
            self._connection = client.Channel(path=str(self._socket), codec=Codec())
        call: client.UnaryUnaryMethod[Any, T]
        call = client.UnaryUnaryMethod(self._connection, method, type(request), answer)
        async with call.open(timeout=timeout_s) as stream:
            await stream.send_message(request, end=True)
            limit(stream, self._max_message_bytes)
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
