"""The device plugin API, v1beta1: one plugin and one socket per pool.

The kubelet's half is kubernetes pkg/kubelet/cm/devicemanager: it dials the socket after the
registration, keeps one ListAndWatch stream open, and asks Allocate for one container at a time.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import TYPE_CHECKING, Final

import grpc

from cpupool.api.deviceplugin_pb2 import (
    AllocateRequest,
    AllocateResponse,
    ContainerAllocateResponse,
    ContainerPreferredAllocationResponse,
    DevicePluginOptions,
    Empty,
    ListAndWatchResponse,
    PreferredAllocationRequest,
    PreferredAllocationResponse,
    PreStartContainerRequest,
    PreStartContainerResponse,
)
from cpupool.api.deviceplugin_pb2_grpc import (
    DevicePluginServicer,
    add_DevicePluginServicer_to_server,
)
from cpupool.core.errors import AllocationError, HostFileError, NoDevicesAsked
from cpupool.core.pools import PoolKind
from cpupool.kubelet.status import StatusInterceptor

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from cpupool.core.devices import Offer
    from cpupool.core.pools import Pool
    from cpupool.manager.manager import Manager

HEALTHY: Final = "Healthy"
UNHEALTHY: Final = "Unhealthy"

MAX_SOCKET_PATH_BYTES: Final = 107
"""unix(7): sun_path has 108 bytes, the last of which is zero."""

_WORKERS: Final = 8
_STREAMS: Final = 3
"""An open ListAndWatch holds a worker; the kubelet has one, two for a moment around its restart."""
_STOP_S: Final = 10.0
_PART: Final = 500
"""Devices that are messages at a time: a shared pool of 200 CPUs would need 20 MiB for all."""


class DevicePlugin(DevicePluginServicer):
    """Answers the kubelet for one pool; raises what `StatusInterceptor` turns into statuses.

    Args:
        manager: the node's state.
        pool: an exclusive or a shared pool.
    """

    def __init__(self, manager: Manager, pool: Pool) -> None:
        self._manager = manager
        self._pool = pool.name
        self._chooses = pool.kind is PoolKind.EXCLUSIVE
        self._streams: list[grpc.ServicerContext] = []

    @property
    def options(self) -> DevicePluginOptions:
        """What the kubelet shall ask; a shared pool's ids are all alike, so none is preferred."""
        return DevicePluginOptions(get_preferred_allocation_available=self._chooses)

    @property
    def watched(self) -> bool:
        """Whether a ListAndWatch stream is open."""
        return any(stream.is_active() for stream in self._streams)

    def GetDevicePluginOptions(  # noqa: N802  # the name in the protocol, here and below
        self, request: Empty, context: grpc.ServicerContext
    ) -> DevicePluginOptions:
        """Answer what was also said at registration."""
        del request, context
        return self.options

    def ListAndWatch(  # noqa: N802
        self, request: Empty, context: grpc.ServicerContext
    ) -> Iterator[bytes]:
        """Send the device list, encoded, at once and again whenever it changes."""
        del request
        self._admit(context)
        # Without a callback the stream is over already, and is_active() says so.
        context.add_callback(self._manager.notify)
        seen = -1
        while True:
            listed = self._manager.wait_for_devices(
                self._pool, seen, lambda: not context.is_active()
            )
            if listed is None:
                return
            seen = listed.generation
            yield _encoded(listed.offer)

    def GetPreferredAllocation(  # noqa: N802
        self, request: PreferredAllocationRequest, context: grpc.ServicerContext
    ) -> PreferredAllocationResponse:
        """Choose devices for each container; the kubelet takes it as advice."""
        del context
        self._check_asked(request.container_requests)
        if not self._chooses:
            raise AllocationError(
                self._pool, "a shared pool prefers no device over another", "take any"
            )
        response = PreferredAllocationResponse()
        for asked in request.container_requests:
            chosen = self._manager.preferred(
                self._pool,
                asked.available_deviceIDs,
                asked.must_include_deviceIDs,
                asked.allocation_size,
            )
            response.container_responses.append(
                ContainerPreferredAllocationResponse(deviceIDs=chosen)
            )
        return response

    def Allocate(  # noqa: N802
        self, request: AllocateRequest, context: grpc.ServicerContext
    ) -> AllocateResponse:
        """Give each container its environment and annotations; nothing is recorded."""
        del context
        self._check_asked(request.container_requests)
        response = AllocateResponse()
        for asked in request.container_requests:
            given = self._manager.allocate(self._pool, asked.devices_ids)
            response.container_responses.append(
                ContainerAllocateResponse(envs=given.environment, annotations=given.annotations)
            )
        return response

    def PreStartContainer(  # noqa: N802
        self, request: PreStartContainerRequest, context: grpc.ServicerContext
    ) -> PreStartContainerResponse:
        """Check the ids; there is nothing to prepare."""
        del context
        self._check_asked(request.devices_ids)
        self._manager.devices(self._pool).offer.check_listed(request.devices_ids)
        return PreStartContainerResponse()

    def _admit(self, stream: grpc.ServicerContext) -> None:
        """Take a stream, and end the oldest where they would take the workers from other calls."""
        self._streams = [*(one for one in self._streams if one.is_active()), stream]
        while len(self._streams) > _STREAMS:
            self._streams.pop(0).cancel()

    def _check_asked(self, asked: Sequence[object]) -> None:
        if not asked:
            raise NoDevicesAsked(self._pool, "the request is empty", "name at least one device")


class DevicePluginServer:
    """Serves one pool's plugin on its own socket; may be started again after a stop.

    Args:
        manager: the node's state.
        pool: an exclusive or a shared pool.
        folder: where the kubelet looks for plugins' sockets.
    """

    def __init__(self, manager: Manager, pool: Pool, folder: Path) -> None:
        self.endpoint: Final = f"cpupool-{pool.name}.sock"
        self._manager = manager
        self._path = folder / self.endpoint
        self._plugin = DevicePlugin(manager, pool)
        self._server: grpc.Server | None = None
        self._workers: ThreadPoolExecutor | None = None

    @property
    def options(self) -> DevicePluginOptions:
        """What the kubelet shall ask the plugin."""
        return self._plugin.options

    @property
    def listening(self) -> bool:
        """Whether the kubelet can dial the socket; it wipes the folder when it starts."""
        return self._server is not None and self._path.is_socket()

    @property
    def watched(self) -> bool:
        """Whether the kubelet is listening to the device list."""
        return self._plugin.watched

    def start(self) -> None:
        """Bind the socket, taking the place of a stale one, and serve.

        Raises:
            HostFileError: the path is too long, or cannot be bound.
        """
        length = len(os.fsencode(self._path))
        if length > MAX_SOCKET_PATH_BYTES:
            raise HostFileError(
                str(self._path),
                f"a socket's path has at most {MAX_SOCKET_PATH_BYTES} bytes, this one {length}",
                "shorten the pool's name or the kubelet's root folder",
            )
        workers = ThreadPoolExecutor(_WORKERS, thread_name_prefix=self.endpoint)
        server = grpc.server(workers, interceptors=[StatusInterceptor()])
        add_DevicePluginServicer_to_server(self._plugin, server)
        try:
            self._path.unlink(missing_ok=True)
            self._path.parent.stat()  # a missing folder is told in better words than grpc's
            server.add_insecure_port(f"unix:{self._path}")
        except (OSError, RuntimeError) as error:
            raise HostFileError(
                str(self._path),
                f"the device plugin's socket cannot be bound ({error})",
                "check that the kubelet's device-plugins folder is mounted and writable",
            ) from error
        server.start()
        self._server, self._workers = server, workers

    def stop(self) -> None:
        """End every stream, remove the socket and wait until no thread is left."""
        if self._server is None or self._workers is None:
            return
        # grpc-core removes the path when its listener goes: a successor may bind it only then.
        stopped = self._server.stop(grace=None)
        self._manager.notify()
        self._workers.shutdown(wait=stopped.wait(_STOP_S))
        self._server = self._workers = None


def _encoded(offer: Offer) -> bytes:
    """Encode a ListAndWatchResponse in parts, without ever holding the whole of it as messages.

    Encoded messages of one type, one after the other, are their merger (protobuf.dev, Encoding,
    "Last One Wins"), and merged lists are joined.
    """
    remaining = iter(offer)
    parts = []
    while part := list(islice(remaining, _PART)):
        message = ListAndWatchResponse()
        for device in part:
            health = HEALTHY if device.healthy else UNHEALTHY
            item = message.devices.add(ID=device.id, health=health)
            if device.node is not None:
                item.topology.nodes.add(ID=device.node)
        parts.append(message.SerializeToString())
    return b"".join(parts)
