"""The plugin's side of one NRI conversation: bytes in, messages out, answers in, bytes out.

Theory of operation. The session does no I/O and keeps no time. Its owner passes the bytes of the
socket to `receive`, acts on the messages that it returns, and sends the bytes of `outgoing`. The
bytes have three layers: `mux` has two connections, on one the runtime calls the plugin, on the
other the plugin calls the runtime; `ttrpc` has the frames of a connection; protobuf has a call.

    call                          message                      answer
    RegisterPlugin (by us, first) Registered                   the runtime's
    Configure                     Configured                   at once: the subscribed events
    Synchronize, in parts         Synchronize, after the last  owed: `answer_synchronize`
    CreateContainer               CreateContainer              owed: `answer_create`
    StartContainer                StartContainer               owed: `answer_start`
    UpdateContainer               UpdateContainer              owed: `answer_update`
    those of `_LIFECYCLE`         SandboxStarted to Ended      at once
    Shutdown                      Shutdown                     at once
    UpdateContainers (`update`)   Updated                      the runtime's

The runtime waits for an owed answer. `_owed` has these calls, each with its kind of answer, and
`refuse` answers any of them. Answers may come in any order. A call that cannot be read is refused,
and the conversation goes on; it ends with a broken frame, or if the runtime refuses the plugin.

The session subscribes only to events of the protocol's first version: a runtime refuses a mask with
an event that it does not know. Runtimes call a method for each of these events, and older ones send
some of them as StateChange. Both become the same messages.

Source: github.com/containerd/nri, pkg/api/api.proto, pkg/adaptation, pkg/stub.
"""

from __future__ import annotations

from dataclasses import replace
from enum import IntEnum
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, TypeAlias

from google.protobuf.message import DecodeError

from cpupool.api import nri_pb2, ttrpc_pb2
from cpupool.core.assignments import remembering
from cpupool.core.bandwidth import PERIOD_US
from cpupool.core.devices import allocated
from cpupool.core.errors import RemoteProtocolError
from cpupool.core.workloads import ContainerID, RuntimeContainer
from cpupool.policies.built_in import may_own
from cpupool.runtime.nri import mux, ttrpc
from cpupool.runtime.nri.messages import (
    Configured,
    ContainerState,
    CreateContainer,
    Ended,
    NamedContainer,
    NRIContainer,
    Registered,
    SandboxRemoved,
    SandboxStarted,
    Shutdown,
    StartContainer,
    Started,
    Synchronize,
    UpdateContainer,
    Updated,
)
from cpupool.runtime.nri.resources import read_cpu, read_limits, write_adjustment, write_update

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from google.protobuf.message import Message as ProtobufMessage

    from cpupool.core.cpuset import CPUSet
    from cpupool.core.names import Names
    from cpupool.core.requests import Resource
    from cpupool.runtime.nri.messages import Adjustment, Message, Update

MemoryOf: TypeAlias = "Mapping[ContainerID, CPUSet]"
NO_MEMORY: Final[MemoryOf] = MappingProxyType({})
_PLUGIN_SERVICE: Final = "nri.pkg.api.v1alpha1.Plugin"
_RUNTIME_SERVICE: Final = "nri.pkg.api.v1alpha1.Runtime"
_LIFECYCLE: Final[Mapping[str, int]] = {
    "RunPodSandbox": nri_pb2.RUN_POD_SANDBOX,
    "RemovePodSandbox": nri_pb2.REMOVE_POD_SANDBOX,
    "PostStartContainer": nri_pb2.POST_START_CONTAINER,
    "StopContainer": nri_pb2.STOP_CONTAINER,
    "RemoveContainer": nri_pb2.REMOVE_CONTAINER,
}
"""The methods of events that need no decision."""
_SUBSCRIBED: Final = sum(
    1 << (event - 1)
    for event in (
        *_LIFECYCLE.values(),
        nri_pb2.CREATE_CONTAINER,
        nri_pb2.START_CONTAINER,
        nri_pb2.UPDATE_CONTAINER,
    )
)
_STATES: Final[Mapping[int, ContainerState]] = {
    nri_pb2.CONTAINER_CREATED: ContainerState.CREATED,
    nri_pb2.CONTAINER_PAUSED: ContainerState.PAUSED,
    nri_pb2.CONTAINER_RUNNING: ContainerState.RUNNING,
    nri_pb2.CONTAINER_STOPPED: ContainerState.STOPPED,
}
_NO_POD: Final = nri_pb2.PodSandbox()
_CONFIG_SOURCE: Final = "kubernetes.io/config.source"
"""The kubelet's annotation on every pod: where the pod comes from."""
_API: Final = "api"
_GUARANTEED_OOM_SCORE_ADJ: Final = -997
_OTHER_CLASSES: Final = ("burstable", "besteffort")
_SHARES_PER_CPU: Final = 1024
_MOST_SHARES: Final = 256 * _SHARES_PER_CPU


class _Code(IntEnum):
    """The status codes of gRPC with which a plugin answers."""

    INVALID_ARGUMENT = 3
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    UNIMPLEMENTED = 12


class _BadCall(Exception):
    def __init__(self, code: _Code, why: str) -> None:
        self.code = code
        super().__init__(why)


class Session:
    """One conversation, from registration until the socket closes. Not thread-safe.

    Args:
        name: the plugin's name, letters and dashes.
        index: two digits; the runtime calls its plugins in this order.
        names: the names of the annotations of allocations.
        memory: container → its memory nodes, which each update repeats.
    """

    def __init__(self, name: str, index: str, names: Names, memory: MemoryOf = NO_MEMORY) -> None:
        self._name = name
        self._index = index
        self._names = names
        self._written = partial(write_update, memory)
        self._mux = mux.Decoder()
        self._requests = ttrpc.Decoder()
        self._responses = ttrpc.Decoder()
        self._outgoing = bytearray()
        self._last_call = 0
        self._owed: dict[int, type[Message]] = {}
        """The runtime's calls without a response, each with the kind of its response."""
        self._next_call = 1
        self._asked: set[int] = set()
        self._registration = 0
        self._parts: list[nri_pb2.SynchronizeRequest] = []
        self._methods: Mapping[str, Callable[[int, ttrpc_pb2.Request], Message | None]] = {
            "Configure": self._configure,
            "Synchronize": self._synchronize,
            "CreateContainer": self._create,
            "StartContainer": self._start,
            "UpdateContainer": self._update,
            "StateChange": self._state_change,
            "Shutdown": self._shutdown,
        }

    @property
    def owes(self) -> bool:
        """Whether a call of the runtime waits for its response."""
        return bool(self._owed)

    def register(self) -> None:
        """Ask the runtime to accept this plugin; this is the first call."""
        request = nri_pb2.RegisterPluginRequest(plugin_name=self._name, plugin_idx=self._index)
        self._registration = self._ask("RegisterPlugin", request)

    def receive(self, data: bytes) -> list[Message]:
        """Take bytes of the runtime, cut anywhere; return its messages, in their order.

        A call that cannot be understood is refused, and changes nothing for the others.

        Raises:
            RemoteProtocolError: the conversation cannot go on.
        """
        messages = []
        for connection, piece in self._mux.feed(data):
            # The runtime drops frames with other ids, too.
            if connection == mux.PLUGIN_SERVICE:
                messages += [self._called(frame) for frame in self._requests.feed(piece)]
            elif connection == mux.RUNTIME_SERVICE:
                messages += [self._answered(frame) for frame in self._responses.feed(piece)]
        return [message for message in messages if message is not None]

    def outgoing(self) -> bytes:
        """Return the bytes to send, and forget them."""
        data = bytes(self._outgoing)
        self._outgoing.clear()
        return data

    def answer_synchronize(self, call: int, updates: Iterable[Update]) -> None:
        """Let the runtime correct containers that run already.

        Raises:
            ValueError: no such call waits for this response.
        """
        answer = nri_pb2.SynchronizeResponse(update=map(self._written, updates))
        self._answer(call, Synchronize, answer)

    def answer_create(
        self, call: int, adjustment: Adjustment | None, updates: Iterable[Update] = ()
    ) -> None:
        """Let the runtime create a container, adjusted, and change others before.

        Raises:
            ValueError: no such call waits for this response.
        """
        answer = nri_pb2.CreateContainerResponse(update=map(self._written, updates))
        # A field that is set is sent, also if it has no content.
        if adjustment is not None and (written := write_adjustment(adjustment)).ByteSize():
            answer.adjust.CopyFrom(written)
        self._answer(call, CreateContainer, answer)

    def answer_start(self, call: int) -> None:
        """Let the runtime start a container.

        Raises:
            ValueError: no such call waits for this response.
        """
        self._answer(call, StartContainer, nri_pb2.Empty())

    def answer_update(self, call: int, updates: Iterable[Update]) -> None:
        """Let the runtime go on with an update, changed where `updates` name the container itself.

        Raises:
            ValueError: no such call waits for this response.
        """
        answer = nri_pb2.UpdateContainerResponse(update=map(self._written, updates))
        self._answer(call, UpdateContainer, answer)

    def refuse(self, call: int, why: str) -> None:
        """Let the runtime refuse the request; the kubelet shows why, and tries again.

        Raises:
            ValueError: no such call waits for a response.
        """
        if call not in self._owed:
            raise ValueError(f"call {call} waits for no answer")
        del self._owed[call]
        self._fail(call, _Code.FAILED_PRECONDITION, why)

    def update(self, updates: Iterable[Update]) -> int:
        """Ask the runtime to change containers by itself; `Updated` has the result.

        Runtimes take this while nothing of theirs waits for a response: before NRI 0.12.1 they
        hang otherwise, until they drop the plugin. In the moment before they ask anything they
        hang for good (`Configured.may_lock_up`).

        Returns:
            The number of the call.
        """
        request = nri_pb2.UpdateContainersRequest(update=map(self._written, updates))
        return self._ask("UpdateContainers", request)

    def _ask(self, method: str, request: ProtobufMessage) -> int:
        call = self._next_call
        self._next_call += 2
        self._asked.add(call)
        body = ttrpc_pb2.Request(
            service=_RUNTIME_SERVICE, method=method, payload=request.SerializeToString()
        )
        self._send(mux.RUNTIME_SERVICE, call, ttrpc.REQUEST, body)
        return call

    def _answered(self, frame: ttrpc.Frame) -> Message | None:
        if frame.stream not in self._asked:
            return None
        self._asked.remove(frame.stream)
        error = ""
        answer = nri_pb2.UpdateContainersResponse()
        if frame.body is None:
            error = "its answer is too long"
        elif frame.type != ttrpc.RESPONSE:
            error = f"it answers with a frame of type {frame.type}"
        else:
            try:
                response = ttrpc_pb2.Response.FromString(frame.body)
                if response.status.code:
                    error = response.status.message or f"status {response.status.code}"
                else:
                    answer.ParseFromString(response.payload)
            except DecodeError as problem:
                error = f"its answer cannot be read: {problem}"
        if frame.stream != self._registration:
            failed = tuple(ContainerID(update.container_id) for update in answer.failed)
            return Updated(frame.stream, failed, error)
        if error:
            raise RemoteProtocolError(
                f"NRI: the container runtime does not take the plugin {self._index}-{self._name}:"
                f" {error}; look at the runtime's log"
            )
        return Registered()

    def _called(self, frame: ttrpc.Frame) -> Message | None:
        try:
            return self._dispatched(frame)
        except _BadCall as problem:
            self._fail(frame.stream, problem.code, str(problem))
        except DecodeError as problem:
            self._fail(frame.stream, _Code.INVALID_ARGUMENT, f"cannot be read: {problem}")
        return None

    def _dispatched(self, frame: ttrpc.Frame) -> Message | None:
        # The refusals and their codes are those of ttrpc's own server (server.go).
        if frame.body is None:
            raise _BadCall(_Code.RESOURCE_EXHAUSTED, "a frame of more than 4 MiB")
        if frame.stream % 2 == 0:
            raise _BadCall(_Code.INVALID_ARGUMENT, "an even stream id")
        if frame.type == ttrpc.DATA:
            raise _BadCall(_Code.INVALID_ARGUMENT, "data for a stream that is not open")
        if frame.type != ttrpc.REQUEST:
            return None
        if frame.stream <= self._last_call:
            raise _BadCall(_Code.INVALID_ARGUMENT, "a stream id that does not count up")
        self._last_call = frame.stream
        request = ttrpc_pb2.Request.FromString(frame.body)
        if request.service == _PLUGIN_SERVICE:
            if (event := _LIFECYCLE.get(request.method)) is not None:
                lifecycle = nri_pb2.LifecycleEvent.FromString(request.payload)
                return self._happened(frame.stream, event, lifecycle.pod, lifecycle.container)
            if (method := self._methods.get(request.method)) is not None:
                return method(frame.stream, request)
        raise _BadCall(_Code.UNIMPLEMENTED, f"no method {request.method[:80]}")

    def _configure(self, call: int, request: ttrpc_pb2.Request) -> Message:
        body = nri_pb2.ConfigureRequest.FromString(request.payload)
        self._reply(call, nri_pb2.ConfigureResponse(events=_SUBSCRIBED))
        return Configured(body.runtime_name, body.runtime_version, body.NRI_version)

    def _synchronize(self, call: int, request: ttrpc_pb2.Request) -> Message | None:
        body = nri_pb2.SynchronizeRequest.FromString(request.payload)
        self._parts.append(body)
        if body.more:
            self._reply(call, nri_pb2.SynchronizeResponse(more=True))
            return None
        parts, self._parts = self._parts, []
        pods = {pod.id: pod for part in parts for pod in part.pods}
        self._owed[call] = Synchronize
        return Synchronize(
            call,
            tuple(filter(None, map(_sandbox, pods.values()))),
            tuple(
                self._read(pods.get(container.pod_sandbox_id, _NO_POD), container)
                for part in parts
                for container in part.containers
            ),
        )

    def _create(self, call: int, request: ttrpc_pb2.Request) -> Message:
        body = nri_pb2.CreateContainerRequest.FromString(request.payload)
        self._owed[call] = CreateContainer
        container = self._read(body.pod, body.container)
        return CreateContainer(call, _sandbox(body.pod), container, _deadline_s(request))

    def _start(
        self, call: int, request: ttrpc_pb2.Request, change: nri_pb2.StateChangeEvent | None = None
    ) -> Message:
        body = change or nri_pb2.LifecycleEvent.FromString(request.payload)
        self._owed[call] = StartContainer
        return StartContainer(call, _named(body.pod, body.container), _deadline_s(request))

    def _update(self, call: int, request: ttrpc_pb2.Request) -> Message:
        body = nri_pb2.UpdateContainerRequest.FromString(request.payload)
        self._owed[call] = UpdateContainer
        container, asked = self._read(body.pod, body.container), body.linux_resources.cpu
        return UpdateContainer(call, container, read_cpu(asked), _owns(asked))

    def _state_change(self, call: int, request: ttrpc_pb2.Request) -> Message | None:
        body = nri_pb2.StateChangeEvent.FromString(request.payload)
        if body.event == nri_pb2.START_CONTAINER:
            return self._start(call, request, body)
        return self._happened(call, body.event, body.pod, body.container)

    def _shutdown(self, call: int, _: ttrpc_pb2.Request) -> Message:
        self._reply(call, nri_pb2.Empty())
        return Shutdown()

    def _happened(
        self, call: int, event: int, pod: nri_pb2.PodSandbox, container: nri_pb2.Container
    ) -> Message | None:
        # The responses to these methods have no content.
        self._reply(call, nri_pb2.Empty())
        match event:
            case nri_pb2.RUN_POD_SANDBOX:
                sandbox = _sandbox(pod)
                return None if sandbox is None else SandboxStarted(sandbox)
            case nri_pb2.REMOVE_POD_SANDBOX:
                return SandboxRemoved(ContainerID(pod.id))
            case nri_pb2.POST_START_CONTAINER:
                return Started(_named(pod, container))
            case nri_pb2.STOP_CONTAINER | nri_pb2.REMOVE_CONTAINER:
                return Ended(ContainerID(container.id))
        return None

    def _read(self, pod: nri_pb2.PodSandbox, container: nri_pb2.Container) -> NRIContainer:
        return _container(pod, container, self._names)

    def _answer(self, call: int, kind: type[Message], answer: ProtobufMessage) -> None:
        if self._owed.get(call) is not kind:
            raise ValueError(f"call {call} is no {kind.__name__} that waits for an answer")
        del self._owed[call]
        self._reply(call, answer)

    def _reply(self, call: int, answer: ProtobufMessage) -> None:
        body = ttrpc_pb2.Response(payload=answer.SerializeToString())
        self._send(mux.PLUGIN_SERVICE, call, ttrpc.RESPONSE, body)

    def _fail(self, call: int, code: _Code, why: str) -> None:
        body = ttrpc_pb2.Response(status=ttrpc_pb2.Status(code=code, message=f"cpupool: {why}"))
        self._send(mux.PLUGIN_SERVICE, call, ttrpc.RESPONSE, body)

    def _send(self, connection: int, stream: int, kind: int, body: ProtobufMessage) -> None:
        frame = ttrpc.encode(stream, kind, body.SerializeToString())
        self._outgoing += mux.encode(connection, frame)


def _sandbox(pod: nri_pb2.PodSandbox) -> RuntimeContainer | None:
    return RuntimeContainer.sandbox(pod.id, dict(pod.labels))


def _container(pod: nri_pb2.PodSandbox, container: nri_pb2.Container, names: Names) -> NRIContainer:
    cpu = container.linux.resources.cpu
    static = pod.annotations.get(_CONFIG_SOURCE, _API) != _API
    requested = 0 if static else _owns(cpu) or 0
    guaranteed = not static and _is_guaranteed(pod, container)
    return NRIContainer(
        ContainerID(container.id),
        _known(pod, container, names),
        read_cpu(cpu),
        dict(variable.split("=", 1) for variable in container.env if "=" in variable),
        _STATES.get(container.state, ContainerState.UNKNOWN),
        requested if guaranteed else 0,
        0 if _is_unlimited(cpu) else requested,
        guaranteed,
        may_own(pod.labels, pod.annotations),
        static=static,
        limits=read_limits(container.linux.resources.memory),
    )


def _named(pod: nri_pb2.PodSandbox, container: nri_pb2.Container) -> NamedContainer:
    return NamedContainer(ContainerID(container.id), _labelled(pod, container))


def _known(
    pod: nri_pb2.PodSandbox, container: nri_pb2.Container, names: Names
) -> RuntimeContainer | None:
    # Without the pod it is not known which annotations its author wrote.
    annotations = container.annotations if pod.id else {}
    known = _labelled(pod, container, allocated(annotations, pod.annotations, names))
    if known is None:
        return None
    known = replace(known, owns=_owns(container.linux.resources.cpu))
    listed = container.linux.resources.cpu.cpus
    return remembering(known, annotations, pod.annotations, listed, names)


def _labelled(
    pod: nri_pb2.PodSandbox,
    container: nri_pb2.Container,
    devices: Mapping[Resource, frozenset[str]] | None = None,
) -> RuntimeContainer | None:
    known = RuntimeContainer.labelled(container.id, dict(container.labels), devices)
    if known is None or not known.name:
        # A container's own labels may lack its pod's.
        labels = {**pod.labels, **container.labels}
        known = RuntimeContainer.labelled(container.id, labels, devices, name=container.name)
    return known if known is not None and known.name else None


def _owns(cpu: nri_pb2.LinuxCPU) -> int | None:
    """Return how many CPUs a container requests, by the kubelet's numbers alone.

    The kubelet writes 1024 shares for each requested CPU. More than the most shares it cannot
    write: then only the quota has the number, until an agent lifts it. Source: kubernetes
    pkg/kubelet/cm/helpers_linux.go (MilliCPUToShares).

    Returns:
        The number; 0 for no whole number or for another limit, None where the numbers do not say.
    """
    parts, per_cpu = cpu.shares.value, _SHARES_PER_CPU
    if parts == _MOST_SHARES:
        parts, per_cpu = max(0, cpu.quota.value), cpu.period.value
    if not (parts and per_cpu):
        return None
    cpus, rest = divmod(parts, per_cpu)
    limit_us, period_us = cpu.quota.value, cpu.period.value or PERIOD_US
    return 0 if rest or (limit_us > 0 and limit_us != cpus * period_us) else cpus


def _is_unlimited(cpu: nri_pb2.LinuxCPU) -> bool:
    """Return whether a container has no cpu limit, by the kubelet's numbers alone.

    The kubelet writes a period without a quota. Without a period it writes no limits at all
    (`cpuCFSQuota: false`). An agent lifts the quota of an owner: then it is negative.
    """
    return bool(cpu.period.value) and not cpu.quota.value


def _is_guaranteed(pod: nri_pb2.PodSandbox, container: nri_pb2.Container) -> bool:
    """Return whether a pod may be Guaranteed, by the kubelet's numbers alone.

    The kubelet writes a score of -997, and a cgroup parent without the name of another QoS class.
    Source: kubernetes pkg/kubelet/qos/policy.go.
    """
    parent = pod.linux.cgroup_parent
    if not parent or any(name in parent for name in _OTHER_CLASSES):
        return False
    return container.linux.oom_score_adj.value == _GUARANTEED_OOM_SCORE_ADJ


def _deadline_s(request: ttrpc_pb2.Request) -> float | None:
    return request.timeout_nano / 1e9 if request.timeout_nano > 0 else None
