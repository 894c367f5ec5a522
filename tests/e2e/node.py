"""The node under test: what runs on it, as its kernel and its API server tell."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from cpupool.api.podresources_pb2 import AllocatableResourcesRequest, AllocatableResourcesResponse
from cpupool.core import quantity
from cpupool.core.cpuset import CPUSet
from cpupool.core.errors import RemoteProtocolError
from cpupool.core.names import EXCLUSIVE_CPUS
from cpupool.core.workloads import ContainerID
from cpupool.host.cgroupfs import CgroupFS, hierarchy
from cpupool.kube import views
from cpupool.rpc.channel import dialled
from tests.e2e.cluster import NAMES, kubectl, manifest, patiently, read

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from cpupool.core.topology import CPUTopology
    from cpupool.host.root import HostRoot
    from tests.e2e.agents import DeployedAgent, HostAgent

SANDBOX = "sandbox"
_RESIZING = {"PodResizePending", "PodResizeInProgress"}
_PROC = Path("/proc")
"""Not the node's: the ids of processes in a cgroup's files are those that the reader sees."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Three pools that fit a machine: the first core for everybody, the last ones exclusive.

    With two cores the shared pool is the default one, too.
    """

    default: CPUSet
    shared: CPUSet
    exclusive: CPUSet
    exclusive_cores: CPUSet

    @classmethod
    def of(cls, topology: CPUTopology) -> Layout:
        default, *others = topology.cores
        shared = others.pop(0) if len(others) > 1 else default
        last = others[-2:]
        return cls(default, shared, CPUSet(core.first for core in last), CPUSet.union(last))

    def pools(self) -> dict[str, CPUSet]:
        return {
            "default": self.default,
            "shared_e2e": self.shared,
            "exclusive_e2e": self.exclusive,
        }

    def pools_without_exclusive(self) -> dict[str, CPUSet]:
        """Give the exclusive pool's cores to the shared one."""
        return {"default": self.default, "shared_e2e": self.shared | self.exclusive_cores}


@dataclass(frozen=True, slots=True)
class RealNode:
    """A node of a cluster, on whose machine the tests run.

    Attributes:
        name: in the cluster.
        host: its label `kubernetes.io/hostname`.
        namespace: of the tests' pods.
        image: has a shell and `sleep`.
        root: its trees.
        tree: its cgroups.
        topology: its CPUs.
        layout: the pools that are in force while a test begins.
        agent: the agent on it.
    """

    name: str
    host: str
    namespace: str
    image: str
    root: HostRoot
    tree: CgroupFS
    topology: CPUTopology
    layout: Layout
    agent: HostAgent | DeployedAgent

    def configure(self, pools: Mapping[str, CPUSet], cpu_manager: str = "") -> None:
        """Edit the pool file; `cpu_manager` is its line for the CPU manager policy."""
        lines = [f'  {name}: {{cpus: "{cpus}"}}' for name, cpus in pools.items()]
        selector = f"nodeSelector: {{kubernetes.io/hostname: {self.host}}}"
        self.agent.configure("\n".join(["pools:", *lines, cpu_manager, selector, ""]))

    def await_devices(self, **healthy: int) -> None:
        """Wait until the kubelet has so many devices of each pool, and the cluster knows it."""
        expected = {pool: count for pool, count in healthy.items() if count}
        patiently(
            lambda: self._allocatable(healthy) == healthy and self._listed(healthy) == expected,
            lambda: f"{healthy}: {self._allocatable(healthy)}, {self._listed(healthy)}",
        )

    def create(
        self,
        *pods: tuple[str, Mapping[str, Mapping[str, int]]],
        labels: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """Create pods with these labels: name, and containers as `manifest` takes them."""
        bodies = [manifest(name, self.name, self.image, made, dict(labels)) for name, made in pods]
        kubectl(
            *("-n", self.namespace, "create", "-f", "-"),
            given={"kind": "List", "apiVersion": "v1", "items": bodies},
        )

    def run(self, name: str, **containers: Mapping[str, int]) -> None:
        """Create a pod and wait until all of it runs."""
        self.create((name, containers))
        patiently(lambda: self._phase(name) == "Running", lambda: self._body(name)["status"])

    def resize(self, pod: str, cpu: str, container: str = "main") -> None:
        """Give a running container another cpu, in place."""
        resources = {part: {"cpu": cpu} for part in ("requests", "limits")}
        patch = {"spec": {"containers": [{"name": container, "resources": resources}]}}
        kubectl(
            *("-n", self.namespace, "patch", "pod", pod, "--subresource=resize"),
            *("--patch", json.dumps(patch)),
        )

    def resizing(self, pod: str) -> str:
        """Say why a resize is not carried out; empty if there is no reason."""
        told = self._body(pod)["status"].get("conditions", [])
        found = [one for one in told if one["type"] in _RESIZING]
        return " ".join(f"{one.get('reason')}: {one.get('message')}" for one in found)

    def own_folder(self, pod: str, container: str = "main") -> dict[str, Any]:
        """Read what a container is told of its own CPUs."""
        file = "/run/cpupool/self/cpus.json"
        command = ("exec", pod, "-c", container, "--", "cat", file)
        content: dict[str, Any] = json.loads(kubectl("-n", self.namespace, *command))
        return content

    def delete(self, *names: str) -> None:
        """Delete pods, or all of the tests' when none is named, and wait for their end."""
        kubectl("-n", self.namespace, "delete", "pods", *(names or ["--all"]))

    def refused(self) -> list[str]:
        """Name the pods that the kubelet did not admit."""
        failed = read("-n", self.namespace, "pods", "--field-selector", "status.phase=Failed")
        return [pod["metadata"]["name"] for pod in failed["items"]]

    def instance(self, pod: str, container: str = "main") -> ContainerID | None:
        """Give the id of the container that runs."""
        found = views.pod(self._body(pod), NAMES)
        return next(one.id for one in found.containers if one.name == container)

    def path(self, pod: str, container: str = "main") -> str:
        """Give a running container's cgroup."""
        return next(path for name, path in self._containers(pod) if name == container)

    def processes(self, pod: str, container: str = "main") -> list[int]:
        """Give the ids of a running container's processes."""
        return list(processes(self.root, self.path(pod, container)))

    def cpus(self, pod: str) -> dict[str, str]:
        """Give where the kernel lets the processes of each running container of a pod run."""
        return {
            name: " and ".join(sorted(set(map(_cpus_allowed, processes(self.root, path)))))
            for name, path in self._containers(pod)
        }

    def own_cpus(self, pod: str, container: str = "main") -> CPUSet:
        """Give the exclusive CPUs that a container was told."""
        first = self.processes(pod, container)[0]
        variables = (_PROC / str(first) / "environ").read_text().split("\0")
        return CPUSet.parse(dict(one.partition("=")[::2] for one in variables)[EXCLUSIVE_CPUS])

    def await_container(self, pod: str, container: str = "main") -> None:
        """Wait until a container runs."""
        patiently(lambda: container in self.cpus(pod), lambda: self._body(pod)["status"])

    def await_cpus(self, pod: str, **expected: CPUSet) -> None:
        """Wait until containers run on these CPUs; `sandbox` is the pod's."""
        texts = {name: str(cpus) for name, cpus in expected.items()}
        patiently(
            lambda: texts.items() <= self.cpus(pod).items(),
            lambda: f"{pod} on {texts}: {self.cpus(pod)}",
        )

    def _body(self, pod: str) -> Any:
        return read("-n", self.namespace, "pod", pod)

    def _phase(self, pod: str) -> str:
        phase = self._body(pod)["status"]["phase"]
        assert phase != "Failed", self._body(pod)["status"]
        return str(phase)

    def _containers(self, pod: str) -> Iterator[tuple[str, str]]:
        known = views.pod(self._body(pod), NAMES)
        names = {container.id: container.name for container in known.containers}
        for found in self.tree.containers():
            if found.pod == known.cgroup_uid:
                yield names.get(ContainerID(found.id), SANDBOX), found.path

    def _allocatable(self, pools: Mapping[str, int]) -> dict[str, int]:
        told = read("node", self.name)["status"]["allocatable"]
        return {pool: int(quantity.parse(told.get(NAMES.resource(pool), "0"))) for pool in pools}

    def _listed(self, pools: Mapping[str, int]) -> dict[str, int]:
        found: dict[str, int] = {}
        with (
            suppress(RemoteProtocolError),
            dialled(self.root.podresources_socket, "listing devices") as channel,
        ):
            method, request = "GetAllocatableResources", AllocatableResourcesRequest()
            path = f"/v1.PodResourcesLister/{method}"
            answer = channel.call(path, request, AllocatableResourcesResponse, 10)
            for device in answer.devices:
                pool = NAMES.pool_of(device.resource_name) or ""
                if pool in pools:
                    found[pool] = found.get(pool, 0) + len(device.device_ids)
        return found


def processes(root: HostRoot, path: str) -> Iterator[int]:
    """Give the ids of the processes in a container's cgroup and in those below it."""
    for file in (hierarchy(root.cgroup)[0] / path).rglob("cgroup.procs"):
        with suppress(OSError):
            yield from map(int, file.read_text().split())


def _cpus_allowed(process: int) -> str:
    with suppress(FileNotFoundError, ProcessLookupError):
        for line in (_PROC / str(process) / "status").read_text().splitlines():
            name, _, value = line.partition(":")
            if name == "Cpus_allowed_list":
                return value.strip()
    return "ended"
