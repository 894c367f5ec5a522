from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from cpupool.api import podresources_pb2 as shown
from cpupool.api import resourceplugin_pb2 as said
from cpupool.core.workloads import ContainerRef
from cpupool.qrm.plugin_messages import Unusable, placed, stock
from tests.machines import MACHINES

NUMA = MACHINES["arm_no_smt"].topology()
"""Two NUMA nodes."""
REF = ContainerRef("uid", "main")
NIC: dict[str, Any] = {
    "resource_value": 1.0,
    "node": 1,
    "name": "eth0",
    "type": "NIC",
    "topology_level": "SOCKET",
    "annotations": {"netns": "ns1"},
}


def answer(resource: str = "NIC", **place: Any) -> said.GetTopologyAwareResourcesResponse:
    """Make an answer about a container with one place, in both lists."""
    places = [said.TopologyAwareQuantity(**{**NIC, **place})]
    each = said.TopologyAwareResource(
        is_node_resource=True,
        aggregated_quantity=1.0,
        original_aggregated_quantity=2.0,
        topology_aware_quantity_list=places,
        original_topology_aware_quantity_list=places,
    )
    return said.GetTopologyAwareResourcesResponse(
        pod_uid="uid",
        container_topology_aware_resources=said.ContainerTopologyAwareResources(
            container_name="main", allocated_resources={resource: each}
        ),
    )


def offered(capacity: float = 2.0, **place: Any) -> Any:
    each = said.AllocatableTopologyAwareResource(
        is_scalar_resource=True,
        aggregated_allocatable_quantity=1.0,
        topology_aware_allocatable_quantity_list=[said.TopologyAwareQuantity(**NIC)],
        aggregated_capacity_quantity=capacity,
        topology_aware_capacity_quantity_list=[said.TopologyAwareQuantity(**{**NIC, **place})],
    )
    return said.GetTopologyAwareAllocatableResourcesResponse(allocatable_resources={"NIC": each})


def test_every_field_of_an_answer_passes() -> None:
    place = shown.TopologyAwareQuantity(**NIC)
    assert placed(answer(), REF, NUMA) == {
        "NIC": shown.TopologyAwareResource(
            resource_name="NIC",
            is_node_resource=True,
            aggregated_quantity=1.0,
            original_aggregated_quantity=2.0,
            topology_aware_quantity_list=[place],
            original_topology_aware_quantity_list=[place],
        )
    }
    assert stock(offered(), NUMA) == {
        "NIC": shown.AllocatableTopologyAwareResource(
            resource_name="NIC",
            is_scalar_resource=True,
            aggregated_allocatable_quantity=1.0,
            topology_aware_allocatable_quantity_list=[place],
            aggregated_capacity_quantity=2.0,
            topology_aware_capacity_quantity_list=[place],
        )
    }


def test_an_answer_may_leave_out_whom_it_is_about() -> None:
    found = answer()
    found.ClearField("pod_uid")
    found.container_topology_aware_resources.ClearField("container_name")
    assert placed(found, REF, NUMA).keys() == {"NIC"}
    assert placed(said.GetTopologyAwareResourcesResponse(), REF, NUMA) == {}


@pytest.mark.parametrize(
    ("place", "words"),
    [
        ({"resource_value": math.nan}, "nan"),
        ({"resource_value": math.inf}, "inf"),
        ({"resource_value": -1.0}, "-1"),
        ({"resource_value": -0.0}, "-0"),
        ({"resource_value": 2.0**54}, "1.80144e\\+16"),
        ({"name": "e" * 65536}, "bytes about one container"),
        ({"name": "e" * 254}, "254 characters"),
        ({"type": "N" * 254}, "254 characters"),
        ({"name": "eth0\n"}, "5 characters"),
        ({"node": 2, "topology_level": "NUMA"}, "the NUMA node 2, which the machine lacks"),
        ({"topology_level": 7}, "the topology level 7"),
        ({"annotations": {"k": "v" * 9000}}, "bytes about one container"),
    ],
)
def test_a_bad_place_is_refused(place: dict[str, Any], words: str) -> None:
    with pytest.raises(Unusable, match=words):
        placed(answer(**place), REF, NUMA)
    if "bytes" not in words:
        with pytest.raises(Unusable, match=words):
            stock(offered(**place), NUMA)


def test_what_is_not_asked_for_is_refused() -> None:
    found = answer()
    found.container_topology_aware_resources.container_name = "other"
    with pytest.raises(Unusable, match="container 'other' of pod 'uid'"):
        placed(found, REF, NUMA)
    with pytest.raises(Unusable, match="of pod 'uid'"):
        placed(answer(), ContainerRef("another", "main"), NUMA)


def test_an_amount_and_a_name_of_a_resource_are_checked() -> None:
    with pytest.raises(Unusable, match="nan"):
        stock(offered(capacity=math.nan), NUMA)
    found = answer()
    resources = found.container_topology_aware_resources.allocated_resources
    resources["NIC"].original_aggregated_quantity = -1.0
    with pytest.raises(Unusable, match="-1"):
        placed(found, REF, NUMA)
    for name in ("", "two words", "e" * 400):
        with pytest.raises(Unusable, match="names no resource"):
            placed(answer(name), REF, NUMA)


def test_an_answer_about_the_node_is_bounded() -> None:
    found = said.GetTopologyAwareAllocatableResourcesResponse()
    for number in range(700):
        found.allocatable_resources[f"example.com/nic{number}"].CopyFrom(
            offered().allocatable_resources["NIC"]
        )
    with pytest.raises(Unusable, match="bytes about the node, more than 65536"):
        stock(found, NUMA)


def test_a_machine_without_numa_has_its_first_node() -> None:
    flat = replace(NUMA, nodes={})
    one = answer(node=0, topology_level="NUMA")
    assert placed(one, REF, flat).keys() == {"NIC"}
