"""A plugin of the QoS Resource Manager, asked over gRPC.

Source: kubewharf/kubelet, pkg/apis/resourceplugin/v1alpha1 and pluginregistration/v1.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, NamedTuple

import grpc

from cpupool.api import pluginregistration_pb2, resourceplugin_pb2
from cpupool.api.pluginregistration_pb2_grpc import RegistrationStub
from cpupool.api.resourceplugin_pb2_grpc import ResourcePluginStub
from cpupool.channel import dialled, opened
from cpupool.core.cpu_manager import TopologyHint
from cpupool.core.errors import RemoteProtocolError
from cpupool.core.resource_plugins import Answer, PluginError, PluginOptions
from cpupool.core.workloads import ContainerRef

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from cpupool.core.resource_plugins import Answers, Question

TYPE: Final = "ResourcePlugin"
VERSION: Final = "v1alpha1"
MAX_ANSWER_BYTES: Final = 4 * 1024 * 1024
_CALL_S: Final = 10.0
_PRE_START_S: Final = 30.0
"""The deadlines of Katalyst's manager."""
_INTRODUCTION_S: Final = 1.0

Hints = tuple[TopologyHint, ...] | None
"""What a plugin can serve: None for no preference, empty for nothing."""


class Introduction(NamedTuple):
    """What a plugin says of itself.

    Attributes:
        resource: the resource that it is for.
        endpoint: the socket of its own API.
        options: what it wants to be asked.
    """

    resource: str
    endpoint: Path
    options: PluginOptions


class ResourcePlugin:
    """A registered plugin.

    Each call raises `PluginError` if the plugin does not answer in time, refuses, or answers with
    what cannot be read.

    Args:
        introduced: what it has said of itself.
        call_s: how long to wait for an answer.
    """

    def __init__(self, introduced: Introduction, *, call_s: float = _CALL_S) -> None:
        self.resource: Final = introduced.resource
        self.endpoint: Final = introduced.endpoint
        self.options: Final = introduced.options
        self._call_s = call_s
        self._channel = opened(introduced.endpoint, MAX_ANSWER_BYTES)
        self._stub = ResourcePluginStub(self._channel)

    def close(self) -> None:
        """End all calls; later ones fail."""
        self._channel.close()

    def hints(self, question: Question) -> Hints:
        """Return the NUMA nodes on which it can serve a container."""
        with self._asking("asked for hints"):
            found: resourceplugin_pb2.ResourceHintsResponse = self._stub.GetTopologyHints(
                _request(question), timeout=self._call_s
            )
        entries = (entry for entry in found.resource_hints if entry.key == self.resource)
        return next(map(_hints, entries), None)

    def allocate(self, question: Question, hint: TopologyHint | None = None) -> Answers:
        """Return what a container gets; nothing if the plugin has nothing to do for it.

        Args:
            question: the request.
            hint: the merged hint, for a plugin that is aligned.
        """
        asked = _request(question)
        if hint is not None and self.options.aligned:
            asked.hint.nodes.extend(sorted(hint.nodes or ()))
            asked.hint.preferred = hint.preferred
        with self._asking("asked to allocate"):
            given: resourceplugin_pb2.ResourceAllocationResponse = self._stub.Allocate(
                asked, timeout=self._call_s
            )
        return _answers(given.allocation_result)

    def allocations(self) -> Mapping[ContainerRef, Answers]:
        """Return what every container that it knows has now."""
        with self._asking("asked for its allocations"):
            found: resourceplugin_pb2.GetResourcesAllocationResponse = (
                self._stub.GetResourcesAllocation(
                    resourceplugin_pb2.GetResourcesAllocationRequest(), timeout=self._call_s
                )
            )
        return {
            ContainerRef(uid, name): _answers(allocation)
            for uid, containers in found.pod_resources.items()
            for name, allocation in containers.container_resources.items()
        }

    def remove(self, pod_uid: str) -> None:
        """Let it forget a pod that has ended; it may not know the pod."""
        with self._asking("told of an ended pod"):
            self._stub.RemovePod(
                resourceplugin_pb2.RemovePodRequest(pod_uid=pod_uid), timeout=self._call_s
            )

    def before_start(self, question: Question) -> None:
        """Let it prepare a container's resource."""
        request = resourceplugin_pb2.PreStartContainerRequest(
            pod_uid=question.container.pod,
            pod_namespace=question.namespace,
            pod_name=question.pod_name,
            container_name=question.container.name,
        )
        with self._asking("asked to prepare a container"):
            self._stub.PreStartContainer(request, timeout=_PRE_START_S)

    @contextmanager
    def _asking(self, purpose: str) -> Iterator[None]:
        try:
            yield
        except grpc.RpcError as error:
            raise _failure(self.resource, purpose, error) from error


def introduced(socket: Path) -> Introduction | None:
    """Ask a plugin in a watched folder who it is; None for a plugin of another type.

    Raises:
        RemoteProtocolError: it does not answer, or speaks another version.
    """
    with dialled(socket, "asking a plugin for its name", "the plugin") as channel:
        info: pluginregistration_pb2.PluginInfo = RegistrationStub(channel).GetInfo(
            pluginregistration_pb2.InfoRequest(), timeout=_INTRODUCTION_S
        )
        if info.type != TYPE:
            return None
        endpoint = socket.parent / info.endpoint if info.endpoint else socket
        if VERSION not in info.supported_versions or not info.name:
            spoken = ", ".join(info.supported_versions) or "no version"
            raise RemoteProtocolError(
                f"{socket} registers {info.name!r} with {spoken}; it needs a name and {VERSION}"
            )
    with dialled(endpoint, "asking a plugin for its options", "the plugin") as channel:
        sent: resourceplugin_pb2.ResourcePluginOptions = ResourcePluginStub(
            channel
        ).GetResourcePluginOptions(resourceplugin_pb2.Empty(), timeout=_CALL_S)
    return Introduction(info.name, endpoint, options(sent))


def notify(socket: Path, error: str = "") -> None:
    """Tell a plugin that it is registered, or why it is not.

    Raises:
        RemoteProtocolError: it does not answer.
    """
    status = pluginregistration_pb2.RegistrationStatus(plugin_registered=not error, error=error)
    with dialled(socket, "telling a plugin of its registration", "the plugin") as channel:
        RegistrationStub(channel).NotifyRegistrationStatus(status, timeout=_INTRODUCTION_S)


def options(sent: resourceplugin_pb2.ResourcePluginOptions) -> PluginOptions:
    """Return the options that a plugin has sent."""
    return PluginOptions(
        pre_start=sent.pre_start_required,
        aligned=sent.with_topology_alignment,
        reconciled=sent.need_reconcile,
    )


def _request(question: Question) -> resourceplugin_pb2.ResourceRequest:
    return resourceplugin_pb2.ResourceRequest(
        pod_uid=question.container.pod,
        pod_namespace=question.namespace,
        pod_name=question.pod_name,
        container_name=question.container.name,
        container_type=resourceplugin_pb2.ContainerType.Name(question.role.value),
        container_index=question.index,
        pod_role=question.pod_role,
        pod_type=question.pod_type,
        resource_name=question.resource,
        resource_requests={question.resource: question.quantity},
        labels=question.labels,
        annotations=question.annotations,
        native_qos_class=question.qos_class,
    )


def _hints(entry: resourceplugin_pb2.HintsEntry) -> Hints:
    """Return the hints of an entry; without a value it says that there is no preference."""
    return _listed(entry.value) if entry.HasField("value") else None


def _listed(hints: resourceplugin_pb2.ListOfTopologyHints) -> tuple[TopologyHint, ...]:
    return tuple(
        TopologyHint(frozenset(hint.nodes) or None, hint.preferred) for hint in hints.hints
    )


def _answers(allocation: resourceplugin_pb2.ResourceAllocation) -> dict[str, Answer]:
    entries: Iterable[resourceplugin_pb2.AllocationEntry] = allocation.resource_allocation
    return {entry.key: _answer(entry.value) for entry in entries if entry.HasField("value")}


def _answer(info: resourceplugin_pb2.ResourceAllocationInfo) -> Answer:
    return Answer(
        info.oci_property_name,
        info.allocation_result,
        info.allocated_quantity,
        scalar=info.is_scalar_resource,
        of_node=info.is_node_resource,
        env=dict(info.envs),
        annotations=dict(info.annotations),
        hints=_listed(info.resource_hints) if info.HasField("resource_hints") else None,
        by_node=dict(info.topology_assignments),
    )


def _failure(resource: str, purpose: str, error: grpc.RpcError) -> PluginError:
    code, details = error.code(), error.details() or ""
    if code is grpc.StatusCode.UNAVAILABLE:
        return PluginError(resource, f"is away ({purpose}: {details})", "start it again")
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return PluginError(resource, f"has not answered in time ({purpose})", "check its log")
    words = f"has refused ({purpose}: {details or code.name})"
    return PluginError(resource, words, "its log has more", refused=True)
