from __future__ import annotations

import socket
import threading
from contextlib import ExitStack, closing
from dataclasses import replace

import pytest

from cpupool.telemetry.server import CannotListen
from cpupool.webhook.https.server import HTTPSServer
from tests.unit.webhook.https.clients import (
    BODY,
    FUNCTIONS,
    SHORT_S,
    WHOLE,
    answered_by,
    connected_to,
    plain_to,
    rest_of,
    serving_with,
    status_of,
)
from tests.waiting import DEADLINE_S, eventually
from tests.webhooks import LOCALHOST, PATIENT, Secret, serving


class TestEnding:
    def test_what_is_under_way_is_finished_and_what_is_quiet_closed(self, secret: Secret) -> None:
        before = set(threading.enumerate())
        server = HTTPSServer(LOCALHOST, 0, FUNCTIONS, limits=PATIENT)
        server.present(secret.certificate, secret.key)
        port = server.port
        with serving(server) as stop, ExitStack() as stack:
            busy = stack.enter_context(connected_to(server, secret))
            busy.sendall(WHOLE[:-1])
            quiet = [stack.enter_context(connected_to(server, secret)) for _ in range(3)]
            quiet[0].sendall(WHOLE)
            assert status_of(quiet[0]) == 200
            eventually(lambda: server._application.held_bytes, "one is under way")
            stop.set()
            assert [rest_of(connection) for connection in quiet] == [b""] * 3
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection((LOCALHOST, port))
            busy.sendall(WHOLE[-1:])
            assert rest_of(busy).endswith(BODY)
        assert set(threading.enumerate()) <= before

    def test_what_does_not_end_is_ended(self, secret: Secret) -> None:
        limits = replace(PATIENT, request_s=SHORT_S, handshake_s=2 * DEADLINE_S)
        with serving_with(secret, limits) as server:
            connection = plain_to(server)
            connection.sendall(b"\x16")
            eventually(lambda: server._slots, "it is there")
        with connection:
            assert rest_of(connection) == b""


def test_a_taken_port_is_named_with_what_to_do(server: HTTPSServer) -> None:
    with pytest.raises(CannotListen, match=f"port {server.port} for HTTPS.*choose another"):
        HTTPSServer(LOCALHOST, server.port, {})


def test_the_address_of_all_families_answers_by_ipv4_too(secret: Secret) -> None:
    server = HTTPSServer("", 0, FUNCTIONS, limits=PATIENT)
    server.present(secret.certificate, secret.key)
    with serving(server):
        assert answered_by(server, secret)


def test_it_says_that_it_is_alive() -> None:
    beats = threading.Event()
    with serving(HTTPSServer(LOCALHOST, 0, {}, beat=beats.set, limits=PATIENT)):
        assert beats.wait(DEADLINE_S)


@pytest.mark.parametrize("task", ["_accept", "_keep_beating"])
def test_a_task_that_fails_ends_the_server(monkeypatch: pytest.MonkeyPatch, task: str) -> None:
    async def fail(serving_with: HTTPSServer) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(HTTPSServer, task, fail)
    server, stop = HTTPSServer(LOCALHOST, 0, {}, limits=PATIENT), threading.Event()
    with closing(server), pytest.raises(ZeroDivisionError):
        server.run(stop)
    assert stop.is_set()
