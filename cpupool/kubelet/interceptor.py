"""The edge of a gRPC server: whatever a handler raises becomes a status with a message."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import grpc.aio
from google.protobuf.message import DecodeError

from cpupool.core.errors import AllocationError, UnavailableDevices
from cpupool.telemetry import log as logs

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from google.protobuf.message import Message

    _Handler = grpc.RpcMethodHandler[Any, Any]
    _Context = grpc.aio.ServicerContext[Any, Any]

log = logs.get(__name__)


class StatusInterceptor(grpc.aio.ServerInterceptor):
    """Answer refused, unreadable and failed calls with a status, and log each on one line.

    Requests are decoded here and not by grpc, which answers bytes that are no message with
    INTERNAL and writes a traceback. A handler answers with messages, or with encoded ones.
    """

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[_Handler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> _Handler | None:
        """Wrap the handler of one call."""
        handler = await continuation(handler_call_details)
        if handler is None:
            return None
        method = handler_call_details.method
        decode: Any = handler.request_deserializer
        unary: Any = handler.unary_unary
        stream: Any = handler.unary_stream

        async def answer(data: bytes, context: _Context) -> object:
            async with _answering(method, context):
                return await unary(decode(data), context)

        async def answers(data: bytes, context: _Context) -> AsyncIterator[object]:
            async with _answering(method, context):
                async for message in stream(decode(data), context):
                    yield message

        if stream is not None:
            return grpc.unary_stream_rpc_method_handler(answers, response_serializer=_encoded)
        return grpc.unary_unary_rpc_method_handler(answer, response_serializer=_encoded)


def _encoded(response: Message | bytes) -> bytes:
    return response if isinstance(response, bytes) else response.SerializeToString()


@asynccontextmanager
async def _answering(method: str, context: _Context) -> AsyncIterator[None]:
    try:
        yield
    except AllocationError as error:
        log.warning("call refused", method=method, reason=error)
        await context.abort(_code(error), str(error))
    except DecodeError as error:
        log.warning("call unreadable", method=method, reason=error)
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"not a request of {method}: {error}")
    except Exception:  # the edge: the caller gets a status, the log the traceback
        log.exception("call failed", method=method)
        await context.abort(grpc.StatusCode.INTERNAL, "cpupool failed; its log has the details")


def _code(error: AllocationError) -> grpc.StatusCode:
    if isinstance(error, UnavailableDevices):
        return grpc.StatusCode.FAILED_PRECONDITION
    return grpc.StatusCode.INVALID_ARGUMENT
