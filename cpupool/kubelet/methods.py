"""The edge of a gRPC server: whatever a method raises becomes a status with a message."""

from __future__ import annotations

import asyncio
import threading
from contextlib import aclosing, contextmanager
from typing import TYPE_CHECKING, Final, TypeVar

from google.protobuf.message import DecodeError, Message
from grpclib.const import Cardinality, Handler, Status
from grpclib.exceptions import GRPCError

from cpupool import http2
from cpupool.core.errors import AllocationError, UnavailableDevices
from cpupool.kubelet.parts import TooManyParts, check_parts
from cpupool.telemetry import log as logs
from cpupool.telemetry.failures import Failures

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterator

    from grpclib.server import Stream

log = logs.get(__name__)

MAX_REQUEST_BYTES: Final = 4 * 1024 * 1024
"""The limit of other gRPC libraries, unless it is set."""
_MOST_PARTS: Final = 10_000
"""Messages within a request: containers, or labels and annotations."""

_Request = TypeVar("_Request", bound=Message)


def unary(
    path: str,
    request: type[_Request],
    answer: Callable[[_Request], Message],
    *,
    waits: bool = False,
) -> tuple[str, Handler]:
    """Return a method for a server.

    Args:
        path: the method's path, as `/v1beta1.DevicePlugin/Allocate`.
        request: the type of its requests.
        answer: returns the answer to one.
        waits: whether `answer` asks a peer, and so must not run in the loop's thread; one request
            is answered after the other.
    """
    failures = Failures()
    turn = threading.Lock()

    async def handle(stream: Stream[bytes, bytes]) -> None:
        with _answering(path, failures):
            asked = _parsed(path, request, await _received(stream))
            if waits:
                found = await asyncio.to_thread(in_turn, asked)
            else:
                found = answer(asked).SerializeToString()
            with http2.holding(stream, len(found)):
                await stream.send_message(found)

    def in_turn(asked: _Request) -> bytes:
        with turn:
            return answer(asked).SerializeToString()

    return path, Handler(handle, Cardinality.UNARY_UNARY, bytes, bytes)


def streaming(
    path: str, request: type[_Request], answers: Callable[[_Request], AsyncGenerator[bytes, None]]
) -> tuple[str, Handler]:
    """Return a method whose answers, encoded already, come as long as its client listens."""
    failures = Failures()

    async def handle(stream: Stream[bytes, bytes]) -> None:
        with _answering(path, failures):
            asked = _parsed(path, request, await _received(stream))
            async with aclosing(answers(asked)) as messages:
                await stream.send_initial_metadata()
                async for message in messages:
                    with http2.holding(stream, len(message)):
                        await http2.send(stream, message)
                    # It is not kept until the next one comes.
                    del message

    return path, Handler(handle, Cardinality.UNARY_STREAM, bytes, bytes)


async def _received(stream: Stream[bytes, bytes]) -> bytes:
    http2.limit(stream, MAX_REQUEST_BYTES)
    try:
        data = await stream.recv_message()
    except NotImplementedError as error:
        words = "the request is compressed; send it uncompressed"
        raise GRPCError(Status.UNIMPLEMENTED, words) from error
    if data is None:
        raise GRPCError(Status.INTERNAL, "there is no request")
    return data


def _parsed(method: str, request: type[_Request], data: bytes) -> _Request:
    try:
        check_parts(request, data, _MOST_PARTS)
        found = request.FromString(data)
    except (DecodeError, TooManyParts) as error:
        words = f"not a request of {method}: {error}"
    else:
        # What a request has of no meaning here is not kept while it waits.
        found.DiscardUnknownFields()
        return found
    # The error has no frame with the bytes.
    del data
    raise GRPCError(Status.INVALID_ARGUMENT, words)


@contextmanager
def _answering(method: str, failures: Failures) -> Iterator[None]:
    try:
        yield
        failures.ends()
    except GRPCError as error:
        # A client may repeat its call without an end.
        if failures.begins(error.message):
            log.warning("call refused", method=method, reason=error.message)
        raise
    except AllocationError as error:
        log.warning("call refused", method=method, reason=error)
        raise GRPCError(_status(error), str(error)) from error
    except Exception as error:  # the edge: the caller gets a status, the log the traceback
        log.exception("call failed", method=method)
        words = "cpupool failed; its log has the details"
        raise GRPCError(Status.INTERNAL, words) from error


def _status(error: AllocationError) -> Status:
    if isinstance(error, UnavailableDevices):
        return Status.FAILED_PRECONDITION
    return Status.INVALID_ARGUMENT
