"""The plugin's side of the QoS Resource Manager: a manager asks, over gRPC, and a plugin answers.

Source: kubewharf/kubelet, pkg/apis/resourceplugin/v1alpha1 and pluginregistration/v1. Without a
preference for NUMA nodes an answer has no entry: Katalyst's manager takes an empty entry for a
refusal. A plugin that can serve a container nowhere refuses with an error, as Katalyst's own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TypeVar

from google.protobuf.message import Message
from grpclib.const import Status
from grpclib.exceptions import GRPCError

from cpupool.api import pluginregistration_pb2 as registration
from cpupool.api import resourceplugin_pb2 as api
from cpupool.core.cpu_manager import TopologyHint
from cpupool.core.errors import CPUPoolError
from cpupool.core.pools import MILLI_PER_CPU
from cpupool.core.workloads import ContainerRef
from cpupool.policies.qrm import katalyst
from cpupool.policies.qrm.questions import ContainerRole, Question
from cpupool.qrm.plugin_client import TYPE, VERSION
from cpupool.rpc.methods import unary
from cpupool.telemetry import log as logs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from grpclib.const import Handler

    from cpupool.core.plugin_facts import AnswerPart, AnswerParts
    from cpupool.policies.qrm.questions import PluginOptions

log = logs.get(__name__)

_SERVICE: Final = "/resourceplugin.v1alpha1.ResourcePlugin"
_REGISTRATION: Final = "/pluginregistration.Registration"
_IDENTIFIER: Final = "katalyst.kubewharf.io/resource_identifier"
_NETNS: Final = "katalyst.kubewharf.io/netns_name"
_Request = TypeVar("_Request", bound=Message)


class Device(NamedTuple):
    """The device that a part of a resource comes from, as a NIC.

    Attributes:
        node: the NUMA node to which it is near.
        kind: its kind, as `NIC`.
        name: as in its network namespace.
        namespace: the name of its network namespace; empty for the host's.
    """

    node: int
    kind: str
    name: str
    namespace: str = ""

    @property
    def annotations(self) -> Mapping[str, str]:
        """The annotations for Katalyst's reporter: a name that is unique on the machine."""
        if not self.namespace:
            return {_IDENTIFIER: self.name}
        return {_IDENTIFIER: f"{self.namespace}-{self.name}", _NETNS: self.namespace}


class Served(Protocol):
    """The plugin behind the service; the manager gets the text of a CPUPoolError that it raises."""

    @property
    def options(self) -> PluginOptions:
        """The questions that it wants to get."""
        ...

    def hints(self, question: Question) -> tuple[TopologyHint, ...] | None:
        """Return the NUMA nodes that can serve a container; None for no preference."""
        ...

    def allocate(self, question: Question, hint: TopologyHint | None) -> AnswerParts:
        """Return the answers for a container, once they are recorded; empty for nothing to do."""
        ...

    def allocations(self) -> Mapping[ContainerRef, AnswerParts]:
        """Return the present answers of each container."""
        ...

    def asked_by(self, container: ContainerRef) -> Question | None:
        """Return the request of a container that it serves."""
        ...

    def devices(self, container: ContainerRef) -> Mapping[str, tuple[tuple[Device, float], ...]]:
        """Return resource → devices, and how much a container has of each; none for CPUs."""
        ...

    def remove(self, pod: str) -> None:
        """Forget a pod, known or not."""
        ...

    def stock(
        self, resource: str
    ) -> Mapping[
        str,
        tuple[
            Mapping[int, tuple[float, float]],
            bool,
            tuple[tuple[Device, tuple[float, float]], ...],
        ],
    ]:
        """Return how much there is of a resource, and of those that come with it.

        Resource → NUMA node → all of it, and what containers can have; whether the node's status
        names it; and how much is of which device.
        """
        ...


class PluginService:
    """A service for `Server`: one resource of one plugin.

    Args:
        resource: the name under which the plugin registers.
        served: the plugin that answers.
    """

    def __init__(self, resource: str, served: Served) -> None:
        self._resource = resource
        self._served = served

    def __mapping__(self) -> Mapping[str, Handler]:
        """Return path → method; grpclib's name for it."""
        return dict(
            (
                unary(f"{_REGISTRATION}/GetInfo", registration.InfoRequest, self._info),
                unary(
                    f"{_REGISTRATION}/NotifyRegistrationStatus",
                    registration.RegistrationStatus,
                    self._notified,
                ),
                _method("GetResourcePluginOptions", api.Empty, self._options),
                _method("GetTopologyHints", api.ResourceRequest, self._hints),
                _method("Allocate", api.ResourceRequest, self._allocate),
                _method("RemovePod", api.RemovePodRequest, self._remove),
                _method(
                    "GetResourcesAllocation", api.GetResourcesAllocationRequest, self._allocations
                ),
                _method(
                    "GetTopologyAwareResources",
                    api.GetTopologyAwareResourcesRequest,
                    self._of_container,
                ),
                _method(
                    "GetTopologyAwareAllocatableResources",
                    api.GetTopologyAwareAllocatableResourcesRequest,
                    self._allocatable,
                ),
            )
        )

    def _info(self, _request: registration.InfoRequest) -> Message:
        return registration.PluginInfo(type=TYPE, name=self._resource, supported_versions=[VERSION])

    def _notified(self, status: registration.RegistrationStatus) -> Message:
        if status.plugin_registered:
            log.info("registered", resource=self._resource)
        else:
            log.warning("not registered", resource=self._resource, reason=status.error)
        return registration.RegistrationStatusResponse()

    def _options(self, _request: api.Empty) -> Message:
        options = self._served.options
        return api.ResourcePluginOptions(
            pre_start_required=options.pre_start,
            with_topology_alignment=options.aligned,
            need_reconcile=options.reconciled,
        )

    def _hints(self, request: api.ResourceRequest) -> Message:
        hints = self._served.hints(_question(request))
        entries = (
            []
            if hints is None
            else [api.HintsEntry(key=request.resource_name, value=_listed(hints))]
        )
        return api.ResourceHintsResponse(resource_hints=entries, **_echo(request))

    def _allocate(self, request: api.ResourceRequest) -> Message:
        answers = self._served.allocate(_question(request), _hint(request))
        if not answers:
            return api.ResourceAllocationResponse(**_echo(request))
        return api.ResourceAllocationResponse(
            allocation_result=_allocation(answers), **_echo(request)
        )

    def _remove(self, request: api.RemovePodRequest) -> Message:
        self._served.remove(request.pod_uid)
        return api.RemovePodResponse()

    def _allocations(self, _request: api.GetResourcesAllocationRequest) -> Message:
        reply = api.GetResourcesAllocationResponse()
        for ref, answers in self._served.allocations().items():
            containers = reply.pod_resources[ref.pod].container_resources
            containers[ref.name].CopyFrom(_allocation(answers))
        return reply

    def _of_container(self, request: api.GetTopologyAwareResourcesRequest) -> Message:
        ref = ContainerRef(request.pod_uid, request.container_name)
        question = self._served.asked_by(ref)
        if question is None:
            return api.GetTopologyAwareResourcesResponse()
        answers, devices = self._served.allocations().get(ref, {}), self._served.devices(ref)
        return api.GetTopologyAwareResourcesResponse(
            pod_uid=ref.pod,
            pod_name=question.pod_name,
            pod_namespace=question.namespace,
            container_topology_aware_resources=api.ContainerTopologyAwareResources(
                container_name=ref.name,
                allocated_resources={
                    name: _aware(answer, devices.get(name, ())) for name, answer in answers.items()
                },
            ),
        )

    def _allocatable(self, _request: api.GetTopologyAwareAllocatableResourcesRequest) -> Message:
        reply = api.GetTopologyAwareAllocatableResourcesResponse()
        for name, (amounts, of_node, devices) in self._served.stock(self._resource).items():
            capacity = {node: amount for node, (amount, _) in amounts.items()}
            allocatable = {node: amount for node, (_, amount) in amounts.items()}
            resource = api.AllocatableTopologyAwareResource(
                is_node_resource=of_node,
                is_scalar_resource=True,
                aggregated_allocatable_quantity=sum(allocatable.values()),
                topology_aware_allocatable_quantity_list=_places(
                    allocatable, [(device, usable) for device, (_, usable) in devices]
                ),
                aggregated_capacity_quantity=sum(capacity.values()),
                topology_aware_capacity_quantity_list=_places(
                    capacity, [(device, most) for device, (most, _) in devices]
                ),
            )
            reply.allocatable_resources[name].CopyFrom(resource)
        return reply


def _method(
    name: str, request: type[_Request], answer: Callable[[_Request], Message]
) -> tuple[str, Handler]:
    def answered(asked: _Request) -> Message:
        try:
            return answer(asked)
        except CPUPoolError as error:
            raise GRPCError(Status.FAILED_PRECONDITION, str(error)) from error

    return unary(f"{_SERVICE}/{name}", request, answered)


def _question(request: api.ResourceRequest) -> Question:
    annotations = dict(request.annotations)
    return Question(
        ContainerRef(request.pod_uid, request.container_name),
        request.pod_namespace,
        request.pod_name,
        # A manager that sends another type means a container beside the main one.
        next(
            (role for role in ContainerRole if role.value == request.container_type),
            ContainerRole.SIDECAR,
        ),
        request.container_index,
        request.resource_name,
        _quantity(request),
        request.pod_role or katalyst.pod_role(request.labels, annotations),
        request.pod_type,
        dict(request.labels),
        annotations,
        request.native_qos_class,
    )


def _quantity(request: api.ResourceRequest) -> float:
    """Return how much is requested, in the base unit of the plugin's resource.

    A manager that maps names, as reclaimed_millicpu to cpu, may send the amount under either name.
    """
    amounts = request.resource_requests
    if request.resource_name in amounts:
        return amounts[request.resource_name]
    for name, amount in sorted(amounts.items()):
        return amount / MILLI_PER_CPU if name == katalyst.RECLAIMED_MILLI else amount
    raise GRPCError(Status.INVALID_ARGUMENT, f"no amount of {request.resource_name[:60]!r}")


def _hint(request: api.ResourceRequest) -> TopologyHint | None:
    if not request.HasField("hint"):
        return None
    return TopologyHint(frozenset(request.hint.nodes) or None, request.hint.preferred)


def _echo(request: api.ResourceRequest) -> dict[str, Any]:
    return {
        field: getattr(request, field)
        for field in (
            *("pod_uid", "pod_namespace", "pod_name", "container_name", "container_type"),
            *("container_index", "pod_role", "pod_type", "resource_name", "native_qos_class"),
        )
    }


def _listed(hints: Iterable[TopologyHint]) -> api.ListOfTopologyHints:
    return api.ListOfTopologyHints(
        hints=[
            api.TopologyHint(nodes=sorted(hint.nodes or ()), preferred=hint.preferred)
            for hint in hints
        ]
    )


def _allocation(answers: AnswerParts) -> api.ResourceAllocation:
    return api.ResourceAllocation(
        resource_allocation=[
            api.AllocationEntry(key=name, value=_info(answer))
            for name, answer in sorted(answers.items())
        ]
    )


def _info(answer: AnswerPart) -> api.ResourceAllocationInfo:
    return api.ResourceAllocationInfo(
        oci_property_name=answer.oci_property,
        is_node_resource=answer.of_node,
        is_scalar_resource=answer.scalar,
        allocated_quantity=answer.quantity,
        allocation_result=answer.value,
        envs=answer.env,
        annotations=answer.annotations,
        resource_hints=None if answer.hints is None else _listed(answer.hints),
        topology_assignments=answer.by_node,
    )


def _aware(
    answer: AnswerPart, devices: Sequence[tuple[Device, float]]
) -> api.TopologyAwareResource:
    places = _places(answer.by_node, devices)
    quantity = answer.quantity or sum(amount for _, amount in devices)
    return api.TopologyAwareResource(
        is_node_resource=answer.of_node,
        is_scalar_resource=answer.scalar,
        aggregated_quantity=quantity,
        original_aggregated_quantity=quantity,
        topology_aware_quantity_list=places,
        original_topology_aware_quantity_list=places,
    )


def _places(
    by_node: Mapping[int, float], devices: Iterable[tuple[Device, float]]
) -> list[api.TopologyAwareQuantity]:
    """Return where a resource is: which devices, or else on which NUMA nodes."""
    named = [
        api.TopologyAwareQuantity(
            resource_value=amount,
            node=device.node,
            name=device.name,
            type=device.kind,
            annotations=device.annotations,
        )
        for device, amount in sorted(devices)
    ]
    return named or [
        api.TopologyAwareQuantity(resource_value=amount, node=node)
        for node, amount in sorted(by_node.items())
    ]
