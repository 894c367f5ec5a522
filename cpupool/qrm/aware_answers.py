"""What a plugin says of the places of a machine, as podresources have it: checked, field by field.

A bad answer does not count: the caller keeps what it knows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from cpupool.api import podresources_pb2, resourceplugin_pb2
from cpupool.core.quantity import is_amount
from cpupool.core.resources import is_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from google.protobuf.message import Message

    from cpupool.core.topology import CPUTopology
    from cpupool.core.workloads import ContainerRef

    Placed = Mapping[str, podresources_pb2.TopologyAwareResource]
    """Resource → what a container has of it."""
    Stock = Mapping[str, podresources_pb2.AllocatableTopologyAwareResource]
    """Resource → what the node has of it."""

_MOST_CONTAINER_BYTES: Final = 8 * 1024
"""Of a plugin's answer about one container: a hundred places. A client of gRPC reads 4 MiB at most
unless it is told otherwise, and a node has some hundred containers."""
_MOST_NODE_BYTES: Final = 64 * 1024
"""Of a plugin's answer about the node."""
_LONGEST_TEXT: Final = 253
"""Of the name and the type of a place, as of most names of Kubernetes."""


class BadPlace(Exception):
    """An answer that does not count; its text says what is in it."""


def of_container(
    found: resourceplugin_pb2.GetTopologyAwareResourcesResponse,
    container: ContainerRef,
    topology: CPUTopology,
) -> Placed:
    """Return what a container has of each resource; nothing if the plugin does not say.

    Raises:
        BadPlace: the answer is about another container, or has a value that cannot be.
    """
    _bound(found, _MOST_CONTAINER_BYTES, "one container")
    said = found.container_topology_aware_resources
    about = (found.pod_uid or container.pod, said.container_name or container.name)
    if about != (container.pod, container.name):
        raise BadPlace(f"what container {about[1][:60]!r} of pod {about[0][:60]!r} has")
    return {
        _name(name): _given(name, each, topology) for name, each in said.allocated_resources.items()
    }


def of_node(
    found: resourceplugin_pb2.GetTopologyAwareAllocatableResourcesResponse, topology: CPUTopology
) -> Stock:
    """Return what the node has of each resource.

    Raises:
        BadPlace: the answer has a value that cannot be.
    """
    _bound(found, _MOST_NODE_BYTES, "the node")
    return {
        _name(name): _stock(name, each, topology)
        for name, each in found.allocatable_resources.items()
    }


def _given(
    name: str, each: resourceplugin_pb2.TopologyAwareResource, topology: CPUTopology
) -> podresources_pb2.TopologyAwareResource:
    return podresources_pb2.TopologyAwareResource(
        resource_name=name,
        is_node_resource=each.is_node_resource,
        is_scalar_resource=each.is_scalar_resource,
        aggregated_quantity=_amount(each.aggregated_quantity),
        original_aggregated_quantity=_amount(each.original_aggregated_quantity),
        topology_aware_quantity_list=_places(each.topology_aware_quantity_list, topology),
        original_topology_aware_quantity_list=_places(
            each.original_topology_aware_quantity_list, topology
        ),
    )


def _stock(
    name: str, each: resourceplugin_pb2.AllocatableTopologyAwareResource, topology: CPUTopology
) -> podresources_pb2.AllocatableTopologyAwareResource:
    return podresources_pb2.AllocatableTopologyAwareResource(
        resource_name=name,
        is_node_resource=each.is_node_resource,
        is_scalar_resource=each.is_scalar_resource,
        aggregated_allocatable_quantity=_amount(each.aggregated_allocatable_quantity),
        topology_aware_allocatable_quantity_list=_places(
            each.topology_aware_allocatable_quantity_list, topology
        ),
        aggregated_capacity_quantity=_amount(each.aggregated_capacity_quantity),
        topology_aware_capacity_quantity_list=_places(
            each.topology_aware_capacity_quantity_list, topology
        ),
    )


def _places(
    listed: Iterable[resourceplugin_pb2.TopologyAwareQuantity], topology: CPUTopology
) -> list[podresources_pb2.TopologyAwareQuantity]:
    return [_place(each, topology) for each in listed]


def _place(
    each: resourceplugin_pb2.TopologyAwareQuantity, topology: CPUTopology
) -> podresources_pb2.TopologyAwareQuantity:
    for text in (each.name, each.type):
        if len(text) > _LONGEST_TEXT or not text.isprintable():
            raise BadPlace(f"a name of {len(text)} characters, as {text[:60]!r}")
    of_numa = each.topology_level == resourceplugin_pb2.TopologyLevel.NUMA
    # A kernel without NUMA has no nodes, and a plugin means all of the machine by the first.
    if of_numa and each.node not in (topology.nodes or (0,)):
        raise BadPlace(f"the NUMA node {each.node}, which the machine lacks")
    return podresources_pb2.TopologyAwareQuantity(
        resource_value=_amount(each.resource_value),
        node=each.node,
        name=each.name,
        type=each.type,
        topology_level=_level(each.topology_level),
        annotations=each.annotations,
    )


def _level(number: resourceplugin_pb2.TopologyLevel) -> str:
    """Return a level's name; the two APIs give it the same one."""
    try:
        return resourceplugin_pb2.TopologyLevel.Name(number)
    except ValueError:
        raise BadPlace(f"the topology level {number}, which podresources lack") from None


def _amount(number: float) -> float:
    if not is_amount(number):
        raise BadPlace(f"{number:g}, which is no amount from 0 to 2^53")
    return number


def _name(resource: str) -> str:
    if not is_name(resource):
        raise BadPlace(f"{resource[:60]!r}, which names no resource")
    return resource


def _bound(found: Message, most: int, about: str) -> None:
    if (length := found.ByteSize()) > most:
        raise BadPlace(f"{length} bytes about {about}, more than {most}")
