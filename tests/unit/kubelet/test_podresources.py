from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from cpupool.api.podresources_pb2 import (
    AllocatableResourcesRequest,
    AllocatableResourcesResponse,
    ContainerDevices,
    ContainerMemory,
    ContainerResources,
    ListPodResourcesRequest,
    ListPodResourcesResponse,
    NUMANode,
    TopologyInfo,
)
from cpupool.api.podresources_pb2 import PodResources as PodResourcesMessage
from cpupool.api.podresources_pb2_grpc import (
    PodResourcesListerServicer,
    add_PodResourcesListerServicer_to_server,
)
from cpupool.core.cpuset import CPUSet
from cpupool.core.devices import NATIVE_CPU, AllocatedDevices
from cpupool.core.errors import RemoteProtocolError
from cpupool.core.names import Names
from cpupool.core.node_topology import Amounts, KubeletAmounts
from cpupool.kubelet.podresources import PodResources
from cpupool.local.kubelet import EmbeddedKubelet
from tests.waiting import DEADLINE_S

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

EXCLUSIVE = "nokia.k8s.io/exclusive_a"
SHARED = "nokia.k8s.io/shared_b"
GIB = 2**30


def _pod(
    namespace: str, name: str, **containers: dict[str, list[list[str]]]
) -> PodResourcesMessage:
    """Container name → resource → its devices, one list per NUMA node."""
    return PodResourcesMessage(
        namespace=namespace,
        name=name,
        containers=[
            ContainerResources(
                name=container,
                devices=[
                    ContainerDevices(resource_name=resource, device_ids=ids)
                    for resource, groups in resources.items()
                    for ids in groups
                ],
            )
            for container, resources in containers.items()
        ],
    )


class _Lister(PodResourcesListerServicer):
    def __init__(
        self,
        *pods: PodResourcesMessage,
        refusal: grpc.StatusCode | None = None,
        cpu_ids: tuple[int, ...] = (),
        devices: tuple[ContainerDevices, ...] = (),
        memory: tuple[ContainerMemory, ...] = (),
    ) -> None:
        self._pods = pods
        self._refusal = refusal
        self._allocatable = AllocatableResourcesResponse(
            cpu_ids=cpu_ids, devices=devices, memory=memory
        )

    def List(  # noqa: N802
        self, request: ListPodResourcesRequest, context: grpc.ServicerContext
    ) -> ListPodResourcesResponse:
        if self._refusal:
            context.abort(self._refusal, "no")
        return ListPodResourcesResponse(pod_resources=self._pods)

    def GetAllocatableResources(  # noqa: N802
        self, request: AllocatableResourcesRequest, context: grpc.ServicerContext
    ) -> AllocatableResourcesResponse:
        if self._refusal:
            context.abort(self._refusal, "no")
        return self._allocatable


def client_of(socket: Path) -> PodResources:
    """Make a client that waits as long as a busy machine takes."""
    return PodResources(socket, timeout_s=DEADLINE_S)


@contextmanager
def _kubelet(socket: Path, lister: _Lister) -> Iterator[None]:
    with ThreadPoolExecutor(2) as workers:
        server = grpc.server(workers)
        add_PodResourcesListerServicer_to_server(lister, server)
        server.add_insecure_port(f"unix:{socket}")
        server.start()
        try:
            yield
        finally:
            server.stop(None).wait(DEADLINE_S)


def test_devices_are_found_by_pod_and_container(folder: Path) -> None:
    lister = _Lister(
        _pod(
            "default",
            "web",
            main={EXCLUSIVE: [["2", "3"], ["20"]], SHARED: [["0", "1"]]},
            sidecar={},
        ),
        _pod("other", "web", main={"example.com/gpu": [["g0"]]}),
    )
    with _kubelet(folder / "k.sock", lister):
        found = client_of(folder / "k.sock").by_pod_name()
    assert found == {
        ("default", "web"): {
            "main": {
                EXCLUSIVE: AllocatedDevices(frozenset({"2", "3", "20"})),
                SHARED: AllocatedDevices(frozenset({"0", "1"})),
            },
            "sidecar": {},
        },
        ("other", "web"): {"main": {"example.com/gpu": AllocatedDevices(frozenset({"g0"}))}},
    }


def test_the_cpus_of_the_static_cpu_manager_come_as_a_resource_of_their_own(folder: Path) -> None:
    pod = _pod("default", "web", main={EXCLUSIVE: [["2"]]}, sidecar={})
    pod.containers[0].cpu_ids.extend((5, 4, -1))
    with _kubelet(folder / "k.sock", _Lister(pod)):
        found = client_of(folder / "k.sock").by_pod_name()["default", "web"]
    assert found["main"][NATIVE_CPU] == AllocatedDevices(frozenset({"4", "5"}), CPUSet.of(4, 5))
    assert found["sidecar"] == {}


@pytest.mark.parametrize(
    ("cpu_ids", "cpus"),
    [
        pytest.param((), "", id="policy none"),
        pytest.param((3, 1, 2), "1-3", id="policy static"),
        pytest.param((-1, 2**62, 1), "1", id="no CPU at all"),
    ],
)
def test_a_static_cpu_manager_is_known_by_its_cpus(
    folder: Path, cpu_ids: tuple[int, ...], cpus: str
) -> None:
    with _kubelet(folder / "k.sock", _Lister(cpu_ids=cpu_ids)):
        assert str(client_of(folder / "k.sock").allocatable_cpus()) == cpus


def test_the_embedded_kubelet_tells_of_a_static_cpu_manager(folder: Path) -> None:
    with EmbeddedKubelet(folder, Names()) as kubelet:
        client = PodResources(folder / "pod-resources" / "kubelet.sock")
        assert client.allocatable_cpus() == CPUSet()
        kubelet.static_cpus = CPUSet.of(2, 3)
        assert client.allocatable_cpus() == CPUSet.of(2, 3)


def test_an_old_kubelet_does_not_tell_of_its_cpu_manager(folder: Path) -> None:
    with (
        _kubelet(folder / "k.sock", _Lister(refusal=grpc.StatusCode.UNIMPLEMENTED)),
        pytest.raises(RemoteProtocolError, match=r"allocatable CPUs.*UNIMPLEMENTED"),
    ):
        client_of(folder / "k.sock").allocatable_cpus()


def test_a_list_beyond_4_mib_is_taken(folder: Path) -> None:
    ids = [f"{number:060}" for number in range(100_000)]
    with _kubelet(folder / "k.sock", _Lister(_pod("default", "big", main={SHARED: [ids]}))):
        found = client_of(folder / "k.sock").by_pod_name()
    assert len(found["default", "big"]["main"][SHARED].ids) == 100_000


def test_a_restarted_kubelet_is_found_by_the_same_client(folder: Path) -> None:
    client = client_of(folder / "k.sock")
    for name in ("first", "second", "third"):
        with pytest.raises(RemoteProtocolError, match="check that the kubelet runs"):
            client.by_pod_name()
        with _kubelet(folder / "k.sock", _Lister(_pod("default", name))):
            assert client.by_pod_name() == {("default", name): {}}


def test_an_absent_kubelet_is_one_clear_error(folder: Path) -> None:
    with pytest.raises(RemoteProtocolError, match=r"none\.sock failed \(UNAVAILABLE: .*\); check"):
        client_of(folder / "none.sock").by_pod_name()


@pytest.mark.parametrize(
    ("code", "remedy"),
    [
        pytest.param(grpc.StatusCode.RESOURCE_EXHAUSTED, "ask less often", id="too many calls"),
        pytest.param(grpc.StatusCode.UNIMPLEMENTED, "switched off", id="an old kubelet"),
        pytest.param(grpc.StatusCode.INTERNAL, "log of the kubelet", id="a kubelet that failed"),
    ],
)
def test_a_refusal_comes_with_its_code_and_a_remedy(
    folder: Path, code: grpc.StatusCode, remedy: str
) -> None:
    with (
        _kubelet(folder / "k.sock", _Lister(refusal=code)),
        pytest.raises(RemoteProtocolError, match=f"{code.name}: no.*{remedy}"),
    ):
        client_of(folder / "k.sock").by_pod_name()


def test_a_kubelet_that_hangs_is_given_up_and_left_alone_for_a_while(folder: Path) -> None:
    class _Hanging(_Lister):
        def List(  # noqa: N802
            self, request: ListPodResourcesRequest, context: grpc.ServicerContext
        ) -> ListPodResourcesResponse:
            given_up.wait(DEADLINE_S)
            return ListPodResourcesResponse()

    given_up = threading.Event()
    now_s = 100.0
    with _kubelet(folder / "k.sock", _Hanging()):
        client = PodResources(folder / "k.sock", timeout_s=0.05, now_s=lambda: now_s)
        for _ in range(2):
            with pytest.raises(RemoteProtocolError, match=r"DEADLINE_EXCEEDED.*hangs"):
                client.by_pod_name()
            for question in (client.by_pod_name, client.allocatable_cpus):
                with pytest.raises(RemoteProtocolError, match=r"put off: .* not answered; check"):
                    question()
            now_s += 0.25
        given_up.set()


def _on(*nodes: int) -> TopologyInfo:
    return TopologyInfo(nodes=[NUMANode(ID=node) for node in nodes])


def test_the_nodes_of_devices_and_memory_are_found(folder: Path) -> None:
    def device(identifier: str, *nodes: int, name: str = "example.com/nic") -> ContainerDevices:
        topology = _on(*nodes) if nodes else None
        return ContainerDevices(resource_name=name, device_ids=[identifier], topology=topology)

    container = ContainerResources(
        name="main",
        devices=[
            device("a", 0),
            device("b", 1),
            device("b", 0, 1),
            device("c"),
            device("d", -1, name="example.com/virtual"),
        ],
        memory=[
            ContainerMemory(memory_type="memory", size=2**30, topology=_on(0, 1)),
            ContainerMemory(memory_type="hugepages-1Gi", size=2**30, topology=_on(1)),
        ],
    )
    pod = PodResourcesMessage(namespace="default", name="web", containers=[container])
    with _kubelet(folder / "k.sock", _Lister(pod)):
        found = client_of(folder / "k.sock").by_pod_name()["default", "web"]["main"]

    either, first, second = frozenset({0, 1}), frozenset({0}), frozenset({1})
    assert {resource: given.nodes for resource, given in found.items()} == {
        "example.com/nic": {first, either},
        "example.com/virtual": frozenset(),
        "memory": {first, second},
        "hugepages-1Gi": {second},
    }
    assert found["example.com/nic"].ids == {"a", "b", "c"}


def _device(resource: str, identifier: str, *nodes: int) -> ContainerDevices:
    topology = _on(*nodes) if nodes else None
    return ContainerDevices(resource_name=resource, device_ids=[identifier], topology=topology)


def _memory(kind: str, size: int, *nodes: int) -> ContainerMemory:
    return ContainerMemory(memory_type=kind, size=size, topology=_on(*nodes))


def _holder(name: str, *devices: ContainerDevices, **more: Any) -> PodResourcesMessage:
    container = ContainerResources(name="main", devices=devices, **more)
    return PodResourcesMessage(namespace="default", name=name, containers=[container])


def _amounts(folder: Path, lister: _Lister) -> KubeletAmounts:
    with _kubelet(folder / "k.sock", lister):
        return client_of(folder / "k.sock").amounts()


NIC = "vendor.example/nic"


def test_free_devices_are_counted_on_their_nodes(folder: Path) -> None:
    devices = (
        _device(NIC, "a", 0),
        _device(NIC, "b", 0),
        _device(NIC, "c", 1),
        # The kubelet lists a device again for each of its nodes.
        _device(NIC, "both", 0),
        _device(NIC, "both", 1),
    )
    holders = (_holder("web", _device(NIC, "a", 0)), _holder("db", _device(NIC, "both", 0, 1)))

    assert _amounts(folder, _Lister(*holders, devices=devices)).by_node == {
        NIC: {0: Amounts(3, 3, 1), 1: Amounts(2, 2, 1)}
    }


def test_devices_without_a_node_are_on_none(folder: Path) -> None:
    devices = (_device(NIC, "a"), _device(NIC, "b", -1), _device("vendor.example/gpu", "a", 1))

    assert _amounts(
        folder, _Lister(_holder("web", _device(NIC, "a")), devices=devices)
    ).by_node == {"vendor.example/gpu": {1: Amounts(1, 1, 1)}}


def test_a_held_device_that_is_no_longer_healthy_is_not_counted(folder: Path) -> None:
    held = _holder("web", _device(NIC, "ill", 0))

    assert _amounts(folder, _Lister(held, devices=(_device(NIC, "a", 0),))).by_node == {
        NIC: {0: Amounts(1, 1, 1)}
    }


def test_equal_ids_of_two_resources_are_two_devices(folder: Path) -> None:
    devices = (_device(NIC, "0", 0), _device("vendor.example/gpu", "0", 0))

    found = _amounts(folder, _Lister(_holder("web", devices[0]), devices=devices)).by_node
    assert (found[NIC][0].available, found["vendor.example/gpu"][0].available) == (0, 1)


def test_pinned_memory_is_taken_from_the_lowest_node_of_its_block(folder: Path) -> None:
    memory = tuple(
        _memory(kind, size, node)
        for kind, size in (("memory", 8 * GIB), ("hugepages-1Gi", 2 * GIB))
        for node in (0, 1)
    )
    holder = _holder(
        "web", memory=[_memory("memory", 10 * GIB, 1, 0), _memory("hugepages-1Gi", GIB, 1)]
    )

    assert _amounts(folder, _Lister(holder, memory=memory)).by_node == {
        "memory": {0: Amounts(8 * GIB, 8 * GIB, 0), 1: Amounts(8 * GIB, 8 * GIB, 6 * GIB)},
        "hugepages-1Gi": {
            0: Amounts(2 * GIB, 2 * GIB, 2 * GIB),
            1: Amounts(2 * GIB, 2 * GIB, GIB),
        },
    }


def test_memory_that_the_kubelet_does_not_pin_is_not_counted(folder: Path) -> None:
    assert (
        _amounts(folder, _Lister(_holder("web", memory=[_memory("memory", GIB, 0)]))).by_node == {}
    )


def test_the_cpus_that_the_kubelet_has_given_are_told(folder: Path) -> None:
    holders = (_holder("web", cpu_ids=[4, 5]), _holder("db", cpu_ids=[2, -1]), _holder("plain"))

    assert str(_amounts(folder, _Lister(*holders, cpu_ids=(2, 3, 4, 5))).own_cpus) == "2,4-5"


def test_an_old_kubelet_has_no_books(folder: Path) -> None:
    with pytest.raises(RemoteProtocolError, match=r"allocatable resources.*UNIMPLEMENTED"):
        _amounts(folder, _Lister(refusal=grpc.StatusCode.UNIMPLEMENTED))
