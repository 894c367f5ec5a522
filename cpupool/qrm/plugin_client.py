"""A plugin of the QoS Resource Manager, asked over gRPC.

Source: kubewharf/kubelet, pkg/apis/resourceplugin/v1alpha1 and pluginregistration/v1.
"""

from __future__ import annotations

import os
import stat
import threading
import time
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from google.protobuf.message import DecodeError, Message
from grpclib.const import Status

from cpupool.api import pluginregistration_pb2, resourceplugin_pb2
from cpupool.core.cpu_manager import TopologyHint
from cpupool.core.errors import CPUPoolError, RemoteProtocolError
from cpupool.core.plugin_facts import Answer
from cpupool.core.resources import LONGEST_NAME, is_name
from cpupool.core.workloads import ContainerRef
from cpupool.policies.qrm.questions import PluginOptions
from cpupool.qrm import aware_answers
from cpupool.qrm.aware_answers import BadPlace
from cpupool.rpc.channel import CallFailed, dialled, opened, parsed
from cpupool.rpc.parts import TooManyParts, check_parts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    from cpupool.core.plugin_facts import Answers
    from cpupool.core.topology import CPUTopology
    from cpupool.policies.qrm.questions import Question
    from cpupool.qrm.aware_answers import Placed, Stock
    from cpupool.rpc.channel import Channel

_SERVICE: Final = "/resourceplugin.v1alpha1.ResourcePlugin"
_REGISTRATION: Final = "/pluginregistration.Registration"
OF_CONTAINER: Final = "GetTopologyAwareResources"
OF_NODE: Final = "GetTopologyAwareAllocatableResources"
TYPE: Final = "ResourcePlugin"
VERSION: Final = "v1alpha1"
MAX_ANSWER_BYTES: Final = 4 * 1024 * 1024
_MAX_CONTAINER_BYTES: Final = 128 * 1024
"""Of an answer about one container: the agent keeps it, and records it."""
_MOST_ENTRIES: Final = 4096
"""Of an answer about one container: variables, annotations, and NUMA nodes of hints. A machine of
eight nodes has 1,024 such nodes. Each entry takes up to 200 bytes as an object."""
_MOST_PARTS: Final = 150_000
"""Messages within an answer: a container has six, and one for each variable, annotation and hint.
Parsed, these take 20 MB."""
_MAX_WORDS: Final = 1000
"""Characters of a plugin's reason: the agent keeps and shows it."""
_MOST_CONTAINERS: Final = 10_000
"""In a list: 4 MiB have room for 300,000, which the agent would read for seconds."""
_MOST_RESOURCES: Final = 64
"""Of the node, that one plugin may have."""
_MOST_NODES: Final = 1024
"""The most NUMA nodes of a Linux kernel."""
_CALL_S: Final = 10.0
_PRE_START_S: Final = 30.0
"""The deadlines of Katalyst's manager."""
_INTRODUCTION_S: Final = 1.0
ROOT: Final = 0
_MAX_INTRODUCTION_BYTES: Final = 64 * 1024

Hints = tuple[TopologyHint, ...] | None
"""What a plugin can serve: None for no preference, empty for nothing."""


_Reply = TypeVar("_Reply", bound=Message)
_Read = TypeVar("_Read")


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


class PluginError(CPUPoolError):
    """A plugin does not answer, or refuses.

    Attributes:
        resource: the resource that it is for.
        refused: whether it has answered, with a refusal.
        why: the plugin's words, or the fact.
    """

    def __init__(self, resource: str, why: str, remedy: str, *, refused: bool = False) -> None:
        self.resource = resource
        self.refused = refused
        self.why = why
        super().__init__(f"the plugin for {resource} {why}; {remedy}")


class _OutOfBounds(Exception):
    """An answer that no plugin needs; its text says what is in it."""


class PluginCall(NamedTuple):
    """A call of a plugin that has ended.

    Attributes:
        resource: the resource that the plugin is for.
        method: its name in the API.
        seconds: how long the call has taken.
        failure: why it has failed, or a refusal; None otherwise.
    """

    resource: str
    method: str
    seconds: float
    failure: PluginError | None


class ResourcePlugin:
    """A registered plugin.

    Each call raises `PluginError` if the plugin does not answer in time, refuses, or answers with
    what cannot be read.

    Args:
        introduced: what it has said of itself.
        observe: called after each call, in the thread of the caller.
        call_s: how long to wait for an answer.

    Attributes:
        lacks: the methods that it has turned out not to have.
    """

    def __init__(
        self,
        introduced: Introduction,
        observe: Callable[[PluginCall], None] = lambda _call: None,
        *,
        call_s: float = _CALL_S,
    ) -> None:
        self.resource: Final = introduced.resource
        self.endpoint: Final = introduced.endpoint
        self.options: Final = introduced.options
        self._observe = observe
        self._call_s = call_s
        self._lock = threading.Lock()
        self._calling: set[Channel] = set()
        self._closed = False
        self.lacks: set[str] = set()

    def close(self) -> None:
        """End all calls; later ones fail."""
        with self._lock:
            self._closed = True
            for channel in self._calling:
                channel.give_up()

    def hints(self, question: Question) -> Hints:
        """Return the NUMA nodes on which it can serve a container."""
        return self._ask(
            "asked for hints",
            "GetTopologyHints",
            _request(question),
            resourceplugin_pb2.ResourceHintsResponse,
            lambda found: next(
                (_hints(entry) for entry in found.resource_hints if entry.key == self.resource),
                None,
            ),
        )

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
        return self._ask(
            "asked to allocate",
            "Allocate",
            asked,
            resourceplugin_pb2.ResourceAllocationResponse,
            lambda given: _answers(given.allocation_result),
        )

    def allocations(self) -> Mapping[ContainerRef, Answers]:
        """Return what every container that it knows has now."""
        return self._ask(
            "asked for its allocations",
            "GetResourcesAllocation",
            resourceplugin_pb2.GetResourcesAllocationRequest(),
            resourceplugin_pb2.GetResourcesAllocationResponse,
            _allocations,
        )

    def node_resources(self) -> Mapping[str, float]:
        """Return how much pods can have of each resource that the node's status is to name.

        A plugin without the method has none.
        """
        return self._ask(
            "asked for the node's resources",
            OF_NODE,
            resourceplugin_pb2.GetTopologyAwareAllocatableResourcesRequest(),
            resourceplugin_pb2.GetTopologyAwareAllocatableResourcesResponse,
            _node_resources,
            optional=True,
        )

    def given(
        self,
        container: ContainerRef,
        topology: CPUTopology,
        *,
        channel: Channel,
        timeout_s: float,
    ) -> Placed:
        """Return what a container has of each resource, and where; nothing if it does not say.

        Args:
            container: the container.
            topology: the machine.
            channel: a connection of `connected`.
            timeout_s: how long to wait.
        """
        request = resourceplugin_pb2.GetTopologyAwareResourcesRequest(
            pod_uid=container.pod, container_name=container.name
        )
        return self._ask(
            "asked what a container has",
            OF_CONTAINER,
            request,
            resourceplugin_pb2.GetTopologyAwareResourcesResponse,
            lambda found: aware_answers.of_container(found, container, topology),
            channel=channel,
            timeout_s=timeout_s,
            optional=True,
        )

    def stock(self, topology: CPUTopology, timeout_s: float) -> Stock:
        """Return how much the node has of each resource, and where; nothing if it does not say.

        Args:
            topology: the machine.
            timeout_s: how long to wait.
        """
        with self.connected() as channel:
            return self._ask(
                "asked what the node has",
                OF_NODE,
                resourceplugin_pb2.GetTopologyAwareAllocatableResourcesRequest(),
                resourceplugin_pb2.GetTopologyAwareAllocatableResourcesResponse,
                lambda found: aware_answers.of_node(found, topology),
                channel=channel,
                timeout_s=timeout_s,
                optional=True,
            )

    @contextmanager
    def connected(self, most_bytes: int = _MAX_CONTAINER_BYTES) -> Iterator[Channel]:
        """Open a connection for several calls of this thread; `close` ends them.

        Args:
            most_bytes: the largest answer that is read.
        """
        with opened(self.endpoint, most_bytes) as channel, self._listed(channel):
            yield channel

    def remove(self, pod_uid: str) -> None:
        """Let it forget a pod that has ended; it may not know the pod."""
        request = resourceplugin_pb2.RemovePodRequest(pod_uid=pod_uid)
        reply = resourceplugin_pb2.RemovePodResponse
        self._ask("asked to forget a pod", "RemovePod", request, reply, lambda _nothing: None)

    def before_start(self, question: Question) -> None:
        """Let it prepare a container's resource."""
        request = resourceplugin_pb2.PreStartContainerRequest(
            pod_uid=question.container.pod,
            pod_namespace=question.namespace,
            pod_name=question.pod_name,
            container_name=question.container.name,
        )
        reply = resourceplugin_pb2.PreStartContainerResponse
        purpose = "asked to prepare a container"
        self._ask(
            purpose,
            "PreStartContainer",
            request,
            reply,
            lambda _nothing: None,
            timeout_s=_PRE_START_S,
        )

    def _ask(
        self,
        purpose: str,
        method: str,
        request: Message,
        reply: type[_Reply],
        read: Callable[[_Reply], _Read],
        *,
        timeout_s: float | None = None,
        optional: bool = False,
        channel: Channel | None = None,
    ) -> _Read:
        def answer() -> _Read | PluginError:
            """Return what it answers; an error has no frame with the bytes of the answer."""
            try:
                own = nullcontext(channel) if channel else self.connected(MAX_ANSWER_BYTES)
                with own as connection:
                    path = f"{_SERVICE}/{method}"
                    data = connection.ask(path, request, timeout_s or self._call_s)
                check_parts(reply, data, _MOST_PARTS)
                return read(parsed(reply, data))
            except CallFailed as error:
                if optional and error.status is Status.UNIMPLEMENTED:
                    self.lacks.add(method)
                    return read(reply())
                return _failure(self.resource, purpose, error)
            except (_OutOfBounds, BadPlace, TooManyParts) as excess:
                why = f"has answered with {excess}"
                return PluginError(self.resource, why, "its log has more", refused=True)

        began_s = time.monotonic()
        found = answer()
        failure = found if isinstance(found, PluginError) else None
        seconds = time.monotonic() - began_s
        self._observe(PluginCall(self.resource, method, seconds, failure))
        if isinstance(found, PluginError):
            raise found
        return found

    @contextmanager
    def _listed(self, channel: Channel) -> Iterator[None]:
        """Let `close` end what a channel does."""
        with self._lock:
            self._calling.add(channel)
            if self._closed:
                channel.give_up()
        try:
            yield
        finally:
            with self._lock:
                self._calling.remove(channel)


def introduced(socket: Path) -> Introduction | None:
    """Ask a plugin in a watched folder who it is; None for a plugin of another type.

    Raises:
        RemoteProtocolError: it does not answer, speaks another version, or names a socket that is
            not root's.
    """
    with _introducing(socket, "asking a plugin for its name") as channel:
        info = channel.call(
            f"{_REGISTRATION}/GetInfo",
            pluginregistration_pb2.InfoRequest(),
            pluginregistration_pb2.PluginInfo,
            _INTRODUCTION_S,
        )
        if info.type != TYPE:
            return None
        endpoint = socket.parent / info.endpoint if info.endpoint else socket
        if VERSION not in info.supported_versions or not is_name(info.name):
            spoken = ", ".join(info.supported_versions)[:60] or "no version"
            raise RemoteProtocolError(
                f"{socket} registers {info.name[:60]!r} with {spoken}; it needs a name and"
                f" {VERSION}"
            )
        if endpoint != socket and not _is_trusted_socket(endpoint):
            raise RemoteProtocolError(
                f"{socket} names {info.endpoint[:60]!r} as its endpoint, which is no socket of"
                " root's; serve both on one socket"
            )
    with _introducing(endpoint, "asking a plugin for its options") as channel:
        sent = channel.call(
            f"{_SERVICE}/GetResourcePluginOptions",
            resourceplugin_pb2.Empty(),
            resourceplugin_pb2.ResourcePluginOptions,
            _INTRODUCTION_S,
        )
    return Introduction(info.name, endpoint, options(sent))


def notify(socket: Path, error: str = "") -> None:
    """Tell a plugin that it is registered, or why it is not.

    Raises:
        RemoteProtocolError: it does not answer.
    """
    status = pluginregistration_pb2.RegistrationStatus(plugin_registered=not error, error=error)
    with _introducing(socket, "telling a plugin of its registration") as channel:
        channel.call(
            f"{_REGISTRATION}/NotifyRegistrationStatus",
            status,
            pluginregistration_pb2.RegistrationStatusResponse,
            _INTRODUCTION_S,
        )


def _introducing(socket: Path, purpose: str) -> AbstractContextManager[Channel]:
    return dialled(socket, purpose, "the plugin", _MAX_INTRODUCTION_BYTES)


def socket_status(path: Path) -> os.stat_result | None:
    """Return the status of a socket; None for anything else, and for what no path can be."""
    try:
        status = path.lstat()
    except (OSError, ValueError):
        return None
    return status if stat.S_ISSOCK(status.st_mode) else None


def is_trusted(user_id: int) -> bool:
    """Return whether the sockets of a user are asked: root's, and those of the agent's own user."""
    return user_id in (ROOT, os.geteuid())


def _is_trusted_socket(path: Path) -> bool:
    status = socket_status(path)
    return status is not None and is_trusted(status.st_uid)


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
    _bound(entry)
    _bound_entries(sum(1 + len(hint.nodes) for hint in entry.value.hints))
    return _listed(entry.value) if entry.HasField("value") else None


def _listed(hints: resourceplugin_pb2.ListOfTopologyHints) -> tuple[TopologyHint, ...]:
    for hint in hints.hints:
        if (last := max(hint.nodes, default=0)) >= _MOST_NODES:
            raise _OutOfBounds(f"the NUMA node {last}, which no machine has")
    return tuple(
        TopologyHint(frozenset(hint.nodes) or None, hint.preferred) for hint in hints.hints
    )


def _bound(of_container: Message) -> None:
    if (length := of_container.ByteSize()) > _MAX_CONTAINER_BYTES:
        most = _MAX_CONTAINER_BYTES
        raise _OutOfBounds(f"{length} bytes for one container, more than {most}")


def _bound_entries(entries: int) -> None:
    if entries > (most := _MOST_ENTRIES):
        raise _OutOfBounds(f"{entries} entries for one container, more than {most}")


def _entries(info: resourceplugin_pb2.ResourceAllocationInfo) -> int:
    hints = info.resource_hints.hints
    named = len(info.envs) + len(info.annotations) + len(info.topology_assignments)
    return named + sum(1 + len(hint.nodes) for hint in hints)


def _answers(allocation: resourceplugin_pb2.ResourceAllocation) -> dict[str, Answer]:
    _bound(allocation)
    entries: Sequence[resourceplugin_pb2.AllocationEntry] = allocation.resource_allocation
    _bound_entries(len(entries) + sum(_entries(entry.value) for entry in entries))
    return {entry.key: _answer(entry.value) for entry in entries if entry.HasField("value")}


def _allocations(
    listed: resourceplugin_pb2.GetResourcesAllocationResponse,
) -> dict[ContainerRef, Answers]:
    pods = listed.pod_resources
    count = len(pods)
    if count <= _MOST_CONTAINERS:
        count = sum(len(containers.container_resources) for containers in pods.values())
    if count > _MOST_CONTAINERS:
        raise _OutOfBounds(f"{count} pods or containers, more than {_MOST_CONTAINERS}")
    return {
        ContainerRef(uid, name): _answers(allocation)
        for uid, containers in pods.items()
        for name, allocation in containers.container_resources.items()
    }


def answer_of(data: bytes) -> Answer:
    """Return the answer in the bytes of a ResourceAllocationInfo.

    Raises:
        RemoteProtocolError: they are damaged.
    """
    try:
        info = resourceplugin_pb2.ResourceAllocationInfo.FromString(data)
        _bound(info)
        _bound_entries(_entries(info))
        return _answer(info)
    except (DecodeError, _OutOfBounds) as error:
        raise RemoteProtocolError(f"a recorded answer is not readable ({error})") from error


def _node_resources(
    answer: resourceplugin_pb2.GetTopologyAwareAllocatableResourcesResponse,
) -> dict[str, float]:
    listed = answer.allocatable_resources
    if (count := len(listed)) > _MOST_RESOURCES:
        raise _OutOfBounds(f"{count} resources of the node, more than {_MOST_RESOURCES}")
    if (length := max(map(len, listed), default=0)) > LONGEST_NAME:
        raise _OutOfBounds(f"a resource whose name has {length} characters")
    return {
        name: resource.aggregated_allocatable_quantity
        for name, resource in listed.items()
        if resource.is_node_resource and resource.is_scalar_resource
    }


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


def _failure(resource: str, purpose: str, failure: CallFailed) -> PluginError:
    status, details = failure.status, failure.details[:_MAX_WORDS]
    if status in (Status.UNAVAILABLE, Status.CANCELLED):
        return PluginError(resource, f"is away ({purpose}: {details})", "start it again")
    if status is Status.DEADLINE_EXCEEDED:
        return PluginError(resource, f"has not answered in time ({purpose})", "check its log")
    words = f"has refused ({purpose}: {details or status.name})"
    return PluginError(resource, words, "its log has more", refused=True)
