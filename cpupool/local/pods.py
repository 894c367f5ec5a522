"""A pod of the embedded node, with the status that a kubelet would report.

Bodies are replaced, never changed, so any thread may read a body.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from cpupool.core.workloads import ContainerKind
from cpupool.kube import descriptions, views
from cpupool.local import process

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from cpupool.core.cpuset import CPUSet
    from cpupool.core.names import Names
    from cpupool.core.workloads import Pod
    from cpupool.local.runtime import Instance

_STATUS_LISTS: Final = {
    ContainerKind.INIT: "initContainerStatuses",
    ContainerKind.SIDECAR: "initContainerStatuses",
    ContainerKind.APP: "containerStatuses",
    ContainerKind.EPHEMERAL: "ephemeralContainerStatuses",
}


@dataclass(frozen=True, slots=True)
class ContainerProcess:
    """A process of the node.

    Attributes:
        pod: its pod.
        container: the container's name; empty for the pod's sandbox.
        instance: its id, pid, cgroup and environment.
        annotations: the container's annotations from the device plugins.
    """

    pod: Pod
    container: str
    instance: Instance
    annotations: Mapping[str, str] = field(default_factory=dict)

    def cpus_allowed(self) -> CPUSet:
        """Read from the kernel the CPUs on which it may run.

        Raises:
            FileNotFoundError: it has ended.
        """
        return process.cpus_allowed(self.instance.pid)


class HostedPod:
    """A pod and its running containers.

    Args:
        body: the body in the API server.
        names: the resource of each pool.

    Attributes:
        body: the body with the present status.
        pod: the body as cpupool's value.
        environments: container name → the variables of its spec.
        others: container name → the extended resources in its limits that are not pools, and how
            many devices of each.
        running: container name → its instance, the sandbox under the empty name.
        begun: how many containers of the spec have been started once.
        again: the containers that have ended, and are to be started again.
        held: why the container runtime did not create the next container; empty if it did.

    Raises:
        ManifestError: the body is not a pod.
    """

    def __init__(self, body: views.Body, names: Names) -> None:
        self._names = names
        self._phase: Mapping[str, str] = {"phase": "Pending"}
        self._statuses: dict[str, dict[str, Any]] = {}
        self._annotations: dict[str, Mapping[str, str]] = {}
        self.running: dict[str, Instance] = {}
        self.begun = 0
        self.again: list[str] = []
        self.held = ""
        self.take(body)

    def take(self, body: views.Body) -> None:
        """Take a new body, as after an update through the API server.

        Raises:
            ManifestError: it is not a pod; nothing is changed.
        """
        pod = descriptions.pod(body, self._names)
        self.environments = {
            container.name: views.environment(body, container.name) for container in pod.containers
        }
        self.others = dict(_others(body, self._names))
        self.body, self.pod = body, pod
        self._report()

    def with_ephemeral(self, container: Mapping[str, Any]) -> views.Body:
        """Return the body with one more ephemeral container."""
        spec = self.body["spec"]
        added = [*(spec.get("ephemeralContainers") or []), copy.deepcopy(container)]
        return {**self.body, "spec": {**spec, "ephemeralContainers": added}}

    def processes(self) -> Iterator[ContainerProcess]:
        """Return the running processes."""
        for name, instance in self.running.items():
            yield ContainerProcess(self.pod, name, instance, self._annotations.get(name, {}))

    def started(self, name: str, instance: Instance, annotations: Mapping[str, str]) -> None:
        """Report that a container runs."""
        self.held = ""
        # A container that was only refused has no earlier instance.
        before = self._statuses.get(name)
        before = before if before and before["containerID"] else None
        self.running[name] = instance
        self._annotations[name] = annotations
        self._statuses[name] = {
            "name": name,
            "image": "",
            "imageID": "",
            "containerID": f"containerd://{instance.id}",
            "state": {"running": {"startedAt": _now()}},
            "lastState": before["state"] if before else {},
            "restartCount": before["restartCount"] + 1 if before else 0,
            "ready": True,
            "started": True,
        }
        self._phase = {"phase": "Running"}
        self._report()

    def refused(self, name: str, why: str) -> None:
        """Report that the container runtime did not create a container."""
        self.held = why
        waiting = {"reason": "CreateContainerError", "message": why}
        self._statuses[name] = {
            "name": name,
            "image": "",
            "imageID": "",
            "containerID": "",
            "state": {"waiting": waiting},
            "lastState": {},
            "restartCount": 0,
            "ready": False,
            "started": False,
        }
        self._report()

    def ended(self, name: str, exit_code: int) -> None:
        """Report that a container has ended."""
        before = self._statuses[name]
        del self.running[name]
        terminated = {
            "containerID": before["containerID"],
            "exitCode": exit_code,
            "reason": "Error" if exit_code else "Completed",
            "startedAt": before["state"]["running"]["startedAt"],
            "finishedAt": _now(),
        }
        state = {"state": {"terminated": terminated}, "ready": False, "started": False}
        self._statuses[name] = {**before, **state}
        self._report()

    def finished(self, phase: Mapping[str, str]) -> None:
        """Report that the pod has ended: phase, and for a failure reason and message."""
        self._phase = phase
        self._report()

    def _report(self) -> None:
        status: dict[str, Any] = {**self._phase, "qosClass": self.pod.qos and self.pod.qos.value}
        for container in self.pod.containers:
            if container.name in self._statuses:
                listed = status.setdefault(_STATUS_LISTS[container.kind], [])
                listed.append(self._statuses[container.name])
        self.body = {**self.body, "status": status}
        self.pod = descriptions.pod(self.body, self._names)


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _others(body: views.Body, names: Names) -> Iterator[tuple[str, dict[str, int]]]:
    """Yield each container with its limits of extended resources that are not pools."""
    for listed in ("initContainers", "containers"):
        for container in body["spec"].get(listed) or ():
            limits = (container.get("resources") or {}).get("limits") or {}
            yield (
                container["name"],
                {
                    resource: int(amount)
                    for resource, amount in limits.items()
                    if "/" in resource and names.pool_of(resource) is None
                },
            )
