"""The status of a pod, in which the agent can write that the pod has failed.

An update of the status takes annotations, too: so the agent can write which CPUs it chose.

Source: the kubelet rejects a pod in the same fields, in pkg/kubelet/kubelet.go (rejectPod); what an
update of the status takes: podStatusStrategy in pkg/registry/core/pod/strategy.go.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from cpupool.core import visible
from cpupool.kube.connection import APIConnection
from cpupool.kube.events import LONGEST_MESSAGE_BYTES
from cpupool.kube.resources import PODS

if TYPE_CHECKING:
    from cpupool.core.workloads import Pod
    from cpupool.kube.client import APIServer

_PENDING: Final = "Pending"
_FAILED: Final = "Failed"


class PodStatus:
    """A `PodStatusSink`; one thread uses it, and any thread may interrupt it.

    Args:
        server: the API server.
    """

    def __init__(self, server: APIServer) -> None:
        self._connection = APIConnection(server)

    def fail(self, pod: Pod, reason: str, message: str) -> None:
        """Set the phase of a pending pod to Failed.

        Raises:
            APIError: there is no response, or it is a refusal: 404 and 422 where the pod has ended,
                has started, or has made room for a successor with its name.
        """
        target = PODS.object(pod.name, pod.namespace, subresource="status")
        said = visible.cut(message, LONGEST_MESSAGE_BYTES)
        self._connection.json_patch(
            target,
            [
                {"op": "test", "path": "/metadata/uid", "value": pod.uid},
                {"op": "test", "path": "/status/phase", "value": _PENDING},
                {"op": "add", "path": "/status/phase", "value": _FAILED},
                {"op": "add", "path": "/status/reason", "value": reason},
                {"op": "add", "path": "/status/message", "value": said},
            ],
        )

    def annotate(self, pod: Pod, key: str, value: str) -> None:
        """Set an annotation of a pod, never of a successor with its name.

        Raises:
            APIError: there is no response, or it is a refusal: 404 where the pod has ended, 422
                where it has a successor with its name, or a policy keeps the annotation.
        """
        target = PODS.object(pod.name, pod.namespace, subresource="status")
        metadata = {"uid": pod.uid, "annotations": {key: value}}
        self._connection.merge_patch(target, {"metadata": metadata})

    def interrupt(self) -> None:
        """End the request that is going on, and every later one."""
        self._connection.interrupt()
