"""A small container runtime: containers are host processes in cgroups with containerd's names.

It pulls no image; an idle process stands for the program. The cgroups have the names of the
cgroupfs driver (kubernetes: pkg/kubelet/cm/cgroup_manager_linux.go). It has cpusets and no CPU
quotas.
"""

from __future__ import annotations

import secrets
import threading
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Self

from cpupool.api import nri_pb2
from cpupool.core.bandwidth import PERIOD_US
from cpupool.core.cpuset import CPUSet
from cpupool.core.errors import HostError
from cpupool.core.pools import MILLI_PER_CPU
from cpupool.core.workloads import ContainerID, QoSClass
from cpupool.host.cgroup_memory import CgroupMemory
from cpupool.host.cgroupfs import CgroupFS
from cpupool.local.nri import NRIServer, PluginRefusal
from cpupool.local.process import Process

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from cpupool.core.workloads import Container, Pod
    from cpupool.local.cgroups import Cgroups

_SHARES_PER_CPU: Final = 1024
_GUARANTEED_OOM_SCORE_ADJ: Final = -997


@dataclass(frozen=True, slots=True)
class Instance:
    """One start of a container.

    Attributes:
        id: 64 hexadecimal digits.
        pid: its process.
        cgroup: its cgroup, relative to the kubelet's cgroup root.
        environment: the environment of the process.
        adjusted: the NRI plugin's settings; of all but CPUs and NUMA nodes the small runtime
            only takes note.
        began_on: the CPUs of its cgroup when the process runs its own first instruction; empty
            where another program writes them at this moment.
        began_near: the NUMA nodes of its cgroup then.
        mounts: place in the container → the file or folder of this machine that the NRI plugin
            mounts there. The process has no mount namespace, so it finds them here alone.
    """

    id: ContainerID
    pid: int
    cgroup: str
    environment: Mapping[str, str]
    adjusted: nri_pb2.LinuxContainerAdjustment = field(
        default_factory=nri_pb2.LinuxContainerAdjustment
    )
    began_on: CPUSet = field(default_factory=CPUSet)
    began_near: CPUSet = field(default_factory=CPUSet)
    mounts: Mapping[str, Path] = field(default_factory=dict)


class EmbeddedRuntime:
    """The small runtime. Use it as a context manager: at its end it removes all containers.

    Args:
        cgroups: the cgroups of containers.
        folder: stands for `/` of the node.
        nri: the socket for an NRI plugin; None for no NRI.
    """

    def __init__(self, cgroups: Cgroups, folder: Path, nri: Path | None = None) -> None:
        self._cgroups = cgroups
        self._folder = folder
        self._nri = None if nri is None else NRIServer(nri, self._set)
        self._lock = threading.Lock()
        self._processes: dict[ContainerID, Process] = {}
        self._cgroup_of: dict[str, str] = {}
        self._sandbox_of: dict[str, str] = {}
        self._opened = ExitStack()

    def __enter__(self) -> Self:
        if self._nri:
            self._opened.enter_context(self._nri)
        return self

    def __exit__(self, *_: object) -> None:
        self._opened.close()
        for process in self._processes.values():
            process.kill()
        self._cgroups.remove("kubepods")

    @property
    def plugged(self) -> bool:
        """Whether the runtime asks an NRI plugin before each container."""
        return self._nri is not None and self._nri.connected

    def restart(self) -> None:
        """End and start again, while the containers run; any thread may call this."""
        if self._nri:
            self._nri.restart()

    def start(
        self,
        pod: Pod,
        container: Container | None,
        environment: Mapping[str, str],
        annotations: Mapping[str, str] | None = None,
    ) -> Instance:
        """Start a container: its process enters the cgroup before its own first instruction.

        Args:
            pod: its pod.
            container: the container; None for the pod's sandbox, which comes first.
            environment: its variables.
            annotations: its annotations; of the sandbox those of the pod.

        Raises:
            PluginRefusal: the NRI plugin does not let it start, or a file that the plugin mounts is
                missing; nothing is changed.
        """
        identifier = ContainerID(secrets.token_hex(32))
        cgroup = f"{pod_cgroup(pod)}/{identifier}"
        described, adjusted = None, nri_pb2.LinuxContainerAdjustment()
        mounts: dict[str, Path] = {}
        if self._nri and container:
            described = _described(pod, container, environment, annotations)
            described.id, described.pod_sandbox_id = identifier, self._sandbox_of[pod.cgroup_uid]
            answer = self._nri.create(described)
            for update in answer.update:
                self._nri.updated(update)
            environment = {**environment, **{pair.key: pair.value for pair in answer.adjust.env}}
            adjusted = answer.adjust.linux
            mounts = {
                mount.destination: self._folder / mount.source.lstrip("/")
                for mount in answer.adjust.mounts
            }
            described.linux.resources.cpu.MergeFrom(adjusted.resources.cpu)
            described.annotations.update(answer.adjust.annotations)
        with ExitStack() as undo:
            if self._nri and described:
                undo.callback(self._nri.removed, described)
            if missing := [str(source) for source in mounts.values() if not source.exists()]:
                raise PluginRefusal(f"error mounting {missing[0]}: no such file or directory")
            undo.callback(self._remove, identifier, cgroup)
            self._cgroups.make(cgroup)
            with self._lock:
                self._cgroup_of[identifier] = cgroup
            if cpus := CPUSet.parse(adjusted.resources.cpu.cpus):
                self._set(identifier, cpus)
            path, memory = self._path(cgroup), CgroupMemory(*self._tree)
            if nodes := CPUSet.parse(adjusted.resources.cpu.mems):
                memory.write(path, nodes)
            label = container.name if container else "sandbox"
            process = Process(f"{pod.namespace}/{pod.name}/{label}", environment)
            undo.callback(process.kill)
            self._cgroups.enter(cgroup, process.pid)
            if self._nri and described:
                self._nri.start(described)
            began_on, began_near = _now(CgroupFS(*self._tree), path), _now(memory, path)
            process.release()
            self._processes[identifier] = process
            undo.pop_all()
        if self._nri and described:
            self._nri.started(described)
        elif self._nri:
            self._sandbox_of[pod.cgroup_uid] = identifier
            self._nri.sandbox_runs(_sandbox(identifier, pod, annotations))
        return Instance(
            identifier, process.pid, cgroup, environment, adjusted, began_on, began_near, mounts
        )

    def update(self, instance: Instance, container: Container) -> None:
        """Give a running container the cpu that it requests now.

        The numbers go to the NRI plugin, which may answer with CPUs; the small runtime only takes
        note of them.

        Raises:
            PluginRefusal: the NRI plugin does not let it; nothing is changed.
            HostError: the container's CPUs cannot be set.
        """
        if self._nri:
            self._nri.update(instance.id, nri_pb2.LinuxResources(cpu=_cpu(container)))

    def stop(self, instance: Instance) -> None:
        """End a container and remove its cgroup."""
        self._processes.pop(instance.id).kill()
        self._remove(instance.id, instance.cgroup)
        if self._nri:
            self._nri.ended(instance.id)

    def remove_pod(self, pod: Pod) -> None:
        """Remove a pod's cgroup, after its containers have stopped."""
        self._sandbox_of.pop(pod.cgroup_uid, None)
        self._cgroups.remove(pod_cgroup(pod))

    def _remove(self, identifier: str, cgroup: str) -> None:
        with self._lock:
            self._cgroup_of.pop(identifier, None)
        self._cgroups.remove(cgroup)

    def _set(self, identifier: str, cpus: CPUSet) -> bool:
        """Set the CPUs of a container; return whether that worked. Any thread may call this."""
        with self._lock:
            if (cgroup := self._cgroup_of.get(identifier)) is None:
                return False
            try:
                CgroupFS(*self._tree).write(self._path(cgroup), cpus)
            except HostError:
                return False
            return True

    @property
    def _tree(self) -> tuple[Path, str]:
        return self._cgroups.root, self._cgroups.cgroup_root

    def _path(self, cgroup: str) -> str:
        """Return a cgroup's path as `CgroupFS` takes it."""
        return f"{self._cgroups.cgroup_root}/{cgroup}".strip("/")


def _now(tree: CgroupFS, path: str) -> CPUSet:
    """Return the CPUs, or the NUMA nodes, of a cgroup; none where they cannot be read."""
    try:
        return tree.effective(path)
    except HostError:
        return CPUSet()


def pod_cgroup(pod: Pod) -> str:
    """Return a pod's cgroup below the kubelet's cgroup root; a Guaranteed pod has no QoS level."""
    parts = ["kubepods", f"pod{pod.cgroup_uid}"]
    if pod.qos is not None and pod.qos is not QoSClass.GUARANTEED:
        parts.insert(1, pod.qos.value.lower())
    return "/".join(parts)


def _labels(pod: Pod) -> dict[str, str]:
    """Return the kubelet's labels (kubernetes pkg/kubelet/types/labels.go)."""
    return {
        "io.kubernetes.pod.uid": pod.cgroup_uid,
        "io.kubernetes.pod.namespace": pod.namespace,
        "io.kubernetes.pod.name": pod.name,
    }


def _sandbox(
    identifier: str, pod: Pod, annotations: Mapping[str, str] | None
) -> nri_pb2.PodSandbox:
    sandbox = nri_pb2.PodSandbox(id=identifier, labels=_labels(pod), annotations=annotations)
    sandbox.linux.cgroup_parent = pod_cgroup(pod)
    return sandbox


def _described(
    pod: Pod,
    container: Container,
    environment: Mapping[str, str],
    annotations: Mapping[str, str] | None,
) -> nri_pb2.Container:
    """Describe a container to an NRI plugin, with the kubelet's numbers for its request."""
    described = nri_pb2.Container(
        name=container.name,
        state=nri_pb2.CONTAINER_CREATED,
        labels={**_labels(pod), "io.kubernetes.container.name": container.name},
        annotations=annotations,
        env=[f"{name}={value}" for name, value in environment.items()],
    )
    described.linux.resources.cpu.CopyFrom(_cpu(container))
    if pod.qos is QoSClass.GUARANTEED:
        described.linux.oom_score_adj.value = _GUARANTEED_OOM_SCORE_ADJ
    return described


def _cpu(container: Container) -> nri_pb2.LinuxCPU:
    """Return the kubelet's numbers for a container's cpu: without a limit there is no quota."""
    cpu = nri_pb2.LinuxCPU()
    cpu.shares.value = container.request_milli * _SHARES_PER_CPU // MILLI_PER_CPU
    cpu.period.value = PERIOD_US
    if container.limit_milli is not None:
        cpu.quota.value = container.limit_milli * PERIOD_US // MILLI_PER_CPU
    return cpu
