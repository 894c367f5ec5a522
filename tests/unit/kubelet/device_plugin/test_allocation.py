from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from cpupool.api.deviceplugin_pb2 import (
    AllocateRequest,
    ContainerAllocateRequest,
    PreStartContainerRequest,
)
from cpupool.core.cpuset import CPUSet
from cpupool.core.mounts import Mount
from tests import builders
from tests.unit.kubelet.device_plugin.served import (
    MULTI,
    SHARED,
    SINGLE,
    WHOLE,
    allocate,
    prefer,
    serving_pools,
)
from tests.waiting import DEADLINE_S

if TYPE_CHECKING:
    from pathlib import Path

    from cpupool.core.pools import Pool


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
    with serving_pools(folder, pool) as served:
        (reply,) = served.stub.Allocate(allocate(*ids), timeout=DEADLINE_S).container_responses
    assert (dict(reply.envs), dict(reply.annotations)) == (environment, annotations)


def test_allocate_answers_each_container_of_a_request(folder: Path) -> None:
    request = AllocateRequest(
        container_requests=[
            ContainerAllocateRequest(devices_ids=["2"]),
            ContainerAllocateRequest(devices_ids=["3", "8"]),
        ]
    )
    with serving_pools(folder, SINGLE) as served:
        replies = served.stub.Allocate(request, timeout=DEADLINE_S).container_responses
    assert [reply.envs["EXCLUSIVE_CPUS"] for reply in replies] == ["2", "3,8"]


def test_allocate_mounts_what_is_there_at_that_moment_read_only(folder: Path) -> None:
    there: list[Mount] = []
    with serving_pools(folder, SINGLE, lambda: there) as served:
        (without,) = served.stub.Allocate(allocate("2"), timeout=DEADLINE_S).container_responses
        there.append(Mount("/in/it", "/on/the/host"))
        (reply,) = served.stub.Allocate(allocate("3"), timeout=DEADLINE_S).container_responses
    assert not without.mounts
    (mount,) = reply.mounts
    assert (mount.container_path, mount.host_path) == ("/in/it", "/on/the/host")
    assert mount.read_only


def test_allocate_moves_no_container(folder: Path) -> None:
    with serving_pools(folder, SINGLE) as served:
        _, before = served.manager.snapshot()
        replies = [served.stub.Allocate(allocate("2"), timeout=DEADLINE_S) for _ in range(2)]
        after = served.manager.snapshot().resolution
        assert replace(after, view=before.view) == before
        assert replace(after.view, grants=before.grants) == before.view
        assert builders.promised(served.manager) == {"exclusive_a": CPUSet.of(2)}
    assert replies[0] == replies[1]


def test_preferred_devices_come_from_one_numa_node(folder: Path) -> None:
    with serving_pools(folder, SINGLE) as served:
        ask = served.stub.GetPreferredAllocation
        chosen = [
            list(reply.deviceIDs)
            for request in (prefer("2,3,8", 2), prefer("2,3,8", 2, must="8"))
            for reply in ask(request, timeout=DEADLINE_S).container_responses
        ]
    assert chosen == [["2", "3"], ["2", "8"]]


def test_preferred_devices_are_whole_cores_where_the_pool_promises_them(folder: Path) -> None:
    with serving_pools(folder, WHOLE) as served:
        request = prefer("7,13,14,29,30", 4)
        (reply,) = served.stub.GetPreferredAllocation(
            request, timeout=DEADLINE_S
        ).container_responses
    assert sorted(reply.deviceIDs) == ["13", "14", "29", "30"]


def test_a_multi_threaded_pool_chooses_among_cores(folder: Path) -> None:
    with serving_pools(folder, MULTI) as served:
        asked = prefer("4,5,10", 2)
        ask = served.stub.GetPreferredAllocation
        (reply,) = ask(asked, timeout=DEADLINE_S).container_responses
        (given,) = served.stub.Allocate(
            allocate(*reply.deviceIDs), timeout=DEADLINE_S
        ).container_responses
    assert given.envs["EXCLUSIVE_CPUS"] == "4-5,20-21"


@pytest.mark.parametrize(
    ("method", "request_", "code", "words"),
    [
        pytest.param(
            "Allocate",
            allocate("13", "29", "7"),
            grpc.StatusCode.INVALID_ARGUMENT,
            "exclusive_whole: 3 CPUs requested of cores with 2; request a multiple of 2",
            id="one core and a half",
        ),
        pytest.param(
            "Allocate",
            allocate("13", "30"),
            grpc.StatusCode.FAILED_PRECONDITION,
            "exclusive_whole: these CPUs are parts of cores, and the pool hands out whole ones"
            " (13, 30); start the pod again: other devices will be chosen",
            id="halves of two cores",
        ),
        pytest.param(
            "Allocate",
            allocate("15", "31"),
            grpc.StatusCode.INVALID_ARGUMENT,
            "exclusive_whole: no such devices (15, 31); use the ids that it lists",
            id="a reserved core",
        ),
        pytest.param(
            "GetPreferredAllocation",
            prefer("13,14,29,30", 3),
            grpc.StatusCode.INVALID_ARGUMENT,
            "exclusive_whole: 3 CPUs requested of cores with 2; request a multiple of 2",
            id="a choice of one core and a half",
        ),
        pytest.param(
            "GetPreferredAllocation",
            prefer("7,13,14,30", 4),
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
    with serving_pools(folder, WHOLE) as served:
        with pytest.raises(grpc.RpcError) as refused:
            getattr(served.stub, method)(request_, timeout=DEADLINE_S)
        reply = served.stub.Allocate(allocate("13", "29"), timeout=DEADLINE_S)
    assert (refused.value.code(), refused.value.details()) == (code, words)
    assert len(reply.container_responses) == 1


def test_devices_of_the_pool_may_start(folder: Path) -> None:
    with serving_pools(folder, SINGLE) as served:
        request = PreStartContainerRequest(devices_ids=["2", "3"])
        served.stub.PreStartContainer(request, timeout=DEADLINE_S)
