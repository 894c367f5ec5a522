"""The two gRPC services of the embedded kubelet: registration and podresources.

They hold no state: functions of the kubelet answer for them.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Final

import grpc

from cpupool.api import deviceplugin_pb2_grpc, podresources_pb2, podresources_pb2_grpc
from cpupool.api.deviceplugin_pb2 import Empty, RegisterRequest
from cpupool.core.errors import CPUPoolError, HostFileError
from cpupool.core.workloads import ContainerKind, ContainerRef
from cpupool.local import devices
from cpupool.wire.device_checkpoint import NO_NODE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from pathlib import Path

    from cpupool.core.workloads import Pod
    from cpupool.local.devices import Listing
    from cpupool.wire.device_checkpoint import Entry

_WORKERS: Final = 8
_GRACE_S: Final = 2.0


@contextmanager
def serving(socket: Path, opened: ExitStack) -> Iterator[grpc.Server]:
    """Yield a server to which the caller adds its service; then serve until `opened` is closed."""
    pool = opened.enter_context(ThreadPoolExecutor(_WORKERS))
    server = grpc.server(pool)
    yield server
    try:
        server.add_insecure_port(f"unix:{socket}")
    except RuntimeError as error:
        raise HostFileError(
            str(socket),
            "no socket can be made here",
            "choose a folder with a path of at most 60 bytes that can be written",
        ) from error
    server.start()
    opened.callback(lambda: server.stop(_GRACE_S).wait())


class Registration(deviceplugin_pb2_grpc.RegistrationServicer):
    """The service for registrations.

    Args:
        register: called with version, endpoint and resource; a CPUPoolError refuses.
    """

    def __init__(self, register: Callable[[str, str, str], None]) -> None:
        self._register = register

    def Register(  # noqa: N802
        self, request: RegisterRequest, context: grpc.ServicerContext
    ) -> Empty:
        """Answer one plugin."""
        try:
            self._register(request.version, request.endpoint, request.resource_name)
        except CPUPoolError as error:
            context.abort(grpc.StatusCode.UNKNOWN, str(error))
        return Empty()


class PodResources(podresources_pb2_grpc.PodResourcesListerServicer):
    """The podresources service.

    Args:
        pods: returns the active pods, each with container name → its devices.
        allocatable: returns resource → the list of its plugin.
        cpus: returns the CPUs of a static CPU manager; none under the policy none.
        alone: returns the CPUs that this CPU manager gave a container.
    """

    def __init__(
        self,
        pods: Callable[[], Iterable[tuple[Pod, Mapping[str, Iterable[Entry]]]]],
        allocatable: Callable[[], Mapping[str, Listing]],
        cpus: Callable[[], Iterable[int]],
        alone: Callable[[ContainerRef], Iterable[int]],
    ) -> None:
        self._pods = pods
        self._allocatable = allocatable
        self._cpus = cpus
        self._alone = alone

    def List(  # noqa: N802
        self, _request: object, _context: object
    ) -> podresources_pb2.ListPodResourcesResponse:
        """Answer with the active pods."""
        pods = (_pod(pod, held, self._alone) for pod, held in self._pods())
        return podresources_pb2.ListPodResourcesResponse(pod_resources=pods)

    def GetAllocatableResources(  # noqa: N802
        self, _request: object, _context: object
    ) -> podresources_pb2.AllocatableResourcesResponse:
        """Answer with the healthy devices and the CPU manager's CPUs."""
        healthy = (
            (resource, devices.by_node(found.healthy, found))
            for resource, found in self._allocatable().items()
        )
        return podresources_pb2.AllocatableResourcesResponse(
            devices=_container_devices(healthy), cpu_ids=self._cpus()
        )


def _pod(
    pod: Pod,
    held: Mapping[str, Iterable[Entry]],
    alone: Callable[[ContainerRef], Iterable[int]],
) -> podresources_pb2.PodResources:
    """Return a pod as in the kubelet's response: without plain init containers."""
    return podresources_pb2.PodResources(
        name=pod.name,
        namespace=pod.namespace,
        containers=[
            podresources_pb2.ContainerResources(
                name=container.name,
                devices=_container_devices(
                    (entry.resource, entry.device_ids) for entry in held[container.name]
                ),
                cpu_ids=alone(ContainerRef(pod.uid, container.name)),
            )
            for container in pod.containers
            if container.kind in (ContainerKind.APP, ContainerKind.SIDECAR)
        ],
    )


def _container_devices(
    held: Iterable[tuple[str, Mapping[int, tuple[str, ...]]]],
) -> Iterator[podresources_pb2.ContainerDevices]:
    """Yield devices as in the kubelet's response: each id by itself, once per NUMA node."""
    for resource, by_node in held:
        for node, ids in by_node.items():
            for identifier in ids:
                found = podresources_pb2.ContainerDevices(
                    resource_name=resource, device_ids=[identifier]
                )
                if node != NO_NODE:
                    found.topology.nodes.add(ID=node)
                yield found
