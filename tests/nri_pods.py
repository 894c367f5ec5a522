"""Pods and containers as a runtime names them by NRI."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from cpupool.api import nri_pb2
from cpupool.core.names import Names

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True)
class Pod:
    """A pod of the kubelet's, and its sandbox.

    Attributes:
        annotations: what the pod's author wrote. Its containers have a copy, as CRI-O makes it.
        cgroup_parent: the pod's cgroup.
        own_labels: the labels that its author gave it.
    """

    uid: str = "11111111-2222-3333-4444-555555555555"
    name: str = "pod"
    namespace: str = "default"
    labelled: bool = True
    cgroup_parent: str = ""
    annotations: Mapping[str, str] = field(default_factory=dict)
    own_labels: Mapping[str, str] = field(default_factory=dict)

    @property
    def sandbox(self) -> str:
        """The sandbox's id."""
        return f"sandbox-of-{self.uid}"

    @property
    def labels(self) -> dict[str, str]:
        """Those that the kubelet gives, if it is its."""
        if not self.labelled:
            return {}
        return {
            **self.own_labels,
            "io.kubernetes.pod.uid": self.uid,
            "io.kubernetes.pod.name": self.name,
            "io.kubernetes.pod.namespace": self.namespace,
        }

    def message(self) -> nri_pb2.PodSandbox:
        """Write it as the runtime does."""
        message = nri_pb2.PodSandbox(
            id=self.sandbox, labels=self.labels, annotations=self.annotations
        )
        message.linux.cgroup_parent = self.cgroup_parent
        return message


@dataclass(frozen=True)
class Container:
    """A container of a pod.

    Attributes:
        devices: pool → description of the device ids, as Allocate writes it.
        own_labels: whether it carries its pod's labels, too.
        chosen: the CPUs in the annotation that an earlier agent wrote; empty for no annotation.
        shares: its cpu shares, 1024 for each CPU that it requests.
        oom_score_adj: the kubelet's score for it.
        memory_bytes: its limit of memory; 0 for none.
        swap_bytes: its limit of memory and swap together; 0 for none.
    """

    pod: Pod
    id: str
    name: str = "main"
    cpus: str = ""
    devices: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    state: int = nri_pb2.CONTAINER_CREATED
    own_labels: bool = True
    quota_us: int | None = None
    chosen: str = ""
    shares: int = 0
    oom_score_adj: int = 0
    memory_bytes: int = 0
    swap_bytes: int = 0

    def message(self) -> nri_pb2.Container:
        """Write it as the runtime does."""
        labels = {"io.kubernetes.container.name": self.name} if self.pod.labelled else {}
        allocated = {Names().allocated(pool): ids for pool, ids in self.devices.items()}
        chosen = {Names().chosen: self.chosen} if self.chosen else {}
        message = nri_pb2.Container(
            id=self.id,
            pod_sandbox_id=self.pod.sandbox,
            name=self.name,
            state=self.state,  # type: ignore[arg-type]  # any number can come
            labels=labels | (self.pod.labels if self.own_labels else {}),
            annotations={**self.pod.annotations, **allocated, **chosen},
            env=[f"{name}={value}" for name, value in self.environment.items()],
        )
        set_cpu(message.linux.resources.cpu, self.cpus, self.quota_us)
        message.linux.resources.cpu.shares.value = self.shares
        message.linux.oom_score_adj.value = self.oom_score_adj
        if self.memory_bytes:
            message.linux.resources.memory.limit.value = self.memory_bytes
        if self.swap_bytes:
            message.linux.resources.memory.swap.value = self.swap_bytes
        return message


def set_cpu(
    cpu: nri_pb2.LinuxCPU, cpus: str, quota_us: int | None, period_us: int = 100_000
) -> None:
    cpu.cpus = cpus
    if quota_us is not None:
        cpu.quota.value = quota_us
        cpu.period.value = period_us
