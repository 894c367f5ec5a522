"""A container runtime that this process plays, for an agent that is a process of its own."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from cpupool.api import nri_pb2
from tests import nri_pods
from tests.scenarios.test_agent_process import NODE

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tests.machines import Machine
    from tests.nri_runtime import FakeRuntime, Plugin
    from tests.scenarios.test_agent_process import World


@dataclass(frozen=True)
class PlayedPod:
    """A pod of one container that owns CPUs, or shares them.

    Attributes:
        number: makes its names and ids.
        cpus: how many whole CPUs it requests.
        labels: its author's.
        annotations: its author's.
    """

    number: int
    cpus: int
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)

    @property
    def uid(self) -> str:
        """Its UID in the API."""
        return f"00000000-0000-0000-0000-{self.number:012}"

    @property
    def container(self) -> nri_pods.Container:
        """Its container as the runtime knows it."""
        pod = nri_pods.Pod(
            self.uid,
            f"pod-{self.number}",
            cgroup_parent=f"/{self.cgroup}",
            own_labels=self.labels,
        )
        return nri_pods.Container(pod, f"{self.number:064x}")

    @property
    def path(self) -> str:
        """The container's cgroup."""
        return f"{self.cgroup}/{self.container.id}"

    @property
    def cgroup(self) -> str:
        """The pod's cgroup."""
        return f"kubepods/{'' if self.cpus else 'besteffort/'}pod{self.uid}"

    def body(self) -> dict[str, Any]:
        """Give it as the API server does."""
        limits = {"cpu": str(self.cpus), "memory": "1Gi"} if self.cpus else {}
        created = f"2026-01-01T00:{self.number // 60:02}:{self.number % 60:02}Z"
        return {
            "kind": "Pod",
            "metadata": {
                "name": self.container.pod.name,
                "namespace": "default",
                "uid": self.uid,
                "labels": self.labels,
                "annotations": self.annotations,
                "creationTimestamp": created,
            },
            "spec": {
                "nodeName": NODE,
                "containers": [{"name": "main", "resources": {"limits": limits}}],
            },
            "status": {"phase": "Pending"},
        }


def connected(
    world: World,
    runtime: FakeRuntime,
    machine: Machine,
    running: Sequence[PlayedPod],
    later: Sequence[PlayedPod],
    *,
    update_s: float = 0.0,
) -> Plugin:
    """Return the plugin after it knows what runs; its updates reach the cgroups.

    Args:
        world: the node.
        runtime: what the plugin connects to.
        machine: the node's; all that runs has all of its CPUs.
        running: what runs.
        later: what will run.
        update_s: how long an update of a container takes.
    """
    # A runtime updates one container after the other.
    lock = threading.Lock()
    paths = {pod.container.id: pod.path for pod in (*running, *later)}

    def obey(update: nri_pb2.ContainerUpdate) -> None:
        if cpus := update.linux.resources.cpu.cpus:
            path = paths[update.container_id]
            with lock:
                time.sleep(update_s)
                if (world.place.root / "cpuset" / path).exists():
                    world.overwrite(path, cpus)

    plugin = runtime.accept()
    plugin.obey = obey
    plugin.configure()
    everything, state = str(machine.topology().online), nri_pb2.CONTAINER_RUNNING
    listed = [replace(pod.container, cpus=everything, state=state) for pod in running]
    for update in plugin.synchronize(listed):
        obey(update)
    return plugin


def cpus_of(world: World, path: str) -> str:
    """Read the CPUs of a cgroup."""
    return (world.place.root / "cpuset" / path / "cpuset.cpus").read_text().strip()
