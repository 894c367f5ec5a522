"""The kubelet's side of the CRI, as far as these tests need it.

Messages are those of `cri.proto`; after a change of it, with the generator of `tools/protos.sh`:

    python -m grpc_tools.protoc -I. --python_out=. --pyi_out=. tests/containerd/cri.proto
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Self

import grpc

from tests.containerd import cri_pb2 as pb

if TYPE_CHECKING:
    from pathlib import Path

_OPTIONS: Final = (
    ("grpc.default_authority", "localhost"),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 200),
)
_CALL_S: Final = 120.0
"""Ten starts at once take half a minute in a virtual machine whose CPUs are emulated."""
_READY_S: Final = 1.0
_GRACE_S: Final = 30


class CRIClient:
    """Calls one runtime, and waits for it while it restarts. Any thread may call it.

    Raises:
        grpc.RpcError: in every method, where the runtime refuses.
    """

    def __init__(self, socket: Path) -> None:
        self._channel = grpc.insecure_channel(f"unix:{socket}", options=_OPTIONS)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._channel.close()

    def ready(self) -> bool:
        """Tell whether the runtime answers by now."""
        request = pb.ListPodSandboxRequest()
        try:
            self._call("ListPodSandbox", request, timeout_s=_READY_S)
        except grpc.RpcError:
            return False
        return True

    def has_image(self, name: str) -> bool:
        """Tell whether containers can be made of an image."""
        request = pb.ImageStatusRequest(image=pb.ImageSpec(image=name))
        answer = self._call("ImageStatus", request, pb.ImageStatusResponse, service="ImageService")
        return bool(answer.HasField("image"))

    def run_sandbox(self, config: pb.PodSandboxConfig) -> str:
        """Start a pod's sandbox, and give its id."""
        request = pb.RunPodSandboxRequest(config=config)
        answer = self._call("RunPodSandbox", request, pb.RunPodSandboxResponse)
        return str(answer.pod_sandbox_id)

    def remove_sandbox(self, sandbox: str) -> None:
        """End a pod's sandbox and every container in it."""
        request = pb.PodSandboxRequest(pod_sandbox_id=sandbox)
        self._call("StopPodSandbox", request)
        self._call("RemovePodSandbox", request)

    def create(self, sandbox: str, config: pb.ContainerConfig, within: pb.PodSandboxConfig) -> str:
        """Make a container of a sandbox that was run with the configuration `within`."""
        request = pb.CreateContainerRequest(
            pod_sandbox_id=sandbox, config=config, sandbox_config=within
        )
        return str(self._call("CreateContainer", request, pb.CreateContainerResponse).container_id)

    def start(self, container: str) -> None:
        """Let a container's program run."""
        self._call("StartContainer", pb.ContainerRequest(container_id=container))

    def stop(self, container: str, grace_s: int = _GRACE_S) -> None:
        """End a container: by SIGTERM, and by SIGKILL when it takes too long."""
        request = pb.StopContainerRequest(container_id=container, timeout=grace_s)
        self._call("StopContainer", request)

    def update(self, container: str, resources: pb.LinuxContainerResources) -> None:
        """Change a container's resources, as the kubelet does in an in-place resize."""
        request = pb.UpdateContainerResourcesRequest(container_id=container, linux=resources)
        self._call("UpdateContainerResources", request)

    def status(self, container: str) -> pb.ContainerStatus:
        """Give what the runtime knows of a container."""
        request = pb.ContainerRequest(container_id=container)
        answer: pb.ContainerStatusResponse = self._call(
            "ContainerStatus", request, pb.ContainerStatusResponse
        )
        return answer.status

    def _call(
        self,
        method: str,
        request: Any,
        answer: Any = pb.Empty,
        *,
        service: str = "RuntimeService",
        timeout_s: float = _CALL_S,
    ) -> Any:
        call = self._channel.unary_unary(
            f"/runtime.v1.{service}/{method}",
            request_serializer=type(request).SerializeToString,
            response_deserializer=answer.FromString,
        )
        return call(request, timeout=timeout_s, wait_for_ready=True)
