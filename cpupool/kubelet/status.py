"""The edge of a gRPC server: whatever a handler raises becomes a status with a message."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import grpc
from google.protobuf.message import DecodeError

from cpupool.core.errors import AllocationError, UnavailableDevices
from cpupool.telemetry import log as logs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from google.protobuf.message import Message

log = logs.get(__name__)


class StatusInterceptor(grpc.ServerInterceptor):
    """Answer refused, unreadable and failed calls with a status, and log each on one line.

    Requests are decoded here and not by grpc, which answers bytes that are no message with
    INTERNAL and writes a traceback. A handler answers with messages, or with encoded ones.
    """

    def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], grpc.RpcMethodHandler[Any, Any] | None],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        """Wrap the handler of one call."""
        handler = continuation(handler_call_details)
        if handler is None:
            return None
        method = handler_call_details.method
        decode: Any = handler.request_deserializer
        unary: Any = handler.unary_unary
        stream: Any = handler.unary_stream

        def answer(data: bytes, context: grpc.ServicerContext) -> object:
            with _answering(method, context):
                return unary(decode(data), context)

        def answers(data: bytes, context: grpc.ServicerContext) -> Iterator[object]:
            with _answering(method, context):
                yield from stream(decode(data), context)

        if stream is not None:
            return grpc.unary_stream_rpc_method_handler(answers, response_serializer=_encoded)
        return grpc.unary_unary_rpc_method_handler(answer, response_serializer=_encoded)


def _encoded(response: Message | bytes) -> bytes:
    return response if isinstance(response, bytes) else response.SerializeToString()


@contextmanager
def _answering(method: str, context: grpc.ServicerContext) -> Iterator[None]:
    try:
        yield
    except AllocationError as error:
        log.warning("call refused", method=method, reason=error)
        context.abort(_code(error), str(error))
    except DecodeError as error:
        log.warning("call unreadable", method=method, reason=error)
        context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"not a request of {method}: {error}")
    except Exception:  # the edge: the caller gets a status, the log the traceback
        log.exception("call failed", method=method)
        context.abort(grpc.StatusCode.INTERNAL, "cpupool failed; its log has the details")


def _code(error: AllocationError) -> grpc.StatusCode:
    if isinstance(error, UnavailableDevices):
        return grpc.StatusCode.FAILED_PRECONDITION
    return grpc.StatusCode.INVALID_ARGUMENT
