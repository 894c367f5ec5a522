"""The kubelet's podresources service with the fields of Katalyst's kubelet, on a socket of our own.

A stock kubelet's answers pass through, with its devices, CPUs and memory. What plugins learn of a
pod is added, and what plugins say of the node and of each container: they are asked, and where one
does not say, the recorded answer stands. Source: kubewharf/kubelet, pkg/apis/podresources/v1.
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
from cpupool.core.workloads import ContainerRef
from cpupool.policies.qrm import katalyst
from cpupool.qrm.node_resources import merged
from cpupool.rpc.methods import shared
from cpupool.rpc.serving import ServedSocket, Server

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from grpclib.const import Handler

    from cpupool.core.plugin_facts import AnswerPart, AnswerParts
    from cpupool.core.topology import CPUTopology
    from cpupool.core.workloads import Pod
    from cpupool.host.root import HostRoot
    from cpupool.kubelet.podresources import PodResources
    from cpupool.manager.facts import NodeFacts
    from cpupool.manager.resolve import Snapshot
    from cpupool.qrm.plugin_inquiry import PluginInquiry
    from cpupool.qrm.plugin_messages import Placed

_SERVICE: Final = "/v1.PodResourcesLister"
_Answer = TypeVar("_Answer")


def usual_path(root: HostRoot) -> Path:
    """Return where Katalyst's programs expect the service."""
    return root.base / "var/lib/katalyst/pod-resources/kubelet.sock"


def served(
    path: Path, kubelet: PodResources, plugins: PluginInquiry, snapshot: Callable[[], Snapshot]
) -> ServedSocket:
    """Return the service on a socket."""
    service = ExtendedPodResources(kubelet, plugins, lambda: snapshot().facts)
    return ServedSocket(path, lambda: Server(service), "extended podresources")


class ExtendedPodResources:
    """The service.

    Args:
        kubelet: answers for all that is not a plugin's.
        plugins: asks the plugins.
        facts: returns the node's facts.
    """

    def __init__(
        self, kubelet: PodResources, plugins: PluginInquiry, facts: Callable[[], NodeFacts]
    ) -> None:
        self._kubelet = kubelet
        self._plugins = plugins
        self._facts = facts

    def __mapping__(self) -> Mapping[str, Handler]:
        return dict(
            (
                shared(f"{_SERVICE}/List", api.ListPodResourcesRequest, self._list),
                shared(
                    f"{_SERVICE}/GetAllocatableResources",
                    api.AllocatableResourcesRequest,
                    self._allocatable,
                ),
            )
        )

    def _list(self) -> api.ListPodResourcesResponse:
        listed, facts = _passed(self._kubelet.pods), self._facts()
        said = self._plugins.given(facts.plugins.answers, facts.topology)
        pods = {(pod.namespace, pod.name): pod for pod in facts.pods or ()}
        for shown in listed.pod_resources:
            if (pod := pods.get((shown.namespace, shown.name))) is not None:
                _describe(shown, pod)
                _add(shown, pod, facts, said)
        return listed

    def _allocatable(self) -> api.AllocatableResourcesResponse:
        found = _passed(self._kubelet.allocatable)
        stocks = merged(self._plugins.stocks(self._facts().topology))
        found.resources.extend(stocks[name] for name in sorted(stocks))
        return found


def _passed(ask: Callable[[], _Answer]) -> _Answer:
    try:
        return ask()
    except RemoteProtocolError as error:
        raise GRPCError(Status.UNAVAILABLE, str(error)) from error


def _describe(shown: api.PodResources, pod: Pod) -> None:
    described = pod.description
    shown.pod_role = katalyst.pod_role(described.labels, described.annotations)
    shown.pod_type = katalyst.pod_type(described.annotations)
    shown.labels.update(described.labels)
    shown.annotations.update(described.annotations)


def _add(
    shown: api.PodResources,
    pod: Pod,
    facts: NodeFacts,
    said: Mapping[ContainerRef, Mapping[str, Placed]],
) -> None:
    for container in shown.containers:
        ref = ContainerRef(pod.cgroup_uid, container.name)
        given, heard = facts.plugins.answers.get(ref, {}), said.get(ref, {})
        resources = merged(
            {
                plugin: _joined(heard.get(plugin, {}), _recorded(each.parts, facts.topology))
                for plugin, each in given.items()
                if not each.refused
            }
        )
        container.resources.extend(resources[name] for name in sorted(resources))


def _joined(said: Placed, recorded: Placed) -> Placed:
    """Return what a plugin says; where it names no place, or says nothing, the record does."""
    return {
        name: each if each.topology_aware_quantity_list else recorded.get(name, each)
        for name, each in (said or recorded).items()
    }


def _recorded(answers: AnswerParts, topology: CPUTopology) -> Placed:
    return {name: _resource(name, answer, topology) for name, answer in answers.items()}


def _resource(name: str, answer: AnswerPart, topology: CPUTopology) -> api.TopologyAwareResource:
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


def _amounts(answer: AnswerPart, topology: CPUTopology) -> Iterator[api.TopologyAwareQuantity]:
    """Yield the amount on each NUMA node; of CPUs, an answer need not say it."""
    by_node: Mapping[int, int] = answer.by_node
    if not by_node and answer.oci_property == CPUSET_CPUS:
        nodes = map(topology.node_of, CPUSet.parse_or_empty(answer.value))
        by_node = Counter(node for node in nodes if node is not None)
    for node, amount in sorted(by_node.items()):
        yield api.TopologyAwareQuantity(resource_value=amount, node=node)
