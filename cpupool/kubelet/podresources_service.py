"""The kubelet's podresources service with the fields of Katalyst's kubelet, on a socket of our own.

A stock kubelet's answers pass through, with its devices, CPUs and memory. The answers of resource
plugins and what plugins learn of a pod are added. Source: kubewharf/kubelet,
pkg/apis/podresources/v1.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final, TypeVar

from grpclib.const import Status
from grpclib.exceptions import GRPCError

from cpupool.api import podresources_pb2 as api
from cpupool.core.cpuset import CPUSet
from cpupool.core.errors import RemoteProtocolError
from cpupool.core.properties import CPUSET_CPUS
from cpupool.core.workloads import ContainerRef, PodDescription
from cpupool.kubelet.methods import unary
from cpupool.wire import katalyst

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from grpclib.const import Handler

    from cpupool.core.resource_plugins import Answer
    from cpupool.core.topology import CPUTopology
    from cpupool.core.workloads import Pod
    from cpupool.kubelet.podresources import PodResources
    from cpupool.manager.facts import NodeFacts

_SERVICE: Final = "/v1.PodResourcesLister"
_NO_DESCRIPTION: Final = PodDescription()
_Answer = TypeVar("_Answer")


class ExtendedPodResources:
    """The service.

    Args:
        kubelet: answers for all that is not a plugin's.
        facts: returns the node's facts.
    """

    def __init__(self, kubelet: PodResources, facts: Callable[[], NodeFacts]) -> None:
        self._kubelet = kubelet
        self._facts = facts

    def __mapping__(self) -> Mapping[str, Handler]:
        return dict(
            (
                unary(f"{_SERVICE}/List", api.ListPodResourcesRequest, self._list, waits=True),
                unary(
                    f"{_SERVICE}/GetAllocatableResources",
                    api.AllocatableResourcesRequest,
                    self._allocatable,
                    waits=True,
                ),
            )
        )

    def _list(self, _request: api.ListPodResourcesRequest) -> api.ListPodResourcesResponse:
        listed, facts = _passed(self._kubelet.pods), self._facts()
        pods = {(pod.namespace, pod.name): pod for pod in facts.pods or ()}
        for shown in listed.pod_resources:
            if (pod := pods.get((shown.namespace, shown.name))) is not None:
                _describe(shown, pod)
                _add(shown, pod, facts)
        return listed

    def _allocatable(
        self, _request: api.AllocatableResourcesRequest
    ) -> api.AllocatableResourcesResponse:
        return _passed(self._kubelet.allocatable)


def _passed(ask: Callable[[], _Answer]) -> _Answer:
    try:
        return ask()
    except RemoteProtocolError as error:
        raise GRPCError(Status.UNAVAILABLE, str(error)) from error


def _describe(shown: api.PodResources, pod: Pod) -> None:
    described = pod.description or _NO_DESCRIPTION
    shown.pod_role = katalyst.pod_role(described.labels, described.annotations)
    shown.pod_type = katalyst.pod_type(described.annotations)
    shown.labels.update(described.labels)
    shown.annotations.update(described.annotations)


def _add(shown: api.PodResources, pod: Pod, facts: NodeFacts) -> None:
    for container in shown.containers:
        given = facts.plugins.given.get(ContainerRef(pod.cgroup_uid, container.name), {})
        for each in given.values():
            answers = {} if each.refused else each.answers
            container.resources.extend(
                _resource(name, answer, facts.topology) for name, answer in sorted(answers.items())
            )


def _resource(name: str, answer: Answer, topology: CPUTopology) -> api.TopologyAwareResource:
    amounts = list(_amounts(answer, topology))
    return api.TopologyAwareResource(
        resource_name=name,
        is_node_resource=answer.of_node,
        is_scalar_resource=answer.scalar,
        aggregated_quantity=answer.quantity,
        original_aggregated_quantity=answer.quantity,
        topology_aware_quantity_list=amounts,
        original_topology_aware_quantity_list=amounts,
    )


def _amounts(answer: Answer, topology: CPUTopology) -> Iterator[api.TopologyAwareQuantity]:
    """Yield the amount on each NUMA node; of CPUs, an answer need not say it."""
    by_node: Mapping[int, int] = answer.by_node
    if not by_node and answer.oci_property == CPUSET_CPUS:
        nodes = map(topology.node_of, CPUSet.parse_or_empty(answer.value))
        by_node = Counter(node for node in nodes if node is not None)
    for node, amount in sorted(by_node.items()):
        yield api.TopologyAwareQuantity(resource_value=amount, node=node)
