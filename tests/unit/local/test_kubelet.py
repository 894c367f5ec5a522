from __future__ import annotations

import socket
import threading
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import grpc
import pytest

from cpupool.api.deviceplugin_pb2 import (
    AllocateResponse,
    ContainerAllocateResponse,
    RegisterRequest,
)
from cpupool.api.deviceplugin_pb2_grpc import RegistrationStub
from cpupool.api.podresources_pb2 import AllocatableResourcesRequest, ListPodResourcesRequest
from cpupool.api.podresources_pb2_grpc import PodResourcesListerStub
from cpupool.core.cpu_manager import TopologyPolicy
from cpupool.core.errors import HostFileError, PodRefused, RemoteProtocolError
from cpupool.core.names import Names
from cpupool.core.workloads import ContainerKind, ContainerRef
from cpupool.kubelet.checkpoint import CheckpointFile
from cpupool.kubelet.podresources import PodResources
from cpupool.local.kubelet import EmbeddedKubelet
from cpupool.wire import device_checkpoint
from cpupool.wire.device_checkpoint import Checkpoint, Entry
from tests.builders import container, pod
from tests.kubelets import dial
from tests.plugins import AnyPlugin
from tests.waiting import DEADLINE_S

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from cpupool.core.workloads import Pod
    from cpupool.local.devices import Listing

APP, INIT, SIDECAR = ContainerKind.APP, ContainerKind.INIT, ContainerKind.SIDECAR
FOUR = {"0": 0, "1": 0, "2": 1, "3": 1}
EXCLUSIVE = "nokia.k8s.io/exclusive"
SHARED = "nokia.k8s.io/shared"


@dataclass
class World:
    """A kubelet and device plugins in one folder."""

    folder: Path
    kubelet: EmbeddedKubelet
    opened: ExitStack = field(default_factory=ExitStack)

    @property
    def socket(self) -> Path:
        return self.folder / "device-plugins" / "kubelet.sock"

    def plugin(self, resource: str = EXCLUSIVE) -> AnyPlugin:
        """Serve a plugin that has not registered yet."""
        plugin = AnyPlugin(resource)
        self.opened.enter_context(plugin.serving(self.socket.with_name(self.endpoint(plugin))))
        return plugin

    def endpoint(self, plugin: AnyPlugin) -> str:
        return f"{plugin.resource.partition('/')[2]}.sock"

    def register(
        self, plugin: AnyPlugin, nodes: Mapping[str, int | None], unhealthy: str = ""
    ) -> AnyPlugin:
        """Register a plugin and wait until its first list has arrived."""
        plugin.register(self.socket, self.endpoint(plugin))
        plugin.list(nodes, unhealthy)
        self.wait(plugin.resource, capacity=len(nodes))
        return plugin

    def wait(
        self, resource: str = EXCLUSIVE, *, capacity: int | None = None, healthy: int | None = None
    ) -> None:
        def met(listing: Listing) -> bool:
            return (capacity is None or listing.capacity == capacity) and (
                healthy is None or listing.allocatable == healthy
            )

        self.kubelet.wait_for(resource, met, DEADLINE_S)

    def holds(self, of: Pod, name: str = "main", resource: str = EXCLUSIVE) -> set[str]:
        """Ask podresources what a container has."""
        client = PodResources(self.folder / "pod-resources" / "kubelet.sock")
        found = client.by_pod_name().get((of.namespace, of.name), {}).get(name, {})
        return set(found[resource].ids) if resource in found else set()

    def saved(self, of: Pod, name: str = "main", resource: str = EXCLUSIVE) -> set[str]:
        """Read in the checkpoint what a container has."""
        source = CheckpointFile(self.folder / "device-plugins/kubelet_internal_checkpoint")
        found = source.by_pod_uid().get(of.uid, {}).get(name, {})
        return set(found[resource].ids) if resource in found else set()


@pytest.fixture
def world(folder: Path) -> Iterator[World]:
    with (
        EmbeddedKubelet(folder, Names()) as kubelet,
        ExitStack() as opened,
    ):
        yield World(folder, kubelet, opened)


def test_a_resource_is_advertised_with_its_healthy_and_unhealthy_devices(world: World) -> None:
    plugin = world.register(world.plugin(), FOUR, unhealthy="2,3")
    listing = world.kubelet.listing(EXCLUSIVE)
    assert (listing.capacity, listing.allocatable) == (4, 2)
    plugin.list(FOUR)
    world.wait(healthy=4)


def test_an_unknown_resource_has_nothing(world: World) -> None:
    assert world.kubelet.listing("nokia.k8s.io/none").capacity == 0


def test_waiting_in_vain_says_what_is_there(world: World) -> None:
    world.register(world.plugin(), FOUR, unhealthy="0")
    with pytest.raises(RemoteProtocolError, match="3 of 4 devices are healthy"):
        world.kubelet.wait_for(EXCLUSIVE, lambda listing: listing.allocatable > 4, 0.01)


@pytest.mark.parametrize(
    ("version", "endpoint", "resource", "message"),
    [
        ("v1", "a.sock", EXCLUSIVE, "'v1' is not supported"),
        ("v1beta1", "a.sock", "cpu", "'cpu' is not the name of an extended resource"),
        ("v1beta1", "a.sock", "kubernetes.io/cpu", "is not the name of an extended resource"),
        ("v1beta1", "absent.sock", EXCLUSIVE, "GetDevicePluginOptions on absent.sock failed"),
    ],
)
def test_a_registration_that_cannot_be_used_is_refused(
    world: World, version: str, endpoint: str, resource: str, message: str
) -> None:
    request = RegisterRequest(version=version, endpoint=endpoint, resource_name=resource)
    with dial(world.socket) as channel, pytest.raises(grpc.RpcError) as caught:
        RegistrationStub(channel).Register(request, timeout=DEADLINE_S)
    assert message in str(caught.value.details())
    assert world.kubelet.listing(resource).capacity == 0


def test_a_plugin_that_hangs_up_leaves_its_devices_unhealthy(world: World) -> None:
    plugin = world.register(world.plugin(), FOUR)
    plugin.end_stream()
    world.wait(capacity=4, healthy=0)
    with pytest.raises(PodRefused):
        world.kubelet.admit(pod("a", container(exclusive=1)))


def test_a_list_of_four_mebibytes_is_taken_and_a_longer_one_is_not(world: World) -> None:
    plugin = world.register(world.plugin(SHARED), {str(number): None for number in range(200_000)})
    plugin.list({f"{number:>040}": None for number in range(100_000)})
    world.wait(SHARED, capacity=200_000, healthy=0)


def test_a_second_registration_replaces_the_first(world: World) -> None:
    first = world.register(world.plugin(), FOUR)
    second = AnyPlugin(EXCLUSIVE)
    world.opened.enter_context(second.serving(world.socket.with_name("other.sock")))
    second.register(world.socket, "other.sock")
    second.list({"7": 0})
    world.wait(capacity=1)
    watching = [thread for thread in threading.enumerate() if EXCLUSIVE in thread.name]
    assert len(watching) == 1
    world.kubelet.admit(pod("a", container(exclusive=1)))
    assert (first.allocated, second.allocated) == ([], [{"7"}])


def test_a_plugin_that_registers_again_while_it_is_asked_is_asked_again(world: World) -> None:
    class Impatient(AnyPlugin):
        def Allocate(self, request: object, context: object) -> AllocateResponse:  # noqa: N802
            second.register(world.socket, "other.sock")
            return AllocateResponse()

    second = AnyPlugin(EXCLUSIVE)
    world.opened.enter_context(second.serving(world.socket.with_name("other.sock")))
    second.list(FOUR)
    first = Impatient(EXCLUSIVE)
    world.opened.enter_context(first.serving(world.socket.with_name(world.endpoint(first))))
    world.register(first, FOUR)
    world.kubelet.admit(pod("a", container(exclusive=1)))
    assert second.allocated == [{"0"}]


def test_a_pod_gets_as_many_devices_as_it_asks_for(world: World) -> None:
    plugin = world.register(world.plugin(), FOUR)
    asking = pod("a", container("one", exclusive=1), container("two", exclusive=2))
    world.kubelet.admit(asking)
    assert plugin.allocated == [{"0"}, {"2", "3"}]
    assert world.holds(asking, "one") == {"0"}
    assert world.holds(asking, "two") == {"2", "3"}
    assert world.saved(asking, "one") == {"0"}


def test_a_container_can_use_several_resources(world: World) -> None:
    world.register(world.plugin(), FOUR)
    world.register(world.plugin(SHARED), {str(number): None for number in range(10)})
    asking = pod("a", container(exclusive=1, shared=3))
    world.kubelet.admit(asking)
    assert len(world.holds(asking, resource=SHARED)) == 3
    assert len(world.holds(asking, resource=EXCLUSIVE)) == 1


def test_a_pod_is_refused_when_the_advertised_count_does_not_suffice(world: World) -> None:
    world.register(world.plugin(), FOUR, unhealthy="3")
    world.kubelet.admit(pod("a", container(exclusive=2)))
    with pytest.raises(PodRefused) as caught:
        world.kubelet.admit(pod("b", container(exclusive=2)))
    assert caught.value.reason == "Unschedulable"
    assert "Insufficient nokia.k8s.io/exclusive: 2 requested, 1 free of 3" in str(caught.value)


def test_devices_of_a_pod_that_is_gone_are_free_again(world: World) -> None:
    world.register(world.plugin(), FOUR)
    first, second = pod("a", container(exclusive=4)), pod("b", container(exclusive=4))
    world.kubelet.admit(first)
    world.kubelet.remove_pod(first.uid)
    world.kubelet.admit(second)
    assert world.holds(first) == set()
    assert world.holds(second) == set(FOUR)


def test_a_plugin_that_refuses_keeps_the_pod_out(world: World) -> None:
    plugin = world.register(world.plugin(), FOUR)
    plugin.reply = None
    asking = pod("a", container(exclusive=1))
    with pytest.raises(PodRefused) as caught:
        world.kubelet.admit(asking)
    assert caught.value.reason == "UnexpectedAdmissionError"
    assert "FAILED_PRECONDITION: not today" in str(caught.value)
    assert world.holds(asking) == set()
    plugin.reply = ContainerAllocateResponse()
    world.kubelet.admit(pod("b", container(exclusive=4)))


def test_app_containers_use_the_devices_of_plain_init_containers_again(world: World) -> None:
    plugin = world.register(world.plugin(), FOUR)
    asking = pod(
        "a",
        container("first", INIT, exclusive=2),
        container("second", INIT, exclusive=1),
        container("app", APP, exclusive=1),
        container("other", APP, exclusive=2),
    )
    world.kubelet.admit(asking)
    first, second, app, other = plugin.allocated
    assert second < first
    assert app < first
    assert first - app < other
    assert not app & other


def test_the_devices_of_a_sidecar_are_never_used_again(world: World) -> None:
    plugin = world.register(world.plugin(), FOUR)
    asking = pod(
        "a",
        container("setup", INIT, exclusive=2),
        container("proxy", SIDECAR, exclusive=1),
        container("late", INIT, exclusive=2),
        container("app", APP, exclusive=3),
    )
    world.kubelet.admit(asking)
    setup, proxy, late, app = plugin.allocated
    assert proxy < setup
    assert not proxy & late
    assert not proxy & app
    assert app == set(FOUR) - proxy


def test_the_plugin_is_asked_where_there_is_a_choice_and_its_answer_is_advice(
    world: World,
) -> None:
    plugin = world.plugin()
    plugin.preferred = {"3", "0", "9"}
    world.register(plugin, FOUR)
    world.kubelet.admit(pod("a", container("i", INIT, exclusive=1), container(exclusive=3)))
    assert plugin.asked == [({"0", "1"}, set(), 1), (set(FOUR), {"0"}, 3)]
    assert plugin.allocated == [{"0"}, {"0", "1", "3"}]


def test_a_plugin_without_an_opinion_is_not_asked(world: World) -> None:
    plugin = world.register(world.plugin(), FOUR)
    world.kubelet.admit(pod("a", container(exclusive=1)))
    assert plugin.asked == []


def test_a_container_that_needs_two_numa_nodes_is_refused_under_single_numa_node(
    folder: Path,
) -> None:
    manager = TopologyPolicy.SINGLE_NUMA_NODE
    with EmbeddedKubelet(folder, Names(), manager=manager) as kubelet, ExitStack() as opened:
        world = World(folder, kubelet, opened)
        world.register(world.plugin(), FOUR)
        with pytest.raises(PodRefused) as caught:
            kubelet.admit(pod("a", container(exclusive=3)))
        assert caught.value.reason == "TopologyAffinityError"
        assert "main: no NUMA nodes that topologyManagerPolicy single-numa-node" in str(
            caught.value
        )
        kubelet.admit(pod("b", container(exclusive=2)))


def test_a_machine_of_64_numa_nodes_is_no_hurdle(world: World) -> None:
    """A walk through all sets of its nodes would not end."""
    cpus = {str(cpu): cpu // 4 for cpu in range(256)}
    world.register(world.plugin(), cpus)
    world.kubelet.admit(pod("half", container(exclusive=2), container("other", exclusive=126)))
    last = pod("rest", container(exclusive=127))
    world.kubelet.admit(last)
    assert len(world.holds(last)) == 127


def test_a_container_starts_with_what_the_plugins_stored_for_it(world: World) -> None:
    plugin, other = world.plugin(), world.plugin(SHARED)
    plugin.pre_start_required = True
    plugin.reply = ContainerAllocateResponse(envs={"A": "x", "B": "x"}, annotations={"k": "x"})
    other.reply = ContainerAllocateResponse(envs={"A": "s", "C": "s"}, annotations={"k": "s"})
    world.register(plugin, FOUR)
    world.register(other, {"0": None})
    asking = pod("a", container(exclusive=1, shared=1), container("plain"))
    world.kubelet.admit(asking)
    assert plugin.prepared == []
    options = world.kubelet.run_options(ContainerRef(asking.uid, "main"))
    assert options.environment == {"A": "x", "B": "x", "C": "s"}
    assert options.annotations == {"k": "x"}
    assert plugin.prepared == plugin.allocated
    assert other.prepared == []
    assert world.kubelet.run_options(ContainerRef(asking.uid, "plain")).environment == {}


def test_podresources_lists_active_pods_without_plain_init_containers(world: World) -> None:
    world.register(world.plugin(), FOUR)
    world.kubelet.admit(
        pod(
            "a",
            container("setup", INIT, exclusive=2),
            container("proxy", SIDECAR),
            container("app", exclusive=2),
            container("debug", ContainerKind.EPHEMERAL),
        )
    )
    with dial(world.folder / "pod-resources" / "kubelet.sock") as channel:
        stub = PodResourcesListerStub(channel)
        (listed,) = stub.List(ListPodResourcesRequest(), timeout=DEADLINE_S).pod_resources
        allocatable = stub.GetAllocatableResources(
            AllocatableResourcesRequest(), timeout=DEADLINE_S
        )
    assert (listed.namespace, listed.name) == ("default", "a")
    assert [one.name for one in listed.containers] == ["proxy", "app"]
    given = [
        (one.resource_name, list(one.device_ids), [node.ID for node in one.topology.nodes])
        for one in listed.containers[1].devices
    ]
    assert given == [(EXCLUSIVE, ["0"], [0]), (EXCLUSIVE, ["1"], [0])]
    assert [list(one.device_ids) for one in allocatable.devices] == [["0"], ["1"], ["2"], ["3"]]
    assert list(allocatable.cpu_ids) == []


def test_the_checkpoint_holds_what_the_kubelet_writes(world: World) -> None:
    plugin = world.plugin()
    plugin.reply = ContainerAllocateResponse(envs={"A": "x"})
    world.register(plugin, FOUR, unhealthy="1")
    asking = pod("a", container(exclusive=3))
    world.kubelet.admit(asking)
    data = (world.folder / "device-plugins" / "kubelet_internal_checkpoint").read_bytes()
    saved = device_checkpoint.parse(data)
    reply = plugin.reply.SerializeToString()
    nodes = {0: ("0",), 1: ("2", "3")}
    assert saved.entries == (Entry(asking.uid, "main", EXCLUSIVE, nodes, reply),)
    assert {name: sorted(ids) for name, ids in saved.registered.items()} == {
        EXCLUSIVE: ["0", "2", "3"]
    }


def test_a_restart_wipes_sockets_and_leaves_resources_at_zero(world: World) -> None:
    world.register(world.plugin(), FOUR)
    asking = pod("a", container(exclusive=2))
    world.kubelet.admit(asking)
    note = world.socket.with_name("note")
    note.touch()
    before = world.socket.stat().st_ino, world.socket.stat().st_ctime_ns
    world.kubelet.restart()
    assert sorted(path.name for path in world.socket.parent.iterdir()) == [
        "kubelet.sock",
        "kubelet_internal_checkpoint",
        "note",
    ]
    assert (world.socket.stat().st_ino, world.socket.stat().st_ctime_ns) != before
    assert world.kubelet.listing(EXCLUSIVE).capacity == 0
    assert world.holds(asking) == {"0", "1"}
    with pytest.raises(PodRefused, match="Insufficient"):
        world.kubelet.admit(pod("b", container(exclusive=1)))
    world.register(world.plugin(), FOUR)
    world.kubelet.admit(asking)
    second = pod("b", container(exclusive=2))
    world.kubelet.admit(second)
    assert world.holds(second) == {"2", "3"}


def test_a_running_pod_is_refused_when_one_of_its_devices_is_no_longer_healthy(
    world: World,
) -> None:
    plugin = world.register(world.plugin(), FOUR)
    asking = pod("a", container(exclusive=2))
    world.kubelet.admit(asking)
    plugin.list(FOUR, unhealthy="1")
    world.wait(healthy=3)
    with pytest.raises(PodRefused) as caught:
        world.kubelet.admit(asking)
    assert caught.value.reason == "UnexpectedAdmissionError"
    assert "main holds 1 of nokia.k8s.io/exclusive" in str(caught.value)
    assert world.holds(asking) == set()


def test_a_pod_that_is_admitted_again_keeps_its_devices_without_a_second_allocate(
    world: World,
) -> None:
    plugin = world.register(world.plugin(), FOUR)
    asking = pod("a", container(exclusive=4))
    world.kubelet.admit(asking)
    world.kubelet.admit(asking)
    assert len(plugin.allocated) == 1
    assert world.holds(asking) == set(FOUR)


def test_a_restarted_kubelet_forgets_pods_that_have_ended(world: World) -> None:
    world.register(world.plugin(), FOUR)
    ended = pod("a", container(exclusive=4))
    world.kubelet.admit(ended)
    world.kubelet.remove_pod(ended.uid)
    assert world.saved(ended) == set(FOUR)
    world.kubelet.restart()
    again = world.plugin()
    world.register(again, FOUR)
    world.kubelet.admit(pod("b", container(exclusive=4)))
    assert again.allocated == [set(FOUR)]


def test_a_node_is_taken_over_with_the_checkpoint_of_running_pods(folder: Path) -> None:
    running = pod("a", container(exclusive=1))
    entry = Entry(running.uid, "main", EXCLUSIVE, {-1: ("2",)})
    plugins = folder / "device-plugins"
    plugins.mkdir()
    data = device_checkpoint.encode(Checkpoint((entry,), {EXCLUSIVE: ("2", "3")}))
    (plugins / "kubelet_internal_checkpoint").write_bytes(data)
    with EmbeddedKubelet(folder, Names()) as kubelet, ExitStack() as opened:
        world = World(folder, kubelet, opened)
        plugin = world.register(world.plugin(), FOUR)
        kubelet.admit(running)
        kubelet.admit(pod("b", container(exclusive=3)))
        assert world.holds(running) == {"2"}
        assert plugin.allocated == [{"0", "1", "3"}]


def test_a_stopped_kubelet_leaves_its_checkpoint_as_it_was(folder: Path) -> None:
    checkpoint = folder / "device-plugins" / "kubelet_internal_checkpoint"
    with ExitStack() as opened:
        with EmbeddedKubelet(folder, Names()) as kubelet:
            world = World(folder, kubelet, opened)
            world.register(world.plugin(), FOUR)
            kubelet.admit(pod("a", container(exclusive=1)))
            before = checkpoint.read_bytes()
        assert checkpoint.read_bytes() == before


def test_devices_without_a_numa_node_are_listed_without_a_topology(world: World) -> None:
    world.register(world.plugin(SHARED), {"0": None})
    world.kubelet.admit(pod("a", container(shared=1)))
    with dial(world.folder / "pod-resources" / "kubelet.sock") as channel:
        answer = PodResourcesListerStub(channel).List(ListPodResourcesRequest(), timeout=DEADLINE_S)
    (device,) = answer.pod_resources[0].containers[0].devices
    assert not device.HasField("topology")


def test_a_folder_with_a_path_too_long_for_sockets_is_refused(folder: Path) -> None:
    deep = folder / ("x" * 100)
    with pytest.raises(HostFileError, match="no socket can be made here"):
        EmbeddedKubelet(deep, Names()).start()


def test_a_stopped_kubelet_answers_no_client(folder: Path) -> None:
    with EmbeddedKubelet(folder, Names()):
        pass
    client = socket.socket(socket.AF_UNIX)
    with client, pytest.raises(OSError, match=r"refused|No such file"):
        client.connect(str(folder / "device-plugins" / "kubelet.sock"))
