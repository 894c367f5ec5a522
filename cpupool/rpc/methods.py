"""The edge of a gRPC server: a method's error becomes a status with a message.

A request has bounds, too: this module checks how many messages it holds before it parses them.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing, contextmanager
from typing import TYPE_CHECKING, Final, TypeVar

from google.protobuf.message import DecodeError, Message
from grpclib.const import Cardinality, Handler, Status
from grpclib.exceptions import GRPCError

from cpupool.core.errors import AllocationError, UnavailableDevices
from cpupool.rpc import http2
from cpupool.rpc.parts import TooManyParts, check_parts
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
    path: str, request: type[_Request], answer: Callable[[_Request], Message]
) -> tuple[str, Handler]:
    """Return a method for a server.

    Args:
        path: the method's path, as `/v1beta1.DevicePlugin/Allocate`.
        request: the type of its requests.
        answer: returns the response to one.
    """
    failures = Failures()

    async def handle(stream: Stream[bytes, bytes]) -> None:
        with _answering(path, failures):
            asked = _parsed(path, request, await _received(stream))
            found = answer(asked).SerializeToString()
            with http2.holding(stream, len(found)):
                await stream.send_message(found)

    return path, Handler(handle, Cardinality.UNARY_UNARY, bytes, bytes)


def shared(
    path: str, request: type[_Request], answer: Callable[[], Message]
) -> tuple[str, Handler]:
    """Return a method whose response is the same for all callers, and made by asking peers.

    It is made in another thread than the loop's, once at a time. Callers that come meanwhile wait
    for the next one, and share it: no response is older than its call, and many callers cost two at
    most. A caller that goes away ends nothing.

    Args:
        path: the method's path.
        request: the type of its requests, which say nothing.
        answer: returns the response.
    """
    failures, runs = Failures(), _Runs(lambda: answer().SerializeToString())

    async def handle(stream: Stream[bytes, bytes]) -> None:
        with _answering(path, failures):
            _parsed(path, request, await _received(stream))
            found = await runs.next()
            with http2.holding(stream, len(found)):
                await stream.send_message(found)

    return path, Handler(handle, Cardinality.UNARY_UNARY, bytes, bytes)


class _Runs:
    """Runs of one function, one after the other; all methods are for the thread of the loop."""

    def __init__(self, work: Callable[[], bytes]) -> None:
        self._work = work
        self._running: asyncio.Task[bytes] | None = None
        self._waiting: asyncio.Task[bytes] | None = None

    async def next(self) -> bytes:
        """Return the result of the next run that begins."""
        if self._waiting is None:
            self._waiting = asyncio.create_task(self._run(self._running))
            self._waiting.add_done_callback(self._ended)
        return await asyncio.shield(self._waiting)

    async def _run(self, before: asyncio.Task[bytes] | None) -> bytes:
        if before is not None:
            await asyncio.wait((before,))
        self._running, self._waiting = self._waiting, None
        return await asyncio.to_thread(self._work)

    def _ended(self, run: asyncio.Task[bytes]) -> None:
        # A task keeps its result, or its error with the frames.
        if self._running is run:
            self._running = None
        # Its callers may be gone: asyncio logs an error that no caller reads.
        if not run.cancelled():
            run.exception()


def streaming(
    path: str, request: type[_Request], answers: Callable[[_Request], AsyncGenerator[bytes, None]]
) -> tuple[str, Handler]:
    """Return a method whose responses, encoded already, come as long as its client listens."""
    failures = Failures()

    async def handle(stream: Stream[bytes, bytes]) -> None:
        with _answering(path, failures):
            asked = _parsed(path, request, await _received(stream))
            async with aclosing(answers(asked)) as messages:
                await stream.send_initial_metadata()
                async for message in messages:
                    with http2.holding(stream, len(message)):
                        await http2.send(stream, message)
                    # The response's memory is free before the next one comes.
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
        # The fields of a request that have no meaning here take no memory while it waits.
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
