"""The places of the machine's folders; tests and the embedded node can move them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class HostRoot:
    """The places of the machine's folders.

    Attributes:
        sysfs: The sysfs mount, read for the CPU topology.
        proc: The procfs mount.
        cgroup: The cgroup file system: the unified (v2) tree, or the folder of the v1 controllers.
        kubelet: The kubelet's data folder (`--root-dir`).
        run: cpupool's own run-time folder, which a reboot empties.
        state: cpupool's own folder, which survives a reboot.
        base: Where the machine's `/` is; the kubelet and the runtime see paths from there.
        runtime: Where the container runtime has its sockets.
        cgroup_root: The kubelet's `--cgroup-root`; empty to look in the usual places.
    """

    sysfs: Path = Path("/sys")
    proc: Path = Path("/proc")
    cgroup: Path = Path("/sys/fs/cgroup")
    kubelet: Path = Path("/var/lib/kubelet")
    run: Path = Path("/run/cpupool")
    state: Path = Path("/var/lib/cpupool")
    base: Path = Path("/")
    runtime: Path = Path("/run")
    cgroup_root: str = ""

    @classmethod
    def under(cls, folder: Path, cgroup_root: str = "") -> HostRoot:
        """Return the usual places moved below `folder`."""
        return cls(
            sysfs=folder / "sys",
            proc=folder / "proc",
            cgroup=folder / "sys/fs/cgroup",
            kubelet=folder / "var/lib/kubelet",
            run=folder / "run/cpupool",
            state=folder / "var/lib/cpupool",
            base=folder,
            runtime=folder / "run",
            cgroup_root=cgroup_root,
        )

    def on_host(self, path: Path) -> str:
        """Return a place's path for the kubelet and the container runtime."""
        return str("/" / path.relative_to(self.base))

    @property
    def device_plugins(self) -> Path:
        """The folder of the plugins' sockets (k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1)."""
        return self.kubelet / "device-plugins"

    @property
    def kubelet_socket(self) -> Path:
        """The kubelet's registration socket."""
        return self.device_plugins / "kubelet.sock"

    @property
    def podresources_socket(self) -> Path:
        """The socket of the kubelet's podresources service."""
        return self.kubelet / "pod-resources" / "kubelet.sock"

    @property
    def checkpoint(self) -> Path:
        """The device manager's checkpoint file."""
        return self.device_plugins / "kubelet_internal_checkpoint"

    @property
    def cpu_manager_state(self) -> Path:
        """The CPU manager's checkpoint file, which names its policy."""
        return self.kubelet / "cpu_manager_state"

    @property
    def memory_manager_state(self) -> Path:
        """The memory manager's checkpoint file, which names its policy."""
        return self.kubelet / "memory_manager_state"

    @property
    def kubelet_config(self) -> Path:
        """The kubelet's configuration, where kubeadm puts it."""
        return self.kubelet / "config.yaml"

    @property
    def status(self) -> Path:
        """The agent's status file."""
        return self.run / "status.json"

    @property
    def plugin_pools(self) -> Path:
        """The file with the pools of our plugin for CPUs, and why each has its CPUs."""
        return self.run / "plugin-pools.json"

    @property
    def lock(self) -> Path:
        """The file that the node's one agent holds locked."""
        return self.run / "agent.lock"

    @property
    def last_good_pools(self) -> Path:
        """The text of the pool file that came into force last."""
        return self.state / "last-good-pools.yaml"

    @property
    def last_config_map(self) -> Path:
        """The API server's last pool files, and the digest of the folder at that time."""
        return self.state / "last-config-map.json"

    @property
    def choices(self) -> Path:
        """The CPUs that the CPU manager policy chose, in the shape of `cpu_manager_state`."""
        return self.state / "cpu_manager_state"

    @property
    def answers(self) -> Path:
        """The answers of plugins for resources."""
        return self.state / "plugin-answers.json"

    @property
    def boot_id(self) -> Path:
        """The kernel's id of this boot (Documentation/admin-guide/sysctl/kernel.rst)."""
        return self.proc / "sys/kernel/random/boot_id"

    @property
    def starters(self) -> Path:
        """The process starter, a folder for each version: mounted into containers."""
        return self.state / "starter"

    @property
    def pool_folders(self) -> Path:
        """A folder for each shared pool, with its CPUs: mounted into its containers."""
        return self.state / "pools"

    @property
    def own_folders(self) -> Path:
        """A folder for each container whose own CPUs may change: mounted into this container."""
        return self.state / "self"

    @property
    def cri_sockets(self) -> tuple[Path, ...]:
        """The CRI sockets of the usual runtimes, in the order in which the agent tries them."""
        return (self.runtime / "containerd/containerd.sock", self.runtime / "crio/crio.sock")

    @property
    def nri_socket(self) -> Path:
        """The socket on which the runtime listens for NRI plugins (containerd and CRI-O alike)."""
        return self.runtime / "nri/nri.sock"
