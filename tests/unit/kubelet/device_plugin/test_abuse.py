from __future__ import annotations

import logging
import socket
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from h2.connection import H2Connection
from h2.events import ResponseReceived, TrailersReceived

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
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from cpupool.api.deviceplugin_pb2_grpc import DevicePluginStub

INVALID = grpc.StatusCode.INVALID_ARGUMENT
CALL = (
    *((":method", "POST"), (":scheme", "http"), (":authority", "localhost")),
    *((":path", "/v1beta1.DevicePlugin/Allocate"), ("te", "trailers")),
    ("content-type", "application/grpc"),
)


@contextmanager
def http2(path: Path) -> Iterator[tuple[H2Connection, socket.socket]]:
    """Connect as a client that can send any frames."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(DEADLINE_S)
        connection.connect(str(path))
        client = H2Connection()
        client.initiate_connection()
        yield client, connection


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
    assert (record.name, record.levelno) == ("cpupool.rpc.methods", logging.ERROR)
    assert record.exc_info is not None
    assert record.exc_info[0] is ZeroDivisionError


@pytest.mark.parametrize(
    ("options", "length", "status", "words"),
    [
        pytest.param(
            (("grpc.default_compression_algorithm", 2),),
            5000,
            grpc.StatusCode.UNIMPLEMENTED,
            "the request is compressed; send it uncompressed",
            id="compressed",
        ),
        pytest.param(
            (("grpc.max_send_message_length", -1),),
            4 * 2**20 + 1,
            grpc.StatusCode.RESOURCE_EXHAUSTED,
            "bytes, more than 4194304",
            id="too long",
        ),
    ],
)
def test_a_request_that_is_not_read_has_a_status(
    folder: Path, options: tuple[tuple[str, int]], length: int, status: grpc.StatusCode, words: str
) -> None:
    with serving_pools(folder, SINGLE) as served:
        local = (("grpc.default_authority", "localhost"), ("grpc.use_local_subchannel_pool", 1))
        with grpc.insecure_channel(f"unix:{served.socket}", (*local, *options)) as channel:
            call: grpc.UnaryUnaryMultiCallable[bytes, bytes]
            call = channel.unary_unary("/v1beta1.DevicePlugin/Allocate")
            with pytest.raises(grpc.RpcError) as refused:
                call(b"x" * length, timeout=DEADLINE_S)
        assert served.stub.Allocate(allocate("2"), timeout=DEADLINE_S).container_responses
    assert refused.value.code() is status
    assert words in (refused.value.details() or "")


@pytest.mark.parametrize(
    ("data", "words"), [(b"", "there is no request"), (b"\0\0\0\0\2x", "the request is cut")]
)
def test_a_call_without_a_whole_request_has_a_status(folder: Path, data: bytes, words: str) -> None:
    with serving_pools(folder, SINGLE) as served, http2(served.socket) as (client, connection):
        client.send_headers(1, CALL)
        client.send_data(1, data, end_stream=True)
        connection.sendall(client.data_to_send())
        found: dict[bytes, bytes] = {}
        while b"grpc-status" not in found:
            for event in client.receive_data(connection.recv(1 << 16)):
                if isinstance(event, (ResponseReceived, TrailersReceived)):
                    found |= dict(event.headers)
    assert (found[b"grpc-status"], found[b"grpc-message"].decode()) == (b"13", words)


@pytest.mark.parametrize("data", [b"GET / HTTP/1.1\r\n\r\n", b"\0" * 100])
def test_a_client_that_does_not_speak_http2_is_cut_off(folder: Path, data: bytes) -> None:
    with serving_pools(folder, SINGLE) as served:
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(DEADLINE_S)
            client.connect(str(served.socket))
            client.sendall(data)
            while client.recv(1 << 16):
                pass
        assert served.stub.Allocate(allocate("2"), timeout=DEADLINE_S).container_responses
