"""A small container runtime: containers are host processes in cgroups with containerd's names.

It pulls no image; an idle process stands for the program. The cgroups have the names of the
cgroupfs driver (kubernetes: pkg/kubelet/cm/cgroup_manager_linux.go).
"""

from __future__ import annotations

import secrets
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from cpupool.core.workloads import ContainerID, QoSClass
from cpupool.local.process import Process

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cpupool.core.workloads import Pod
    from cpupool.local.cgroups import Cgroups


@dataclass(frozen=True, slots=True)
class Instance:
    """One start of a container.

    Attributes:
        id: 64 hexadecimal digits.
        pid: its process.
        cgroup: its cgroup, relative to the kubelet's cgroup root.
        environment: the environment of the process.
    """

    id: ContainerID
    pid: int
    cgroup: str
    environment: Mapping[str, str]


class EmbeddedRuntime:
    """The small runtime. Use it as a context manager: at its end it removes all containers.

    Args:
        cgroups: the cgroups of containers.
    """

    def __init__(self, cgroups: Cgroups) -> None:
        self._cgroups = cgroups
        self._processes: dict[ContainerID, Process] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes.values():
            process.kill()
        self._cgroups.remove("kubepods")

    def start(self, pod: Pod, label: str, environment: Mapping[str, str]) -> Instance:
        """Start a container: its process enters the cgroup before its own first instruction."""
        identifier = ContainerID(secrets.token_hex(32))
        cgroup = f"{pod_cgroup(pod)}/{identifier}"
        with ExitStack() as undo:
            undo.callback(self._cgroups.remove, cgroup)
            self._cgroups.make(cgroup)
            process = Process(f"{pod.namespace}/{pod.name}/{label}", environment)
            undo.callback(process.kill)
            self._cgroups.enter(cgroup, process.pid)
            process.release()
            self._processes[identifier] = process
            undo.pop_all()
        return Instance(identifier, process.pid, cgroup, environment)

    def stop(self, instance: Instance) -> None:
        """End a container and remove its cgroup."""
        self._processes.pop(instance.id).kill()
        self._cgroups.remove(instance.cgroup)

    def remove_pod(self, pod: Pod) -> None:
        """Remove a pod's cgroup, after its containers have stopped."""
        self._cgroups.remove(pod_cgroup(pod))


def pod_cgroup(pod: Pod) -> str:
    """Return a pod's cgroup below the kubelet's cgroup root; a Guaranteed pod has no QoS level."""
    parts = ["kubepods", f"pod{pod.cgroup_uid}"]
    if pod.qos is not None and pod.qos is not QoSClass.GUARANTEED:
        parts.insert(1, pod.qos.value.lower())
    return "/".join(parts)
