"""A node whose kubelet is fake, and the role that registers pools with it."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from cpupool.agent.device_manager import DeviceManager
from cpupool.agent.mount_keeper import MountKeeper
from cpupool.core.pools import NodePools, Pool
from cpupool.host.mounts import Mounts
from cpupool.host.root import HostRoot
from cpupool.manager.manager import Manager
from cpupool.telemetry.health import Health
from cpupool.telemetry.metrics import Metrics
from tests import builders
from tests.events import Heard
from tests.kubelets import RegisteringKubelet
from tests.loops import running
from tests.machines import MACHINES
from tests.waiting import eventually

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager
    from pathlib import Path

    from cpupool.core.cpuset import CPUSet
    from tests.machines import WrittenMachine

EXCLUSIVE = "nokia.k8s.io/exclusive_a"
SHARED = "nokia.k8s.io/shared_s"
# 16 CPUs are 16,000 devices.
POOLS = NodePools.of(
    Pool.named("exclusive_a", "0-2,8"),
    Pool.named("shared_s", "3-7,11-15,19-23,27"),
    Pool.named("default", "9-10,25-26"),
)


class Node:
    """A machine in a folder with a kubelet, and the role that is to serve it."""

    def __init__(
        self, folder: Path, machine: WrittenMachine, look_s: float, pools: NodePools | None
    ) -> None:
        self.root = HostRoot.under(folder)
        self.machine = machine
        self.manager = Manager()
        if pools:
            self.manager.reconfigure(pools, machine.topology())
        starter = folder / "starter"
        starter.write_bytes(b"\x7fELF")
        self.kubelet = RegisteringKubelet(self.root.device_plugins)
        self.metrics = Metrics()
        self.health = Health()
        self.mounts = mounts = Mounts(self.root, starter, mounted=frozenset, events=Heard())
        self.role = DeviceManager(
            self.manager,
            self.root,
            mounts,
            telemetry=builders.telemetry(metrics=self.metrics, health=self.health),
            kubelet_changed=self._kubelet_changed,
            ready=self._is_ready,
            look_s=look_s,
        )
        self.mount_keeper = MountKeeper(
            self.manager,
            mounts,
            health=self.health,
            ready=lambda: self.ready,
            provided=self.role.wake,
            look_s=look_s,
        )
        self.ready = True
        self.during_a_look: Callable[[], None] = lambda: None
        self.kubelets = 0

    def running(self) -> AbstractContextManager[threading.Event]:
        return running(self.role.run, self.mount_keeper.run, wake=self.wake)

    def wake(self) -> None:
        """Let both roles look, as after an edit of the pools."""
        self.mount_keeper.wake()
        self.role.wake()

    def _kubelet_changed(self) -> None:
        self.kubelets += 1

    def _is_ready(self) -> bool:
        self.during_a_look()
        return self.ready

    def switch_off(self, cpus: CPUSet) -> None:
        """Take CPUs offline, as the machine watcher finds it."""
        self.machine.switch_off(cpus)
        self.manager.update_topology(self.machine.topology())

    def switch_on(self, cpus: CPUSet) -> None:
        """Bring CPUs back, as the machine watcher finds it."""
        self.machine.switch_on(cpus)
        self.manager.update_topology(self.machine.topology())

    def sockets(self) -> set[str]:
        return {path.name for path in self.root.device_plugins.iterdir()}

    def wait_for_lists(self, count: int, *resources: str) -> None:
        """Wait until every pool has sent as many lists."""
        for resource in resources or (EXCLUSIVE, SHARED):
            eventually(
                lambda resource=resource: len(self.kubelet.lists[resource]) >= count,  # type: ignore[misc]
                f"{count} lists of {resource}",
            )


@contextmanager
def node_on(folder: Path, look_s: float, pools: NodePools | None = POOLS) -> Iterator[Node]:
    made = Node(folder, MACHINES["telco_2s_2n_16c32t"].write(folder), look_s, pools)
    yield made
    made.kubelet.stop()


def devices(node: Node) -> dict[str, str]:
    return {one.ID: one.health for one in node.kubelet.lists[EXCLUSIVE][-1].devices}
