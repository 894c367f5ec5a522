"""The messages of plugins: a request is written, and an answer is read within bounds.

A function that reads an answer raises `Unusable` for a bad one; its caller keeps what it knows.
Source: kubewharf/kubelet, pkg/apis/resourceplugin/v1alpha1.
"""

from __future__ import annotations

from sys import intern
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, TypeVar

from google.protobuf.message import DecodeError, Message

from cpupool.api import podresources_pb2
from cpupool.api import resourceplugin_pb2 as api
from cpupool.core.cpu_manager import TopologyHint
from cpupool.core.errors import RemoteProtocolError
from cpupool.core.plugin_facts import AnswerPart
from cpupool.core.pod_resources import LONGEST_NAME, is_name
from cpupool.core.quantity import is_amount
from cpupool.core.topology import MOST_NODES
from cpupool.core.workloads import ContainerRef
from cpupool.policies.qrm.questions import PluginOptions

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from cpupool.core.plugin_facts import AnswerParts
    from cpupool.core.topology import CPUTopology
    from cpupool.policies.qrm.questions import Question

    Placed = Mapping[str, podresources_pb2.TopologyAwareResource]
    """Resource → what a container has of it."""
    Stock = Mapping[str, podresources_pb2.AllocatableTopologyAwareResource]
    """Resource → what the node has of it."""

Hints = tuple[TopologyHint, ...] | None
"""The NUMA nodes of a plugin: None for no preference, empty if no nodes can serve the container."""
MOST_CONTAINER_BYTES: Final = 128 * 1024
"""The size of an answer about one container: the agent keeps it, and records it."""
_MOST_ENTRIES: Final = 4096
"""An answer about one container has variables, annotations, and NUMA nodes of hints. A machine of
eight nodes has 1,024 such nodes. Each entry takes up to 200 bytes as an object."""
_MOST_CONTAINERS: Final = 10_000
"""A list of 4 MiB has room for 300,000, which the agent would read for seconds."""
_MOST_RESOURCES: Final = 64
"""One plugin may offer so many resources for the node."""
_MOST_PLACES_BYTES: Final = 8 * 1024
"""The size of a hundred places of one container. A client of gRPC reads 4 MiB at most by default,
and a node has some hundred containers."""
_MOST_STOCK_BYTES: Final = 64 * 1024
"""The size of all places of the node."""
_LONGEST_TEXT: Final = 253
"""The limit for the name and the type of a place is that for most names of Kubernetes."""
_NO_TEXTS: Final[Mapping[str, str]] = MappingProxyType({})
_NO_NODES: Final[Mapping[int, int]] = MappingProxyType({})
_Resource = TypeVar("_Resource", bound=Message)


class Unusable(Exception):
    """An answer that is out of bounds; the text says what is in it."""


def request(question: Question) -> api.ResourceRequest:
    """Write a question."""
    return api.ResourceRequest(
        pod_uid=question.container.pod,
        pod_namespace=question.namespace,
        pod_name=question.pod_name,
        container_name=question.container.name,
        container_type=api.ContainerType.Name(question.role.value),
        container_index=question.index,
        pod_role=question.pod_role,
        pod_type=question.pod_type,
        resource_name=question.resource,
        resource_requests={question.resource: question.quantity},
        labels=question.labels,
        annotations=question.annotations,
        native_qos_class=question.qos_class,
    )


def options(sent: api.ResourcePluginOptions) -> PluginOptions:
    """Return the options that a plugin has sent."""
    return PluginOptions(
        pre_start=sent.pre_start_required,
        aligned=sent.with_topology_alignment,
        reconciled=sent.need_reconcile,
    )


def hints(found: api.ResourceHintsResponse, resource: str) -> Hints:
    """Return the hints for a resource; one without a value has no preference."""
    entry = next((each for each in found.resource_hints if each.key == resource), None)
    if entry is None or not entry.HasField("value"):
        return None
    _bound(entry, MOST_CONTAINER_BYTES, "for one container")
    _bound_entries(sum(1 + len(hint.nodes) for hint in entry.value.hints))
    return _listed(entry.value)


def answers(allocation: api.ResourceAllocation) -> AnswerParts:
    """Return the answers for a container: resource → answer."""
    _bound(allocation, MOST_CONTAINER_BYTES, "for one container")
    entries: Sequence[api.AllocationEntry] = allocation.resource_allocation
    _bound_entries(len(entries) + sum(_entries(entry.value) for entry in entries))
    filled = (entry for entry in entries if entry.HasField("value"))
    return {intern(entry.key): _answer(entry.value) for entry in filled}


def allocations(listed: api.GetResourcesAllocationResponse) -> Mapping[ContainerRef, AnswerParts]:
    """Return the answers for each container of a list."""
    pods = listed.pod_resources
    count = len(pods)
    if count <= _MOST_CONTAINERS:
        count = sum(len(containers.container_resources) for containers in pods.values())
    if count > _MOST_CONTAINERS:
        raise Unusable(f"{count} pods or containers, more than {_MOST_CONTAINERS}")
    return {
        ContainerRef(uid, name): answers(allocation)
        for uid, containers in pods.items()
        for name, allocation in containers.container_resources.items()
    }


def recorded_answer(data: bytes) -> AnswerPart:
    """Return the answer in the bytes of a ResourceAllocationInfo.

    Raises:
        RemoteProtocolError: they are damaged.
    """
    try:
        info = api.ResourceAllocationInfo.FromString(data)
        _bound(info, MOST_CONTAINER_BYTES, "for one container")
        _bound_entries(_entries(info))
        return _answer(info)
    except (DecodeError, Unusable) as error:
        raise RemoteProtocolError(f"a recorded answer is not readable ({error})") from error


def node_resources(found: api.GetTopologyAwareAllocatableResourcesResponse) -> Mapping[str, float]:
    """Return how much pods can have of each resource that the node's status is to name."""
    listed = found.allocatable_resources
    if (count := len(listed)) > _MOST_RESOURCES:
        raise Unusable(f"{count} resources of the node, more than {_MOST_RESOURCES}")
    if (length := max(map(len, listed), default=0)) > LONGEST_NAME:
        raise Unusable(f"a resource whose name has {length} characters")
    return {
        name: resource.aggregated_allocatable_quantity
        for name, resource in listed.items()
        if resource.is_node_resource and resource.is_scalar_resource
    }


def placed(
    found: api.GetTopologyAwareResourcesResponse, container: ContainerRef, topology: CPUTopology
) -> Placed:
    """Return what a container has of each resource, and where; nothing if the plugin is silent."""
    _bound(found, _MOST_PLACES_BYTES, "about one container")
    said = found.container_topology_aware_resources
    about = (found.pod_uid or container.pod, said.container_name or container.name)
    if about != (container.pod, container.name):
        raise Unusable(f"what container {about[1][:60]!r} of pod {about[0][:60]!r} has")
    kind = podresources_pb2.TopologyAwareResource
    resources = said.allocated_resources
    return {name: _shown(name, each, kind, topology) for name, each in resources.items()}


def stock(found: api.GetTopologyAwareAllocatableResourcesResponse, topology: CPUTopology) -> Stock:
    """Return what the node has of each resource, and where."""
    _bound(found, _MOST_STOCK_BYTES, "about the node")
    kind = podresources_pb2.AllocatableTopologyAwareResource
    resources = found.allocatable_resources
    return {name: _shown(name, each, kind, topology) for name, each in resources.items()}


def _bound(found: Message, most: int, about: str) -> None:
    if (length := found.ByteSize()) > most:
        raise Unusable(f"{length} bytes {about}, more than {most}")


def _bound_entries(entries: int) -> None:
    if entries > _MOST_ENTRIES:
        raise Unusable(f"{entries} entries for one container, more than {_MOST_ENTRIES}")


def _entries(info: api.ResourceAllocationInfo) -> int:
    named = len(info.envs) + len(info.annotations) + len(info.topology_assignments)
    return named + sum(1 + len(hint.nodes) for hint in info.resource_hints.hints)


def _answer(info: api.ResourceAllocationInfo) -> AnswerPart:
    # A node has hundreds of answers, most of them with the same words and without the others.
    return AnswerPart(
        intern(info.oci_property_name),
        intern(info.allocation_result),
        info.allocated_quantity,
        scalar=info.is_scalar_resource,
        of_node=info.is_node_resource,
        env=dict(info.envs) or _NO_TEXTS,
        annotations=dict(info.annotations) or _NO_TEXTS,
        hints=_listed(info.resource_hints) if info.HasField("resource_hints") else None,
        by_node=dict(info.topology_assignments) or _NO_NODES,
    )


def _listed(found: api.ListOfTopologyHints) -> tuple[TopologyHint, ...]:
    for hint in found.hints:
        if (last := max(hint.nodes, default=0)) >= MOST_NODES:
            raise Unusable(f"the NUMA node {last}, which no machine has")
    return tuple(
        TopologyHint(frozenset(hint.nodes) or None, hint.preferred) for hint in found.hints
    )


def _shown(
    name: str, each: Message, kind: Callable[..., _Resource], topology: CPUTopology
) -> _Resource:
    """Return a resource as podresources show it; its fields have the same names there."""
    if not is_name(name):
        raise Unusable(f"{name[:60]!r}, which names no resource")
    fields: dict[str, Any] = {}
    for field in each.DESCRIPTOR.fields:
        value = getattr(each, field.name)
        if field.message_type:
            fields[field.name] = [_place(place, topology) for place in value]
        else:
            fields[field.name] = _amount(value) if isinstance(value, float) else value
    return kind(resource_name=name, **fields)


def _place(
    each: api.TopologyAwareQuantity, topology: CPUTopology
) -> podresources_pb2.TopologyAwareQuantity:
    for text in (each.name, each.type):
        if len(text) > _LONGEST_TEXT or not text.isprintable():
            raise Unusable(f"a name of {len(text)} characters, as {text[:60]!r}")
    level = each.topology_level
    # A kernel without NUMA has no nodes, and a plugin means the whole machine by the first.
    if level == api.TopologyLevel.NUMA and each.node not in (topology.nodes or (0,)):
        raise Unusable(f"the NUMA node {each.node}, which the machine lacks")
    if level not in api.TopologyLevel.values():
        raise Unusable(f"the topology level {level}, which podresources lack")
    return podresources_pb2.TopologyAwareQuantity(
        resource_value=_amount(each.resource_value),
        node=each.node,
        name=each.name,
        type=each.type,
        topology_level=api.TopologyLevel.Name(level),
        annotations=each.annotations,
    )


def _amount(number: float) -> float:
    if not is_amount(number):
        raise Unusable(f"{number:g}, which is no amount from 0 to 2^53")
    return number
