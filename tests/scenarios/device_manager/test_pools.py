from __future__ import annotations

import json
import threading
from typing import TYPE_CHECKING

from cpupool.api.deviceplugin_pb2 import AllocateRequest, ContainerAllocateRequest
from cpupool.api.deviceplugin_pb2_grpc import DevicePluginStub
from cpupool.core.cpuset import CPUSet
from cpupool.core.pools import MixedCPUs, NodePools, Pool
from tests.builders import container, given, pod
from tests.kubelets import dial
from tests.loops import running
from tests.scenarios.device_manager.node import EXCLUSIVE, POOLS, SHARED, Node, devices, node_on
from tests.waiting import DEADLINE_S, eventually

if TYPE_CHECKING:
    from pathlib import Path


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


def test_a_node_is_not_ready_before_its_pools_are_offered(waiting_node: Node) -> None:
    node = waiting_node
    node.kubelet.start()
    # A look asks twice whether it is ready: what may be offered, and what is missing.
    questions = iter(("offered", "missing", "offered again"))
    ready: list[bool] = []

    def provide_the_mounts_late() -> None:
        match next(questions, ""):
            case "missing":
                node.mounts.provide(node.manager.snapshot().resolution.shared)
            case "offered again":
                ready.append(node.health.ready().ok)

    node.during_a_look = provide_the_mounts_late
    node.role.wake()
    with running(node.role.run, wake=node.role.wake):
        eventually(lambda: bool(ready), "a second look")
        node.wait_for_lists(1)
    assert ready == [False]


def test_what_pods_hold_is_served_with_the_starter_before_the_pools_are_known(folder: Path) -> None:
    with node_on(folder, look_s=3600.0, pools=None) as node:
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
