"""The kubelet's side of a device plugin's socket.

It follows kubernetes: pkg/kubelet/cm/devicemanager/plugin/v1beta1/client.go and endpoint.go.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import grpc

from cpupool.api.deviceplugin_pb2 import (
    AllocateRequest,
    ContainerAllocateRequest,
    ContainerAllocateResponse,
    ContainerPreferredAllocationRequest,
    DevicePluginOptions,
    Empty,
    ListAndWatchResponse,
    PreferredAllocationRequest,
    PreStartContainerRequest,
)
from cpupool.api.deviceplugin_pb2_grpc import DevicePluginStub
from cpupool.core.device_list_limit import MAX_DEVICE_LIST_BYTES
from cpupool.core.errors import RemoteProtocolError
from cpupool.kubelet.device_plugin import HEALTHY
from cpupool.local.devices import IDs, Listing
from cpupool.telemetry import log as logs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

log = logs.get(__name__)

_CALL_S: Final = 10.0
_PRE_START_S: Final = 30.0
"""The kubelet's own limit for PreStartContainer."""
_OPTIONS: Final = (
    ("grpc.default_authority", "localhost"),
    # A shared pool remembers a refused connection and makes a new channel wait.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.max_receive_message_length", MAX_DEVICE_LIST_BYTES),
)


class Plugin:
    """One registered device plugin.

    Args:
        resource: the extended resource that it provides.
        socket: its socket.
        listed: called in the watching thread with each list, and with None when the stream ends.
    """

    def __init__(
        self, resource: str, socket: Path, listed: Callable[[Plugin, Listing | None], None]
    ) -> None:
        self.resource = resource
        self._socket = socket
        self._listed = listed
        self._channel = grpc.insecure_channel(f"unix:{socket}", options=_OPTIONS)
        self._stub = DevicePluginStub(self._channel)
        self._options = DevicePluginOptions()
        self._watcher = threading.Thread(target=self._watch, name=f"watch {resource}", daemon=True)

    def ask_options(self) -> None:
        """Ask the plugin which optional calls it wants.

        Raises:
            RemoteProtocolError: it does not answer.
        """
        with self._calling("GetDevicePluginOptions"):
            self._options = self._stub.GetDevicePluginOptions(Empty(), timeout=_CALL_S)

    def watch(self) -> None:
        """Start to watch its devices, in a new thread."""
        self._watcher.start()

    def stop(self) -> None:
        """Close the connection and wait for the watching thread."""
        self._channel.close()
        if self._watcher.is_alive():
            self._watcher.join()

    def prefer(self, available: IDs, must_include: IDs, size: int) -> IDs:
        """Ask which devices it prefers; return none where it has no preference.

        Raises:
            RemoteProtocolError: it refuses, or does not answer.
        """
        if not self._options.get_preferred_allocation_available:
            return frozenset()
        request = PreferredAllocationRequest(
            container_requests=[
                ContainerPreferredAllocationRequest(
                    available_deviceIDs=available,
                    must_include_deviceIDs=must_include,
                    allocation_size=size,
                )
            ]
        )
        with self._calling("GetPreferredAllocation"):
            answers = self._stub.GetPreferredAllocation(request, timeout=_CALL_S)
        return frozenset().union(*(answer.deviceIDs for answer in answers.container_responses[:1]))

    def allocate(self, ids: Iterable[str]) -> ContainerAllocateResponse:
        """Allocate these devices for one container.

        Raises:
            RemoteProtocolError: it refuses, or does not answer.
        """
        request = AllocateRequest(container_requests=[ContainerAllocateRequest(devices_ids=ids)])
        with self._calling("Allocate"):
            answers = self._stub.Allocate(request, timeout=_CALL_S)
        if not answers.container_responses:
            raise RemoteProtocolError(f"{self.resource}: Allocate answered for no container")
        answer: ContainerAllocateResponse = answers.container_responses[0]
        return answer

    def pre_start(self, ids: Iterable[str]) -> None:
        """Announce the start of a container with these devices, if the plugin wants it.

        Raises:
            RemoteProtocolError: it refuses, or does not answer.
        """
        if self._options.pre_start_required:
            with self._calling("PreStartContainer"):
                self._stub.PreStartContainer(
                    PreStartContainerRequest(devices_ids=ids), timeout=_PRE_START_S
                )

    def _watch(self) -> None:
        try:
            for message in self._stub.ListAndWatch(Empty()):
                self._listed(self, _listing(message))
        except (grpc.RpcError, ValueError) as error:
            # ValueError: the channel was closed before the call began.
            log.info("device plugin hung up", resource=self.resource, reason=_reason(error))
        self._listed(self, None)

    @contextmanager
    def _calling(self, method: str) -> Iterator[None]:
        try:
            yield
        except (grpc.RpcError, ValueError) as error:
            # ValueError: the channel was closed before the call began.
            raise RemoteProtocolError(
                f"{self.resource}: {method} on {self._socket.name} failed: {_reason(error)}"
            ) from error


def _listing(message: ListAndWatchResponse) -> Listing:
    return Listing(
        healthy=frozenset(device.ID for device in message.devices if device.health == HEALTHY),
        unhealthy=frozenset(device.ID for device in message.devices if device.health != HEALTHY),
        nodes={
            device.ID: tuple(node.ID for node in device.topology.nodes)
            for device in message.devices
            if device.topology.nodes
        },
    )


def _reason(error: Exception) -> str:
    if isinstance(error, grpc.RpcError):
        return f"{error.code().name}: {error.details()}"
    return str(error)
