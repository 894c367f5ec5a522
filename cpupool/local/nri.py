"""The container runtime's side of NRI, for one plugin.

A runtime asks its plugin before it creates and starts a container, and tells it what has started
and ended. While there is no plugin, the runtime asks nothing, and creates no container of a pod
that requires one. Source: github.com/containerd/nri, pkg/adaptation, pkg/api/api.proto and
plugins/default-validator.
"""

from __future__ import annotations

import socket
import threading
from concurrent.futures import CancelledError, Future
from concurrent.futures import TimeoutError as TooLate
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final, Self, TypeVar

from cpupool.api import nri_pb2, ttrpc_pb2
from cpupool.core.cpuset import CPUSet
from cpupool.core.errors import CPUPoolError, HostError, HostFileError, RemoteProtocolError
from cpupool.core.names import REQUIRED_PLUGINS
from cpupool.runtime.nri import mux as nri_mux
from cpupool.runtime.nri import ttrpc

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

_Answer = TypeVar("_Answer")

_PLUGIN: Final = "nri.pkg.api.v1alpha1.Plugin"
_VERSION: Final = "v0.12.1"
_WAITS_S: Final = 2.0
"""The time that a runtime waits for a plugin: containerd's default."""
_HUNG_S: Final = 10.0
_CHUNK_BYTES: Final = 64 * 1024
_UNKNOWN_METHOD: Final = 12
"""gRPC's status code UNIMPLEMENTED."""


class PluginRefusal(CPUPoolError):
    """A container that the runtime does not create, start or update, because of the plugin."""


class NRIServer:
    """Serves one NRI plugin. Use it as a context manager.

    One thread, of this object, reads. One other thread calls the methods.

    Args:
        path: the socket.
        update: sets the CPUs of a container on the plugin's request; returns whether that worked.
    """

    def __init__(self, path: Path, update: Callable[[str, CPUSet], bool]) -> None:
        self._path = path
        self._update = update
        self._sandboxes: dict[str, nri_pb2.PodSandbox] = {}
        self._containers: dict[str, nri_pb2.Container] = {}
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._plugin: socket.socket | None = None
        # Reentrant: a call gets its number and is written before another one does.
        self._writing = threading.RLock()
        self._next_call = 1
        self._calls: dict[int, Future[bytes]] = {}
        self._restarts = 0
        self._connected = threading.Event()
        self._closed = False
        self._reader = threading.Thread(target=self._serve, name="NRI server")

    def __enter__(self) -> Self:
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._listener.bind(str(self._path))
            self._listener.listen(1)
        except OSError as error:
            self._listener.close()
            remedy = "choose a folder with a short path that can be written"
            raise HostFileError(
                str(self._path), f"no socket can be made here: {error}", remedy
            ) from error
        self._reader.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closed = True
        with self._writing:
            for ending in filter(None, (self._listener, self._plugin)):
                # Wakes the thread that accepts or receives.
                with suppress(OSError):
                    ending.shutdown(socket.SHUT_RDWR)
        self._reader.join()
        self._listener.close()

    @property
    def connected(self) -> bool:
        """Whether a plugin is synchronised, so that the runtime asks it before each container."""
        return self._connected.is_set()

    def restart(self) -> None:
        """End the connection, as a runtime that ends and starts again; the plugin may come back.

        Any thread may call this.
        """
        with self._writing, suppress(OSError):
            self._restarts += 1
            if self._plugin:
                self._plugin.shutdown(socket.SHUT_RDWR)

    def sandbox_runs(self, sandbox: nri_pb2.PodSandbox) -> None:
        """Tell that the sandbox of a pod runs."""
        self._sandboxes[sandbox.id] = sandbox
        self._tell("RunPodSandbox", sandbox)

    def create(self, container: nri_pb2.Container) -> nri_pb2.CreateContainerResponse:
        """Ask how to create a container.

        Raises:
            PluginRefusal: the container must not be created.
            RemoteProtocolError: the plugin does not answer.
        """
        request = nri_pb2.CreateContainerRequest(pod=self._pod_of(container), container=container)
        parse = nri_pb2.CreateContainerResponse.FromString
        with self._unless_it_ends():
            answer = self._ask("CreateContainer", request.SerializeToString(), parse)
        required = request.pod.annotations.get(REQUIRED_PLUGINS)
        if answer is None and required is not None:
            raise PluginRefusal(f"validation error: required plugins {required} not present")
        return nri_pb2.CreateContainerResponse() if answer is None else answer

    def start(self, container: nri_pb2.Container) -> None:
        """Ask whether a created container may run its first instruction.

        Raises:
            PluginRefusal: it must not.
            RemoteProtocolError: the plugin does not answer.
        """
        with self._unless_it_ends():
            self._tell("StartContainer", self._pod_of(container), container)

    def started(self, container: nri_pb2.Container) -> None:
        """Tell that a container runs."""
        container.state = nri_pb2.CONTAINER_RUNNING
        self._containers[container.id] = container
        self._tell("PostStartContainer", self._pod_of(container), container)

    def update(self, identifier: str, resources: nri_pb2.LinuxResources) -> None:
        """Ask how to give a running container other resources, and set the CPUs of the answer.

        As with containerd, the plugin sees the container as it was. Its updates of other containers
        come first, and a failure of these stops nothing.

        Args:
            identifier: the container.
            resources: the new resources.

        Raises:
            PluginRefusal: it must keep its resources; nothing is changed.
            RemoteProtocolError: the plugin does not answer; nothing is changed.
            HostError: the CPUs of the container cannot be set.
        """
        container = self._containers[identifier]
        request = nri_pb2.UpdateContainerRequest(
            pod=self._pod_of(container), container=container, linux_resources=resources
        )
        parse = nri_pb2.UpdateContainerResponse.FromString
        with self._unless_it_ends():
            answer = self._ask("UpdateContainer", request.SerializeToString(), parse)
        updates = () if answer is None else answer.update
        # The sort is stable: the container itself comes last.
        for update in sorted(updates, key=lambda each: each.container_id == identifier):
            if not self.updated(update) and update.container_id == identifier:
                cpus = update.linux.resources.cpu.cpus
                raise HostError(f"CPUs {cpus} of container {container.name} cannot be set")
        container.linux.resources.cpu.MergeFrom(resources.cpu)

    def removed(self, container: nri_pb2.Container) -> None:
        """Tell the plugin that a container has gone before its start."""
        self._tell("RemoveContainer", self._pod_of(container), container)

    def ended(self, identifier: str) -> None:
        """Tell that a container, or a sandbox, has ended and is gone."""
        if sandbox := self._sandboxes.pop(identifier, None):
            self._tell("RemovePodSandbox", sandbox)
        if container := self._containers.pop(identifier, None):
            container.state = nri_pb2.CONTAINER_STOPPED
            for method in ("StopContainer", "RemoveContainer"):
                self._tell(method, self._pod_of(container), container)

    @contextmanager
    def _unless_it_ends(self) -> Iterator[None]:
        """Refuse the action of a runtime that has ended meanwhile."""
        restarts = self._restarts
        yield
        if self._restarts != restarts:
            raise PluginRefusal("the container runtime has ended")

    def _pod_of(self, container: nri_pb2.Container) -> nri_pb2.PodSandbox:
        return self._sandboxes[container.pod_sandbox_id]

    def _tell(
        self, method: str, pod: nri_pb2.PodSandbox, container: nri_pb2.Container | None = None
    ) -> None:
        event = nri_pb2.LifecycleEvent(pod=pod, container=container)
        self._ask(method, event.SerializeToString(), nri_pb2.Empty.FromString)

    def _ask(
        self, method: str, request: bytes, parse: Callable[[bytes], _Answer]
    ) -> _Answer | None:
        """Call the plugin; return None if there is none, or none any more."""
        if not self.connected:
            return None
        try:
            return parse(self._call(method, request).result(_HUNG_S))
        except CancelledError:
            return None
        except TooLate as error:
            raise RemoteProtocolError(
                f"the NRI plugin does not answer {method}; look at its log"
            ) from error

    def _call(self, method: str, request: bytes) -> Future[bytes]:
        body = ttrpc_pb2.Request(
            service=_PLUGIN, method=method, payload=request, timeout_nano=int(_WAITS_S * 1e9)
        )
        answer: Future[bytes] = Future()
        with self._writing:
            if not self._plugin:
                answer.cancel()
                return answer
            call, self._next_call = self._next_call, self._next_call + 2
            self._calls[call] = answer
            self._send(nri_mux.PLUGIN_SERVICE, call, ttrpc.REQUEST, body.SerializeToString())
        return answer

    def _send(self, connection: int, stream: int, kind: int, body: bytes) -> None:
        with self._writing, suppress(OSError):
            # The reader notices a plugin that has gone, and cancels its calls.
            if self._plugin:
                self._plugin.sendall(nri_mux.encode(connection, ttrpc.encode(stream, kind, body)))

    def _serve(self) -> None:
        while not self._closed:
            try:
                plugin, _ = self._listener.accept()
            except OSError:
                return
            with self._writing:
                self._plugin = plugin
                self._next_call = 1
            with plugin:
                self._converse(plugin)
            with self._writing:
                self._plugin = None
                self._connected.clear()
                lost, self._calls = self._calls, {}
            for call in lost.values():
                call.cancel()

    def _converse(self, plugin: socket.socket) -> None:
        mux = nri_mux.Decoder()
        streams = {
            nri_mux.PLUGIN_SERVICE: (ttrpc.Decoder(), self._answered),
            nri_mux.RUNTIME_SERVICE: (ttrpc.Decoder(), self._asked),
        }
        with suppress(OSError):
            while not self._closed and (data := plugin.recv(_CHUNK_BYTES)):
                for connection, piece in mux.feed(data):
                    decoder, hear = streams[connection]
                    for frame in decoder.feed(piece):
                        hear(frame)

    def _answered(self, frame: ttrpc.Frame) -> None:
        response = ttrpc_pb2.Response.FromString(frame.body or b"")
        call = self._calls.pop(frame.stream)
        if response.status.code:
            call.set_exception(PluginRefusal(response.status.message))
        else:
            call.set_result(response.payload)

    def _asked(self, frame: ttrpc.Frame) -> None:
        request = ttrpc_pb2.Request.FromString(frame.body or b"")
        response = ttrpc_pb2.Response()
        if request.method == "UpdateContainers":
            asked = nri_pb2.UpdateContainersRequest.FromString(request.payload)
            failed = [update for update in asked.update if not self.updated(update)]
            answer = nri_pb2.UpdateContainersResponse(failed=failed)
            response.payload = answer.SerializeToString()
        elif request.method != "RegisterPlugin":
            response.status.code = _UNKNOWN_METHOD
        body = response.SerializeToString()
        self._send(nri_mux.RUNTIME_SERVICE, frame.stream, ttrpc.RESPONSE, body)
        if request.method == "RegisterPlugin":
            self._introduce()

    def _introduce(self) -> None:
        """Introduce the runtime, name the running containers, and take the plugin's corrections."""
        configure = nri_pb2.ConfigureRequest(
            runtime_name="cpupool-demo", request_timeout=int(_WAITS_S * 1000), NRI_version=_VERSION
        )
        everything = nri_pb2.SynchronizeRequest(
            pods=self._sandboxes.values(), containers=self._containers.values()
        )
        # The thread that reads must not wait for a response.
        self._call("Configure", configure.SerializeToString())
        synchronized = self._call("Synchronize", everything.SerializeToString())
        synchronized.add_done_callback(self._synchronized)

    def _synchronized(self, answer: Future[bytes]) -> None:
        if not answer.cancelled() and answer.exception() is None:
            for update in nri_pb2.SynchronizeResponse.FromString(answer.result()).update:
                self.updated(update)
            self._connected.set()

    def updated(self, update: nri_pb2.ContainerUpdate) -> bool:
        """Set the CPUs that the plugin wants for a container; return whether that worked."""
        cpus = CPUSet.parse(update.linux.resources.cpu.cpus)
        if cpus and not self._update(update.container_id, cpus):
            return False
        if cpus and (container := self._containers.get(update.container_id)):
            container.linux.resources.cpu.cpus = str(cpus)
        return True
