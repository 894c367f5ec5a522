"""A container runtime's side of NRI over a real unix socket, as strict as the Go implementation.

It shares no code with cpupool but the messages: frames are written and read here as
github.com/containerd/nri and github.com/containerd/ttrpc do, their buffers included.
"""

from __future__ import annotations

import select
import socket
import struct
import threading
from concurrent.futures import Future
from contextlib import suppress
from typing import TYPE_CHECKING, Final, Self, TypeVar

from cpupool.api import nri_pb2, ttrpc_pb2
from tests.nri_frames import Stream, frames
from tests.nri_pods import Container, Pod, set_cpu
from tests.waiting import DEADLINE_S

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from google.protobuf.message import Message

_Answer = TypeVar("_Answer", bound="Message")

PLUGIN: Final = "nri.pkg.api.v1alpha1.Plugin"
EVENTS: Final = (1 << 14) - 1
"""What the newest runtimes know."""
FIRST_EVENTS: Final = (1 << 11) - 1
"""What every runtime knows since NRI 0.2."""


class Refused(Exception):
    """The plugin's answer was an error."""

    def __init__(self, code: int, message: str) -> None:
        self.code = code
        super().__init__(message)


class FakeRuntime:
    """Listens for plugins.

    Args:
        path: the NRI socket.
        dedicated: whether every event has a method of its own, as since NRI 0.11; else most come
            as StateChange.
        events: those that it knows.
        alone: whether a plugin's UpdateContainers must not come while a request of the runtime
            waits for its answer; found out at the end.
        listens: whether it takes plugins at once; else the socket refuses them until `listen`.
        nri: the version of its NRI; empty where it is older than 0.12 and does not tell.
    """

    def __init__(
        self,
        path: Path,
        *,
        dedicated: bool = True,
        events: int = EVENTS,
        alone: bool = False,
        listens: bool = True,
        nri: str = "v0.12.1",
    ) -> None:
        self.dedicated = dedicated
        self.events = events
        self.alone = alone
        self.nri = nri
        self.problems: list[str] = []
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(path))
        self._listener.settimeout(DEADLINE_S)
        self._plugins: list[Plugin] = []
        if listens:
            self.listen()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()
        for plugin in self._plugins:
            plugin.hang_up()
        assert not self.problems

    def listen(self) -> None:
        """Take plugins from here on."""
        self._listener.listen(16)

    def reached(self) -> bool:
        """Tell whether a plugin has connected that is not accepted yet."""
        return bool(select.select([self._listener], [], [], 0)[0])

    def accept(self) -> Plugin:
        """Wait for a plugin that connects and registers."""
        connected, _ = self._listener.accept()
        return self.adopt(connected)

    def adopt(self, connected: socket.socket) -> Plugin:
        """Take a socket as a plugin's, and wait until it registers."""
        plugin = Plugin(self, connected)
        self._plugins.append(plugin)
        plugin.registered.result(DEADLINE_S)
        return plugin

    def welcome(self, containers: Sequence[Container] = (), pods: Sequence[Pod] = ()) -> Plugin:
        """Wait for a plugin and bring it up: it registers, is configured and synchronised."""
        plugin = self.accept()
        plugin.configure()
        plugin.synchronize(containers, pods)
        return plugin


class Plugin:
    """The runtime's end of the conversation with one plugin."""

    def __init__(self, runtime: FakeRuntime, connected: socket.socket) -> None:
        self.registered: Future[nri_pb2.RegisterPluginRequest] = Future()
        self.closed = threading.Event()
        self.updates: list[list[nri_pb2.ContainerUpdate]] = []
        """What the plugin has asked for by itself, call by call."""
        self.failing: set[str] = set()
        """Containers that the runtime does not manage to update."""
        self.obey: Callable[[nri_pb2.ContainerUpdate], None] = lambda _update: None
        """Does what the plugin asks for by itself."""
        self.silent = False
        """Whether the plugin's calls wait for `answer_updates`."""
        self._unanswered: list[bytes] = []
        self._runtime = runtime
        self._socket = connected
        # Reentrant: a call gets its number and is written before another one does.
        self._writing = threading.RLock()
        self._calls: dict[int, Future[bytes]] = {}
        self._last_call = -1
        self._streams = {1: Stream(), 2: Stream()}
        self._reader = threading.Thread(target=self._read, name="nri-runtime")
        self._reader.start()

    # What a runtime says.

    def configure(self, timeout_ms: int = 2000) -> int:
        """Introduce the runtime; give the events that the plugin wants, all of them known."""
        answer = self.ask(
            "Configure",
            nri_pb2.ConfigureRequest(
                runtime_name="fake",
                runtime_version="1.0",
                request_timeout=timeout_ms,
                NRI_version=self._runtime.nri,
            ),
            nri_pb2.ConfigureResponse,
        ).result(DEADLINE_S)
        if unknown := answer.events & ~self._runtime.events:
            self.hang_up()
            raise AssertionError(f"the plugin wants unknown events: {unknown:#x}")
        return answer.events

    def synchronize(
        self, containers: Sequence[Container] = (), pods: Sequence[Pod] = (), parts: int = 1
    ) -> list[nri_pb2.ContainerUpdate]:
        """Name everything, in several parts if asked; give the updates that come back.

        Args:
            containers: all of them; their pods are named, too.
            pods: those without containers.
            parts: how many messages to make of it; pods come after containers.
        """
        all_pods = {pod.sandbox: pod for pod in (*pods, *(one.pod for one in containers))}
        things = [*containers, *all_pods.values()]
        size = max(1, -(-len(things) // parts))
        for start in range(0, max(1, len(things)), size):
            part = things[start : start + size]
            request = nri_pb2.SynchronizeRequest(
                pods=[one.message() for one in part if isinstance(one, Pod)],
                containers=[one.message() for one in part if isinstance(one, Container)],
                more=start + size < len(things),
            )
            answer = self.ask("Synchronize", request, nri_pb2.SynchronizeResponse).result(
                DEADLINE_S
            )
            assert answer.more == request.more
            assert not (request.more and answer.update)
        return list(answer.update)

    def create(self, container: Container) -> nri_pb2.CreateContainerResponse:
        """Create a container; raises `Refused` where the plugin does not let it."""
        return self.creating(container).result(DEADLINE_S)

    def creating(self, container: Container) -> Future[nri_pb2.CreateContainerResponse]:
        """Ask for the creation of a container, without waiting for the answer."""
        return self.create_many([container])[0]

    def create_many(
        self, containers: Iterable[Container]
    ) -> list[Future[nri_pb2.CreateContainerResponse]]:
        """Ask for the creation of many containers at once, in one write."""
        with self._writing:
            calls = [
                self._call(
                    "CreateContainer",
                    nri_pb2.CreateContainerRequest(pod=one.pod.message(), container=one.message()),
                    nri_pb2.CreateContainerResponse,
                )
                for one in containers
            ]
            self.write(b"".join(frame for _, frame in calls))
        return [future for future, _ in calls]

    def update(
        self,
        container: Container,
        cpus: str = "",
        quota_us: int | None = None,
        period_us: int = 100_000,
        shares: int | None = None,
    ) -> nri_pb2.UpdateContainerResponse:
        """Change a container's resources; what is empty or None is left out."""
        request = nri_pb2.UpdateContainerRequest(
            pod=container.pod.message(), container=container.message()
        )
        set_cpu(request.linux_resources.cpu, cpus, quota_us, period_us)
        if shares is not None:
            request.linux_resources.cpu.shares.value = shares
        return self.ask("UpdateContainer", request, nri_pb2.UpdateContainerResponse).result(
            DEADLINE_S
        )

    def run_sandbox(self, pod: Pod) -> None:
        """Tell that a pod's sandbox runs."""
        self._tell("RunPodSandbox", nri_pb2.RUN_POD_SANDBOX, pod)

    def remove_sandbox(self, pod: Pod) -> None:
        """Tell that a pod's sandbox is gone."""
        self._tell("RemovePodSandbox", nri_pb2.REMOVE_POD_SANDBOX, pod)

    def starting(self, container: Container) -> Future[nri_pb2.Empty]:
        """Ask before a container runs its first instruction, without waiting for the answer."""
        return self._telling("StartContainer", nri_pb2.START_CONTAINER, container.pod, container)

    def start(self, container: Container) -> None:
        """Tell that a container's process has started."""
        self._tell("PostStartContainer", nri_pb2.POST_START_CONTAINER, container.pod, container)

    def stop(self, container: Container) -> None:
        """Tell that a container has stopped: a method of its own in every runtime."""
        request = nri_pb2.LifecycleEvent(pod=container.pod.message(), container=container.message())
        self.ask("StopContainer", request, nri_pb2.Empty).result(DEADLINE_S)

    def remove(self, container: Container) -> None:
        """Tell that a container is gone."""
        self._tell("RemoveContainer", nri_pb2.REMOVE_CONTAINER, container.pod, container)

    def shut_down(self) -> None:
        """Tell that the runtime ends."""
        self.ask("Shutdown", nri_pb2.Empty(), nri_pb2.Empty).result(DEADLINE_S)

    def ask(
        self,
        method: str,
        request: Message,
        answer: type[_Answer],
        *,
        service: str = PLUGIN,
        timeout_s: float = 2.0,
    ) -> Future[_Answer]:
        """Call any method."""
        with self._writing:
            future, frame = self._call(
                method, request, answer, service=service, timeout_s=timeout_s
            )
            self.write(frame)
        return future

    def call_with(self, written: Callable[[int], Iterable[bytes]]) -> Future[bytes]:
        """Write a call's bytes as they are; give what the answer holds.

        Args:
            written: makes them of the call's number; each piece is written by itself.
        """
        with self._writing:
            call, future = self._number()
            for piece in written(call):
                self.write(piece)
        return future

    def write(self, data: bytes) -> None:
        """Write bytes as they are."""
        with self._writing:
            self._socket.sendall(data)

    def answer_updates(self) -> None:
        """Answer what the plugin has asked for while the runtime was silent."""
        self.write(b"".join(self._unanswered))

    def hang_up(self) -> None:
        """Close the connection, whatever is going on."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._reader.join(DEADLINE_S)
        assert not self._reader.is_alive()
        self._socket.close()

    # How it says that.

    def _tell(self, method: str, event: int, pod: Pod, container: Container | None = None) -> None:
        self._telling(method, event, pod, container).result(DEADLINE_S)

    def _telling(
        self, method: str, event: int, pod: Pod, container: Container | None
    ) -> Future[nri_pb2.Empty]:
        told = container.message() if container else None
        if self._runtime.dedicated:
            request = nri_pb2.LifecycleEvent(pod=pod.message(), container=told)
            return self.ask(method, request, nri_pb2.Empty)
        change = nri_pb2.StateChangeEvent(
            event=event,  # type: ignore[arg-type]  # an int is what it is
            pod=pod.message(),
            container=told,
        )
        return self.ask("StateChange", change, nri_pb2.Empty)

    def _call(
        self,
        method: str,
        request: Message,
        answer: type[_Answer],
        *,
        service: str = PLUGIN,
        timeout_s: float = 2.0,
    ) -> tuple[Future[_Answer], bytes]:
        call, raw = self._number()
        parsed: Future[_Answer] = Future()
        raw.add_done_callback(lambda done: _forward(done, parsed, answer.FromString))
        body = ttrpc_pb2.Request(
            service=service,
            method=method,
            payload=request.SerializeToString(),
            timeout_nano=int(timeout_s * 1e9),
        ).SerializeToString()
        return parsed, frames(1, call, 1, body)

    def _number(self) -> tuple[int, Future[bytes]]:
        self._last_call += 2
        future: Future[bytes] = Future()
        self._calls[self._last_call] = future
        return self._last_call, future

    def _read(self) -> None:
        try:
            while header := self._exactly(8):
                connection, length = struct.unpack(">II", header)
                payload = self._exactly(length)
                for stream, kind, body in self._streams[connection].take(payload):
                    if connection == 1:
                        self._answered(stream, kind, body)
                    else:
                        self._asked(stream, kind, body)
        except (OSError, AssertionError) as error:
            if not isinstance(error, OSError):
                self._runtime.problems.append(str(error))
        finally:
            self.closed.set()
            gone = ConnectionError("the conversation has ended")
            if not self.registered.done():
                self.registered.set_exception(gone)
            with self._writing:
                for future in self._calls.values():
                    future.set_exception(gone)

    def _exactly(self, length: int) -> bytes:
        data = b""
        while len(data) < length:
            piece = self._socket.recv(length - len(data))
            if not piece:
                assert not data, "the plugin has cut a frame short"
                return b""
            data += piece
        return data

    def _answered(self, stream: int, kind: int, body: bytes) -> None:
        assert kind == 2, f"a frame of type {kind} as an answer"
        future = self._calls.pop(stream, None)
        assert future is not None, f"an answer to {stream}, which waits for none"
        response = ttrpc_pb2.Response.FromString(body)
        if response.status.code:
            future.set_exception(Refused(response.status.code, response.status.message))
        else:
            future.set_result(response.payload)

    def _asked(self, stream: int, kind: int, body: bytes) -> None:
        assert kind == 1, f"a frame of type {kind} as a request"
        assert stream % 2 == 1, "an even stream id"
        request = ttrpc_pb2.Request.FromString(body)
        assert request.service == "nri.pkg.api.v1alpha1.Runtime"
        answer: Message = nri_pb2.Empty()
        if request.method == "RegisterPlugin":
            self.registered.set_result(nri_pb2.RegisterPluginRequest.FromString(request.payload))
        else:
            assert request.method == "UpdateContainers"
            assert not (self._runtime.alone and self._calls), (
                "UpdateContainers while a request waits for its answer"
            )
            asked = nri_pb2.UpdateContainersRequest.FromString(request.payload)
            self.updates.append(list(asked.update))
            for update in asked.update:
                self.obey(update)
            answer = nri_pb2.UpdateContainersResponse(
                failed=[one for one in asked.update if one.container_id in self.failing]
            )
        response = ttrpc_pb2.Response(payload=answer.SerializeToString())
        written = frames(2, stream, 2, response.SerializeToString())
        if self.silent:
            self._unanswered.append(written)
        else:
            self.write(written)


def _forward(
    raw: Future[bytes], parsed: Future[_Answer], parse: Callable[[bytes], _Answer]
) -> None:
    error = raw.exception()
    if error is None:
        parsed.set_result(parse(raw.result()))
    else:
        parsed.set_exception(error)
