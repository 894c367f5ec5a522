"""A node in a folder where all is well: what `doctor` reads and `support-bundle` takes."""

from __future__ import annotations

import json
import threading
from typing import TYPE_CHECKING, Self

from cpupool.core.assignments import Placement
from cpupool.core.cgroups import Writer
from cpupool.core.cpuset import CPUSet
from cpupool.core.pools import NodePools, Pool
from cpupool.host.root import HostRoot
from cpupool.manager.report import ContainerStatus, NodeStatus
from cpupool.manager.status_json import to_json
from cpupool.telemetry.health import Health
from cpupool.telemetry.metrics import Metrics
from cpupool.telemetry.server import TelemetryServer
from cpupool.wire import device_checkpoint
from cpupool.wire.device_checkpoint import Checkpoint, Entry
from tests.machines import MACHINES
from tests.waiting import DEADLINE_S

if TYPE_CHECKING:
    from pathlib import Path

POOL_FILE = """\
pools:
  default: {cpus: "0-1,16-17"}
  shared_x: {cpus: "2-3,18-19"}
  exclusive_a: {cpus: "4-7"}
"""
POOLS = NodePools.of(
    Pool.named("default", "0-1,16-17"),
    Pool.named("shared_x", "2-3,18-19"),
    Pool.named("exclusive_a", "4-7"),
)
KUBELET = """\
kind: KubeletConfiguration
cpuManagerPolicy: none
systemReserved:
  cpu: 28500m
staticPodURLHeader:
  Authorization: [swordfish]
"""
OWNER = "kubepods.slice/kubepods-podaaaa.slice/cri-containerd-" + "a" * 64 + ".scope"
OTHER = "kubepods.slice/kubepods-podbbbb.slice/cri-containerd-" + "b" * 64 + ".scope"
IRQ = 24
DAEMON = 100


class WrittenNode:
    """A node with two pods, one of which owns CPU 4; its sockets are missing, its agent silent.

    Attributes:
        folder: what plays `/`.
        root: its trees.
        pool_files: the folder of pool files.
        starter: what containers have mounted to start their processes.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.root = HostRoot.under(folder)
        self.pool_files = folder / "etc/cpu-pooler"
        MACHINES["telco_2s_2n_16c32t"].write(folder)
        self.put("sys/fs/cgroup/cgroup.controllers", "cpuset cpu memory\n")
        self.container(OWNER, "4")
        self.container(OTHER, "0-1,16-17")
        self.interrupt("0-3", "0")
        self.daemon("0-3,16-19")
        self.put("proc/version", "Linux version 6.18.44\n")
        self.put("proc/cmdline", "root=/dev/vda isolcpus=4-7 token=swordfish nohz_full=4-7\n")
        self.put("var/lib/kubelet/config.yaml", KUBELET)
        self.put(
            "var/lib/kubelet/cpu_manager_state",
            '{"policyName":"none","defaultCpuSet":"","checksum":0}',
        )
        self.put("etc/cpu-pooler/poolconfig-a.yaml", POOL_FILE)
        self.starter = self.put("var/lib/cpupool/starter/1/process-starter", "")
        self.starter.chmod(0o755)
        self.checkpoint()
        self.status()

    def put(self, path: str, text: str | bytes) -> Path:
        """Write a file."""
        file = self.folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(text if isinstance(text, bytes) else text.encode())
        return file

    def container(self, path: str, cpus: str) -> None:
        """Make a container that runs on these CPUs, or move it there."""
        for name in ("cpuset.cpus", "cpuset.cpus.effective"):
            self.put(f"sys/fs/cgroup/{path}/{name}", f"{cpus}\n")

    def interrupt(self, allowed: str, effective: str) -> None:
        """Say which CPUs serve the machine's only interrupt that has a handler."""
        self.put(f"proc/irq/{IRQ}/smp_affinity_list", f"{allowed}\n")
        self.put(f"proc/irq/{IRQ}/effective_affinity_list", f"{effective}\n")
        (self.folder / f"proc/irq/{IRQ}/eth0-rx").mkdir(exist_ok=True)

    def daemon(self, cpus: str) -> None:
        """Say where the machine's only service may run."""
        self.put(f"proc/{DAEMON}/cgroup", "0::/system.slice/sshd.service\n")
        self.put(
            f"proc/{DAEMON}/status", f"Name:\tsshd\nUmask:\t0022\nCpus_allowed_list:\t{cpus}\n"
        )
        self.put(f"proc/{DAEMON}/environ", "PASSWORD=swordfish")

    def checkpoint(self) -> None:
        """Write the kubelet's checkpoint, with another plugin's secret in it."""
        entries = (
            Entry("aaaa", "main", "nokia.k8s.io/exclusive_a", {0: ("4",)}, b"EXCLUSIVE_CPUS"),
            Entry("bbbb", "main", "example.com/gpu", {0: ("gpu0",)}, b"swordfish"),
        )
        written = device_checkpoint.encode(Checkpoint(entries))
        self.put("var/lib/kubelet/device-plugins/kubelet_internal_checkpoint", written)

    def status(
        self,
        *containers: ContainerStatus,
        pools: NodePools = POOLS,
        waiting_for: str = "",
        enforcement: Writer = Writer.CGROUP,
    ) -> None:
        """Write what the agent says."""
        shown = containers or (container("ns/owner/main", "4"),)
        status = NodeStatus(pools, shown, waiting_for, enforcement=enforcement)
        self.put("run/cpupool/status.json", json.dumps(to_json(status)))


class AnsweringAgent:
    """Answers /readyz and /metrics as the agent does; a context manager.

    Attributes:
        health: what it is ready for.
        metrics: what it counts.
        url: where it answers.
    """

    def __init__(self) -> None:
        self.health, self.metrics = Health(), Metrics()
        self.health.set("kubelet", ok=True)
        self._server = TelemetryServer("127.0.0.1", 0, self.metrics, self.health)
        self.url = f"http://127.0.0.1:{self._server.port}"
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._server.run, args=(self._stop,))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._server.wake()
        self._thread.join(DEADLINE_S)


def container(name: str, wanted: str, found: str = "", reason: str = "") -> ContainerStatus:
    """Describe a container; it is found where it is wanted unless something else is said."""
    return ContainerStatus(
        name=name,
        placement=Placement.CONFINED if reason else Placement.POOLS,
        wanted=CPUSet.parse(wanted),
        found=found or wanted,
        reason=reason,
        exclusive=CPUSet(),
    )
