from __future__ import annotations

import http.client
import socket
import threading
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING

import pytest

from cpupool.telemetry.health import Health
from cpupool.telemetry.metrics import Metrics
from cpupool.telemetry.server import CannotListen, TelemetryServer
from tests.loops import running
from tests.waiting import DEADLINE_S, eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

LOCALHOST = "127.0.0.1"
CROWD = 100
"""Clients that connect and say nothing; more than the server lets wait at one time."""


@pytest.fixture
def health() -> Health:
    return Health()


@pytest.fixture
def server(health: Health) -> Iterator[TelemetryServer]:
    with _serving(TelemetryServer(LOCALHOST, 0, Metrics(), health)) as served:
        yield served


@pytest.fixture
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the server wait for what a client says for longer than any test does."""
    monkeypatch.setattr("cpupool.telemetry.server._REQUEST_S", 3 * DEADLINE_S)


@contextmanager
def _serving(server: TelemetryServer) -> Iterator[TelemetryServer]:
    with running(server.run, wake=server.wake):
        yield server


def _asked(
    server: TelemetryServer, path: str, method: str = "GET"
) -> tuple[int, http.client.HTTPMessage, str]:
    connection = http.client.HTTPConnection(LOCALHOST, server.port, timeout=DEADLINE_S)
    try:
        connection.request(method, path)
        response = connection.getresponse()
        return response.status, response.headers, response.read().decode()
    finally:
        connection.close()


def _connected(server: TelemetryServer) -> socket.socket:
    return socket.create_connection((LOCALHOST, server.port), timeout=DEADLINE_S)


def test_probes_tell_each_condition_on_a_line(server: TelemetryServer, health: Health) -> None:
    assert _asked(server, "/healthz")[::2] == (200, "ok\n")
    health.expect("cpusetter", -1)
    assert _asked(server, "/healthz")[0] == 503
    assert _asked(server, "/readyz")[0] == 503
    health.set("kubelet", ok=False, message="no socket; start the kubelet")
    health.set("pods", ok=True)
    assert _asked(server, "/readyz")[::2] == (
        503, "kubelet: failing: no socket; start the kubelet\npods: ok\n",
    )  # fmt: skip
    health.set("kubelet", ok=True)
    status, headers, body = _asked(server, "/readyz?verbose")
    assert (status, body) == (200, "kubelet: ok\npods: ok\n")
    assert headers["Content-Type"] == "text/plain; charset=utf-8"
    health.set("pods", ok=False, message="\x1b[2J\ud800")
    assert _asked(server, "/readyz")[2].endswith("\npods: failing: \\u001b[2J\\ud800\n")


def test_metrics_are_what_prometheus_reads(server: TelemetryServer) -> None:
    status, headers, body = _asked(server, "/metrics")
    assert status == 200
    assert headers["Content-Type"].startswith("text/plain; version=0.0.4")
    assert "\ncpupool_events_dropped_total 0.0\n" in body


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/", 404),
        ("GET", "/metrics/../readyz", 404),
        ("HEAD", "/elsewhere", 404),
        ("POST", "/metrics", 405),
        ("PUT", "/readyz", 405),
        ("DELETE", "/elsewhere", 405),
        ("OPTIONS", "/metrics", 405),
        ("BREW", "/metrics", 501),
    ],
)
def test_nothing_else_is_answered(
    server: TelemetryServer, method: str, path: str, status: int
) -> None:
    got, headers, _ = _asked(server, path, method)
    assert got == status
    assert headers["Allow"] == ("GET, HEAD" if status == 405 else None)


def test_a_head_is_a_get_without_its_body(server: TelemetryServer) -> None:
    with _connected(server) as client:
        client.sendall(b"HEAD /healthz HTTP/1.0\r\n\r\n")
        said = client.makefile().read()
    assert said.startswith("HTTP/1.0 200 OK\n")
    assert said.endswith("Content-Length: 3\n\n")


def test_the_address_of_all_families_answers_by_ipv4_too() -> None:
    with _serving(TelemetryServer("", 0, Metrics(), Health())) as server:
        assert _asked(server, "/healthz")[0] == 200


@pytest.mark.usefixtures("_patience")
def test_a_crowd_that_says_nothing_keeps_no_client_out(server: TelemetryServer) -> None:
    before = set(threading.enumerate())
    with ExitStack() as stack:
        crowd = [stack.enter_context(_connected(server)) for _ in range(CROWD)]
        assert _asked(server, "/healthz")[0] == 200
        assert crowd[0].recv(1) == b"", "the oldest had to go"
        # A thread of another test may end meanwhile.
        assert set(threading.enumerate()) <= before


def test_a_client_that_does_not_finish_its_request_is_cut_off(
    server: TelemetryServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cpupool.telemetry.server._REQUEST_S", 0.01)
    with _connected(server) as client:
        client.sendall(b"GET /healthz")
        assert client.recv(1) == b""


@pytest.mark.parametrize(
    "request_text",
    [
        b"\r\n\r\n",
        b"GET\r\n\r\n",
        b"GET /metrics HTTP/9.9\r\n\r\n",
        b"\xff\xfe\x00\r\n\r\n",
        b"GET /" + b"x" * 70_000 + b" HTTP/1.1\r\n\r\n",
        b"GET /metrics HTTP/1.1\r\n" + b"a: b\r\n" * 200 + b"\r\n",
    ],
)
def test_nonsense_is_refused_and_the_next_is_served(
    server: TelemetryServer, request_text: bytes, capfd: pytest.CaptureFixture[str]
) -> None:
    # It may hang up before it has read all.
    with _connected(server) as client, suppress(ConnectionError):
        client.sendall(request_text)
        client.shutdown(socket.SHUT_WR)
        assert b" 200 " not in client.recv(100)
    assert _asked(server, "/healthz")[0] == 200
    assert capfd.readouterr() == ("", "")


def test_a_page_that_fails_is_logged_and_the_next_is_served(
    server: TelemetryServer,
    health: Health,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken() -> None:
        raise ZeroDivisionError

    with monkeypatch.context() as patched:
        patched.setattr(health, "live", broken)
        with pytest.raises(http.client.RemoteDisconnected):
            _asked(server, "/healthz")
    assert _asked(server, "/healthz")[0] == 200
    eventually(lambda: caplog.records, "a line")
    (record,) = caplog.records
    assert record.getMessage() == "request failed path=/healthz"
    assert record.exc_info


def test_a_taken_port_is_named_with_what_to_do(server: TelemetryServer) -> None:
    with pytest.raises(CannotListen, match=f"port {server.port}.*in use; choose another") as caught:
        TelemetryServer(LOCALHOST, server.port, Metrics(), Health())
    assert (caught.value.address, caught.value.port) == (LOCALHOST, server.port)


def test_an_address_of_another_machine_is_refused() -> None:
    with pytest.raises(CannotListen, match=r"on 192\.0\.2\.1: "):
        TelemetryServer("192.0.2.1", 0, Metrics(), Health())


@pytest.mark.usefixtures("_patience")
def test_stopping_ends_connections_and_its_thread_and_frees_the_port() -> None:
    before = set(threading.enumerate())
    with _serving(TelemetryServer(LOCALHOST, 0, Metrics(), Health())) as server:
        client = _connected(server)
        # The earlier client is accepted first.
        assert _asked(server, "/healthz")[0] == 200
    with client:
        assert client.recv(1) == b""
    assert set(threading.enumerate()) <= before
    TelemetryServer(LOCALHOST, server.port, Metrics(), Health()).close()
