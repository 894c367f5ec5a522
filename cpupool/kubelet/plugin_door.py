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
from cpupool.core.resources import is_name
from cpupool.kubelet.methods import unary
from cpupool.kubelet.resource_plugin import VERSION, Introduction, options
from cpupool.kubelet.serving import ServedSocket, Server

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from grpclib.const import Handler
    from grpclib.protocol import H2Protocol

    from cpupool.kubelet.serving import Service

DOOR: Final = "kubelet.sock"
MOST_OPEN: Final = 64
"""The most connections; asyncio accepts some more at a time."""
_OPEN_S: Final = 10.0
"""How long a connection lasts; to register takes milliseconds."""
_WINDOW_BYTES: Final = 64 * 1024


def plugin_door(folder: Path, registered: Callable[[Introduction], str]) -> ServedSocket:
    """Make the door.

    Args:
        folder: the manager's folder.
        registered: called with each plugin that registers, in a thread of the door; returns why it
            is refused, empty if it is not.
    """
    service = _Door(folder, registered)
    return ServedSocket(folder / DOOR, lambda: _BriefServer(service), "door for plugins")


class _BriefServer(Server):
    """A server of short calls: it cuts off connections that last, and the oldest of many.

    A client that sends a request byte by byte, or pings without an end, holds nothing up.
    """

    def __init__(self, service: Service) -> None:
        super().__init__(service, window_bytes=_WINDOW_BYTES)
        self._opened_s: dict[H2Protocol, float] = {}
        self._timer: asyncio.TimerHandle | None = None

    def _protocol_factory(self) -> H2Protocol:
        connection = super()._protocol_factory()
        self._opened_s[connection] = asyncio.get_running_loop().time()
        self._cut_off()
        return connection

    def _cut_off(self) -> None:
        loop = asyncio.get_running_loop()
        late_s = loop.time() - _OPEN_S
        for connection, opened_s in tuple(self._opened_s.items()):
            if opened_s > late_s and len(self._opened_s) <= MOST_OPEN:
                break
            # One that asyncio has just accepted has no transport yet.
            if hasattr(connection, "processor"):
                del self._opened_s[connection]
                connection.processor.close("registering takes too long, or too many do it")
        if self._timer is not None:
            self._timer.cancel()
        self._timer = loop.call_later(_OPEN_S, self._cut_off) if self._opened_s else None


class _Door:
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
        if not endpoint or endpoint != request.endpoint or endpoint == DOOR:
            why = f"{request.endpoint[:60]!r} is not the name of a socket in {self._folder}"
            raise GRPCError(Status.INVALID_ARGUMENT, why)
        asked = options(request.options)
        known = Introduction(request.resource_name, self._folder / endpoint, asked)
        if why := self._registered(known):
            raise GRPCError(Status.FAILED_PRECONDITION, why)
        return Empty()
