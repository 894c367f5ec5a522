from __future__ import annotations

import socket
from typing import TYPE_CHECKING

from cpupool.api.deviceplugin_pb2 import AllocateRequest, ContainerAllocateRequest
from cpupool.api.deviceplugin_pb2_grpc import DevicePluginStub
from cpupool.core.cpuset import CPUSet
from tests.kubelets import RegisteringKubelet, dial
from tests.scenarios.device_manager.node import EXCLUSIVE, SHARED, Node
from tests.waiting import DEADLINE_S, eventually

if TYPE_CHECKING:
    import pytest


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


def test_another_kubelet_is_reported_to_whom_it_concerns(node: Node) -> None:
    node.kubelet.start()
    with node.running():
        node.wait_for_lists(1)
        node.kubelet.stop()
        node.kubelet.start()
        node.wait_for_lists(2)
    # It came, it went, it came; a look in between may miss that it went.
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
    waiting = []

    def retry_s(failures: int) -> float:
        # The next kubelet, too, refuses between the bind of its socket and the listen.
        if failures < 10:
            return 0.01
        waiting.append(failures)
        return 3600.0

    monkeypatch.setattr("cpupool.kubelet.registrar.retry_s", retry_s)
    node.root.device_plugins.mkdir(parents=True)
    with socket.socket(socket.AF_UNIX) as killed:
        killed.bind(str(node.root.kubelet_socket))
    with node.running():
        eventually(lambda: len(waiting) == 2, "two plugins that wait for an hour")
        assert caplog.text.count("device plugin not registered") == 2
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


def test_a_socket_of_ours_that_is_deleted_comes_back(node: Node) -> None:
    node.kubelet.start()
    with node.running():
        node.wait_for_lists(1)
        (node.root.device_plugins / "cpupool-exclusive_a.sock").unlink()
        node.wait_for_lists(2, EXCLUSIVE)
    assert node.kubelet.names() == [EXCLUSIVE, EXCLUSIVE, SHARED]


def test_a_kubelet_that_hangs_up_is_registered_with_again_at_once(waiting_node: Node) -> None:
    node = waiting_node
    looks: list[None] = []
    node.kubelet.start()
    with node.running():
        node.wait_for_lists(1)
        eventually(lambda: node.health.ready().ok, "a look that sees every stream")
        node.during_a_look = lambda: looks.append(None)
        # A look asks three times at most, so one has ended.
        while len(looks) <= 3:
            node.role.wake()
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
