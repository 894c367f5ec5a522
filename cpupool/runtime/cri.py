"""The container runtime's CRI service: it names the containers, and changes their CPUs.

Source: k8s.io/cri-api, pkg/apis/runtime/v1/api.proto, and its use by containerd and CRI-O.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from google.protobuf.message import Message
from grpclib.const import Status

from cpupool.api.cri_pb2 import (
    CONTAINER_EXITED,
    ContainerFilter,
    ContainerStatusRequest,
    ContainerStatusResponse,
    LinuxContainerResources,
    ListContainersRequest,
    ListContainersResponse,
    ListPodSandboxRequest,
    ListPodSandboxResponse,
    PodSandboxFilter,
    UpdateContainerResourcesRequest,
    UpdateContainerResourcesResponse,
    VersionRequest,
    VersionResponse,
)
from cpupool.core.assignments import remembering
from cpupool.core.devices import allocated
from cpupool.core.errors import (
    ContainerNotFound,
    RemoteProtocolError,
    RuntimeAwaitsAnswer,
    RuntimeBusy,
    RuntimeRefused,
    RuntimeSilent,
)
from cpupool.core.workloads import RuntimeContainer
from cpupool.rpc.channel import CallFailed, dialled
from cpupool.wire import json_text
from cpupool.wire.json_text import Fields, JSONRefused

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
    from collections.abc import Set as AbstractSet
    from pathlib import Path

    from cpupool.api.cri_pb2 import Container, PodSandbox
    from cpupool.core.cpuset import CPUSet
    from cpupool.core.names import Names
    from cpupool.core.properties import Properties
    from cpupool.core.requests import Resource
    from cpupool.core.workloads import ContainerID
    from cpupool.rpc.channel import Channel

_Answer = TypeVar("_Answer", bound=Message)

_PEER: Final = "the container runtime"
_UNREACHABLE: Final = (Status.UNAVAILABLE, Status.DEADLINE_EXCEEDED)
_FEW: Final = 4
"""The agent asks for up to so many containers by id; for more, a list of all is shorter."""
_RETRY_S: Final = 2.0
_RETRY_SHARE: Final = 10
"""The agent pauses so many times as long as it has waited for a runtime that hangs."""


class CRI:
    """A `ContainerSource` and a `ContainerRuntime` over the runtime's socket; any thread may call.

    It asks and does not listen. GetContainerEvents would report a container a millisecond sooner.
    But containerd creates no container while a listener does not read (2.x: internal/eventq), or
    gives each event to one listener only, so that the kubelet misses it (1.x:
    pkg/cri/server/container_events.go).

    No call but Version begins while the runtime waits for the agent's response by NRI. The runtime
    holds its lock then, and the calling thread also gets the facts for that answer. Runtimes answer
    Version from constants.

    Each call has a channel of its own. That costs under a millisecond, and a call after a restart
    of the runtime works at once.

    Args:
        sockets: the sockets of runtimes; the first that answers is used.
        names: the names of the annotations that Allocate's replies leave on containers.
        memory: container → its memory nodes, which each change of the container repeats, because a
            runtime writes all values that it remembers.
        awaits: returns whether the runtime waits for a response of the agent by NRI.
        timeout_s: the time for one answer; the sweep waits, too.
        now_s: a monotonic clock.
    """

    def __init__(
        self,
        sockets: Sequence[Path],
        names: Names,
        *,
        memory: Mapping[ContainerID, CPUSet] | None = None,
        awaits: Callable[[], bool] = lambda: False,
        timeout_s: float = 0.5,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._sockets = sockets
        self._names = names
        self._memory = {} if memory is None else memory
        self._awaits = awaits
        self._timeout_s = timeout_s
        self._now_s = now_s
        # The socket on which a runtime answers.
        self._socket: Path | None = None
        self._retry_at_s = now_s()

    def version(self) -> tuple[str, str]:
        """Ask for the runtime's name and version, as `containerd` and `v2.1.4`.

        Raises:
            RemoteProtocolError: no runtime answers on any socket.
        """
        _, answer = self._find_runtime()
        return answer.runtime_name, answer.runtime_version

    def connected(self) -> bool:
        """Return whether the runtime answers, by its last response or by a call now and then."""
        if self._socket is None and self._now_s() >= self._retry_at_s:
            with suppress(RemoteProtocolError):
                self.version()
        return self._socket is not None

    def recognise(self, ids: Collection[str]) -> tuple[RuntimeContainer, ...]:
        """Return the containers and sandboxes of the kubelet that the runtime knows.

        Raises:
            RuntimeAwaitsAnswer: it waits for a response of the agent itself.
            RemoteProtocolError: the runtime does not answer.
        """
        if not ids:
            return ()
        wanted = frozenset(ids)
        with self._calling("recognising containers") as channel:
            containers = self._containers(channel, wanted)
            annotated = {
                container.pod_sandbox_id for container in containers if self._devices(container, {})
            }
            others = wanted - {container.id for container in containers}
            sandboxes = {
                sandbox.id: sandbox for sandbox in self._sandboxes(channel, others | annotated)
            }
        found = (
            *(
                self._container(container, sandboxes.get(container.pod_sandbox_id))
                for container in containers
            ),
            *(
                RuntimeContainer.sandbox(sandbox.id, dict(sandbox.labels))
                for sandbox in sandboxes.values()
                if sandbox.id in wanted
            ),
        )
        return tuple(container for container in found if container is not None)

    def chosen(self, ids: Collection[str]) -> tuple[RuntimeContainer, ...]:
        """Return the given containers that have CPUs of their own, by their OCI spec.

        Only the spec has the annotation of an NRI plugin: CRI's own field shows the kubelet's.

        Raises:
            RuntimeAwaitsAnswer: it waits for a response of the agent itself.
            RemoteProtocolError: the runtime does not answer.
        """
        if not ids:
            return ()
        found = []
        with self._calling("recalling chosen CPUs") as channel:
            containers = self._containers(channel, frozenset(ids))
            of_pods = frozenset(container.pod_sandbox_id for container in containers)
            sandboxes = {sandbox.id: sandbox for sandbox in self._sandboxes(channel, of_pods)}
            for container in containers:
                sandbox = sandboxes.get(container.pod_sandbox_id)
                answer = self._status(channel, container.id, verbose=True)
                if sandbox is None or answer is None:
                    continue
                spec, known = _Spec.of(answer), self._container(container, sandbox)
                if spec and known:
                    own, author = spec.annotations, sandbox.annotations
                    noted = remembering(known, own, author, spec.cpus, self._names)
                    if noted.chosen or noted.answered:
                        found.append(noted)
        return tuple(found)

    def cpu_list(self, container: ContainerID) -> str | None:
        """Return the CPU list that the runtime has for a container.

        The OCI spec has it. containerd's `resources` leave out the CPUs that an NRI plugin has set
        at creation (containerd: internal/cri/server/container_create.go, copyResourcesToStatus).

        Returns:
            The list, empty if there is none; None if the runtime does not know the container.

        Raises:
            RuntimeAwaitsAnswer: it waits for a response of the agent itself.
            RemoteProtocolError: the runtime does not answer.
        """
        with self._calling("ContainerStatus") as channel:
            answer = self._status(channel, container, verbose=True)
        if answer is None:
            return None
        spec = _Spec.of(answer)
        return spec.cpus if spec else answer.status.resources.linux.cpuset_cpus

    def starting(self, container: ContainerID) -> bool:  # noqa: ARG002
        """Return false: a call ends only when the container is on its CPUs."""
        return False

    def update(self, container: ContainerID, cpus: CPUSet) -> None:
        """Let the runtime set a container's CPUs, and nothing else.

        Raises:
            ContainerNotFound: it has ended.
            RuntimeBusy: the runtime waits for a response of the agent itself.
            RuntimeSilent: the runtime does not answer.
            RuntimeRefused: it did not.
            ValueError: there are no CPUs; a runtime would read that as no change.
        """
        if not cpus:
            raise ValueError(f"container {container} cannot run on no CPUs")
        self._change(container, f"CPUs {cpus}", LinuxContainerResources(cpuset_cpus=str(cpus)))

    def at_once(self, calls: Sequence[Callable[[], None]]) -> None:
        """Run several callers at one time; each call of theirs ends with its own timeout."""
        with ThreadPoolExecutor(len(calls)) as pool:
            for call in [pool.submit(each) for each in calls]:
                call.result()

    def adjust(self, container: ContainerID, properties: Properties) -> None:
        """Let the runtime set properties of a container, and nothing else.

        Raises:
            ContainerNotFound: it has ended.
            RuntimeBusy: the runtime waits for a response of the agent itself.
            RuntimeSilent: the runtime does not answer.
            RuntimeRefused: it did not.
        """
        resources = LinuxContainerResources(
            cpu_shares=properties.shares,
            memory_limit_in_bytes=properties.memory_bytes,
            memory_swap_limit_in_bytes=properties.swap_bytes,
            unified=properties.unified,
        )
        if properties.bandwidth is not None:
            resources.cpu_quota = properties.bandwidth.quota_us
            resources.cpu_period = properties.bandwidth.period_us
        self._change(container, str(properties), resources)

    def _change(
        self, container: ContainerID, what: str, resources: LinuxContainerResources
    ) -> None:
        """Let the runtime change a container; it keeps each value that is 0 or empty here."""
        resources.cpuset_mems = str(self._memory.get(container, ""))
        request = UpdateContainerResourcesRequest(container_id=container, linux=resources)
        try:
            with self._calling("UpdateContainerResources") as channel:
                try:
                    self._ask(channel, request, UpdateContainerResourcesResponse)
                except CallFailed as error:
                    if error.status in _UNREACHABLE:
                        raise
                    # CRI-O has no code of its own for a container that it does not have.
                    answer = self._status(channel, container)
                    if answer is None or answer.status.state == CONTAINER_EXITED:
                        raise ContainerNotFound(container) from error
                    raise
        except RuntimeAwaitsAnswer as error:
            raise RuntimeBusy(container, what, str(error)) from error
        except RemoteProtocolError as error:
            kind = RuntimeRefused if self._socket else RuntimeSilent
            raise kind(container, what, str(error)) from error

    def _find_runtime(self) -> tuple[Path, VersionResponse]:
        """Find the socket on which a runtime answers, and give its response."""
        failures = []
        started_s = self._now_s()
        for socket in filter(_is_there, self._sockets):
            try:
                with dialled(socket, "Version", _PEER) as channel:
                    answer = self._ask(channel, VersionRequest(), VersionResponse)
            except RemoteProtocolError as error:
                failures.append(error)
            else:
                self._socket = socket
                return socket, answer
        self._socket = None
        self._leave_alone(max(_RETRY_S, _RETRY_SHARE * (self._now_s() - started_s)))
        if failures:
            raise failures[0]
        raise RemoteProtocolError(
            f"there is no CRI socket {' or '.join(map(str, self._sockets))}; start the runtime,"
            " mount its folder, as /run/containerd, into the agent's pod, or set --cri-socket"
        )

    @contextmanager
    def _calling(self, purpose: str) -> Iterator[Channel]:
        socket = self._socket or self._find_runtime()[0]
        with dialled(socket, purpose, _PEER) as channel:
            try:
                yield channel
            except CallFailed as error:
                if error.status in _UNREACHABLE:
                    self._socket = None
                if error.status is Status.DEADLINE_EXCEEDED:
                    self._leave_alone(_RETRY_SHARE * self._timeout_s)
                raise

    def _leave_alone(self, pause_s: float) -> None:
        """Pause the calls to a runtime that is not there, or hangs."""
        self._retry_at_s = self._now_s() + pause_s

    def _containers(self, channel: Channel, ids: AbstractSet[str]) -> list[Container]:
        found: list[Container] = []
        for identifier in _questions(ids):
            request = ListContainersRequest(filter=ContainerFilter(id=identifier))
            found += self._ask(channel, request, ListContainersResponse).containers
        return [container for container in found if container.id in ids]

    def _sandboxes(self, channel: Channel, ids: AbstractSet[str]) -> list[PodSandbox]:
        found: list[PodSandbox] = []
        for identifier in _questions(ids):
            request = ListPodSandboxRequest(filter=PodSandboxFilter(id=identifier))
            found += self._ask(channel, request, ListPodSandboxResponse).items
        return [container for container in found if container.id in ids]

    def _container(self, listed: Container, sandbox: PodSandbox | None) -> RuntimeContainer | None:
        devices = {} if sandbox is None else self._devices(listed, sandbox.annotations)
        return RuntimeContainer.labelled(listed.id, dict(listed.labels), devices)

    def _devices(
        self, listed: Container, of_pod: Mapping[str, str]
    ) -> dict[Resource, frozenset[str]]:
        return allocated(listed.annotations, of_pod, self._names)

    def _status(
        self, channel: Channel, container: str, *, verbose: bool = False
    ) -> ContainerStatusResponse | None:
        """Return the runtime's report of a container; None if it does not know the container."""
        request = ContainerStatusRequest(container_id=container, verbose=verbose)
        try:
            return self._ask(channel, request, ContainerStatusResponse)
        except CallFailed as error:
            if error.status is Status.NOT_FOUND:
                return None
            raise

    def _ask(self, channel: Channel, request: Message, answer: type[_Answer]) -> _Answer:
        """Call the method that has the name of its request.

        Raises:
            RuntimeAwaitsAnswer: the runtime waits for a response of the agent itself.
            CallFailed: it does not answer, or refuses.
        """
        if not isinstance(request, VersionRequest) and self._awaits():
            raise RuntimeAwaitsAnswer
        name = request.DESCRIPTOR.name.removesuffix("Request")
        return channel.call(f"/runtime.v1.RuntimeService/{name}", request, answer, self._timeout_s)


class _Spec(NamedTuple):
    """The parts of a container's OCI spec that the agent needs.

    Attributes:
        annotations: those of the container, also the ones of NRI plugins.
        cpus: its CPU list.
    """

    annotations: Mapping[str, str]
    cpus: str

    @classmethod
    def of(cls, answer: ContainerStatusResponse) -> _Spec | None:
        """Return the spec in a verbose answer; None if the runtime shows no spec with CPUs."""
        try:
            info = Fields.of(json_text.load(answer.info["info"]))
            spec = info.within("runtimeSpec")
            cpu = spec.within("linux").within("resources").within("cpu")
            annotations = spec.within("annotations", optional=True)
            texts = {key: annotations.get(key, str) for key in annotations.members}
            return cls(texts, cpu.get("cpus", str))
        except JSONRefused:
            return None


def _questions(ids: AbstractSet[str]) -> Iterable[str]:
    """Return the ids to list by, or the empty id, which lists all.

    A runtime takes the beginning of an id for the whole, so a response may hold others.
    """
    return ids if len(ids) <= _FEW else ("",)


def _is_there(socket: Path) -> bool:
    try:
        return socket.is_socket()
    except PermissionError:
        return True  # dialling it says what is wrong
