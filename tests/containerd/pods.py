"""The pods of these tests, and how the kubelet describes them to a container runtime.

Sources: kubernetes pkg/kubelet/types/labels.go, pkg/kubelet/kuberuntime/labels.go and
kuberuntime_container_linux.go.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

import pytest

from cpupool.core.cpuset import CPUSet
from cpupool.core.names import Names
from cpupool.local.runtime import pod_cgroup
from tests.containerd import cri_pb2 as pb
from tests.containerd import images

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from cpupool.core.topology import CPUTopology
    from cpupool.core.workloads import Pod
    from cpupool.local.kubelet import RunOptions
    from cpupool.local.pods import HostedPod

CONTAINER: Final = "main"
"""The name of a pod's only container."""

NIC: Final = "example.com/nic"
"""The resource of `Kind.NIC`."""

_EXCLUSIVE: Final = Names().resource("exclusive_test")
_SHARED: Final = Names().resource("shared_test")
_NAMESPACES: Final = pb.NamespaceOption(network=2, pid=1)
"""The host's network, and no other processes in sight: NODE and CONTAINER of api.proto."""
_PERIOD_US: Final = 100_000


class Kind(Enum):
    """What a container asks for; its pod is Guaranteed, Burstable or BestEffort, in this order."""

    EXCLUSIVE = "exclusive"
    SHARED = "shared"
    DEFAULT = "default"
    STATIC = "static"
    """A whole CPU of its own, from the node's CPU manager policy."""
    NIC = "nic"
    """A resource that only a plugin knows, and nothing of the kubelet's."""

    @property
    def limits(self) -> dict[str, str]:
        """Give the container's limits."""
        return {
            Kind.EXCLUSIVE: {_EXCLUSIVE: "1", "cpu": "1000m", "memory": "64Mi"},
            Kind.SHARED: {_SHARED: "100", "cpu": "500m"},
            Kind.DEFAULT: {},
            Kind.STATIC: {"cpu": "1000m", "memory": "64Mi"},
            Kind.NIC: {NIC: "1"},
        }[self]

    def manifest(
        self,
        name: str,
        annotations: Mapping[str, str] | None = None,
        labels: Mapping[str, str] | None = None,
    ) -> dict[str, Any]:
        """Give a pod."""
        container = {"name": CONTAINER, "resources": {"limits": self.limits}}
        metadata = {"name": name, "annotations": annotations or {}, "labels": labels or {}}
        return {"kind": "Pod", "metadata": metadata, "spec": {"containers": [container]}}

    @property
    def resources(self) -> pb.LinuxContainerResources:
        """Give what the kubelet makes of the limits; it names no CPUs under its policy none."""
        milli = int(self.limits.get("cpu", "0m").removesuffix("m"))
        return pb.LinuxContainerResources(
            cpu_shares=max(2, milli * 1024 // 1000),
            cpu_quota=milli * _PERIOD_US // 1000,
            cpu_period=_PERIOD_US,
        )


@dataclass(frozen=True, slots=True)
class Layout:
    """The CPUs of three pools; none for a kind that a machine has no core left for.

    Attributes:
        cpu_manager: the pool file's line for the CPU manager policy; empty for none.
    """

    default: CPUSet
    shared: CPUSet
    exclusive: CPUSet
    cpu_manager: str = ""

    @classmethod
    def of(cls, topology: CPUTopology) -> tuple[Layout, ...]:
        """Give what fits a machine: with two cores, one kind after the other has the second."""
        if len(topology.cores) < 2:
            pytest.skip("two cores are needed: on one, every CPU is right")
        first, second, *others = topology.cores
        if others:
            return (cls(first, second, CPUSet(core.first for core in others)),)
        return cls(first, first, CPUSet.of(second.first)), cls(first, second, CPUSet())

    @classmethod
    def governed(cls, topology: CPUTopology, policy: str = "static") -> Layout:
        """Give one pool of all CPUs, whose CPU manager policy keeps one for everybody."""
        if len(topology.online) < 2:
            pytest.skip("two CPUs are needed: on one, every CPU is right")
        manager = f"cpuManager: {{policy: {policy}, reserved: 1}}"
        return cls(topology.online, CPUSet(), CPUSet(), manager)

    @property
    def pools(self) -> str:
        """The text of the pool file."""
        pools = {
            "default": self.default,
            "shared_test": self.shared,
            "exclusive_test": self.exclusive,
        }
        lines = [f'  {name}: {{cpus: "{cpus}"}}' for name, cpus in pools.items() if cpus]
        return "\n".join(["pools:", *lines, self.cpu_manager, ""])

    @property
    def resources(self) -> tuple[str, ...]:
        """The resources that a node with these pools offers."""
        offered = {_SHARED: self.shared, _EXCLUSIVE: self.exclusive}
        return tuple(resource for resource, cpus in offered.items() if cpus)

    def mixed(self, count: int) -> list[Kind]:
        """Give so many kinds: at most half are exclusive, one for each CPU, and both others."""
        own = [Kind.EXCLUSIVE] * min(len(self.exclusive), count // 2)
        return [*own, *([Kind.SHARED, Kind.DEFAULT] * count)][:count]


@dataclass(slots=True)
class Hosted:
    """A pod on the node.

    Attributes:
        hosted: what the API server and the kubelet know of it.
        kind: what its container asks for.
        look_us: how often its program looks where it is.
        stays: its program ends by SIGKILL only.
        sandbox: the runtime's id of its sandbox; empty while there is none.
        container: the runtime's id of its container's present life; empty before the first.
        attempt: the number of that life.
        called_ns: when it was asked for, on CLOCK_MONOTONIC.
        refused: what the runtime said when it did not make the container.
    """

    hosted: HostedPod
    kind: Kind
    look_us: int
    stays: bool = False
    sandbox: str = ""
    container: str = ""
    attempt: int = 0
    called_ns: int = 0
    refused: list[str] = field(default_factory=list)

    @property
    def pod(self) -> Pod:
        """The pod as cpupool reads it."""
        return self.hosted.pod

    @property
    def log(self) -> str:
        """The file of the container's present life, in the pod's folder."""
        return f"{CONTAINER}-{self.attempt}.log"

    def sandbox_config(self, cgroup_root: str, logs: Path) -> pb.PodSandboxConfig:
        """Describe the sandbox."""
        pod = self.pod
        return pb.PodSandboxConfig(
            metadata=pb.PodSandboxMetadata(name=pod.name, uid=pod.uid, namespace=pod.namespace),
            log_directory=str(logs),
            labels={**self.hosted.body["metadata"]["labels"], **self._labels},
            annotations={
                **self.hosted.body["metadata"]["annotations"],
                "kubernetes.io/config.source": "api",
            },
            linux=pb.LinuxPodSandboxConfig(
                cgroup_parent=f"{cgroup_root}/{pod_cgroup(pod)}",
                security_context=pb.SecurityContext(namespace_options=_NAMESPACES),
            ),
        )

    def container_config(self, options: RunOptions) -> pb.ContainerConfig:
        """Describe the container.

        Args:
            options: what device plugins add.
        """
        given = options.environment.items()
        return pb.ContainerConfig(
            metadata=pb.ContainerMetadata(name=CONTAINER, attempt=self.attempt),
            image=pb.ImageSpec(image=images.PROBE),
            args=[str(self.look_us), *(["stays"] if self.stays else [])],
            envs=[pb.KeyValue(key=name, value=value.encode()) for name, value in given],
            labels={**self._labels, "io.kubernetes.container.name": CONTAINER},
            annotations={
                "io.kubernetes.container.restartCount": str(self.attempt),
                "io.kubernetes.pod.terminationGracePeriod": "30",
                **options.annotations,
            },
            log_path=self.log,
            linux=pb.LinuxContainerConfig(
                resources=self.kind.resources,
                security_context=pb.LinuxContainerSecurityContext(namespace_options=_NAMESPACES),
            ),
        )

    @property
    def _labels(self) -> dict[str, str]:
        return {
            "io.kubernetes.pod.name": self.pod.name,
            "io.kubernetes.pod.namespace": self.pod.namespace,
            "io.kubernetes.pod.uid": self.pod.uid,
        }
