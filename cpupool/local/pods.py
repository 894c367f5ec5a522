"""A pod of the embedded node, with the status that a kubelet would report.

Bodies are replaced, never changed, so any thread may read a body. After a resize in place there are
up to three sets of resources: the spec has those that its author wants, the kubelet has taken some
(`allocatedResources`), and the runtime has carried out some (`resources`).
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from cpupool.core.errors import ManifestError
from cpupool.core.pod_resources import CPU
from cpupool.core.workloads import ContainerKind
from cpupool.kube import descriptions, views
from cpupool.local import process

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from cpupool.core.cpuset import CPUSet
    from cpupool.core.names import Names
    from cpupool.core.workloads import Container, Pod
    from cpupool.local.node_fit import ResizePending
    from cpupool.local.runtime import Instance

    _Resources = Mapping[str, Mapping[str, str]]
    """`resources` of a container: `requests` and `limits`."""

_STATUS_LISTS: Final = {
    ContainerKind.INIT: "initContainerStatuses",
    ContainerKind.SIDECAR: "initContainerStatuses",
    ContainerKind.APP: "containerStatuses",
    ContainerKind.EPHEMERAL: "ephemeralContainerStatuses",
}
_RESIZABLE: Final = (ContainerKind.APP, ContainerKind.SIDECAR)


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
        pending: why the kubelet does not take the resources of the spec; None if it has, or has not
            looked yet.
        failed: why the runtime did not carry out a resize at the last attempt; empty if it did.

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
        self.pending: ResizePending | None = None
        self.failed = ""
        self._taken: Mapping[str, _Resources] = {}
        self._carried_out: dict[str, _Resources] = {}
        self.take(body)
        self.allocated(None)

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

    def with_cpus(self, cpus: Mapping[str, str]) -> views.Body:
        """Return the body with other cpu of some containers, as the API server takes a resize.

        Args:
            cpus: container → its cpu, in place of each request and limit of cpu that it has.

        Raises:
            ManifestError: a container is not there or cannot be resized, or the pod would change
                its QoS class.
        """
        source = f"pod {self.pod.namespace}/{self.pod.name}"
        kinds = {container.name: container.kind for container in self.pod.containers}
        for name in cpus:
            if kinds.get(name) not in _RESIZABLE:
                raise ManifestError(source, "spec", f"no container {name!r} can be resized")
        resources = {
            name: {
                part: {**amounts, CPU: cpus[name]} if CPU in amounts else amounts
                for part, amounts in given.items()
            }
            for name, given in _resources(self.body)
            if name in cpus
        }
        body = _with(self.body, resources)
        if descriptions.pod({**body, "status": {}}, self._names).qos is not self.pod.qos:
            raise ManifestError(source, "spec", "a resize must not change the QoS class")
        return body

    @property
    def wishes(self) -> bool:
        """Whether the spec has resources that the kubelet has not taken."""
        return dict(_resources(self.body)) != self._taken

    def as_taken(self) -> Pod:
        """Return the pod with the resources that the kubelet has taken."""
        return descriptions.pod(_with(self.body, self._taken), self._names)

    def allocated(self, pending: ResizePending | None) -> None:
        """Report that the kubelet has taken the resources of the spec, or why it has not."""
        self.pending = pending
        if pending is None:
            self._taken = dict(_resources(self.body))
            self.failed = ""
        self._report()

    def to_resize(self) -> tuple[Container, ...]:
        """Return the containers whose cpu the runtime has to change, decreases first.

        The kubelet puts each decrease before all others, so that the last container has the first
        one. Source: kubernetes pkg/kubelet/kuberuntime, computePodResizeAction.
        """
        late = {name for name, had in self._carried_out.items() if had != self._taken.get(name)}
        if not late:
            return ()
        before = _with(self.body, self._carried_out)
        have = {each.name: _cpu(each) for each in descriptions.pod(before, self._names).containers}
        ordered: list[Container] = []
        for container in self.as_taken().containers:
            if container.name not in late or container.kind not in _RESIZABLE:
                continue
            if (had := have[container.name]) != (wanted := _cpu(container)):
                ordered.insert(0 if wanted < had else len(ordered), container)
        return tuple(ordered)

    def resized(self, name: str) -> None:
        """Report that the runtime has carried out what the kubelet has taken for a container."""
        self.failed = ""
        self._carried_out[name] = self._taken[name]
        self._report()

    def not_resized(self, why: str) -> None:
        """Report that the runtime did not carry out the next resize."""
        self.failed = why
        self._report()

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
        if name in self._taken:
            self.failed = ""
            self._carried_out[name] = self._taken[name]
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
        self._carried_out.pop(name, None)
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
        if conditions := list(self._conditions()):
            status["conditions"] = conditions
        for container in self.pod.containers:
            if container.name in self._statuses:
                listed = status.setdefault(_STATUS_LISTS[container.kind], [])
                found = self._statuses[container.name]
                listed.append({**found, **self._resources_of(container)})
        self.body = {**self.body, "status": status}
        self.pod = descriptions.pod(self.body, self._names)

    def _conditions(self) -> Iterator[dict[str, str]]:
        if self.pending:
            said = {"reason": self.pending.reason, "message": self.pending.message}
            yield {"type": "PodResizePending", "status": "True", **said}
        if self._phase.get("phase") == "Running" and self.to_resize():
            said = {"reason": "Error", "message": self.failed} if self.failed else {}
            yield {"type": "PodResizeInProgress", "status": "True", **said}

    def _resources_of(self, container: Container) -> dict[str, object]:
        """Return what a container's status says of its resources."""
        taken = self._taken.get(container.name)
        if container.kind not in _RESIZABLE or not taken:
            return {}
        carried_out = self._carried_out.get(container.name, taken)
        return {"allocatedResources": taken["requests"], "resources": carried_out}


def _cpu(container: Container) -> tuple[int, int]:
    """Return the numbers by which the kubelet compares: the limit counts first."""
    return container.limit_milli or 0, container.request_milli


def _resources(body: views.Body) -> Iterator[tuple[str, _Resources]]:
    """Yield each container that can have resources, with its requests and limits.

    As in the API server, a limit is the request of a resource without one.
    """
    for listed in ("initContainers", "containers"):
        for container in body["spec"].get(listed) or ():
            given = container.get("resources") or {}
            limits, requests = given.get("limits") or {}, given.get("requests") or {}
            found = {"requests": {**limits, **requests}, "limits": limits}
            yield container["name"], {part: amounts for part, amounts in found.items() if amounts}


def _with(body: views.Body, resources: Mapping[str, _Resources]) -> views.Body:
    """Return a body with other resources of some containers."""

    def changed(container: Mapping[str, Any]) -> Mapping[str, Any]:
        if (found := resources.get(container["name"])) is None:
            return container
        others = container.get("resources") or {}
        return {**container, "resources": {**others, "requests": {}, "limits": {}, **found}}

    spec = body["spec"]
    lists = [listed for listed in ("initContainers", "containers") if listed in spec]
    lists_changed = {listed: [*map(changed, spec[listed] or ())] for listed in lists}
    return {**body, "spec": {**spec, **lists_changed}}


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
