"""Where plugins of the QoS Resource Manager register by a call, as device plugins do.

A plugin makes its socket in the manager's folder, and says its name and resource at `kubelet.sock`
there. Source: kubewharf/kubelet, pkg/apis/resourceplugin/v1alpha1.
"""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, Final

from grpclib.const import Status
from grpclib.exceptions import GRPCError

from cpupool.api.resourceplugin_pb2 import Empty, RegisterRequest
from cpupool.core.pod_resources import is_name
from cpupool.qrm.plugin_client import VERSION, Introduction
from cpupool.qrm.plugin_messages import options
from cpupool.rpc.methods import unary
from cpupool.rpc.serving import ServedSocket, Server

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from grpclib.const import Handler

    from cpupool.rpc.http2 import Connection
    from cpupool.rpc.serving import Service

REGISTRATION_SOCKET: Final = "kubelet.sock"
MOST_OPEN: Final = 64
"""The most connections."""
_OPEN_S: Final = 10.0
"""How long a connection lasts; to register takes milliseconds."""


def registration_socket(folder: Path, registered: Callable[[Introduction], str]) -> ServedSocket:
    """Make the socket at which plugins register.

    Args:
        folder: the manager's folder.
        registered: called with each plugin that registers, in a thread of the socket; returns why
            it is refused, empty if it is not.
    """
    service = _Registration(folder, registered)
    return ServedSocket(
        folder / REGISTRATION_SOCKET, lambda: _BriefServer(service), "door for plugins"
    )


class _BriefServer(Server):
    """A server of short calls: it cuts off connections that last.

    A client that sends a request byte by byte, or pings without an end, holds nothing up.
    """

    def __init__(self, service: Service) -> None:
        super().__init__(service, most=MOST_OPEN)
        self._ends: dict[Connection, asyncio.TimerHandle] = {}

    def connected(self, connection: Connection) -> None:
        """Take a connection for a while."""
        super().connected(connection)
        loop, why = asyncio.get_running_loop(), "registering takes too long"
        self._ends[connection] = loop.call_later(_OPEN_S, connection.processor.close, why)

    def lost(self, connection: Connection) -> None:
        """Forget a connection."""
        super().lost(connection)
        self._ends.pop(connection).cancel()


class _Registration:
    def __init__(self, folder: Path, registered: Callable[[Introduction], str]) -> None:
        self._folder = folder
        self._registered = registered

    def __mapping__(self) -> Mapping[str, Handler]:
        path = "/resourceplugin.v1alpha1.Registration/Register"
        return dict((unary(path, RegisterRequest, self._register),))

    def _register(self, request: RegisterRequest) -> Empty:
        """Take a plugin; whether its socket can be used shows later."""
        endpoint = os.path.basename(request.endpoint)  # noqa: PTH119 - a name is no path yet
        if request.version != VERSION:
            why = f"register a resource with version {VERSION}, not {request.version[:20]!r}"
            raise GRPCError(Status.INVALID_ARGUMENT, why)
        if not is_name(request.resource_name):
            why = f"{request.resource_name[:60]!r} is no name of a resource, as cpu"
            raise GRPCError(Status.INVALID_ARGUMENT, why)
        if not endpoint or endpoint != request.endpoint or endpoint == REGISTRATION_SOCKET:
            why = f"{request.endpoint[:60]!r} is not the name of a socket in {self._folder}"
            raise GRPCError(Status.INVALID_ARGUMENT, why)
        asked = options(request.options)
        known = Introduction(request.resource_name, self._folder / endpoint, asked)
        if why := self._registered(known):
            raise GRPCError(Status.FAILED_PRECONDITION, why)
        return Empty()
