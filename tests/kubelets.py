"""The half of a kubelet that a device plugin meets: it takes registrations, dials back, listens."""

from __future__ import annotations

import threading
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING

import grpc

from cpupool.api.deviceplugin_pb2 import Empty, ListAndWatchResponse, RegisterRequest
from cpupool.api.deviceplugin_pb2_grpc import (
    DevicePluginStub,
    RegistrationServicer,
    add_RegistrationServicer_to_server,
)
from cpupool.core.device_list_limit import MAX_DEVICE_LIST_BYTES
from tests.waiting import DEADLINE_S

if TYPE_CHECKING:
    from pathlib import Path


def dial(socket: Path) -> grpc.Channel:
    return grpc.insecure_channel(
        f"unix:{socket}",
        options=[
            ("grpc.default_authority", "localhost"),
            ("grpc.use_local_subchannel_pool", 1),
            ("grpc.max_receive_message_length", MAX_DEVICE_LIST_BYTES),
        ],
    )


class RegisteringKubelet(RegistrationServicer):
    """Listens in `folder` between `start` and `stop`; what it saw is kept over restarts.

    Attributes:
        registered: every registration that it accepted, in order.
        lists: resource → every device list that it received.
        refusals: how many registrations it refuses before it accepts one.
        deaf: it accepts registrations and never dials back.
        ready: it answers no registration while this is not set.
        calls: registrations that came in, answered or not.
    """

    def __init__(self, folder: Path) -> None:
        self.registered: list[RegisterRequest] = []
        self.lists: defaultdict[str, list[ListAndWatchResponse]] = defaultdict(list)
        self.refusals = 0
        self.deaf = False
        self.ready = threading.Event()
        self.ready.set()
        self.calls = 0
        self._folder = folder
        self._lock = threading.Lock()
        self._server: grpc.Server | None = None
        self._channels: dict[str, grpc.Channel] = {}
        self._listeners: list[threading.Thread] = []

    def start(self, wiped: str = "*") -> None:
        """Wipe the folder's sockets, then listen, in the kubelet's order."""
        self._folder.mkdir(parents=True, exist_ok=True)
        for path in self._folder.glob(wiped):
            if path.is_socket():
                path.unlink()
        self._server = grpc.server(ThreadPoolExecutor(4))
        add_RegistrationServicer_to_server(self, self._server)
        self._server.add_insecure_port(f"unix:{self._folder / 'kubelet.sock'}")
        self._server.start()

    def stop(self) -> None:
        if self._server is None:
            return
        self._server.stop(None).wait(DEADLINE_S)
        self._server = None
        for channel in self._channels.values():
            channel.close()
        self._channels.clear()
        for listener in self._listeners:
            listener.join(DEADLINE_S)
        self._listeners.clear()

    def Register(self, request: RegisterRequest, context: grpc.ServicerContext) -> Empty:  # noqa: N802
        with self._lock:
            self.calls += 1
        self.ready.wait(DEADLINE_S)
        with self._lock:
            if self.refusals:
                self.refusals -= 1
                context.abort(grpc.StatusCode.UNAVAILABLE, "not ready")
            self.registered.append(request)
            if not self.deaf:
                self._dial_back(request)
        return Empty()

    def hang_up(self, resource: str) -> None:
        """End the stream of one plugin and go on living."""
        with self._lock:
            self._channels.pop(resource).close()

    def listening(self) -> bool:
        """Tell whether a stream is open."""
        return any(listener.is_alive() for listener in self._listeners)

    def names(self) -> list[str]:
        return sorted(request.resource_name for request in self.registered)

    def unhealthy(self, resource: str) -> set[str]:
        """The unhealthy devices of the latest list."""
        return {one.ID for one in self.lists[resource][-1].devices if one.health == "Unhealthy"}

    def _dial_back(self, request: RegisterRequest) -> None:
        resource = request.resource_name
        if resource in self._channels:
            self._channels[resource].close()
        channel = self._channels[resource] = dial(self._folder / request.endpoint)
        listener = threading.Thread(target=self._listen, args=(resource, channel))
        self._listeners.append(listener)
        listener.start()

    def _listen(self, resource: str, channel: grpc.Channel) -> None:
        with suppress(grpc.RpcError, ValueError):
            for message in DevicePluginStub(channel).ListAndWatch(Empty()):
                self.lists[resource].append(message)
