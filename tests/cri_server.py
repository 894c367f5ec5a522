"""A container runtime as its CRI clients meet it: containers in memory, gRPC over a unix socket."""

from __future__ import annotations

import json
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Self

import grpc

from cpupool.api import cri_pb2 as cri
from cpupool.api.cri_pb2_grpc import RuntimeServiceServicer, add_RuntimeServiceServicer_to_server
from tests.waiting import DEADLINE_S

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path


def labels(pod: str, container: str = "", namespace: str = "apps") -> dict[str, str]:
    """Give the labels of a pod's container, or of its sandbox."""
    given = {
        "io.kubernetes.pod.uid": f"uid-of-{pod}",
        "io.kubernetes.pod.namespace": namespace,
        "io.kubernetes.pod.name": pod,
    }
    return given | {"io.kubernetes.container.name": container} if container else given


class FakeCRI(RuntimeServiceServicer):
    """Listens on its socket between `start` and `stop`; a context manager.

    What it knows is kept over restarts, as a runtime keeps its containers.

    Attributes:
        socket: where it listens.
        name: what it calls itself.
        version: its own.
        containers: id → container.
        sandboxes: id → sandbox.
        updates: (container id, CPU list) of every update that it made, in order.
        memory: the memory nodes in each change that it was asked for, in order.
        quotas: (container id, quota, period) of every update of those.
        asked: the resources in each change that it was asked for, in order.
        calls: method → how often it was called.
        failing: method → how it fails; a method that is not there works.
        answers: nothing is answered while this is not set.
        terse: a verbose status has no more in it than any other.
        obey: called with each container and CPU list before that update is made.
    """

    def __init__(self, socket: Path, name: str = "containerd", version: str = "v2.1.4") -> None:
        self.socket = socket
        self.name = name
        self.version = version
        self.containers: dict[str, cri.ContainerStatus] = {}
        self.sandboxes: dict[str, cri.PodSandbox] = {}
        self.updates: list[tuple[str, str]] = []
        self.memory: list[str] = []
        self.quotas: list[tuple[str, int, int]] = []
        self.asked: list[cri.LinuxContainerResources] = []
        self.calls: Counter[str] = Counter()
        self.failing: dict[str, grpc.StatusCode] = {}
        self.answers = threading.Event()
        self.answers.set()
        self.terse = False
        self.obey: Callable[[str, str], None] = lambda _id, _cpus: None
        self._specs: dict[str, str] = {}
        self._annotations: dict[str, dict[str, str]] = {}
        self._lock = threading.Lock()
        self._server: grpc.Server | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        self.socket.parent.mkdir(parents=True, exist_ok=True)
        self._server = grpc.server(ThreadPoolExecutor(4))
        add_RuntimeServiceServicer_to_server(self, self._server)
        self._server.add_insecure_port(f"unix:{self.socket}")
        self._server.start()

    def stop(self) -> None:
        self.answers.set()
        if self._server is not None:
            self._server.stop(None).wait(DEADLINE_S)
            self._server = None

    def restart(self) -> None:
        self.stop()
        self.start()

    def add_sandbox(
        self, identifier: str, pod: str, annotations: Mapping[str, str] | None = None
    ) -> None:
        """Make a pod's sandbox, with the pod's annotations."""
        self.sandboxes[identifier] = cri.PodSandbox(
            id=identifier, labels=labels(pod), annotations=annotations or {}
        )

    def add(
        self,
        identifier: str,
        pod: str,
        name: str = "main",
        *,
        cpus: str = "",
        nri_cpus: str = "",
        annotations: Mapping[str, str] | None = None,
        nri_annotations: Mapping[str, str] | None = None,
    ) -> cri.ContainerStatus:
        """Make a container of a pod.

        Args:
            identifier: its id.
            pod: the pod's name.
            name: the container's.
            cpus: the CPU list that it was created with.
            nri_cpus: the one that a plugin has made of it, which only its OCI spec shows.
            annotations: the container's own.
            nri_annotations: those that a plugin has added, which only its OCI spec shows.
        """
        self._annotations[identifier] = {**(annotations or {}), **(nri_annotations or {})}
        self._specs[identifier] = nri_cpus or cpus
        made = self.containers[identifier] = cri.ContainerStatus(
            id=identifier,
            labels=labels(pod, name),
            annotations=annotations or {},
            resources=_resources(cpus),
        )
        return made

    def Version(  # noqa: N802
        self, _request: cri.VersionRequest, context: grpc.ServicerContext
    ) -> cri.VersionResponse:
        self._called("Version", context)
        return cri.VersionResponse(runtime_name=self.name, runtime_version=self.version)

    def ListContainers(  # noqa: N802
        self, request: cri.ListContainersRequest, context: grpc.ServicerContext
    ) -> cri.ListContainersResponse:
        self._called("ListContainers", context)
        # Runtimes take the beginning of an id for the whole.
        return cri.ListContainersResponse(
            containers=[
                cri.Container(
                    id=one.id,
                    pod_sandbox_id=self._sandbox_of(one),
                    labels=one.labels,
                    annotations=one.annotations,
                )
                for one in list(self.containers.values())
                if one.id.startswith(request.filter.id)
            ]
        )

    def _sandbox_of(self, container: cri.ContainerStatus) -> str:
        uid = container.labels.get("io.kubernetes.pod.uid", "")
        sandboxes = list(self.sandboxes.values())
        found = (one.id for one in sandboxes if one.labels["io.kubernetes.pod.uid"] == uid)
        return next(found, "")

    def ListPodSandbox(  # noqa: N802
        self, request: cri.ListPodSandboxRequest, context: grpc.ServicerContext
    ) -> cri.ListPodSandboxResponse:
        self._called("ListPodSandbox", context)
        found = list(self.sandboxes.values())
        return cri.ListPodSandboxResponse(
            items=[one for one in found if one.id.startswith(request.filter.id)]
        )

    def ContainerStatus(  # noqa: N802
        self, request: cri.ContainerStatusRequest, context: grpc.ServicerContext
    ) -> cri.ContainerStatusResponse:
        self._called("ContainerStatus", context)
        found = self._find(request.container_id, context)
        cpu = {"shares": 2, "cpus": self._specs[found.id]} if self._specs[found.id] else {}
        spec = {
            "ociVersion": "1.2.1",
            "annotations": self._annotations[found.id],
            "linux": {"resources": {"cpu": cpu}},
        }
        verbose = request.verbose and not self.terse
        info = {"info": json.dumps({"pid": 1, "runtimeSpec": spec})} if verbose else {}
        return cri.ContainerStatusResponse(status=found, info=info)

    def UpdateContainerResources(  # noqa: N802
        self, request: cri.UpdateContainerResourcesRequest, context: grpc.ServicerContext
    ) -> cri.UpdateContainerResourcesResponse:
        self._called("UpdateContainerResources", context)
        found = self._find(request.container_id, context)
        self.memory.append(request.linux.cpuset_mems)
        self.asked.append(request.linux)
        # What is not set stays as it is.
        if request.linux.cpuset_cpus:
            self.obey(request.container_id, request.linux.cpuset_cpus)
            found.resources.CopyFrom(_resources(request.linux.cpuset_cpus))
            self._specs[found.id] = request.linux.cpuset_cpus
            self.updates.append((request.container_id, request.linux.cpuset_cpus))
        if request.linux.cpu_quota:
            quota = (request.linux.cpu_quota, request.linux.cpu_period)
            self.quotas.append((request.container_id, *quota))
        return cri.UpdateContainerResourcesResponse()

    def _called(self, method: str, context: grpc.ServicerContext) -> None:
        with self._lock:
            self.calls[method] += 1
        self.answers.wait(DEADLINE_S)
        if method in self.failing:
            context.abort(self.failing[method], "it was told to fail")

    def _find(self, identifier: str, context: grpc.ServicerContext) -> cri.ContainerStatus:
        if identifier not in self.containers:
            context.abort(grpc.StatusCode.NOT_FOUND, f"no container {identifier}")
        return self.containers[identifier]


def _resources(cpus: str) -> cri.ContainerResources:
    return cri.ContainerResources(linux=cri.LinuxContainerResources(cpuset_cpus=cpus))
