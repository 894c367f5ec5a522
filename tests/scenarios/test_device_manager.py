from __future__ import annotations

import gc
import json
import socket
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from cpupool.api.deviceplugin_pb2 import AllocateRequest, ContainerAllocateRequest
from cpupool.api.deviceplugin_pb2_grpc import DevicePluginStub
from cpupool.core.cpuset import CPUSet
from cpupool.core.pools import MixedCPUs, NodePools, Pool
from cpupool.host.mounts import Mounts
from cpupool.host.root import HostRoot
from cpupool.manager.manager import Manager
from cpupool.roles.device_manager import DeviceManager
from cpupool.roles.mount_keeper import MountKeeper
from cpupool.telemetry.health import Health
from cpupool.telemetry.metrics import Metrics
from tests.builders import container, given, pod
from tests.events import Heard
from tests.kubelets import RegisteringKubelet, dial
from tests.loops import running
from tests.machines import MACHINES
from tests.waiting import DEADLINE_S, eventually

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager
    from pathlib import Path

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
        mounts = Mounts(self.root, starter, mounted=frozenset, events=Heard())
        self.role = DeviceManager(
            self.manager,
            self.root,
            mounts,
            metrics=self.metrics,
            health=self.health,
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
def _node(folder: Path, look_s: float, pools: NodePools | None = POOLS) -> Iterator[Node]:
    made = Node(folder, MACHINES["telco_2s_2n_16c32t"].write(folder), look_s, pools)
    yield made
    made.kubelet.stop()


@pytest.fixture
def node(folder: Path) -> Iterator[Node]:
    with _node(folder, look_s=0.05) as made:
        yield made


@pytest.fixture
def waiting_node(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Node]:
    """A node whose role looks when an event tells it to, and otherwise once an hour."""
    monkeypatch.setattr("cpupool.kubelet.registrar._DIAL_S", 3600.0)
    with _node(folder, look_s=3600.0) as made:
        yield made


def test_every_pool_but_the_default_one_is_registered_and_listed(node: Node) -> None:
    node.kubelet.start()
    with node.running():
        node.wait_for_lists(1)
        assert node.kubelet.names() == [EXCLUSIVE, SHARED]
        assert node.sockets() == {
            "kubelet.sock",
            "cpupool-exclusive_a.sock",
            "cpupool-shared_s.sock",
        }
    devices = node.kubelet.lists[EXCLUSIVE][0].devices
    assert {one.ID: [at.ID for at in one.topology.nodes] for one in devices} == {
        "0": [0],
        "1": [0],
        "2": [0],
        "8": [1],
    }
    assert [one.ID for one in node.kubelet.lists[SHARED][0].devices] == [
        str(number) for number in range(16_000)
    ]
    assert {
        request.resource_name: request.options.get_preferred_allocation_available
        for request in node.kubelet.registered
    } == {EXCLUSIVE: True, SHARED: False}


def test_a_kubelet_that_restarts_is_registered_with_every_time(waiting_node: Node) -> None:
    """The new socket is an event: the role looks once an hour without one."""
    node = waiting_node
    node.kubelet.start()
    with node.running():
        for starts in range(1, 101):
            node.wait_for_lists(starts)
            node.kubelet.stop()
            if starts < 100:
                node.kubelet.start()
    assert node.kubelet.names() == [EXCLUSIVE] * 100 + [SHARED] * 100
    counted = node.metrics.render()[1].decode()
    assert f'cpupool_registrations_total{{resource="{EXCLUSIVE}"}} 100.0' in counted


def test_an_attempt_that_is_due_before_the_look_has_ended_is_made(
    waiting_node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a busy machine."""
    monkeypatch.setattr("cpupool.kubelet.registrar._FIRST_RETRY_S", 0.0)
    node = waiting_node
    node.kubelet.refusals = 5
    node.kubelet.start()
    with node.running():
        node.wait_for_lists(1)
    assert node.kubelet.names() == [EXCLUSIVE, SHARED]


def test_another_kubelet_is_told_to_whom_it_concerns(node: Node) -> None:
    node.kubelet.start()
    with node.running():
        node.wait_for_lists(1)
        node.kubelet.stop()
        node.kubelet.start()
        node.wait_for_lists(2)
    # It came, it went, it came; whoever looks in between may miss that it went.
    assert 2 <= node.kubelets <= 3


def test_readiness_says_what_the_kubelet_does_not_know(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    def told() -> str:
        return node.health.ready().lines[0]

    with node.running():
        eventually(lambda: "kubelet.sock is not there; start the kubelet" in told(), told)
        node.kubelet.refusals = 1_000_000
        node.kubelet.start()
        eventually(lambda: f"the kubelet does not know {EXCLUSIVE}: " in told(), told)
        eventually(lambda: "not ready" in told(), told)
        eventually(lambda: node.kubelet.refusals < 999_994, "refusals")
        node.kubelet.refusals = 0
        eventually(lambda: told() == "kubelet: ok", told)
    refused = [one for one in caplog.records if "not ready" in one.getMessage()]
    assert len(refused) == 2


def test_a_kubelet_that_takes_over_a_living_socket_is_registered_with(node: Node) -> None:
    successor = RegisteringKubelet(node.root.device_plugins)
    node.kubelet.start()
    with node.running():
        node.wait_for_lists(1)
        successor.start(wiped="kubelet.sock")
        eventually(lambda: len(successor.registered) == 2, "registrations")
        # The first kubelet's streams are still open.
        node.switch_off(CPUSet.of(2))
        node.wait_for_lists(2, EXCLUSIVE)
        successor.stop()


def test_a_kubelet_that_comes_later_is_registered_with(node: Node) -> None:
    with node.running():
        # Not even the kubelet's folder is there yet.
        node.kubelet.start()
        node.wait_for_lists(1)


def test_pools_are_served_while_there_is_no_kubelet(node: Node) -> None:
    node.root.device_plugins.mkdir(parents=True)
    ours = node.root.device_plugins / "cpupool-exclusive_a.sock"
    with node.running():
        for _ in range(3):
            eventually(ours.is_socket, "the plugin's socket")
            ours.unlink()
        eventually(ours.is_socket, "the plugin's socket")
        node.kubelet.start()
        node.wait_for_lists(1)


def test_a_kubelet_socket_that_flaps_makes_no_storm_of_registrations(node: Node) -> None:
    node.root.device_plugins.mkdir(parents=True)
    with node.running():
        for _ in range(200):
            node.root.kubelet_socket.touch()
            node.root.kubelet_socket.unlink()
        node.kubelet.start()
        node.wait_for_lists(1)
    # Once each, and once more where the socket changed between a look and the call.
    assert len(node.kubelet.names()) <= 4


def test_a_killed_kubelets_dead_socket_does_not_delay_the_next_one(
    node: Node, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("cpupool.kubelet.registrar.retry_s", lambda _failures: 3600.0)
    node.root.device_plugins.mkdir(parents=True)
    with socket.socket(socket.AF_UNIX) as killed:
        killed.bind(str(node.root.kubelet_socket))
    with node.running():
        eventually(lambda: caplog.text.count("device plugin not registered") == 2, "two failures")
        assert node.sockets() > {"cpupool-exclusive_a.sock", "cpupool-shared_s.sock"}
        node.kubelet.start()
        node.wait_for_lists(1)


def test_a_kubelet_that_is_not_ready_is_asked_again(node: Node) -> None:
    node.kubelet.refusals = 6
    node.kubelet.start()
    with node.running():
        node.wait_for_lists(1)
    assert node.kubelet.refusals == 0


def test_a_kubelet_that_does_not_dial_back_is_registered_with_again(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cpupool.kubelet.registrar._DIAL_S", 0.1)
    node.kubelet.deaf = True
    node.kubelet.start()
    with node.running():
        eventually(lambda: len(node.kubelet.registered) >= 4, "registrations")
        node.kubelet.deaf = False
        node.wait_for_lists(1)


def test_a_deleted_socket_comes_back_before_the_kubelet_has_dialled(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cpupool.kubelet.registrar._DIAL_S", 3600.0)
    node.kubelet.deaf = True
    node.kubelet.start()
    with node.running():
        eventually(lambda: len(node.kubelet.registered) == 2, "registrations")
        (node.root.device_plugins / "cpupool-exclusive_a.sock").unlink()
        eventually(
            lambda: node.kubelet.names() == [EXCLUSIVE, EXCLUSIVE, SHARED], "another registration"
        )


def test_pools_are_served_while_the_kubelet_is_not_ready(node: Node) -> None:
    node.kubelet.refusals = 1_000_000
    node.kubelet.start()
    ours = node.root.device_plugins / "cpupool-exclusive_a.sock"
    request = AllocateRequest(container_requests=[ContainerAllocateRequest(devices_ids=["1"])])
    with node.running():
        eventually(lambda: node.kubelet.refusals < 999_997, "refusals")
        with dial(ours) as channel:
            reply = DevicePluginStub(channel).Allocate(request, timeout=DEADLINE_S)
    assert reply.container_responses[0].envs["EXCLUSIVE_CPUS"] == "1"


def test_a_cpu_that_goes_offline_is_unhealthy_until_it_returns(node: Node) -> None:
    node.kubelet.start()
    with node.running():
        node.wait_for_lists(1)
        node.switch_off(CPUSet.of(2))
        node.wait_for_lists(2, EXCLUSIVE)
        assert node.kubelet.unhealthy(EXCLUSIVE) == {"2"}
        node.switch_on(CPUSet.of(2))
        node.wait_for_lists(3, EXCLUSIVE)
        assert node.kubelet.unhealthy(EXCLUSIVE) == set()
    assert len(node.kubelet.lists[SHARED]) == 1


def test_a_socket_of_ours_that_is_deleted_comes_back(node: Node) -> None:
    node.kubelet.start()
    with node.running():
        node.wait_for_lists(1)
        (node.root.device_plugins / "cpupool-exclusive_a.sock").unlink()
        node.wait_for_lists(2, EXCLUSIVE)
    assert node.kubelet.names() == [EXCLUSIVE, EXCLUSIVE, SHARED]


def test_a_kubelet_that_hangs_up_is_registered_with_again(node: Node) -> None:
    node.kubelet.start()
    with node.running():
        node.wait_for_lists(1)
        # Two changes of the machine: the role has looked in between, and seen its streams open.
        node.switch_off(CPUSet.of(2))
        node.wait_for_lists(2, EXCLUSIVE)
        node.switch_on(CPUSet.of(2))
        node.wait_for_lists(3, EXCLUSIVE)
        node.kubelet.hang_up(SHARED)
        node.wait_for_lists(2, SHARED)
    assert node.kubelet.names() == [EXCLUSIVE, SHARED, SHARED]


def test_other_files_in_the_folder_change_nothing(node: Node) -> None:
    node.kubelet.start()
    with node.running():
        node.wait_for_lists(1)
        for number in range(200):
            (node.root.device_plugins / f"other-{number}.sock").touch()
        node.switch_off(CPUSet.of(2))
        node.wait_for_lists(2, EXCLUSIVE)
    assert node.kubelet.names() == [EXCLUSIVE, SHARED]


def test_new_pools_are_advertised_and_old_ones_withdrawn(node: Node) -> None:
    node.kubelet.start()
    with node.running():
        node.wait_for_lists(1)
        changed = NodePools.of(Pool.named("exclusive_a", "0-2,8"), Pool.named("exclusive_b", "4"))
        node.manager.reconfigure(changed, node.machine.topology())
        node.wake()
        node.wait_for_lists(1, "nokia.k8s.io/exclusive_b")
        assert "cpupool-shared_s.sock" not in node.sockets()
    assert len(node.kubelet.lists[EXCLUSIVE]) == 1


def test_what_is_announced_reaches_the_containers_at_once(waiting_node: Node) -> None:
    node = waiting_node
    told = node.root.pool_folders / "shared_s/cpus.json"

    def generation() -> int:
        return int(json.loads(told.read_text())["generation"])

    node.mount_keeper.swept(["shared_s"])
    with node.running():
        eventually(told.exists, "the pool's file")
        assert generation() == 1
        for expected in range(2, 12):
            node.mount_keeper.swept({"shared_s", "shared_gone"})
            eventually(lambda expected=expected: generation() == expected, "the next generation")  # type: ignore[misc]
        node.ready = False
        node.mount_keeper.swept({"shared_s"})
        eventually(lambda: not node.health.ready().ok, "a look without news")
        assert generation() == 11
        node.ready = True
        node.wake()
        eventually(lambda: generation() == 12, "what was announced meanwhile")


def test_openshifts_resource_comes_with_the_folder_of_the_pool_behind_it(node: Node) -> None:
    plugin = node.root.device_plugins / "cpupool-enable-shared-cpus.sock"
    request = AllocateRequest(container_requests=[ContainerAllocateRequest(devices_ids=["0"])])

    def mounted() -> dict[str, str]:
        with dial(plugin) as channel:
            # A socket is there a moment before it is listened on.
            stub = DevicePluginStub(channel)
            reply = stub.Allocate(request, timeout=DEADLINE_S, wait_for_ready=True)
        return {
            one.container_path: one.host_path
            for one in reply.container_responses[0].mounts
            if "/pools/" in one.host_path
        }

    node.kubelet.start()
    with node.running():
        for pool in ("shared_s", "shared_t"):
            pools = NodePools.of(Pool.named(pool, "4-5"), mixed=MixedCPUs(pool, 2))
            node.manager.reconfigure(pools, node.machine.topology())
            node.wake()
            folder = node.root.pool_folders / pool
            eventually(lambda folder=folder: plugin.exists() and folder.is_dir(), "the plugin")  # type: ignore[misc]
            assert mounted() == {f"/run/cpupool/{pool}": f"/var/lib/cpupool/pools/{pool}"}


def test_nothing_is_offered_while_somebody_else_gives_cpus_out(node: Node) -> None:
    node.kubelet.start()
    with node.running():
        node.wait_for_lists(1)
        node.ready = False
        node.wake()
        eventually(lambda: node.sockets() == {"kubelet.sock"}, "no socket of ours")
        eventually(lambda: not node.health.ready().ok, "that is told")
        node.ready = True
        node.wake()
        node.wait_for_lists(2)
        eventually(lambda: node.health.ready().ok, "readiness")
    assert node.kubelet.names() == [EXCLUSIVE, EXCLUSIVE, SHARED, SHARED]


def test_a_pool_that_is_gone_is_served_until_no_pod_holds_anything_of_it(node: Node) -> None:
    node.kubelet.start()
    with node.running():
        node.wait_for_lists(1)
        owner = pod("owner", container(exclusive_a=1))
        node.manager.observe(pods=[owner])
        node.manager.accept(given(owner, exclusive_a="2"))
        node.manager.reconfigure(NodePools(), node.machine.topology())
        eventually(
            lambda: node.sockets() == {"kubelet.sock", "cpupool-exclusive_a.sock"}, "sockets"
        )
        eventually(lambda: devices(node) == {"2": "Healthy"}, "only what is held is listed")

        # After its restart the kubelet admits the pod again only with its device there.
        node.kubelet.stop()
        node.kubelet.start()
        node.wait_for_lists(3, EXCLUSIVE)
        assert devices(node) == {"2": "Healthy"}

        node.manager.observe(pods=[])
        eventually(lambda: node.sockets() == {"kubelet.sock"}, "no socket of ours")
    assert node.kubelet.names() == [EXCLUSIVE, EXCLUSIVE, SHARED]


def test_a_pool_that_goes_while_the_role_looks_is_not_registered_again(node: Node) -> None:
    node.kubelet.start()
    with node.running():
        node.wait_for_lists(1)
        eventually(lambda: node.health.ready().ok, "the kubelet listens")
        gone = threading.Event()

        def go() -> None:
            # The pools of this look have been read; their streams end before it comes to them.
            if not gone.is_set():
                node.manager.reconfigure(NodePools(), node.machine.topology())
                eventually(lambda: not node.kubelet.listening(), "every stream ends")
                gone.set()

        node.during_a_look = go
        eventually(gone.is_set, "a look")
        eventually(lambda: node.sockets() == {"kubelet.sock"}, "no socket of ours")
    assert node.kubelet.names() == [EXCLUSIVE, SHARED]


def test_what_pods_hold_is_served_with_the_starter_before_the_pools_are_known(folder: Path) -> None:
    with _node(folder, look_s=3600.0, pools=None) as node:
        owner = pod("owner", container(exclusive_a=1))
        node.manager.observe(pods=[owner])
        node.manager.accept(given(owner, exclusive_a="2"))
        node.kubelet.start()
        with node.running():
            node.wait_for_lists(1, EXCLUSIVE)
            # The kubelet hears of this before the role looks again.
            node.manager.reconfigure(POOLS, node.machine.topology())
            node.wait_for_lists(2, EXCLUSIVE)
            request = AllocateRequest(
                container_requests=[ContainerAllocateRequest(devices_ids=["1"])]
            )
            with dial(node.root.device_plugins / "cpupool-exclusive_a.sock") as channel:
                reply = DevicePluginStub(channel).Allocate(request, timeout=DEADLINE_S)
    assert [one.container_path for one in reply.container_responses[0].mounts] == [
        "/opt/cpupool/process-starter"
    ]


def devices(node: Node) -> dict[str, str]:
    return {one.ID: one.health for one in node.kubelet.lists[EXCLUSIVE][-1].devices}


def test_stopping_leaves_no_socket_and_no_thread(node: Node) -> None:
    before = set(threading.enumerate())
    node.kubelet.start()
    with node.running():
        node.wait_for_lists(1)
    assert node.sockets() == {"kubelet.sock"}
    node.kubelet.stop()
    left = set(threading.enumerate()) - before

    def ended() -> bool:
        # grpc ends its polling thread when the last server is freed, which stands in a cycle.
        gc.collect()
        return not any(thread.is_alive() for thread in left)

    eventually(ended, lambda: f"the end of {left}")


def test_a_stop_does_not_ask_a_slow_kubelet_for_the_other_pools(node: Node) -> None:
    node.kubelet.ready.clear()
    node.kubelet.start()
    with node.running() as stop:
        eventually(lambda: node.kubelet.calls == 1, "a registration")
        stop.set()
        node.kubelet.ready.set()
    assert node.kubelet.calls == 1
    assert node.sockets() == {"kubelet.sock"}
