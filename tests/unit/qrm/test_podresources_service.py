"""The extended podresources on a real socket, before plugins on sockets, and a kubelet.

The kubelet answers fixed messages.
"""

from __future__ import annotations

import math
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

from cpupool.api import podresources_pb2 as api
from cpupool.api import resourceplugin_pb2 as said
from cpupool.api.podresources_pb2_grpc import (
    PodResourcesListerServicer,
    PodResourcesListerStub,
    add_PodResourcesListerServicer_to_server,
)
from cpupool.core.plugin_facts import AnswerPart, RecordedAnswer
from cpupool.core.workloads import PodDescription
from cpupool.kubelet.podresources import PodResources
from cpupool.policies.qrm import katalyst
from cpupool.policies.qrm.questions import PluginOptions
from cpupool.qrm.plugin_client import Introduction, ResourcePlugin
from cpupool.qrm.plugin_inquiry import PluginInquiry
from cpupool.qrm.podresources_service import ExtendedPodResources
from cpupool.rpc.serving import ServedSocket, Server
from tests.resource_plugins import PluginDouble, Refusal
from tests.unit.manager import plugged
from tests.waiting import DEADLINE_S

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from google.protobuf.message import Message

    from cpupool.manager.manager import Manager

NIC = "example.com/nic"
GPU = api.ContainerDevices(resource_name="example.com/gpu", device_ids=["gpu0"])
KATALYSTS = 12
"""The first number of Katalyst's fields."""
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


def node(**given: RecordedAnswer) -> Manager:
    """Make a node whose pod has answers for resources."""
    names = {name.replace("__", "/").replace("_", "."): each for name, each in given.items()}
    annotations = {katalyst.PROPOSED_ROLE: "etl", katalyst.POD_TYPE: "batch"}
    labels = {"app": "web"}
    amounts = plugged.container(more=dict.fromkeys(names, 2.0))
    pod = plugged.pod("a", amounts)
    pod = replace(pod, description=PodDescription(labels, annotations))
    return plugged.manager(pod, given={plugged.ref("a"): names}, served=tuple(names))


def served(kubelet: Path, manager: Manager, *plugins: PluginDouble) -> ServedSocket:
    asked = {plugin.resource: ResourcePlugin(introduction(plugin)) for plugin in plugins}
    service = ExtendedPodResources(
        PodResources(kubelet),
        PluginInquiry(lambda: asked, answer_s=DEADLINE_S),
        lambda: manager.snapshot().facts,
    )
    return ServedSocket(
        kubelet.parent / "katalyst/pods.sock", lambda: Server(service), "extended podresources"
    )


def introduction(plugin: PluginDouble) -> Introduction:
    return Introduction(plugin.resource, plugin.socket, PluginOptions())


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
    nic = AnswerPart(quantity=2.0, of_node=True, scalar=True, by_node={1: 2})
    manager = node(
        cpu=plugged.cpus("1-2"), example_com__nic=RecordedAnswer(2.0, {"example.com/nic": nic})
    )
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


@pytest.fixture
def nic(folder: Path) -> Iterator[PluginDouble]:
    with PluginDouble(folder / "nic.sock", NIC) as plugin:
        yield plugin


def nic_of(*resources: said.TopologyAwareResource, **named: said.TopologyAwareResource) -> Any:
    """Make what a plugin says of a container: of its own resource, and of others."""
    amounts = {**dict.fromkeys([NIC], *resources), **named} if resources else named
    return said.GetTopologyAwareResourcesResponse(
        pod_uid="a-uid",
        container_topology_aware_resources=said.ContainerTopologyAwareResources(
            container_name="main", allocated_resources=amounts
        ),
    )


def test_a_nic_has_its_name_where_its_plugin_says_it(kubelet: Path, nic: PluginDouble) -> None:
    recorded = AnswerPart(quantity=2.0, scalar=True, by_node={1: 2})
    manager = node(cpu=plugged.cpus("1-2"), example_com__nic=RecordedAnswer(2.0, {NIC: recorded}))
    place: dict[str, Any] = {"resource_value": 2.0, "node": 1, "name": "eth0", "type": "NIC"}
    place["annotations"] = {"netns": "ns1"}
    of_plugin = said.TopologyAwareResource(
        aggregated_quantity=2.0,
        topology_aware_quantity_list=[said.TopologyAwareQuantity(**place)],
    )
    # What it says of another plugin's resource has no effect.
    nic.answers("GetTopologyAwareResources", nic_of(of_plugin, cpu=of_plugin))
    with served(kubelet, manager, nic) as socket:
        cpu, eth0 = asked(socket).pod_resources[0].containers[0].resources
    assert cpu == resource("cpu", 2.0, is_scalar_resource=True, lists=amounts(node0=2.0))
    assert eth0 == api.TopologyAwareResource(
        resource_name=NIC,
        aggregated_quantity=2.0,
        topology_aware_quantity_list=[api.TopologyAwareQuantity(**place)],
    )
    request = said.GetTopologyAwareResourcesRequest(pod_uid="a-uid", container_name="main")
    assert nic.asked["GetTopologyAwareResources"] == [request.SerializeToString()]


def test_where_a_plugin_names_no_place_the_recorded_places_stand(
    kubelet: Path, folder: Path
) -> None:
    with PluginDouble(folder / "cpu.sock") as cpu:
        without = said.TopologyAwareResource(aggregated_quantity=2.0)
        more = said.TopologyAwareResource(aggregated_quantity=3.0)
        cpu.answers("GetTopologyAwareResources", nic_of(cpu=without, more=more))
        with served(kubelet, node(cpu=plugged.cpus("1-2")), cpu) as socket:
            found = asked(socket).pod_resources[0].containers[0].resources
    assert list(found) == [
        resource("cpu", 2.0, is_scalar_resource=True, lists=amounts(node0=2.0)),
        api.TopologyAwareResource(resource_name="more", aggregated_quantity=3.0),
    ]


def of_another() -> bytes:
    found = nic_of(said.TopologyAwareResource())
    found.pod_uid = "unknown-uid"
    return bytes(found.SerializeToString())


def with_place(**fields: Any) -> bytes:
    places = [said.TopologyAwareQuantity(**fields)]
    found = nic_of(said.TopologyAwareResource(topology_aware_quantity_list=places))
    return bytes(found.SerializeToString())


@pytest.mark.parametrize(
    "reply",
    [
        b"",
        nic_of(said.TopologyAwareResource(aggregated_quantity=-1.0)).SerializeToString(),
        with_place(resource_value=math.nan),
        with_place(name="e" * 65536),
        with_place(node=7),
        of_another(),
        b"\xff\xff",
        b"\x0a\x02\xff\xff",
        bytes(5 * 1024 * 1024),
        Refusal(grpc.StatusCode.NOT_FOUND, "no such container"),
    ],
    ids=[
        *("nothing", "a negative amount", "no number", "a name of 64 KiB", "an unknown node"),
        *("another container", "damaged bytes", "a damaged text", "5 MiB", "a refusal"),
    ],
)
def test_where_a_plugin_does_not_say_the_recorded_answer_stands(
    kubelet: Path, nic: PluginDouble, reply: bytes | Refusal
) -> None:
    nic.answers("GetTopologyAwareResources", reply)
    manager = node(
        example_com__nic=RecordedAnswer(2.0, {NIC: AnswerPart(quantity=2.0, by_node={1: 2})})
    )
    with served(kubelet, manager, nic) as socket:
        (found,) = asked(socket).pod_resources[0].containers[0].resources
    assert found == resource(NIC, 2.0, lists=amounts(node1=2.0))


def test_what_can_be_given_is_the_kubelets_answer_without_plugins(kubelet: Path) -> None:
    with served(kubelet, node()) as socket:
        assert asked(socket, "GetAllocatableResources") == ALLOCATABLE


def test_what_can_be_given_has_what_plugins_say(
    kubelet: Path, folder: Path, nic: PluginDouble
) -> None:
    def offers(**amounts: float) -> said.GetTopologyAwareAllocatableResourcesResponse:
        found = said.GetTopologyAwareAllocatableResourcesResponse()
        for name, amount in amounts.items():
            named = {"cpu": "cpu", "nic": NIC}[name]
            each = found.allocatable_resources[named]
            each.is_node_resource = True
            each.aggregated_capacity_quantity = each.aggregated_allocatable_quantity = amount
            place = said.TopologyAwareQuantity(resource_value=amount, node=1, name="eth0")
            each.topology_aware_allocatable_quantity_list.append(place)
        return found

    with PluginDouble(folder / "cpu.sock") as cpu:
        # Of two plugins that name a resource the one that is registered for it counts.
        cpu.answers("GetTopologyAwareAllocatableResources", offers(cpu=6, nic=9))
        nic.answers("GetTopologyAwareAllocatableResources", offers(nic=2))
        with served(kubelet, node(), nic, cpu) as socket:
            found = asked(socket, "GetAllocatableResources")
    assert [each.resource_name for each in found.resources] == ["cpu", NIC]
    assert found.resources[1] == api.AllocatableTopologyAwareResource(
        resource_name=NIC,
        is_node_resource=True,
        aggregated_allocatable_quantity=2,
        aggregated_capacity_quantity=2,
        topology_aware_allocatable_quantity_list=[
            api.TopologyAwareQuantity(resource_value=2, node=1, name="eth0")
        ],
    )
    # A client that knows the kubelet's fields only reads these as before.
    found.ClearField("resources")
    assert found == ALLOCATABLE


def as_a_stock_client_reads(message: Message) -> Message:
    """Return what a program has that was built with the kubelet's fields only."""
    file = FileDescriptorProto()
    api.DESCRIPTOR.CopyToProto(file)
    for described in file.message_type:
        fields = [field for field in described.field if field.number < KATALYSTS]
        del described.field[:]
        described.field.extend(fields)
    pool = DescriptorPool()
    pool.Add(file)
    kind = GetMessageClass(pool.FindMessageTypeByName(message.DESCRIPTOR.full_name))
    found: Message = kind.FromString(message.SerializeToString())
    found.DiscardUnknownFields()
    return found


def test_a_stock_client_reads_the_kubelets_part(kubelet: Path, nic: PluginDouble) -> None:
    named = [said.TopologyAwareQuantity(resource_value=1.0, name="eth0", type="NIC")]
    of_plugin = said.TopologyAwareResource(topology_aware_quantity_list=named)
    nic.answers("GetTopologyAwareResources", nic_of(of_plugin))
    nic.answers(
        "GetTopologyAwareAllocatableResources",
        said.GetTopologyAwareAllocatableResourcesResponse(
            allocatable_resources={NIC: said.AllocatableTopologyAwareResource()}
        ),
    )
    manager = node(example_com__nic=RecordedAnswer(2.0, {NIC: AnswerPart(quantity=2.0)}))
    with served(kubelet, manager, nic) as socket:
        listed, allocatable = asked(socket), asked(socket, "GetAllocatableResources")
    assert "eth0" in str(listed)
    assert NIC in str(allocatable)
    for found, kubelets in ((listed, KUBELETS), (allocatable, ALLOCATABLE)):
        read = as_a_stock_client_reads(found)
        assert read.SerializeToString() == kubelets.SerializeToString()


def test_many_callers_at_one_time_cost_one_round_of_questions(
    kubelet: Path, nic: PluginDouble
) -> None:
    begun, go = threading.Semaphore(0), threading.Semaphore(0)

    def reply(_request: bytes) -> bytes:
        begun.release()
        assert go.acquire(timeout=DEADLINE_S)
        return b""

    nic.replies["GetTopologyAwareResources"] = reply
    manager = node(example_com__nic=RecordedAnswer(2.0, {NIC: AnswerPart(quantity=2.0)}))
    with served(kubelet, manager, nic) as socket:
        socket.ensure()
        with grpc.insecure_channel(f"unix:{socket.path}") as channel:
            stub = PodResourcesListerStub(channel)
            request = api.ListPodResourcesRequest()
            first = stub.List.future(request, timeout=DEADLINE_S)
            assert begun.acquire(timeout=DEADLINE_S)
            later = [stub.List.future(request, timeout=DEADLINE_S) for _ in range(8)]
            # They are there once a later call on their connection has its answer.
            stub.GetAllocatableResources(api.AllocatableResourcesRequest(), timeout=DEADLINE_S)
            for _ in range(2):
                go.release()
            assert all(call.result() == first.result() for call in later)
    assert len(nic.asked["GetTopologyAwareResources"]) == 2


@pytest.mark.parametrize("method", ["List", "GetAllocatableResources"])
def test_a_kubelet_that_is_away_is_said(folder: Path, method: str) -> None:
    with (
        served(folder / "none.sock", node()) as socket,
        pytest.raises(grpc.RpcError) as error,
    ):
        asked(socket, method)
    assert error.value.code() is grpc.StatusCode.UNAVAILABLE
    assert "none.sock" in (error.value.details() or "")
