"""A device plugin of any resource, for tests of the embedded kubelet."""

from __future__ import annotations

import queue
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING

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
from cpupool.kubelet.registration import register
from tests.waiting import DEADLINE_S

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path


class AnyPlugin(DevicePluginServicer):
    """Lists what it is told, and remembers what it is asked.

    Attributes:
        preferred: what it answers in GetPreferredAllocation; None if it has no such method.
        reply: what it answers in Allocate; None to refuse.
        asked: every (available, must include, size) of GetPreferredAllocation.
        allocated: the ids of every Allocate.
        prepared: the ids of every PreStartContainer.
    """

    def __init__(self, resource: str) -> None:
        self.resource = resource
        self.preferred: set[str] | None = None
        self.reply: ContainerAllocateResponse | None = ContainerAllocateResponse()
        self.pre_start_required = False
        self.asked: list[tuple[set[str], set[str], int]] = []
        self.allocated: list[set[str]] = []
        self.prepared: list[set[str]] = []
        self._lists: queue.Queue[ListAndWatchResponse | None] = queue.Queue()

    @contextmanager
    def serving(self, socket: Path) -> Iterator[None]:
        server = grpc.server(ThreadPoolExecutor(4))
        add_DevicePluginServicer_to_server(self, server)
        server.add_insecure_port(f"unix:{socket}")
        server.start()
        try:
            yield
        finally:
            self._lists.put(None)
            server.stop(None).wait(DEADLINE_S)

    def register(self, kubelet: Path, endpoint: str) -> None:
        register(
            kubelet,
            endpoint=endpoint,
            resource=self.resource,
            options=DevicePluginOptions(),
        )

    def list(self, nodes: Mapping[str, int | None], unhealthy: str = "") -> None:
        """List ids with their NUMA nodes, those in `unhealthy` as such."""
        message = ListAndWatchResponse()
        for identifier, node in nodes.items():
            health = "Unhealthy" if identifier in unhealthy.split(",") else "Healthy"
            device = message.devices.add(ID=identifier, health=health)
            if node is not None:
                device.topology.nodes.add(ID=node)
        self._lists.put(message)

    def end_stream(self) -> None:
        self._lists.put(None)

    def GetDevicePluginOptions(self, request: Empty, context: object) -> DevicePluginOptions:  # noqa: N802
        return DevicePluginOptions(
            get_preferred_allocation_available=self.preferred is not None,
            pre_start_required=self.pre_start_required,
        )

    def ListAndWatch(self, request: Empty, context: object) -> Iterator[ListAndWatchResponse]:  # noqa: N802
        return iter(self._lists.get, None)

    def GetPreferredAllocation(  # noqa: N802
        self, request: PreferredAllocationRequest, context: object
    ) -> PreferredAllocationResponse:
        for one in request.container_requests:
            ids = set(one.available_deviceIDs), set(one.must_include_deviceIDs)
            self.asked.append((*ids, one.allocation_size))
        answer = ContainerPreferredAllocationResponse(deviceIDs=self.preferred or ())
        return PreferredAllocationResponse(container_responses=[answer])

    def Allocate(  # noqa: N802
        self, request: AllocateRequest, context: grpc.ServicerContext
    ) -> AllocateResponse:
        self.allocated += [set(one.devices_ids) for one in request.container_requests]
        if self.reply is None:
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, "not today")
        return AllocateResponse(container_responses=[self.reply])

    def PreStartContainer(  # noqa: N802
        self, request: PreStartContainerRequest, context: object
    ) -> PreStartContainerResponse:
        self.prepared.append(set(request.devices_ids))
        return PreStartContainerResponse()
