"""A QRM plugin that answers with chosen bytes, as the plugins in Go do."""

from __future__ import annotations

from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Self

import grpc

from cpupool.api import pluginregistration_pb2, resourceplugin_pb2

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from google.protobuf.message import Message

SERVICE = "resourceplugin.v1alpha1.ResourcePlugin"
REGISTRATION = "pluginregistration.Registration"


class Refusal(Exception):
    """A status in place of an answer."""

    def __init__(self, code: grpc.StatusCode, details: str = "") -> None:
        self.code = code
        self.details = details
        super().__init__(details)


class PluginDouble:
    """A plugin on a socket; runs from `with` to its end.

    Attributes:
        resource: the resource that it serves.
        replies: method → what it answers; a method without a reply is not implemented.
        asked: method → the requests.
    """

    def __init__(self, socket: Path, resource: str = "cpu", **options: bool) -> None:
        self.socket = socket
        self.resource = resource
        info = pluginregistration_pb2.PluginInfo(
            type="ResourcePlugin", name=resource, supported_versions=["v1alpha1"]
        )
        self.replies: dict[str, bytes | Refusal | Callable[[bytes], bytes]] = {
            "GetInfo": info.SerializeToString(),
            "NotifyRegistrationStatus": b"",
            "GetResourcePluginOptions": resourceplugin_pb2.ResourcePluginOptions(
                **options
            ).SerializeToString(),
        }
        self.asked: defaultdict[str, list[bytes]] = defaultdict(list)
        self._server = grpc.server(ThreadPoolExecutor(4), handlers=[_Handlers(self)])

    def __enter__(self) -> Self:
        self._server.add_insecure_port(f"unix:{self.socket}")
        self._server.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._server.stop(grace=None).wait()

    def answers(self, method: str, reply: bytes | Message | Refusal) -> None:
        """Answer a method so from now on."""
        if isinstance(reply, bytes | Refusal):
            self.replies[method] = reply
        else:
            self.replies[method] = reply.SerializeToString()

    def answer(self, method: str, request: bytes) -> bytes:
        self.asked[method].append(request)
        reply = self.replies[method]
        if isinstance(reply, Refusal):
            raise reply
        return reply if isinstance(reply, bytes) else reply(request)


class _Handlers(grpc.GenericRpcHandler):
    def __init__(self, plugin: PluginDouble) -> None:
        self._plugin = plugin

    def service(self, call: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[Any, Any] | None:
        service, _, method = call.method.removeprefix("/").partition("/")
        if service not in {SERVICE, REGISTRATION} or method not in self._plugin.replies:
            return None

        def answer(request: bytes, context: grpc.ServicerContext) -> bytes:
            try:
                return self._plugin.answer(method, request)
            except Refusal as refusal:
                context.abort(refusal.code, refusal.details)

        return grpc.unary_unary_rpc_method_handler(answer)


def entry(field: int, key: str, value: bytes | None) -> bytes:
    """Return an entry of a map; Go leaves the value out if it is nil."""
    named = _field(1, key.encode())
    return _field(field, named if value is None else named + _field(2, value))


def _field(number: int, content: bytes) -> bytes:
    assert len(content) < 128
    return bytes((number << 3 | 2, len(content))) + content
