"""The kubelet's podresources service, v1, which says which devices each container has.

The kubelet answers 100 calls a second in all (burst 10) and leaves plain init containers out:
callers ask once per round, not once per pod.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from grpclib.const import Status

from cpupool.api.podresources_pb2 import (
    AllocatableResourcesRequest,
    AllocatableResourcesResponse,
    ListPodResourcesRequest,
    ListPodResourcesResponse,
)
from cpupool.core.cpuset import MAX_CPU, CPUSet
from cpupool.core.devices import NATIVE_CPU, AllocatedDevices, nodes_of
from cpupool.core.errors import RemoteProtocolError
from cpupool.core.node_topology import Amounts, KubeletAmounts
from cpupool.rpc.channel import CallFailed, dialled

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from cpupool.api.podresources_pb2 import ContainerResources
    from cpupool.core.devices import PodDevices
    from cpupool.rpc.channel import Channel


_SERVICE: Final = "/v1.PodResourcesLister"
_RETRY_SHARE: Final = 5
"""After a kubelet did not answer in time, the pause is so many times as long as the wait was."""
_ByNode = dict[str, dict[int, Amounts]]
_NO_DEVICES: Final = AllocatedDevices(frozenset())


class PodResources:
    """A `DeviceSource`; needs no renewal when the kubelet restarts.

    Args:
        socket: usually `pod-resources/kubelet.sock`.
        timeout_s: how long to wait for one answer; the sweep waits, too.
        now_s: a monotonic clock.
    """

    def __init__(
        self,
        socket: Path,
        *,
        timeout_s: float = 0.8,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._socket = socket
        self._timeout_s = timeout_s
        self._now_s = now_s
        self._retry_at_s = now_s()

    def by_pod_name(self) -> Mapping[tuple[str, str], PodDevices]:
        """Return (namespace, pod name) → container name → resource name → its devices.

        The CPUs that its static CPU manager gave a container alone come under `cpu`. The blocks of
        its memory manager come under `memory` or the name of a huge page, without ids.

        Raises:
            RemoteProtocolError: the kubelet is not there, or does not answer.
        """
        with self._calling("listing the kubelet's device assignments") as channel:
            answer = self._list(channel)
        return {
            (pod.namespace, pod.name): {
                container.name: _devices_of(container) for container in pod.containers
            }
            for pod in answer.pod_resources
        }

    def pods(self) -> ListPodResourcesResponse:
        """Return the kubelet's whole answer about pods.

        Raises:
            RemoteProtocolError: the kubelet is not there, or does not answer.
        """
        with self._calling("listing the kubelet's pods") as channel:
            return self._list(channel)

    def allocatable(self) -> AllocatableResourcesResponse:
        """Return the kubelet's whole answer about what it can give.

        Raises:
            RemoteProtocolError: the kubelet is not there, or does not answer.
        """
        with self._calling("asking for the kubelet's allocatable resources") as channel:
            return self._allocatable(channel)

    def allocatable_cpus(self) -> CPUSet:
        """Return the CPUs that the kubelet's own CPU manager hands out.

        They are those that are not reserved under the policy static, and none under the policy none
        (kubernetes: pkg/kubelet/cm/cpumanager, GetAllocatableCPUs of each policy).

        Raises:
            RemoteProtocolError: the kubelet is not there, or does not answer.
        """
        with self._calling("asking for the kubelet's allocatable CPUs") as channel:
            answer = self._allocatable(channel)
        return _cpus(answer.cpu_ids)

    def amounts(self) -> KubeletAmounts:
        """Return how much of all plugins' devices and of pinned memory each NUMA node has.

        A device is in the amount of each of its nodes, as in the hints of the device manager.
        Memory is in bytes, and there only with the kubelet's memory manager.

        Raises:
            RemoteProtocolError: the kubelet is not there, or does not answer.
        """
        with self._calling("asking for the kubelet's allocatable resources") as channel:
            given, used = self._allocatable(channel), self._list(channel)
        containers = [container for pod in used.pod_resources for container in pod.containers]
        return KubeletAmounts(
            {**_device_amounts(given, containers), **_memory_amounts(given, containers)},
            CPUSet.union(_cpus(container.cpu_ids) for container in containers),
        )

    def _list(self, channel: Channel) -> ListPodResourcesResponse:
        request = ListPodResourcesRequest()
        return channel.call(f"{_SERVICE}/List", request, ListPodResourcesResponse, self._timeout_s)

    def _allocatable(self, channel: Channel) -> AllocatableResourcesResponse:
        method, request = f"{_SERVICE}/GetAllocatableResources", AllocatableResourcesRequest()
        return channel.call(method, request, AllocatableResourcesResponse, self._timeout_s)

    @contextmanager
    def _calling(self, purpose: str) -> Iterator[Channel]:
        if self._now_s() < self._retry_at_s:
            raise RemoteProtocolError(
                f"{purpose} is put off: the kubelet has not answered; check whether it hangs"
            )
        with dialled(self._socket, purpose) as channel:
            try:
                yield channel
            except CallFailed as failure:
                if failure.status is Status.DEADLINE_EXCEEDED:
                    self._retry_at_s = self._now_s() + _RETRY_SHARE * self._timeout_s
                raise


def _devices_of(container: ContainerResources) -> dict[str, AllocatedDevices]:
    found: defaultdict[str, set[str]] = defaultdict(set)
    nodes: defaultdict[str, defaultdict[str, set[int]]] = defaultdict(lambda: defaultdict(set))
    # The kubelet lists a device by itself, and again for each of its NUMA nodes.
    for listed in container.devices:
        found[listed.resource_name].update(listed.device_ids)
        if on := {node.ID for node in listed.topology.nodes}:
            for identifier in listed.device_ids:
                nodes[listed.resource_name][identifier] |= on
    grants = {
        resource: AllocatedDevices(frozenset(ids), nodes=nodes_of(nodes[resource].values()))
        for resource, ids in found.items()
    }
    for block in container.memory:
        # The kubelet may take pages from each node of a block.
        nodes_of_block = nodes_of([node.ID] for node in block.topology.nodes)
        before = grants.get(block.memory_type, _NO_DEVICES)
        grants[block.memory_type] = replace(before, nodes=before.nodes | nodes_of_block)
    if cpus := _cpus(container.cpu_ids):
        grants[NATIVE_CPU] = AllocatedDevices(frozenset(map(str, cpus)), cpus)
    return grants


def _device_amounts(
    given: AllocatableResourcesResponse, containers: Sequence[ContainerResources]
) -> _ByNode:
    nodes: defaultdict[str, defaultdict[str, set[int]]] = defaultdict(lambda: defaultdict(set))
    for listed in given.devices:
        on = {node.ID for node in listed.topology.nodes if node.ID >= 0}
        for identifier in listed.device_ids if on else ():
            nodes[listed.resource_name][identifier] |= on
    used = {
        (listed.resource_name, identifier)
        for container in containers
        for listed in container.devices
        for identifier in listed.device_ids
    }
    found = {}
    for resource, on_nodes in nodes.items():
        total = Counter(node for on in on_nodes.values() for node in on)
        free = Counter(
            node
            for identifier, on in on_nodes.items()
            if (resource, identifier) not in used
            for node in on
        )
        found[resource] = {node: Amounts(count, count, free[node]) for node, count in total.items()}
    return found


def _memory_amounts(
    given: AllocatableResourcesResponse, containers: Sequence[ContainerResources]
) -> _ByNode:
    total: defaultdict[str, Counter[int]] = defaultdict(Counter)
    for block in given.memory:
        for node in block.topology.nodes:
            total[block.memory_type][node.ID] += block.size
    free = {kind: Counter(by_node) for kind, by_node in total.items()}
    for container in containers:
        for block in container.memory:
            left, by_node = block.size, free.get(block.memory_type, Counter())
            # The memory manager fills the nodes of a block from the lowest on (policy_static.go).
            for identifier in sorted(node.ID for node in block.topology.nodes):
                taken = min(left, by_node[identifier])
                by_node[identifier] -= taken
                left -= taken
    return {
        kind: {node: Amounts(size, size, free[kind][node]) for node, size in by_node.items()}
        for kind, by_node in total.items()
    }


def _cpus(ids: Iterable[int]) -> CPUSet:
    return CPUSet(cpu for cpu in ids if 0 <= cpu <= MAX_CPU)
