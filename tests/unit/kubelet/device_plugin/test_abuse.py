from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from cpupool.api.deviceplugin_pb2 import (
    AllocateRequest,
    Empty,
    PreferredAllocationRequest,
    PreStartContainerRequest,
)
from cpupool.core.pools import NodePools, Pool
from tests.unit.kubelet.device_plugin.served import (
    MACHINE,
    SHARED,
    SINGLE,
    TELCO,
    allocate,
    own_server,
    prefer,
    serving_pools,
)
from tests.waiting import DEADLINE_S

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from cpupool.api.deviceplugin_pb2_grpc import DevicePluginStub

INVALID = grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.parametrize(
    ("pool", "method", "request_", "words"),
    [
        pytest.param(SINGLE, "Allocate", AllocateRequest(), "is empty", id="nothing asked"),
        pytest.param(SINGLE, "Allocate", allocate(), "no devices", id="a container asks nothing"),
        pytest.param(SINGLE, "Allocate", allocate("99"), "no such devices (99)", id="unknown"),
        pytest.param(SINGLE, "Allocate", allocate("4"), "(4)", id="another pool's CPU"),
        pytest.param(SINGLE, "Allocate", allocate("18"), "(18)", id="a sibling of its own"),
        pytest.param(SINGLE, "Allocate", allocate("02"), "(02)", id="another spelling"),
        pytest.param(SINGLE, "Allocate", allocate("2", "2"), "twice", id="one device twice"),
        pytest.param(
            SINGLE, "Allocate", allocate("2", "x" * 5000), "(xxx", id="an id of 5000 letters"
        ),
        pytest.param(
            SINGLE,
            "Allocate",
            allocate(*map(str, range(5000))),
            "and 4989 more",
            id="far too many",
        ),
        pytest.param(SHARED, "Allocate", allocate("4000"), "(4000)", id="one milli-CPU too far"),
        pytest.param(SHARED, "Allocate", allocate("-1"), "(-1)", id="a negative milli-CPU"),
        pytest.param(
            SHARED, "Allocate", allocate(*(["1"] * 4001)), "twice", id="one milli-CPU 4001 times"
        ),
        pytest.param(
            SINGLE,
            "GetPreferredAllocation",
            PreferredAllocationRequest(),
            "is empty",
            id="a choice for nobody",
        ),
        pytest.param(
            SINGLE, "GetPreferredAllocation", prefer("2,3", 3), "3 devices", id="too few to choose"
        ),
        pytest.param(
            SINGLE, "GetPreferredAllocation", prefer("2,3", -1), "-1 devices", id="fewer than none"
        ),
        pytest.param(
            SINGLE,
            "GetPreferredAllocation",
            prefer("2,3,8", 1, must="2,3"),
            "1 devices",
            id="more to include than asked for",
        ),
        pytest.param(
            SINGLE, "GetPreferredAllocation", prefer("2,2", 1), "twice", id="a choice of one twice"
        ),
        pytest.param(
            SINGLE,
            "GetPreferredAllocation",
            prefer("2,3", 2, must="3,3"),
            "twice",
            id="one to include twice",
        ),
        pytest.param(
            SINGLE, "GetPreferredAllocation", prefer("2,4", 1), "(4)", id="a choice of strangers"
        ),
        pytest.param(
            SHARED,
            "GetPreferredAllocation",
            prefer("1,2", 1),
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
    with serving_pools(folder, pool) as served:
        with pytest.raises(grpc.RpcError) as refused:
            getattr(served.stub, method)(request_, timeout=DEADLINE_S)
        assert refused.value.code() is INVALID
        assert words in (refused.value.details() or "")
        assert pool.name in (refused.value.details() or "")
        assert served.stub.Allocate(allocate("2"), timeout=DEADLINE_S).container_responses
    assert [record.exc_info for record in own_server(caplog)] == [None]


@pytest.mark.parametrize("method", ["Allocate", "GetPreferredAllocation", "ListAndWatch"])
def test_bytes_that_are_no_message_are_an_invalid_argument(
    folder: Path, caplog: pytest.LogCaptureFixture, method: str
) -> None:
    with serving_pools(folder, SINGLE) as served:
        call: grpc.UnaryStreamMultiCallable[bytes, bytes]
        call = served.channel.unary_stream(f"/v1beta1.DevicePlugin/{method}")
        with pytest.raises(grpc.RpcError) as refused:
            list(call(b"\xff\xff garbage", timeout=DEADLINE_S))
    assert refused.value.code() is INVALID
    assert f"not a request of /v1beta1.DevicePlugin/{method}" in (refused.value.details() or "")
    assert [record.exc_info for record in own_server(caplog)] == [None]


def test_an_unknown_method_is_unimplemented(folder: Path) -> None:
    with serving_pools(folder, SINGLE) as served:
        call: grpc.UnaryUnaryMultiCallable[bytes, bytes]
        call = served.channel.unary_unary("/v1beta1.DevicePlugin/Free")
        with pytest.raises(grpc.RpcError) as refused:
            call(b"", timeout=DEADLINE_S)
    assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED


def test_a_cpu_that_is_offline_is_a_failed_precondition(folder: Path) -> None:
    with serving_pools(folder, SINGLE) as served:
        served.manager.update_topology(TELCO.without("3").topology())
        with pytest.raises(grpc.RpcError) as refused:
            served.stub.Allocate(allocate("3"), timeout=DEADLINE_S)
    assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert "offline" in (refused.value.details() or "")


def test_a_pool_that_has_gone_is_an_invalid_argument(folder: Path) -> None:
    with serving_pools(folder, SINGLE) as served:
        served.manager.reconfigure(NodePools.of(SHARED), MACHINE)
        with pytest.raises(grpc.RpcError) as refused:
            served.stub.Allocate(allocate("2"), timeout=DEADLINE_S)
    assert refused.value.code() is INVALID


@pytest.mark.parametrize(
    ("method", "call"),
    [
        pytest.param(
            "allocate",
            lambda stub: stub.Allocate(allocate("2"), timeout=DEADLINE_S),
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

    with serving_pools(folder, SINGLE) as served:
        monkeypatch.setattr(served.manager, method, broken)
        with pytest.raises(grpc.RpcError) as failed:
            call(served.stub)
    assert failed.value.code() is grpc.StatusCode.INTERNAL
    assert failed.value.details() == "cpupool failed; its log has the details"
    (record,) = own_server(caplog)
    assert (record.name, record.levelno) == ("cpupool.kubelet.interceptor", logging.ERROR)
    assert record.exc_info is not None
    assert record.exc_info[0] is ZeroDivisionError
