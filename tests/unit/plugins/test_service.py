"""The plugin's side of the protocol, asked by the manager's side and with bytes, over sockets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import grpc
import pytest

from cpupool.api import pluginregistration_pb2 as registration
from cpupool.api import resourceplugin_pb2 as api
from cpupool.api.pluginregistration_pb2_grpc import RegistrationStub
from cpupool.api.resourceplugin_pb2_grpc import ResourcePluginStub
from cpupool.core.cpu_manager import TopologyHint
from cpupool.core.errors import NotEnoughCPUs
from cpupool.core.plugin_facts import AnswerPart, AnswerParts
from cpupool.core.workloads import ContainerRef
from cpupool.plugins.service import Device, PluginService
from cpupool.policies.qrm.questions import ContainerRole, PluginOptions, Question
from cpupool.qrm.plugin_client import PluginError, ResourcePlugin, introduced, notify
from cpupool.rpc.serving import Server, ServingLoop
from tests.waiting import DEADLINE_S

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

REF = ContainerRef("uid", "main")
QUESTION = Question(
    REF,
    "default",
    "web",
    ContainerRole.MAIN,
    2,
    "cpu",
    2.5,
    "role",
    "type",
    {"l": "1"},
    {"a": "2"},
    "Burstable",
)
NEAR = TopologyHint(frozenset({0, 1}), preferred=True)
FAR = TopologyHint(frozenset({3}), preferred=False)
ANSWER = AnswerPart(
    "CpusetCpus",
    "1-2",
    2.0,
    scalar=True,
    env={"E": "1"},
    annotations={"k": "v"},
    hints=(NEAR, FAR),
    by_node={0: 2},
)


ETH0, ETH1 = Device(0, "NIC", "eth0"), Device(1, "NIC", "eth1", "ns1")


class Double:
    """A plugin that answers what a test says, and remembers what it is asked."""

    def __init__(self) -> None:
        self.options = PluginOptions(aligned=True, reconciled=True)
        self.asked: list[Any] = []
        self.near: tuple[TopologyHint, ...] | None = (NEAR, FAR)
        self.gives: AnswerParts = {"cpu": ANSWER}
        self.error: Exception | None = None

    def hints(self, question: Question) -> tuple[TopologyHint, ...] | None:
        self.asked.append(question)
        if self.error:
            raise self.error
        return self.near

    def allocate(self, question: Question, hint: TopologyHint | None) -> AnswerParts:
        self.asked.append((question, hint))
        return self.gives

    def allocations(self) -> Mapping[ContainerRef, AnswerParts]:
        return {REF: self.gives, ContainerRef("other", "side"): {}}

    def asked_by(self, container: ContainerRef) -> Question | None:
        return QUESTION if container == REF else None

    def remove(self, pod: str) -> None:
        self.asked.append(pod)

    def devices(self, container: ContainerRef) -> Mapping[str, tuple[tuple[Device, float], ...]]:
        return {"nic": ((ETH1, 1.0),)} if container == REF else {}

    def stock(self, resource: str) -> Mapping[str, Any]:
        assert resource == "cpu"
        cpus = {1: (40.0, 38.0), 0: (40.0, 36.0)}
        nics = ((ETH1, (2.0, 1.0)), (ETH0, (1.0, 1.0)))
        return {
            "cpu": (cpus, True, ()),
            "beside": ({0: (5.0, 5.0)}, False, ()),
            "nic": ({0: (3.0, 2.0)}, False, nics),
        }


class World:
    def __init__(self, folder: Path) -> None:
        self.socket = folder / "p.sock"
        self.double = Double()

    @property
    def plugin(self) -> ResourcePlugin:
        found = introduced(self.socket)
        assert found
        return ResourcePlugin(found)

    def raw(self, method: str, request: Any) -> Any:
        with grpc.insecure_channel(f"unix:{self.socket}") as channel:
            return getattr(ResourcePluginStub(channel), method)(request, timeout=DEADLINE_S)


@pytest.fixture
def world(folder: Path) -> Iterator[World]:
    made = World(folder)

    async def begin() -> Server:
        server = Server(PluginService("cpu", made.double))
        await server.begin(made.socket)
        return server

    with ServingLoop() as loop:
        server = loop.call(begin())
        yield made
        loop.call(server.end())


def test_a_manager_understands_it(world: World) -> None:
    plugin = world.plugin
    assert (plugin.resource, plugin.options) == (
        "cpu",
        PluginOptions(aligned=True, reconciled=True),
    )
    assert plugin.hints(QUESTION) == (NEAR, FAR)
    assert plugin.allocate(QUESTION, NEAR) == {"cpu": ANSWER}
    assert plugin.allocate(QUESTION) == {"cpu": ANSWER}
    assert plugin.allocations() == {REF: {"cpu": ANSWER}, ContainerRef("other", "side"): {}}
    plugin.remove("uid")
    assert world.double.asked == [QUESTION, (QUESTION, NEAR), (QUESTION, None), "uid"]
    any_nodes = TopologyHint(None, preferred=False)
    plugin.allocate(QUESTION, any_nodes)
    assert world.double.asked[-1] == (QUESTION, any_nodes)


def test_no_preference_has_no_entry_and_nothing_to_do_no_result(world: World) -> None:
    world.double.near, world.double.gives = None, {}
    request = api.ResourceRequest(
        pod_uid="uid", container_name="main", resource_name="cpu", resource_requests={"cpu": 1}
    )
    hints = world.raw("GetTopologyHints", request)
    assert list(hints.resource_hints) == []
    assert (hints.pod_uid, hints.container_name, hints.resource_name) == ("uid", "main", "cpu")
    assert not world.raw("Allocate", request).HasField("allocation_result")


def test_a_refusal_has_the_plugins_words(world: World) -> None:
    world.double.error = NotEnoughCPUs(4, 2)
    with pytest.raises(PluginError, match="4 CPUs requested, 2 free") as error:
        world.plugin.hints(QUESTION)
    assert error.value.refused


@pytest.mark.parametrize(
    ("amounts", "quantity"),
    [
        ({"cpu": 2.5, "other": 1}, 2.5),
        ({"resource.katalyst.kubewharf.io/reclaimed_millicpu": 2500}, 2.5),
        ({"example.com/cpus": 2.5}, 2.5),
    ],
)
def test_the_amount_may_have_the_name_before_a_mapping(
    world: World, amounts: dict[str, float], quantity: float
) -> None:
    request = api.ResourceRequest(
        resource_name="cpu",
        resource_requests=amounts,
        container_type=api.EPHEMERAL,
        annotations={"kubernetes.io/pod-role": "ETL"},
    )
    world.raw("GetTopologyHints", request)
    (asked,) = world.double.asked
    assert (asked.quantity, asked.pod_role) == (quantity, "ETL")
    assert asked.role is ContainerRole.SIDECAR


def test_a_request_without_an_amount_is_refused(world: World) -> None:
    with pytest.raises(grpc.RpcError, match="no amount of 'cpu'"):
        world.raw("Allocate", api.ResourceRequest(resource_name="cpu"))


def test_it_is_told_whether_it_is_registered(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    with grpc.insecure_channel(f"unix:{world.socket}") as channel:
        info = RegistrationStub(channel).GetInfo(registration.InfoRequest(), timeout=DEADLINE_S)
    assert (info.type, info.name, list(info.supported_versions)) == (
        "ResourcePlugin",
        "cpu",
        ["v1alpha1"],
    )
    notify(world.socket)
    notify(world.socket, "no handler")
    assert "no handler" in caplog.text


def test_podresources_learns_what_there_is(world: World) -> None:
    request = api.GetTopologyAwareAllocatableResourcesRequest()
    reply = world.raw("GetTopologyAwareAllocatableResources", request).allocatable_resources
    found = reply["cpu"]
    assert (found.aggregated_capacity_quantity, found.aggregated_allocatable_quantity) == (80, 74)
    listed = found.topology_aware_allocatable_quantity_list
    assert [(each.node, each.resource_value) for each in listed] == [(0, 36), (1, 38)]
    assert found.is_scalar_resource
    assert found.is_node_resource
    # What comes with the resource has an entry of its own.
    assert reply.keys() == {"cpu", "beside", "nic"}
    assert reply["beside"].aggregated_allocatable_quantity == 5
    assert not reply["beside"].is_node_resource


def test_podresources_learns_what_a_container_has(world: World) -> None:
    def asked(**names: str) -> Any:
        request = api.GetTopologyAwareResourcesRequest(**names)
        return world.raw("GetTopologyAwareResources", request)

    found = asked(pod_uid="uid", container_name="main")
    assert (found.pod_name, found.pod_namespace) == ("web", "default")
    cpu = found.container_topology_aware_resources.allocated_resources["cpu"]
    assert (cpu.aggregated_quantity, cpu.original_aggregated_quantity) == (2, 2)
    listed = cpu.topology_aware_quantity_list
    assert [(each.node, each.resource_value) for each in listed] == [(0, 2)]
    assert not asked(pod_uid="x", container_name="main").pod_uid


def test_podresources_learns_the_names_of_devices(world: World) -> None:
    world.double.gives = {"nic": AnswerPart()}
    request = api.GetTopologyAwareResourcesRequest(pod_uid="uid", container_name="main")
    found = world.raw("GetTopologyAwareResources", request)
    nic = found.container_topology_aware_resources.allocated_resources["nic"]
    eth1: dict[str, Any] = {
        "node": 1,
        "name": "eth1",
        "type": "NIC",
        "annotations": {
            "katalyst.kubewharf.io/resource_identifier": "ns1-eth1",
            "katalyst.kubewharf.io/netns_name": "ns1",
        },
    }
    assert (nic.aggregated_quantity, nic.original_aggregated_quantity) == (1, 1)
    assert list(nic.topology_aware_quantity_list) == [
        api.TopologyAwareQuantity(resource_value=1, **eth1)
    ]
    assert nic.original_topology_aware_quantity_list == nic.topology_aware_quantity_list

    reply = world.raw(
        "GetTopologyAwareAllocatableResources", api.GetTopologyAwareAllocatableResourcesRequest()
    )
    nics = reply.allocatable_resources["nic"]
    assert list(nics.topology_aware_allocatable_quantity_list) == [
        api.TopologyAwareQuantity(
            resource_value=1,
            name="eth0",
            type="NIC",
            annotations={"katalyst.kubewharf.io/resource_identifier": "eth0"},
        ),
        api.TopologyAwareQuantity(resource_value=1, **eth1),
    ]
    assert nics.topology_aware_capacity_quantity_list[1].resource_value == 2
    assert (nics.aggregated_capacity_quantity, nics.aggregated_allocatable_quantity) == (3, 2)
