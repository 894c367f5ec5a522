from __future__ import annotations

import os
import threading
from functools import partial
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from cpupool.api import resourceplugin_pb2
from cpupool.api.pluginregistration_pb2 import PluginInfo
from cpupool.api.resourceplugin_pb2 import (
    AllocatableTopologyAwareResource,
    AllocationEntry,
    GetTopologyAwareAllocatableResourcesResponse,
    ListOfTopologyHints,
    ResourceAllocation,
    ResourceAllocationInfo,
)
from cpupool.api.resourceplugin_pb2 import TopologyHint as HintMessage
from cpupool.core.cpu_manager import TopologyHint
from cpupool.core.errors import RemoteProtocolError
from cpupool.core.plugin_facts import AnswerPart
from cpupool.core.workloads import ContainerRef
from cpupool.policies.qrm.questions import ContainerRole, PluginOptions, Question
from cpupool.qrm import plugin_client as resource_plugin
from cpupool.qrm.plugin_client import Introduction, PluginCall, PluginError, ResourcePlugin
from tests.resource_plugins import PluginDouble, Refusal, entry
from tests.waiting import DEADLINE_S

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from google.protobuf.message import Message

ASKED = Question(
    ContainerRef("uid", "main"),
    "default",
    "pod",
    ContainerRole.SIDECAR,
    1,
    "cpu",
    2.5,
    pod_role="online",
    labels={"a": "b"},
    annotations={"c": "d"},
    qos_class="Burstable",
)
NODES = ListOfTopologyHints(hints=[HintMessage(nodes=[1, 0], preferred=True), HintMessage()])
HINTS = (TopologyHint(frozenset({0, 1}), preferred=True), TopologyHint(None, preferred=False))
CPUS = ResourceAllocationInfo(
    oci_property_name="CpusetCpus",
    is_scalar_resource=True,
    allocated_quantity=2,
    allocation_result="0-1",
    envs={"E": "1"},
    annotations={"a": "1"},
    resource_hints=NODES,
    topology_assignments={0: 2},
)
TWO_CPUS = AnswerPart(
    "CpusetCpus",
    "0-1",
    2.0,
    scalar=True,
    env={"E": "1"},
    annotations={"a": "1"},
    hints=HINTS,
    by_node={0: 2},
)


@pytest.fixture
def double(tmp_path: Path) -> Iterator[PluginDouble]:
    with PluginDouble(tmp_path / "p.sock", with_topology_alignment=True) as plugin:
        yield plugin


@pytest.fixture
def plugin(double: PluginDouble) -> Iterator[ResourcePlugin]:
    introduced = resource_plugin.introduced(double.socket)
    assert introduced is not None
    plugin = ResourcePlugin(introduced)
    yield plugin
    plugin.close()


def test_a_plugin_says_its_resource_its_socket_and_what_it_wants(
    tmp_path: Path, double: PluginDouble
) -> None:
    assert resource_plugin.introduced(double.socket) == Introduction(
        "cpu", double.socket, PluginOptions(aligned=True)
    )
    info = PluginInfo(
        type="ResourcePlugin",
        name="memory",
        endpoint=str(double.socket),
        supported_versions=["v1beta1", "v1alpha1"],
    )
    with PluginDouble(tmp_path / "door.sock") as door:
        door.answers("GetInfo", info)
        assert resource_plugin.introduced(door.socket) == Introduction(
            "memory", double.socket, PluginOptions(aligned=True)
        )
        resource_plugin.notify(door.socket)
        resource_plugin.notify(door.socket, "no")
        assert door.asked["NotifyRegistrationStatus"] == [b"\x08\x01", b"\x12\x02no"]


@pytest.mark.parametrize("kind", ["foreign", "missing", "link", "file"])
def test_an_endpoint_that_is_no_socket_of_roots_is_not_asked(
    tmp_path: Path, double: PluginDouble, kind: str
) -> None:
    endpoint = tmp_path / "endpoint.sock"
    if kind == "foreign":
        endpoint = double.socket
        os.chown(endpoint, 65534, 65534)
    elif kind == "link":
        endpoint.symlink_to(double.socket)
    elif kind == "file":
        endpoint.write_text("")
    with PluginDouble(tmp_path / "door.sock") as door:
        door.answers(
            "GetInfo",
            PluginInfo(
                type="ResourcePlugin",
                name="cpu",
                endpoint=endpoint.name,
                supported_versions=["v1alpha1"],
            ),
        )
        with pytest.raises(RemoteProtocolError, match="no socket of root's; serve both on one"):
            resource_plugin.introduced(door.socket)
    assert not double.asked["GetResourcePluginOptions"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"type": "DRAPlugin"}, ""),
        ({"supported_versions": ["v1"]}, "registers 'cpu' with v1; it needs a name and v1alpha1"),
        ({"name": ""}, "registers '' with v1alpha1; it needs a name"),
    ],
)
def test_another_plugin_is_left_alone_and_another_version_refused(
    double: PluginDouble, change: dict[str, Any], words: str
) -> None:
    facts: dict[str, Any] = {
        "type": "ResourcePlugin",
        "name": "cpu",
        "supported_versions": ["v1alpha1"],
    }
    info = PluginInfo(**{**facts, **change})
    double.answers("GetInfo", info)
    if not words:
        assert resource_plugin.introduced(double.socket) is None
        return
    with pytest.raises(RemoteProtocolError, match=words):
        resource_plugin.introduced(double.socket)


def test_a_name_without_an_end_is_not_read(double: PluginDouble) -> None:
    info = PluginInfo(type="ResourcePlugin", name="c" * 100_000, supported_versions=["v1alpha1"])
    double.answers("GetInfo", info)
    with pytest.raises(RemoteProtocolError, match="more than 65536"):
        resource_plugin.introduced(double.socket)


@pytest.mark.parametrize(
    ("reply", "hints"),
    [
        pytest.param(b"", None, id="no entry"),
        pytest.param(entry(10, "memory", b""), None, id="an entry of another resource"),
        pytest.param(entry(10, "cpu", None), None, id="Go's nil: no preference"),
        pytest.param(entry(10, "cpu", b""), (), id="Go's empty list: cannot be met"),
        pytest.param(entry(10, "cpu", NODES.SerializeToString()), HINTS, id="hints"),
    ],
)
def test_no_preference_and_cannot_be_met_are_two_answers(
    double: PluginDouble,
    plugin: ResourcePlugin,
    reply: bytes,
    hints: tuple[TopologyHint, ...] | None,
) -> None:
    double.answers("GetTopologyHints", reply)
    assert plugin.hints(ASKED) == hints
    (asked,) = double.asked["GetTopologyHints"]
    request = resourceplugin_pb2.ResourceRequest.FromString(asked)
    assert request == resourceplugin_pb2.ResourceRequest(
        pod_uid="uid",
        pod_namespace="default",
        pod_name="pod",
        container_name="main",
        container_type=resourceplugin_pb2.SIDECAR,
        container_index=1,
        pod_role="online",
        resource_name="cpu",
        resource_requests={"cpu": 2.5},
        labels={"a": "b"},
        annotations={"c": "d"},
        native_qos_class="Burstable",
    )


def test_an_allocation_may_name_several_resources_and_nothing(
    double: PluginDouble, plugin: ResourcePlugin
) -> None:
    allocation = ResourceAllocation(
        resource_allocation=[
            AllocationEntry(key="cpu", value=CPUS),
            AllocationEntry(key="nothing"),
            AllocationEntry(key="empty", value=ResourceAllocationInfo()),
        ]
    )
    double.answers(
        "Allocate", resourceplugin_pb2.ResourceAllocationResponse(allocation_result=allocation)
    )
    given = plugin.allocate(ASKED, TopologyHint(frozenset({1, 0}), preferred=True))
    assert given == {"cpu": TWO_CPUS, "empty": AnswerPart()}
    asked = resourceplugin_pb2.ResourceRequest.FromString(double.asked["Allocate"][0])
    assert asked.hint == HintMessage(nodes=[0, 1], preferred=True)
    double.answers("Allocate", b"")
    assert plugin.allocate(ASKED) == {}


def test_a_plugin_without_alignment_gets_no_hint(double: PluginDouble) -> None:
    plugin = ResourcePlugin(Introduction("cpu", double.socket, PluginOptions()))
    double.answers("Allocate", b"")
    plugin.allocate(ASKED, TopologyHint(frozenset({0}), preferred=True))
    plugin.close()
    assert not resourceplugin_pb2.ResourceRequest.FromString(double.asked["Allocate"][0]).HasField(
        "hint"
    )


@pytest.mark.parametrize(
    ("allocated", "words"),
    [
        (
            ResourceAllocationInfo(envs={"A": "x" * 140_000}),
            "has answered with 1400.. bytes for one container, more than 131072",
        ),
        (
            ResourceAllocationInfo(resource_hints={"hints": [HintMessage(nodes=[0, 2**63])]}),
            "has answered with the NUMA node 9223372036854775808, which no machine has",
        ),
    ],
)
def test_an_answer_has_bounds(
    double: PluginDouble, plugin: ResourcePlugin, allocated: ResourceAllocationInfo, words: str
) -> None:
    entry = AllocationEntry(key="cpu", value=allocated)
    allocation = ResourceAllocation(resource_allocation=[entry])
    double.answers(
        "Allocate", resourceplugin_pb2.ResourceAllocationResponse(allocation_result=allocation)
    )
    found = resourceplugin_pb2.GetResourcesAllocationResponse()
    found.pod_resources["uid"].container_resources["main"].CopyFrom(allocation)
    double.answers("GetResourcesAllocation", found)
    for ask in (partial(plugin.allocate, ASKED), plugin.allocations):
        with pytest.raises(PluginError, match=words) as bad:
            ask()
        assert bad.value.refused


@pytest.mark.parametrize(
    ("hints", "words"),
    [
        ([HintMessage(nodes=[1024])], "the NUMA node 1024, which no machine has"),
        ([HintMessage(nodes=[0])] * 30_000, "bytes for one container, more than"),
    ],
)
def test_hints_have_bounds(
    double: PluginDouble, plugin: ResourcePlugin, hints: list[HintMessage], words: str
) -> None:
    found = resourceplugin_pb2.HintsEntry(key="cpu", value=ListOfTopologyHints(hints=hints))
    double.answers(
        "GetTopologyHints", resourceplugin_pb2.ResourceHintsResponse(resource_hints=[found])
    )
    with pytest.raises(PluginError, match=words):
        plugin.hints(ASKED)


def test_what_every_container_has_now(double: PluginDouble, plugin: ResourcePlugin) -> None:
    found = resourceplugin_pb2.GetResourcesAllocationResponse()
    allocation = found.pod_resources["uid"].container_resources["main"]
    allocation.resource_allocation.append(AllocationEntry(key="cpu", value=CPUS))
    double.answers("GetResourcesAllocation", found)
    assert plugin.allocations() == {ContainerRef("uid", "main"): {"cpu": TWO_CPUS}}


@pytest.mark.parametrize("field", ["pods", "containers"])
def test_a_list_has_bounds(double: PluginDouble, plugin: ResourcePlugin, field: str) -> None:
    found = resourceplugin_pb2.GetResourcesAllocationResponse()
    for number in range(10_001):
        if field == "pods":
            found.pod_resources[f"{number}"].SetInParent()
        else:
            found.pod_resources["uid"].container_resources[f"{number}"].SetInParent()
    double.answers("GetResourcesAllocation", found)
    with pytest.raises(PluginError, match="10001 pods or containers, more than 10000"):
        plugin.allocations()


def amount(allocatable: float, **fields: Any) -> AllocatableTopologyAwareResource:
    fields = {"is_node_resource": True, "is_scalar_resource": True, **fields}
    return AllocatableTopologyAwareResource(
        aggregated_allocatable_quantity=allocatable, aggregated_capacity_quantity=99, **fields
    )


def offer(**resources: AllocatableTopologyAwareResource) -> Message:
    return GetTopologyAwareAllocatableResourcesResponse(allocatable_resources=resources)


def test_the_resources_for_the_nodes_status_are_scalar_and_of_the_node(
    double: PluginDouble, plugin: ResourcePlugin
) -> None:
    method = "GetTopologyAwareAllocatableResources"
    double.answers(
        method,
        offer(
            a=amount(2.5),
            b=amount(3, is_node_resource=False),
            c=amount(4, is_scalar_resource=False),
            d=amount(0),
        ),
    )
    assert plugin.node_resources() == {"a": 2.5, "d": 0.0}
    assert double.asked[method] == [b""]


def test_a_plugin_without_the_method_has_no_resource_of_the_node(double: PluginDouble) -> None:
    calls: list[PluginCall] = []
    plugin = ResourcePlugin(Introduction("cpu", double.socket, PluginOptions()), calls.append)
    assert plugin.node_resources() == {}
    (call,) = calls
    assert call.failure is None
    with pytest.raises(PluginError):
        plugin.allocations()


@pytest.mark.parametrize(
    ("most", "more", "why"),
    [
        ([f"r{number}" for number in range(64)], "more", "65 resources of the node, more than 64"),
        (["r" * 317], "s" * 318, "a resource whose name has 318 characters"),
    ],
    ids=["many", "long"],
)
def test_the_resources_of_the_node_have_bounds(
    double: PluginDouble, plugin: ResourcePlugin, most: list[str], more: str, why: str
) -> None:
    resources = dict.fromkeys(most, amount(1))
    double.answers("GetTopologyAwareAllocatableResources", offer(**resources))
    assert plugin.node_resources().keys() == set(most)
    double.answers("GetTopologyAwareAllocatableResources", offer(**resources, **{more: amount(1)}))
    with pytest.raises(PluginError, match=f"has answered with {why}"):
        plugin.node_resources()


def test_ended_pods_and_starting_containers(double: PluginDouble, plugin: ResourcePlugin) -> None:
    double.answers("RemovePod", b"")
    double.answers("PreStartContainer", b"")
    plugin.remove("uid")
    plugin.before_start(ASKED)
    assert double.asked["RemovePod"] == [b"\x0a\x03uid"]
    request = resourceplugin_pb2.PreStartContainerRequest.FromString(
        double.asked["PreStartContainer"][0]
    )
    assert (request.pod_uid, request.container_name) == ("uid", "main")


@pytest.mark.parametrize(
    ("reply", "words", "refused"),
    [
        (
            Refusal(grpc.StatusCode.INTERNAL, "no CPU is free"),
            "has refused (asked to allocate: no CPU is free)",
            True,
        ),
        (Refusal(grpc.StatusCode.NOT_FOUND), "has refused (asked to allocate: NOT_FOUND)", True),
        (b"\xff", "has refused", True),
    ],
)
def test_a_refusal_is_an_error_with_the_plugins_words(
    double: PluginDouble, plugin: ResourcePlugin, reply: Refusal | bytes, words: str, refused: bool
) -> None:
    double.answers("Allocate", reply)
    with pytest.raises(PluginError) as raised:
        plugin.allocate(ASKED)
    assert words in str(raised.value)
    assert (raised.value.resource, raised.value.refused) == ("cpu", refused)


def test_a_plugin_that_is_away_or_hangs_has_not_refused(double: PluginDouble) -> None:
    gone = ResourcePlugin(
        Introduction("cpu", double.socket.with_name("none.sock"), PluginOptions())
    )
    with pytest.raises(PluginError, match="is away") as away:
        gone.remove("uid")
    gone.close()
    release = threading.Event()

    def hang(_request: bytes) -> bytes:
        release.wait()
        return b""

    double.replies["RemovePod"] = hang
    slow = ResourcePlugin(Introduction("cpu", double.socket, PluginOptions()), call_s=0.05)
    with pytest.raises(PluginError) as late:
        slow.remove("uid")
    release.set()
    slow.close()
    assert "has not answered in time" in str(late.value)
    assert not away.value.refused
    assert not late.value.refused


def test_a_close_ends_the_calls_that_run_and_later_ones_fail(
    double: PluginDouble, plugin: ResourcePlugin
) -> None:
    asked, release = threading.Event(), threading.Event()

    def hang(_request: bytes) -> bytes:
        asked.set()
        release.wait(DEADLINE_S)
        return b""

    def close() -> None:
        asked.wait(DEADLINE_S)
        plugin.close()

    double.replies["RemovePod"] = hang
    closer = threading.Thread(target=close)
    closer.start()
    for _ in range(2):
        with pytest.raises(PluginError, match=r"is away .*the call was given up"):
            plugin.remove("uid")
    release.set()
    closer.join()
