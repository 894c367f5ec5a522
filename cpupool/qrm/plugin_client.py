"""A plugin of the QoS Resource Manager, asked over gRPC.

Source: kubewharf/kubelet, pkg/apis/resourceplugin/v1alpha1 and pluginregistration/v1.
"""

from __future__ import annotations

import os
import stat
import threading
import time
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Final, Generic, NamedTuple, TypeVar

from google.protobuf.message import Message
from grpclib.const import Status

from cpupool.api import pluginregistration_pb2
from cpupool.api import resourceplugin_pb2 as api
from cpupool.core.errors import CPUPoolError, RemoteProtocolError
from cpupool.core.pod_resources import is_name
from cpupool.qrm import plugin_messages as messages
from cpupool.qrm.plugin_messages import MOST_CONTAINER_BYTES, Unusable
from cpupool.rpc.channel import CallFailed, dialled, opened, parsed
from cpupool.rpc.parts import TooManyParts, check_parts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from cpupool.core.cpu_manager import TopologyHint
    from cpupool.core.plugin_facts import AnswerParts
    from cpupool.core.topology import CPUTopology
    from cpupool.core.workloads import ContainerRef
    from cpupool.policies.qrm.questions import PluginOptions, Question
    from cpupool.qrm.plugin_messages import Hints, Placed, Stock
    from cpupool.rpc.channel import Channel

_SERVICE: Final = "/resourceplugin.v1alpha1.ResourcePlugin"
_REGISTRATION: Final = "/pluginregistration.Registration"
OF_CONTAINER: Final = "GetTopologyAwareResources"
OF_NODE: Final = "GetTopologyAwareAllocatableResources"
TYPE: Final = "ResourcePlugin"
VERSION: Final = "v1alpha1"
MAX_ANSWER_BYTES: Final = 4 * 1024 * 1024
_MOST_PARTS: Final = 150_000
"""The most messages within an answer: a container has six, and one for each variable, annotation
and hint. Parsed, these take 20 MB."""
_MAX_WORDS: Final = 1000
"""The most characters of a plugin's reason: the agent keeps and shows it."""
_CALL_S: Final = 10.0
_PRE_START_S: Final = 30.0
"""The deadlines of Katalyst's manager."""
_INTRODUCTION_S: Final = 1.0
ROOT: Final = 0
_MAX_INTRODUCTION_BYTES: Final = 64 * 1024

_Reply = TypeVar("_Reply", bound=Message)
_Read = TypeVar("_Read")


class _Method(NamedTuple, Generic[_Reply]):
    """A method of the API.

    Attributes:
        name: its name.
        purpose: what it asks of a plugin, for messages.
        reply: the type of its answer.
        optional: whether a plugin without the method gives an empty answer.
    """

    name: str
    purpose: str
    reply: type[_Reply]
    optional: bool = False


_HINTS: Final = _Method("GetTopologyHints", "asked for hints", api.ResourceHintsResponse)
_ALLOCATE: Final = _Method("Allocate", "asked to allocate", api.ResourceAllocationResponse)
_LIST: Final = _Method(
    "GetResourcesAllocation", "asked for its allocations", api.GetResourcesAllocationResponse
)
_REMOVE: Final = _Method("RemovePod", "asked to forget a pod", api.RemovePodResponse)
_PRE_START: Final = _Method(
    "PreStartContainer", "asked to prepare a container", api.PreStartContainerResponse
)
_PLACES: Final = _Method(
    OF_CONTAINER,
    "asked what a container has",
    api.GetTopologyAwareResourcesResponse,
    optional=True,
)
_STOCK: Final = _Method(
    OF_NODE,
    "asked what the node has",
    api.GetTopologyAwareAllocatableResourcesResponse,
    optional=True,
)
_OFFER: Final = _STOCK._replace(purpose="asked for the node's resources")


class Introduction(NamedTuple):
    """The introduction of a plugin.

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
        read = partial(messages.hints, resource=self.resource)
        return self._ask(_HINTS, messages.request(question), read)

    def allocate(self, question: Question, hint: TopologyHint | None = None) -> AnswerParts:
        """Return what a container gets; nothing if the plugin has nothing to do for it.

        A plugin with alignment gets the merged hint with the request.
        """
        asked = messages.request(question)
        if hint is not None and self.options.aligned:
            asked.hint.nodes.extend(sorted(hint.nodes or ()))
            asked.hint.preferred = hint.preferred
        return self._ask(_ALLOCATE, asked, lambda found: messages.answers(found.allocation_result))

    def allocations(self) -> Mapping[ContainerRef, AnswerParts]:
        """Return what every container that it knows has now."""
        return self._ask(_LIST, api.GetResourcesAllocationRequest(), messages.allocations)

    def node_resources(self) -> Mapping[str, float]:
        """Return how much pods can have of each resource that the node's status is to name."""
        asked = api.GetTopologyAwareAllocatableResourcesRequest()
        return self._ask(_OFFER, asked, messages.node_resources)

    def given(
        self,
        container: ContainerRef,
        topology: CPUTopology,
        *,
        channel: Channel,
        timeout_s: float,
    ) -> Placed:
        """Return what a container has of each resource, and where, over a connection."""
        asked = api.GetTopologyAwareResourcesRequest(
            pod_uid=container.pod, container_name=container.name
        )
        read = partial(messages.placed, container=container, topology=topology)
        return self._ask(_PLACES, asked, read, timeout_s, channel)

    def stock(self, topology: CPUTopology, timeout_s: float) -> Stock:
        """Return how much the node has of each resource, and where."""
        asked = api.GetTopologyAwareAllocatableResourcesRequest()
        read = partial(messages.stock, topology=topology)
        with self.connected() as channel:
            return self._ask(_STOCK, asked, read, timeout_s, channel)

    def remove(self, pod_uid: str) -> None:
        """Let it forget a pod that has ended; it may not know the pod."""
        self._ask(_REMOVE, api.RemovePodRequest(pod_uid=pod_uid), lambda _nothing: None)

    def before_start(self, question: Question) -> None:
        """Let it prepare a container's resource."""
        asked = api.PreStartContainerRequest(
            pod_uid=question.container.pod,
            pod_namespace=question.namespace,
            pod_name=question.pod_name,
            container_name=question.container.name,
        )
        self._ask(_PRE_START, asked, lambda _nothing: None, _PRE_START_S)

    @contextmanager
    def connected(self, most_bytes: int = MOST_CONTAINER_BYTES) -> Iterator[Channel]:
        """Open a connection for several calls of this thread; `close` ends them."""
        with opened(self.endpoint, most_bytes) as channel:
            with self._lock:
                self._calling.add(channel)
                if self._closed:
                    channel.give_up()
            try:
                yield channel
            finally:
                with self._lock:
                    self._calling.remove(channel)

    def _ask(
        self,
        method: _Method[_Reply],
        request: Message,
        read: Callable[[_Reply], _Read],
        timeout_s: float | None = None,
        channel: Channel | None = None,
    ) -> _Read:
        began_s = time.monotonic()
        found = self._answer(method, request, read, timeout_s or self._call_s, channel)
        failure = found if isinstance(found, PluginError) else None
        seconds = time.monotonic() - began_s
        self._observe(PluginCall(self.resource, method.name, seconds, failure))
        if isinstance(found, PluginError):
            raise found
        return found

    def _answer(
        self,
        method: _Method[_Reply],
        request: Message,
        read: Callable[[_Reply], _Read],
        timeout_s: float,
        channel: Channel | None,
    ) -> _Read | PluginError:
        """Return what it answers; an error has no frame with the bytes of the answer."""
        try:
            own = nullcontext(channel) if channel else self.connected(MAX_ANSWER_BYTES)
            with own as connection:
                data = connection.ask(f"{_SERVICE}/{method.name}", request, timeout_s)
            check_parts(method.reply, data, _MOST_PARTS)
            return read(parsed(method.reply, data))
        except CallFailed as error:
            if method.optional and error.status is Status.UNIMPLEMENTED:
                self.lacks.add(method.name)
                return read(method.reply())
            return _failure(self.resource, method.purpose, error)
        except (Unusable, TooManyParts) as excess:
            why = f"has answered with {excess}"
            return PluginError(self.resource, why, "its log has more", refused=True)


def introduced(socket: Path) -> Introduction | None:
    """Ask a plugin in a watched folder who it is; None for a plugin of another type.

    Raises:
        RemoteProtocolError: it does not answer, speaks another version, or names a socket that is
            not root's.
    """
    info = _introducing(
        socket,
        "asking a plugin for its name",
        f"{_REGISTRATION}/GetInfo",
        pluginregistration_pb2.InfoRequest(),
        pluginregistration_pb2.PluginInfo,
    )
    if info.type != TYPE:
        return None
    endpoint = socket.parent / info.endpoint if info.endpoint else socket
    if VERSION not in info.supported_versions or not is_name(info.name):
        spoken = ", ".join(info.supported_versions)[:60] or "no version"
        why = f"registers {info.name[:60]!r} with {spoken}; it needs a name and {VERSION}"
        raise RemoteProtocolError(f"{socket} {why}")
    if endpoint != socket and not is_trusted(socket_status(endpoint)):
        why = f"names {info.endpoint[:60]!r} as its endpoint, which is no socket of root's"
        raise RemoteProtocolError(f"{socket} {why}; serve both on one socket")
    sent = _introducing(
        endpoint,
        "asking a plugin for its options",
        f"{_SERVICE}/GetResourcePluginOptions",
        api.Empty(),
        api.ResourcePluginOptions,
    )
    return Introduction(info.name, endpoint, messages.options(sent))


def notify(socket: Path, error: str = "") -> None:
    """Tell a plugin that it is registered, or why it is not.

    Raises:
        RemoteProtocolError: it does not answer.
    """
    _introducing(
        socket,
        "telling a plugin of its registration",
        f"{_REGISTRATION}/NotifyRegistrationStatus",
        pluginregistration_pb2.RegistrationStatus(plugin_registered=not error, error=error),
        pluginregistration_pb2.RegistrationStatusResponse,
    )


def _introducing(
    socket: Path, purpose: str, method: str, request: Message, reply: type[_Reply]
) -> _Reply:
    with dialled(socket, purpose, "the plugin", _MAX_INTRODUCTION_BYTES) as channel:
        return channel.call(method, request, reply, _INTRODUCTION_S)


def socket_status(path: Path) -> os.stat_result | None:
    """Return the status of a socket; None for anything else, and for what no path can be."""
    try:
        status = path.lstat()
    except (OSError, ValueError):
        return None
    return status if stat.S_ISSOCK(status.st_mode) else None


def is_trusted(socket: os.stat_result | None) -> bool:
    """Return whether a socket is asked: root's, and one of the agent's own user."""
    return socket is not None and socket.st_uid in (ROOT, os.geteuid())


def _failure(resource: str, purpose: str, failure: CallFailed) -> PluginError:
    status, details = failure.status, failure.details[:_MAX_WORDS]
    if status in (Status.UNAVAILABLE, Status.CANCELLED):
        return PluginError(resource, f"is away ({purpose}: {details})", "start it again")
    if status is Status.DEADLINE_EXCEEDED:
        return PluginError(resource, f"has not answered in time ({purpose})", "check its log")
    words = f"has refused ({purpose}: {details or status.name})"
    return PluginError(resource, words, "its log has more", refused=True)
