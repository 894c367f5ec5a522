"""The device plugin API, v1beta1: one plugin and one socket per pool.

The kubelet's half is kubernetes pkg/kubelet/cm/devicemanager: it dials the socket after the
registration, keeps one ListAndWatch stream open, and asks Allocate for one container at a time.
"""

from __future__ import annotations

import asyncio
import os
import threading
from concurrent.futures import Future
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Final, TypeVar
from weakref import WeakValueDictionary

from cpupool.api.deviceplugin_pb2 import (
    AllocateRequest,
    AllocateResponse,
    ContainerAllocateResponse,
    ContainerPreferredAllocationResponse,
    DevicePluginOptions,
    Empty,
    ListAndWatchResponse,
    Mount,
    PreferredAllocationRequest,
    PreferredAllocationResponse,
    PreStartContainerRequest,
    PreStartContainerResponse,
)
from cpupool.core.errors import AllocationError, HostFileError, NoDevicesRequested
from cpupool.kubelet.registration import register
from cpupool.rpc.methods import streaming, unary
from cpupool.rpc.serving import Server

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    from grpclib.const import Handler

    from cpupool.core import mounts
    from cpupool.core.devices import Offer
    from cpupool.core.requests import Resource
    from cpupool.manager.manager import Manager
    from cpupool.rpc.serving import ServingLoop

    _Mounts = Callable[[], Iterable[mounts.Mount]]

_SERVICE: Final = "/v1beta1.DevicePlugin"
HEALTHY: Final = "Healthy"
UNHEALTHY: Final = "Unhealthy"

MAX_SOCKET_PATH_BYTES: Final = 107
"""unix(7): sun_path has 108 bytes, and the last one is zero."""

T = TypeVar("T")

_STREAMS: Final = 3
"""An open ListAndWatch holds a thread; the kubelet has one, two for a moment around its restart."""
_PART: Final = 500
"""Devices that are messages at a time: a shared pool of 200 CPUs would need 20 MiB for all."""


def endpoint(resource: Resource) -> str:
    """Return the name of a resource's socket."""
    return f"cpupool-{resource}.sock"


def options(resource: Resource) -> DevicePluginOptions:
    """Return the calls that the kubelet shall make; of a shared pool's ids none is preferred."""
    return DevicePluginOptions(get_preferred_allocation_available=resource.kind.exclusive)


class _List:
    """A device list, encoded once for all streams; it lives as long as one sends it."""

    __slots__ = ("__weakref__", "data")

    def __init__(self, data: bytes) -> None:
        self.data: Final = data


class DevicePlugin:
    """Answers the kubelet for one pool.

    Its methods run in the event loop, so what can take long, waiting for another list and encoding
    it, is done in threads.

    Args:
        manager: the node's state.
        resource: the resource that it serves.
        mounts: gives what a container of the pool gets mounted.
        changed: called when `watched` may have changed.
    """

    def __init__(
        self, manager: Manager, resource: Resource, mounts: _Mounts, changed: Callable[[], None]
    ) -> None:
        self._manager = manager
        self._mounts = mounts
        self._changed = changed
        self._options = options(resource)
        self._pool = resource
        self._name = endpoint(resource)
        self._threads: list[threading.Thread] = []
        self._encoding = threading.Lock()
        self._lists = WeakValueDictionary[int, _List]()
        self._ended: list[threading.Event] = []

    @property
    def watched(self) -> bool:
        """Whether a ListAndWatch stream is open."""
        return any(not ended.is_set() for ended in self._ended)

    def __mapping__(self) -> Mapping[str, Handler]:
        """Return path → method, for the server."""
        return dict(
            (
                unary(f"{_SERVICE}/GetDevicePluginOptions", Empty, self._tell_options),
                streaming(f"{_SERVICE}/ListAndWatch", Empty, self._list_and_watch),
                unary(
                    f"{_SERVICE}/GetPreferredAllocation", PreferredAllocationRequest, self._prefer
                ),
                unary(f"{_SERVICE}/Allocate", AllocateRequest, self._allocate),
                unary(f"{_SERVICE}/PreStartContainer", PreStartContainerRequest, self._pre_start),
            )
        )

    def _tell_options(self, _request: Empty) -> DevicePluginOptions:
        """Answer with the options that the registration had, too."""
        return self._options

    async def _list_and_watch(self, _request: Empty) -> AsyncGenerator[bytes, None]:
        """Send the device list, encoded, at once and again whenever it changes."""
        ended = self._admit()
        try:
            seen = -1
            while listed := await self._in_thread(partial(self._next, seen, ended)):
                seen, encoded = listed
                yield encoded.data
                # Nothing keeps the list while there is no other.
                del listed, encoded
        finally:
            self._end(ended)

    def _prefer(self, request: PreferredAllocationRequest) -> PreferredAllocationResponse:
        """Choose devices for each container; the kubelet takes it as advice."""
        self._check_asked(request.container_requests)
        if not self._options.get_preferred_allocation_available:
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

    def _allocate(self, request: AllocateRequest) -> AllocateResponse:
        """Return environment, annotations and mounts per container; promise the devices.

        A container of two pools gets two replies. Of mounts with one container path the kubelet
        keeps one, any if their host paths differ, and its checkpoint names both
        (deviceRunContainerOptions in pkg/kubelet/cm/devicemanager/pod_devices.go).
        """
        self._check_asked(request.container_requests)
        mounts = [
            Mount(container_path=mount.container_path, host_path=mount.host_path, read_only=True)
            for mount in self._mounts()
        ]
        response = AllocateResponse()
        for asked in request.container_requests:
            given = self._manager.allocate(self._pool, asked.devices_ids)
            response.container_responses.append(
                ContainerAllocateResponse(
                    envs=given.environment, annotations=given.annotations, mounts=mounts
                )
            )
        return response

    def _pre_start(self, request: PreStartContainerRequest) -> PreStartContainerResponse:
        """Check the ids; there is nothing to prepare."""
        self._check_asked(request.devices_ids)
        self._manager.devices(self._pool).offer.check_listed(request.devices_ids)
        return PreStartContainerResponse()

    def close(self) -> None:
        """End every ListAndWatch and wait until no thread is left."""
        for ended in self._ended:
            self._end(ended)
        for thread in self._threads:
            thread.join()

    def _admit(self) -> threading.Event:
        """Take a stream, and end the oldest where there is no thread for it."""
        self._ended = [ended for ended in self._ended if not ended.is_set()]
        while len(self._ended) >= _STREAMS:
            self._end(self._ended.pop(0))
        self._ended.append(threading.Event())
        self._changed()
        return self._ended[-1]

    def _end(self, ended: threading.Event) -> None:
        ended.set()
        self._manager.notify()
        self._changed()

    async def _in_thread(self, work: Callable[[], T]) -> T:
        """Run in a thread of its own: in a pool, work waits for a worker that has died idle."""
        future: Future[T] = Future()

        def run() -> None:
            future.set_running_or_notify_cancel()
            try:
                future.set_result(work())
            except BaseException as error:  # noqa: BLE001 - whatever ends it must end the stream
                future.set_exception(error)

        thread = threading.Thread(target=run, name=self._name, daemon=True)
        self._threads = [*(thread for thread in self._threads if thread.is_alive()), thread]
        thread.start()
        return await asyncio.wrap_future(future)

    def _next(self, seen: int, ended: threading.Event) -> tuple[int, _List] | None:
        """Wait for a list with another generation; return that, and the list for all streams."""
        listed = self._manager.wait_for_devices(self._pool, seen, ended.is_set)
        if listed is None:
            return None
        generation = listed.generation
        with self._encoding:
            encoded = self._lists.get(generation)
            if encoded is None:
                encoded = self._lists[generation] = _List(_encoded(listed.offer))
        return generation, encoded

    def _check_asked(self, asked: Sequence[object]) -> None:
        if not asked:
            raise NoDevicesRequested(self._pool, "the request is empty", "name at least one device")


class DevicePluginServer:
    """Serves one pool's plugin on its own socket; may be started again after a stop.

    Args:
        manager: the node's state.
        resource: the resource that it serves.
        folder: where the kubelet looks for plugins' sockets.
        loop: serves; must run whenever this is started or stopped.
        mounts: gives what a container of the pool gets mounted.

    Attributes:
        name: the extended resource that it provides.
        endpoint: the socket's name.
        options: the calls that the kubelet shall make.
    """

    def __init__(
        self,
        manager: Manager,
        resource: Resource,
        folder: Path,
        loop: ServingLoop,
        mounts: _Mounts = lambda: (),
    ) -> None:
        self.name: Final = manager.names.resource(resource)
        self.endpoint: Final = endpoint(resource)
        self.options: Final = options(resource)
        self._manager = manager
        self._pool = resource
        self._path = folder / self.endpoint
        self._loop = loop
        self._mounts = mounts
        self._server: Server | None = None
        self._plugin: DevicePlugin | None = None

    @property
    def listening(self) -> bool:
        """Whether the kubelet can dial the socket; it wipes the folder when it starts."""
        return self._server is not None and self._path.is_socket()

    @property
    def watched(self) -> bool:
        """Whether the kubelet is listening to the device list."""
        return self._plugin is not None and self._plugin.watched

    def start(self) -> None:
        """Bind the socket, taking the place of a stale one, and serve.

        Raises:
            HostFileError: the path is too long, or cannot be bound.
            ServingFailed: the loop does not run, or does not answer.
        """
        length = len(os.fsencode(self._path))
        if length > MAX_SOCKET_PATH_BYTES:
            raise HostFileError(
                str(self._path),
                f"a socket's path has at most {MAX_SOCKET_PATH_BYTES} bytes, this one {length}",
                "shorten the pool's name or the kubelet's root folder",
            )
        plugin = DevicePlugin(self._manager, self._pool, self._mounts, self._loop.look)
        try:
            self._path.parent.stat()  # its error is clearer than grpc's for a missing folder
            self._loop.call(self._serve(plugin))
        except (OSError, RuntimeError) as error:
            raise HostFileError(
                str(self._path),
                f"the device plugin's socket cannot be bound ({error})",
                "check that the kubelet's device-plugins folder is mounted and writable",
            ) from error

    def stop(self) -> None:
        """End every stream, remove the socket and wait until no thread is left."""
        if self._plugin is None:
            return
        plugin, self._plugin = self._plugin, None
        try:
            self._loop.call(self._end())
        finally:
            plugin.close()

    def register(self, kubelet_socket: Path) -> None:
        """Ask the kubelet to use the plugin.

        Raises:
            RemoteProtocolError: the kubelet is not there, does not answer, or refuses.
        """
        register(
            kubelet_socket,
            endpoint=self.endpoint,
            resource=self.name,
            options=self.options,
        )

    async def _serve(self, plugin: DevicePlugin) -> None:
        server = Server(plugin, room=self._loop.room)
        await server.begin(self._path)
        self._server, self._plugin = server, plugin

    async def _end(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            await server.end()


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
