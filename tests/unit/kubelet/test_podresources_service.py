"""The extended podresources on a real socket, in front of a kubelet that answers fixed messages."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from cpupool.api import podresources_pb2 as api
from cpupool.api.podresources_pb2_grpc import (
    PodResourcesListerServicer,
    PodResourcesListerStub,
    add_PodResourcesListerServicer_to_server,
)
from cpupool.core.resource_plugins import Answer, Given
from cpupool.core.workloads import PodDescription
from cpupool.kubelet.podresources import PodResources
from cpupool.kubelet.podresources_service import ExtendedPodResources
from cpupool.kubelet.serving import ServedSocket, Server
from cpupool.wire import katalyst
from tests.unit.manager import plugged
from tests.waiting import DEADLINE_S

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from cpupool.manager.manager import Manager

GPU = api.ContainerDevices(resource_name="example.com/gpu", device_ids=["gpu0"])
LATER = b"\x2a\x03new"
"""A field of a container that this version does not know, as the kubelet's dynamic resources."""
KUBELETS = api.ListPodResourcesResponse(
    pod_resources=[
        api.PodResources(
            name=name,
            namespace="default",
            containers=[api.ContainerResources(name="main", devices=[GPU], cpu_ids=[3])],
        )
        for name in ("a", "unknown")
    ]
)
ALLOCATABLE = api.AllocatableResourcesResponse(devices=[GPU], cpu_ids=[1, 2])


class Kubelet(PodResourcesListerServicer):
    def List(self, _request: object, _context: object) -> api.ListPodResourcesResponse:  # noqa: N802
        found = api.ListPodResourcesResponse()
        found.CopyFrom(KUBELETS)
        found.pod_resources[0].containers[0].MergeFromString(LATER)
        return found

    def GetAllocatableResources(  # noqa: N802
        self, _request: object, _context: object
    ) -> api.AllocatableResourcesResponse:
        return ALLOCATABLE


@pytest.fixture
def kubelet(folder: Path) -> Iterator[Path]:
    server = grpc.server(ThreadPoolExecutor(1))
    add_PodResourcesListerServicer_to_server(Kubelet(), server)
    server.add_insecure_port(f"unix:{folder / 'kubelet.sock'}")
    server.start()
    yield folder / "kubelet.sock"
    server.stop(grace=None).wait()


def node(**given: Given) -> Manager:
    """Make a node whose pod has answers for resources."""
    names = {name.replace("__", "/").replace("_", "."): each for name, each in given.items()}
    annotations = {katalyst.PROPOSED_ROLE: "etl", katalyst.POD_TYPE: "batch"}
    labels = {"app": "web"}
    amounts = plugged.container(more=dict.fromkeys(names, 2.0))
    pod = plugged.pod("a", amounts)
    pod = replace(pod, description=PodDescription(labels, annotations))
    return plugged.manager(pod, given={plugged.ref("a"): names}, served=tuple(names))


def served(kubelet: Path, manager: Manager) -> ServedSocket:
    service = ExtendedPodResources(PodResources(kubelet), lambda: manager.snapshot().facts)
    return ServedSocket(
        kubelet.parent / "katalyst/pods.sock", lambda: Server(service), "extended podresources"
    )


def asked(socket: ServedSocket, method: str = "List") -> Any:
    socket.ensure()
    request = {
        "List": api.ListPodResourcesRequest,
        "GetAllocatableResources": api.AllocatableResourcesRequest,
    }[method]
    with grpc.insecure_channel(f"unix:{socket.path}") as channel:
        return getattr(PodResourcesListerStub(channel), method)(request(), timeout=DEADLINE_S)


def amounts(**by_node: float) -> list[api.TopologyAwareQuantity]:
    return [
        api.TopologyAwareQuantity(node=int(node.removeprefix("node")), resource_value=amount)
        for node, amount in by_node.items()
    ]


def resource(name: str, quantity: float, **fields: Any) -> api.TopologyAwareResource:
    lists = fields.pop("lists", [])
    return api.TopologyAwareResource(
        resource_name=name,
        aggregated_quantity=quantity,
        original_aggregated_quantity=quantity,
        topology_aware_quantity_list=lists,
        original_topology_aware_quantity_list=lists,
        **fields,
    )


def test_what_the_kubelet_says_passes_with_the_answers_of_plugins(kubelet: Path) -> None:
    nic = Answer(quantity=2.0, of_node=True, scalar=True, by_node={1: 2})
    manager = node(cpu=plugged.cpus("1-2"), example_com__nic=Given(2.0, {"example.com/nic": nic}))
    with served(kubelet, manager) as socket:
        found = asked(socket)
        assert socket.path.stat().st_mode & 0o777 == 0o600

    pod, other = found.pod_resources
    assert other == KUBELETS.pod_resources[1]
    assert (pod.pod_role, pod.pod_type) == ("etl", "batch")
    assert dict(pod.labels) == {"app": "web"}
    assert pod.annotations[katalyst.POD_TYPE] == "batch"
    (main,) = pod.containers
    assert (list(main.devices), list(main.cpu_ids)) == ([GPU], [3])
    assert LATER in main.SerializeToString()
    assert list(main.resources) == [
        resource("cpu", 2.0, is_scalar_resource=True, lists=amounts(node0=2.0)),
        resource(
            "example.com/nic",
            2.0,
            is_node_resource=True,
            is_scalar_resource=True,
            lists=amounts(node1=2.0),
        ),
    ]


def test_an_answer_that_does_not_count_is_not_shown(kubelet: Path) -> None:
    with served(kubelet, node(cpu=plugged.cpus("1-2", refused="bad"))) as socket:
        assert not asked(socket).pod_resources[0].containers[0].resources


def test_what_can_be_given_is_the_kubelets_answer(kubelet: Path) -> None:
    with served(kubelet, node()) as socket:
        assert asked(socket, "GetAllocatableResources") == ALLOCATABLE


@pytest.mark.parametrize("method", ["List", "GetAllocatableResources"])
def test_a_kubelet_that_is_away_is_said(folder: Path, method: str) -> None:
    with (
        served(folder / "none.sock", node()) as socket,
        pytest.raises(grpc.RpcError) as error,
    ):
        asked(socket, method)
    assert error.value.code() is grpc.StatusCode.UNAVAILABLE
    assert "none.sock" in (error.value.details() or "")
