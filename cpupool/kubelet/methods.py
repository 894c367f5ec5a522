"""The edge of a gRPC server: whatever a method raises becomes a status with a message."""

from __future__ import annotations

import asyncio
from contextlib import aclosing, contextmanager
from typing import TYPE_CHECKING, Any, Final, TypeVar

from google.protobuf.message import DecodeError, Message
from grpclib.const import Cardinality, Handler, Status
from grpclib.exceptions import GRPCError

from cpupool.channel import limit
from cpupool.core.errors import AllocationError, UnavailableDevices
from cpupool.telemetry import log as logs
from cpupool.telemetry.failures import Failures

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterator

    from grpclib.server import Stream

log = logs.get(__name__)

MAX_REQUEST_BYTES: Final = 4 * 1024 * 1024
"""The limit of other gRPC libraries, unless it is set."""

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
        waits: whether `answer` asks a peer, and so must not run in the loop's thread.
    """
    failures = Failures()

    async def handle(stream: Stream[_Request, Any]) -> None:
        with _answering(path, failures):
            asked = await _received(stream)
            found = await asyncio.to_thread(answer, asked) if waits else answer(asked)
            await stream.send_message(found)

    return path, Handler(handle, Cardinality.UNARY_UNARY, request, Message)


def streaming(
    path: str, request: type[_Request], answers: Callable[[_Request], AsyncGenerator[bytes, None]]
) -> tuple[str, Handler]:
    """Return a method whose answers, encoded already, come as long as its client listens."""
    failures = Failures()

    async def handle(stream: Stream[_Request, Any]) -> None:
        with _answering(path, failures):
            async with aclosing(answers(await _received(stream))) as messages:
                async for message in messages:
                    await stream.send_message(message)

    return path, Handler(handle, Cardinality.UNARY_STREAM, request, Message)


async def _received(stream: Stream[_Request, Any]) -> _Request:
    limit(stream, MAX_REQUEST_BYTES)
    try:
        request = await stream.recv_message()
    except NotImplementedError as error:
        words = "the request is compressed; send it uncompressed"
        raise GRPCError(Status.UNIMPLEMENTED, words) from error
    except AssertionError as error:
        raise GRPCError(Status.INTERNAL, "the request is cut") from error
    if request is None:
        raise GRPCError(Status.INTERNAL, "there is no request")
    return request


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
    except DecodeError as error:
        log.warning("call unreadable", method=method, reason=error)
        words = f"not a request of {method}: {error}"
        raise GRPCError(Status.INVALID_ARGUMENT, words) from error
    except Exception as error:  # the edge: the caller gets a status, the log the traceback
        log.exception("call failed", method=method)
        words = "cpupool failed; its log has the details"
        raise GRPCError(Status.INTERNAL, words) from error


def _status(error: AllocationError) -> Status:
    if isinstance(error, UnavailableDevices):
        return Status.FAILED_PRECONDITION
    return Status.INVALID_ARGUMENT
