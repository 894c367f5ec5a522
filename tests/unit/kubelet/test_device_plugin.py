from __future__ import annotations

import logging
import threading
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import grpc
import pytest

from cpupool.api.deviceplugin_pb2 import (
    AllocateRequest,
    ContainerAllocateRequest,
    ContainerPreferredAllocationRequest,
    Empty,
    PreferredAllocationRequest,
    PreStartContainerRequest,
)
from cpupool.api.deviceplugin_pb2_grpc import DevicePluginStub
from cpupool.core.cpuset import CPUSet
from cpupool.core.errors import HostFileError
from cpupool.core.pool_policy import CPUBindPolicy, PoolPolicy
from cpupool.core.pools import NodePools, Pool
from cpupool.host.sysfs import RecordedTree, Sysfs
from cpupool.kubelet.device_plugin import DevicePluginServer
from cpupool.kubelet.serving import ServingLoop
from cpupool.manager.manager import Manager
from cpupool.manager.ports import Mount
from tests import builders
from tests.kubelets import dial
from tests.machines import MACHINES
from tests.waiting import DEADLINE_S, eventually

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

# Two sockets, each a NUMA node of eight cores: CPUs 0-7 and 8-15, siblings 16-23 and 24-31.
TELCO = MACHINES["telco_2s_2n_16c32t"]
MACHINE = TELCO.topology()
SINGLE = Pool.named("exclusive_a", "2-3,8")
MULTI = Pool.named("exclusive_ht", "4-5,10", multi_threaded=True)
SHARED = Pool.named("shared_s", "6,22,11-12")
WHOLE = replace(
    Pool.named("exclusive_whole", "7,13-15,23,29-31"),
    policy=PoolPolicy(CPUBindPolicy.FULL_PHYSICAL_CORES, reserved=CPUSet.of(15, 31)),
)
POOLS = NodePools.of(SINGLE, MULTI, SHARED, WHOLE)


class Served(NamedTuple):
    """A pool's plugin on its socket, and somebody who calls it."""

    manager: Manager
    server: DevicePluginServer
    socket: Path
    stub: DevicePluginStub
    channel: grpc.Channel


@contextmanager
def _serving(
    folder: Path, pool: Pool, mounts: Callable[[], list[Mount]] = list
) -> Iterator[Served]:
    manager = Manager()
    manager.reconfigure(POOLS, MACHINE)
    with ServingLoop() as loop:
        server = DevicePluginServer(manager, builders.resource(pool.name), folder, loop, mounts)
        server.start()
        socket = folder / server.endpoint
        try:
            with dial(socket) as channel:
                yield Served(manager, server, socket, DevicePluginStub(channel), channel)
        finally:
            server.stop()


def _own(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    """Give our records: grpc hands events of a server that is gone to the loop of the next one."""
    return [record for record in caplog.records if record.name.startswith("cpupool")]


def _allocate(*ids: str) -> AllocateRequest:
    return AllocateRequest(container_requests=[ContainerAllocateRequest(devices_ids=ids)])


def _prefer(available: str, size: int, must: str = "") -> PreferredAllocationRequest:
    return PreferredAllocationRequest(
        container_requests=[
            ContainerPreferredAllocationRequest(
                available_deviceIDs=available.split(","),
                must_include_deviceIDs=must.split(",") if must else [],
                allocation_size=size,
            )
        ]
    )


def _workers(server: DevicePluginServer) -> list[str]:
    return [
        thread.name for thread in threading.enumerate() if thread.name.startswith(server.endpoint)
    ]


def test_an_exclusive_pool_lists_each_cpu_with_its_numa_node(folder: Path) -> None:
    with _serving(folder, SINGLE) as served:
        message = next(served.stub.ListAndWatch(Empty(), timeout=DEADLINE_S))
    listed = [
        (one.ID, one.health, [node.ID for node in one.topology.nodes]) for one in message.devices
    ]
    assert listed == [("2", "Healthy", [0]), ("3", "Healthy", [0]), ("8", "Healthy", [1])]


def test_a_pool_of_whole_cores_lists_every_thread_without_the_reserved_ones(folder: Path) -> None:
    with _serving(folder, WHOLE) as served:
        message = next(served.stub.ListAndWatch(Empty(), timeout=DEADLINE_S))
    assert [one.ID for one in message.devices] == ["7", "13", "14", "23", "29", "30"]


def test_a_shared_pool_lists_a_device_per_milli_cpu_without_topology(folder: Path) -> None:
    with _serving(folder, SHARED) as served:
        message = next(served.stub.ListAndWatch(Empty(), timeout=DEADLINE_S))
    assert [one.ID for one in message.devices] == [str(number) for number in range(4000)]
    assert {one.health for one in message.devices} == {"Healthy"}
    assert not any(one.HasField("topology") for one in message.devices)


def test_a_cpu_without_a_numa_node_has_no_topology(folder: Path) -> None:
    with _serving(folder, SINGLE) as served:
        bare = TELCO.files(CPUSet())
        without = {path: text for path, text in bare.items() if "/node/" not in path}
        served.manager.reconfigure(POOLS, Sysfs(RecordedTree("bare", without)).topology())
        message = next(served.stub.ListAndWatch(Empty(), timeout=DEADLINE_S))
    assert not any(one.HasField("topology") for one in message.devices)


def test_a_new_list_comes_whenever_a_cpu_goes_or_returns(folder: Path) -> None:
    with _serving(folder, SINGLE) as served:
        stream = served.stub.ListAndWatch(Empty(), timeout=DEADLINE_S)
        health = [{one.ID: one.health for one in next(stream).devices}]
        for topology in (TELCO.without("3").topology(), MACHINE):
            served.manager.update_topology(topology)
            health.append({one.ID: one.health for one in next(stream).devices})
    assert health == [
        {"2": "Healthy", "3": "Healthy", "8": "Healthy"},
        {"2": "Healthy", "3": "Unhealthy", "8": "Healthy"},
        {"2": "Healthy", "3": "Healthy", "8": "Healthy"},
    ]


def test_an_offline_cpu_keeps_the_numa_node_that_it_had(folder: Path) -> None:
    with _serving(folder, SINGLE) as served:
        served.manager.update_topology(TELCO.without("8").topology())
        message = next(served.stub.ListAndWatch(Empty(), timeout=DEADLINE_S))
    assert [node.ID for node in message.devices[2].topology.nodes] == [1]


def test_the_stream_ends_when_the_pool_has_gone(folder: Path) -> None:
    with _serving(folder, SINGLE) as served:
        stream = served.stub.ListAndWatch(Empty(), timeout=DEADLINE_S)
        next(stream)
        served.manager.reconfigure(NodePools.of(SHARED), MACHINE)
        assert list(stream) == []


@pytest.mark.parametrize(
    ("pool", "available"),
    [
        pytest.param(SINGLE, True, id="an exclusive pool chooses"),
        pytest.param(SHARED, False, id="a shared pool does not"),
    ],
)
def test_the_options_say_whether_the_pool_chooses_devices(
    folder: Path, pool: Pool, available: bool
) -> None:
    with _serving(folder, pool) as served:
        options = served.stub.GetDevicePluginOptions(Empty(), timeout=DEADLINE_S)
        assert options == served.server.options
    assert options.get_preferred_allocation_available is available
    assert not options.pre_start_required


@pytest.mark.parametrize(
    ("pool", "ids", "environment", "annotations"),
    [
        pytest.param(
            SINGLE,
            ("8", "2"),
            {"EXCLUSIVE_CPUS": "2,8", "CPUPOOL_CPUS_EXCLUSIVE_A": "2,8"},
            {"nokia.k8s.io/allocated.exclusive_a": "2,8"},
            id="singleThreaded gives the CPUs",
        ),
        pytest.param(
            MULTI,
            ("4", "10"),
            {"EXCLUSIVE_CPUS": "4,10,20,26", "CPUPOOL_CPUS_EXCLUSIVE_HT": "4,10,20,26"},
            {"nokia.k8s.io/allocated.exclusive_ht": "4,10"},
            id="multiThreaded gives their siblings too",
        ),
        pytest.param(
            WHOLE,
            ("30", "13", "14", "29"),
            {"EXCLUSIVE_CPUS": "13-14,29-30", "CPUPOOL_CPUS_EXCLUSIVE_WHOLE": "13-14,29-30"},
            {"nokia.k8s.io/allocated.exclusive_whole": "13-14,29-30"},
            id="fullPhysicalCores gives whole cores",
        ),
        pytest.param(
            SHARED,
            ("0", "1", "3999"),
            {"SHARED_CPUS": "6,11-12,22", "CPUPOOL_CPUS_SHARED_S": "6,11-12,22"},
            {"nokia.k8s.io/allocated.shared_s": "0-1,3999"},
            id="shared gives the whole pool",
        ),
    ],
)
def test_allocate_tells_the_container_its_cpus(
    folder: Path,
    pool: Pool,
    ids: tuple[str, ...],
    environment: dict[str, str],
    annotations: dict[str, str],
) -> None:
    with _serving(folder, pool) as served:
        (reply,) = served.stub.Allocate(_allocate(*ids), timeout=DEADLINE_S).container_responses
    assert (dict(reply.envs), dict(reply.annotations)) == (environment, annotations)


def test_allocate_answers_each_container_of_a_request(folder: Path) -> None:
    request = AllocateRequest(
        container_requests=[
            ContainerAllocateRequest(devices_ids=["2"]),
            ContainerAllocateRequest(devices_ids=["3", "8"]),
        ]
    )
    with _serving(folder, SINGLE) as served:
        replies = served.stub.Allocate(request, timeout=DEADLINE_S).container_responses
    assert [reply.envs["EXCLUSIVE_CPUS"] for reply in replies] == ["2", "3,8"]


def test_allocate_mounts_what_is_there_at_that_moment_read_only(folder: Path) -> None:
    there: list[Mount] = []
    with _serving(folder, SINGLE, lambda: there) as served:
        (without,) = served.stub.Allocate(_allocate("2"), timeout=DEADLINE_S).container_responses
        there.append(Mount("/in/it", "/on/the/host"))
        (reply,) = served.stub.Allocate(_allocate("3"), timeout=DEADLINE_S).container_responses
    assert not without.mounts
    (mount,) = reply.mounts
    assert (mount.container_path, mount.host_path) == ("/in/it", "/on/the/host")
    assert mount.read_only


def test_allocate_moves_nobody(folder: Path) -> None:
    with _serving(folder, SINGLE) as served:
        _, before = served.manager.snapshot()
        replies = [served.stub.Allocate(_allocate("2"), timeout=DEADLINE_S) for _ in range(2)]
        after = served.manager.snapshot().resolution
        assert replace(after, view=before.view) == before
        assert replace(after.view, grants=before.grants) == before.view
        assert builders.promised(served.manager) == {"exclusive_a": CPUSet.of(2)}
    assert replies[0] == replies[1]


def test_preferred_devices_come_from_one_numa_node(folder: Path) -> None:
    with _serving(folder, SINGLE) as served:
        ask = served.stub.GetPreferredAllocation
        chosen = [
            list(reply.deviceIDs)
            for request in (_prefer("2,3,8", 2), _prefer("2,3,8", 2, must="8"))
            for reply in ask(request, timeout=DEADLINE_S).container_responses
        ]
    assert chosen == [["2", "3"], ["2", "8"]]


def test_preferred_devices_are_whole_cores_where_the_pool_promises_them(folder: Path) -> None:
    with _serving(folder, WHOLE) as served:
        request = _prefer("7,13,14,29,30", 4)
        (reply,) = served.stub.GetPreferredAllocation(
            request, timeout=DEADLINE_S
        ).container_responses
    assert sorted(reply.deviceIDs) == ["13", "14", "29", "30"]


def test_a_multi_threaded_pool_chooses_among_cores(folder: Path) -> None:
    with _serving(folder, MULTI) as served:
        asked = _prefer("4,5,10", 2)
        ask = served.stub.GetPreferredAllocation
        (reply,) = ask(asked, timeout=DEADLINE_S).container_responses
        (given,) = served.stub.Allocate(
            _allocate(*reply.deviceIDs), timeout=DEADLINE_S
        ).container_responses
    assert given.envs["EXCLUSIVE_CPUS"] == "4-5,20-21"


@pytest.mark.parametrize(
    ("method", "request_", "code", "words"),
    [
        pytest.param(
            "Allocate",
            _allocate("13", "29", "7"),
            grpc.StatusCode.INVALID_ARGUMENT,
            "exclusive_whole: 3 CPUs requested of cores with 2; request a multiple of 2",
            id="one core and a half",
        ),
        pytest.param(
            "Allocate",
            _allocate("13", "30"),
            grpc.StatusCode.FAILED_PRECONDITION,
            "exclusive_whole: these CPUs are parts of cores, and the pool hands out whole ones"
            " (13, 30); start the pod again: other devices will be chosen",
            id="halves of two cores",
        ),
        pytest.param(
            "Allocate",
            _allocate("15", "31"),
            grpc.StatusCode.INVALID_ARGUMENT,
            "exclusive_whole: no such devices (15, 31); use the ids that it lists",
            id="a reserved core",
        ),
        pytest.param(
            "GetPreferredAllocation",
            _prefer("13,14,29,30", 3),
            grpc.StatusCode.INVALID_ARGUMENT,
            "exclusive_whole: 3 CPUs requested of cores with 2; request a multiple of 2",
            id="a choice of one core and a half",
        ),
        pytest.param(
            "GetPreferredAllocation",
            _prefer("7,13,14,30", 4),
            grpc.StatusCode.INVALID_ARGUMENT,
            "exclusive_whole: 4 CPUs requested, 2 free on whole cores; request fewer, or wait"
            " until other pods end",
            id="a choice of too few whole cores",
        ),
    ],
)
def test_a_pool_of_whole_cores_refuses_everything_else(
    folder: Path, *, method: str, request_: Any, code: grpc.StatusCode, words: str
) -> None:
    with _serving(folder, WHOLE) as served:
        with pytest.raises(grpc.RpcError) as refused:
            getattr(served.stub, method)(request_, timeout=DEADLINE_S)
        reply = served.stub.Allocate(_allocate("13", "29"), timeout=DEADLINE_S)
    assert (refused.value.code(), refused.value.details()) == (code, words)
    assert len(reply.container_responses) == 1


def test_devices_of_the_pool_may_start(folder: Path) -> None:
    with _serving(folder, SINGLE) as served:
        request = PreStartContainerRequest(devices_ids=["2", "3"])
        served.stub.PreStartContainer(request, timeout=DEADLINE_S)


INVALID = grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.parametrize(
    ("pool", "method", "request_", "words"),
    [
        pytest.param(SINGLE, "Allocate", AllocateRequest(), "is empty", id="nothing asked"),
        pytest.param(SINGLE, "Allocate", _allocate(), "no devices", id="a container asks nothing"),
        pytest.param(SINGLE, "Allocate", _allocate("99"), "no such devices (99)", id="unknown"),
        pytest.param(SINGLE, "Allocate", _allocate("4"), "(4)", id="another pool's CPU"),
        pytest.param(SINGLE, "Allocate", _allocate("18"), "(18)", id="a sibling of its own"),
        pytest.param(SINGLE, "Allocate", _allocate("02"), "(02)", id="another spelling"),
        pytest.param(SINGLE, "Allocate", _allocate("2", "2"), "twice", id="one device twice"),
        pytest.param(
            SINGLE, "Allocate", _allocate("2", "x" * 5000), "(xxx", id="an id of 5000 letters"
        ),
        pytest.param(
            SINGLE,
            "Allocate",
            _allocate(*map(str, range(5000))),
            "and 4989 more",
            id="far too many",
        ),
        pytest.param(SHARED, "Allocate", _allocate("4000"), "(4000)", id="one milli-CPU too far"),
        pytest.param(SHARED, "Allocate", _allocate("-1"), "(-1)", id="a negative milli-CPU"),
        pytest.param(
            SHARED, "Allocate", _allocate(*(["1"] * 4001)), "twice", id="one milli-CPU 4001 times"
        ),
        pytest.param(
            SINGLE,
            "GetPreferredAllocation",
            PreferredAllocationRequest(),
            "is empty",
            id="a choice for nobody",
        ),
        pytest.param(
            SINGLE, "GetPreferredAllocation", _prefer("2,3", 3), "3 devices", id="too few to choose"
        ),
        pytest.param(
            SINGLE, "GetPreferredAllocation", _prefer("2,3", -1), "-1 devices", id="fewer than none"
        ),
        pytest.param(
            SINGLE,
            "GetPreferredAllocation",
            _prefer("2,3,8", 1, must="2,3"),
            "1 devices",
            id="more to include than asked for",
        ),
        pytest.param(
            SINGLE, "GetPreferredAllocation", _prefer("2,2", 1), "twice", id="a choice of one twice"
        ),
        pytest.param(
            SINGLE,
            "GetPreferredAllocation",
            _prefer("2,3", 2, must="3,3"),
            "twice",
            id="one to include twice",
        ),
        pytest.param(
            SINGLE, "GetPreferredAllocation", _prefer("2,4", 1), "(4)", id="a choice of strangers"
        ),
        pytest.param(
            SHARED,
            "GetPreferredAllocation",
            _prefer("1,2", 1),
            "prefers no device",
            id="a choice of milli-CPUs",
        ),
        pytest.param(
            SINGLE, "PreStartContainer", PreStartContainerRequest(), "is empty", id="no start"
        ),
        pytest.param(
            SINGLE,
            "PreStartContainer",
            PreStartContainerRequest(devices_ids=["4"]),
            "no such devices (4)",
            id="a start on another pool's CPU",
        ),
        pytest.param(
            SINGLE,
            "PreStartContainer",
            PreStartContainerRequest(devices_ids=["2", "2"]),
            "twice",
            id="a start on one CPU twice",
        ),
    ],
)
def test_abuse_is_an_invalid_argument_with_a_reason(
    folder: Path,
    caplog: pytest.LogCaptureFixture,
    *,
    pool: Pool,
    method: str,
    request_: Any,
    words: str,
) -> None:
    with _serving(folder, pool) as served:
        with pytest.raises(grpc.RpcError) as refused:
            getattr(served.stub, method)(request_, timeout=DEADLINE_S)
        assert refused.value.code() is INVALID
        assert words in (refused.value.details() or "")
        assert pool.name in (refused.value.details() or "")
        assert served.stub.Allocate(_allocate("2"), timeout=DEADLINE_S).container_responses
    assert [record.exc_info for record in _own(caplog)] == [None]


@pytest.mark.parametrize("method", ["Allocate", "GetPreferredAllocation", "ListAndWatch"])
def test_bytes_that_are_no_message_are_an_invalid_argument(
    folder: Path, caplog: pytest.LogCaptureFixture, method: str
) -> None:
    with _serving(folder, SINGLE) as served:
        call: grpc.UnaryStreamMultiCallable[bytes, bytes]
        call = served.channel.unary_stream(f"/v1beta1.DevicePlugin/{method}")
        with pytest.raises(grpc.RpcError) as refused:
            list(call(b"\xff\xff garbage", timeout=DEADLINE_S))
    assert refused.value.code() is INVALID
    assert f"not a request of /v1beta1.DevicePlugin/{method}" in (refused.value.details() or "")
    assert [record.exc_info for record in _own(caplog)] == [None]


def test_an_unknown_method_is_unimplemented(folder: Path) -> None:
    with _serving(folder, SINGLE) as served:
        call: grpc.UnaryUnaryMultiCallable[bytes, bytes]
        call = served.channel.unary_unary("/v1beta1.DevicePlugin/Free")
        with pytest.raises(grpc.RpcError) as refused:
            call(b"", timeout=DEADLINE_S)
    assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED


def test_a_cpu_that_is_offline_is_a_failed_precondition(folder: Path) -> None:
    with _serving(folder, SINGLE) as served:
        served.manager.update_topology(TELCO.without("3").topology())
        with pytest.raises(grpc.RpcError) as refused:
            served.stub.Allocate(_allocate("3"), timeout=DEADLINE_S)
    assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert "offline" in (refused.value.details() or "")


def test_a_pool_that_has_gone_is_an_invalid_argument(folder: Path) -> None:
    with _serving(folder, SINGLE) as served:
        served.manager.reconfigure(NodePools.of(SHARED), MACHINE)
        with pytest.raises(grpc.RpcError) as refused:
            served.stub.Allocate(_allocate("2"), timeout=DEADLINE_S)
    assert refused.value.code() is INVALID


@pytest.mark.parametrize(
    ("method", "call"),
    [
        pytest.param(
            "allocate",
            lambda stub: stub.Allocate(_allocate("2"), timeout=DEADLINE_S),
            id="in an answer",
        ),
        pytest.param(
            "wait_for_devices",
            lambda stub: list(stub.ListAndWatch(Empty(), timeout=DEADLINE_S)),
            id="in a stream",
        ),
    ],
)
def test_a_bug_is_internal_to_the_caller_and_one_traceback_in_the_log(
    folder: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    method: str,
    call: Callable[[DevicePluginStub], object],
) -> None:
    def broken(*_arguments: object) -> None:
        raise ZeroDivisionError("secret")

    with _serving(folder, SINGLE) as served:
        monkeypatch.setattr(served.manager, method, broken)
        with pytest.raises(grpc.RpcError) as failed:
            call(served.stub)
    assert failed.value.code() is grpc.StatusCode.INTERNAL
    assert failed.value.details() == "cpupool failed; its log has the details"
    (record,) = _own(caplog)
    assert (record.name, record.levelno) == ("cpupool.kubelet.interceptor", logging.ERROR)
    assert record.exc_info is not None
    assert record.exc_info[0] is ZeroDivisionError


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A manager whose waiters look at their cancellation only when they are woken."""
    monkeypatch.setattr("cpupool.manager.manager._WAIT_S", 3600.0)


@pytest.mark.usefixtures("patient")
def test_stopping_ends_the_streams_and_leaves_no_socket_and_no_thread(folder: Path) -> None:
    with _serving(folder, SINGLE) as served:
        streams = [served.stub.ListAndWatch(Empty(), timeout=DEADLINE_S) for _ in range(3)]
        for stream in streams:
            next(stream)
        eventually(lambda: len(_workers(served.server)) >= 3, "a thread for each stream")
        served.server.stop()
        assert _workers(served.server) == []
        assert list(folder.iterdir()) == []
        assert not served.server.listening
        for stream in streams:
            with pytest.raises(grpc.RpcError):
                next(stream)


@pytest.mark.usefixtures("patient")
def test_a_cancelled_stream_gives_its_thread_back(folder: Path) -> None:
    with _serving(folder, SINGLE) as served:
        # More streams one after the other than there are threads.
        for _ in range(40):
            stream = served.stub.ListAndWatch(Empty(), timeout=DEADLINE_S)
            next(stream)
            assert served.server.watched
            stream.cancel()
        assert served.stub.GetDevicePluginOptions(Empty(), timeout=DEADLINE_S)


def test_a_server_starts_again_on_its_socket_after_a_stop(folder: Path) -> None:
    with _serving(folder, SINGLE) as served:
        for _ in range(3):
            served.server.stop()
            served.server.start()
            assert served.server.listening
            with dial(served.socket) as channel:
                stub = DevicePluginStub(channel)
                assert len(next(stub.ListAndWatch(Empty(), timeout=DEADLINE_S)).devices) == 3


def test_a_server_that_was_not_started_stops_quietly(folder: Path) -> None:
    DevicePluginServer(Manager(), builders.resource(SINGLE.name), folder, ServingLoop()).stop()


def test_a_stale_socket_is_replaced(folder: Path) -> None:
    (folder / "cpupool-exclusive_a.sock").touch()
    with _serving(folder, SINGLE) as served:
        assert served.socket.is_socket()
        assert served.stub.GetDevicePluginOptions(Empty(), timeout=DEADLINE_S)


def test_a_wiped_socket_is_noticed(folder: Path) -> None:
    with _serving(folder, SINGLE) as served:
        served.socket.unlink()
        assert not served.server.listening


@pytest.mark.parametrize(("length", "fits"), [(107, True), (108, False)])
def test_a_socket_path_has_at_most_107_bytes(folder: Path, length: int, fits: bool) -> None:
    name = "exclusive" + "x" * (length - len(f"{folder}/cpupool-exclusive.sock"))
    with ServingLoop() as loop:
        server = DevicePluginServer(Manager(), builders.resource(name), folder, loop)
        if fits:
            server.start()
            server.stop()
            return
        words = "at most 107 bytes, this one 108; shorten the pool"
        with pytest.raises(HostFileError, match=words):
            server.start()


def test_a_missing_folder_is_one_clear_error(folder: Path) -> None:
    words = r"cannot be bound .*; check that the kubelet's"
    with ServingLoop() as loop, pytest.raises(HostFileError, match=words):
        DevicePluginServer(Manager(), builders.resource(SINGLE.name), folder / "none", loop).start()
