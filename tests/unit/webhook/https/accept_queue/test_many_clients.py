from __future__ import annotations

import gc
from asyncio.sslproto import SSLProtocol
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from tests.unit.webhook.https.clients import (
    HEAD,
    LONG,
    WHOLE,
    answered_by,
    client_of,
    connected_to,
    end_of,
    lost_by,
    plain_to,
    rest_of,
    serving_with,
    status_of,
)
from tests.waiting import DEADLINE_S, eventually
from tests.webhooks import PATIENT, Secret

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def _uncollected() -> Iterator[None]:
    gc.collect()
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _held() -> list[object]:
    return [one for one in gc.get_objects() if type(one) is SSLProtocol]


HASTY = replace(PATIENT, connections=8, reading_s=0.0, stay_s=0.0)
STEADY = replace(PATIENT, reading_s=2 * DEADLINE_S, stay_s=2 * DEADLINE_S)


class TestManyClients:
    @pytest.mark.parametrize("said", [b"", HEAD, WHOLE[:-1], WHOLE])
    def test_clients_that_do_not_come_on_keep_no_other_out(
        self, secret: Secret, said: bytes
    ) -> None:
        limits = replace(HASTY, queued=2, request_s=2 * DEADLINE_S)
        with serving_with(secret, limits) as server, ExitStack() as stack:
            bad = [stack.enter_context(connected_to(server, secret)) for _ in range(9)]
            for connection in bad[1:]:
                lost_by(connection, said)
            assert rest_of(bad[0]) == b"", "the oldest had to go"
            for _ in range(20):
                assert answered_by(server, secret)

    def test_clients_that_do_not_even_speak_tls_keep_no_other_out(self, secret: Secret) -> None:
        limits = replace(HASTY, queued=8, silent_s=2 * DEADLINE_S)
        with serving_with(secret, limits) as server, ExitStack() as stack:
            bad = [stack.enter_context(plain_to(server)) for _ in range(50)]
            assert answered_by(server, secret)
            assert bad[0].recv(1) == b"", "the oldest had to go"

    @pytest.mark.parametrize("said", [b"", b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x02\x00"])
    @pytest.mark.parametrize("reset", [False, True])
    def test_a_client_without_tls_leaves_nothing_for_the_garbage_collector(
        self, secret: Secret, said: bytes, reset: bool
    ) -> None:
        with serving_with(secret) as server, _uncollected():
            with plain_to(server) as connection, plain_to(server) as later:
                connection.sendall(said)
                later.sendall(b"no TLS")
                # It is hung up on when it has had its turn, after the first.
                rest_of(later)
                end_of(connection, reset=reset)
            eventually(lambda: not server._slots, "it is gone")
            eventually(lambda: not _held(), "its buffers are free")

    def test_a_kept_connection_that_is_reset_leaves_nothing_behind(self, secret: Secret) -> None:
        def freed() -> bool:
            gc.collect()
            return not _held()

        with serving_with(secret) as server:
            with connected_to(server, secret) as connection:
                connection.sendall(WHOLE)
                assert status_of(connection) == 200
                end_of(connection, reset=True)
            eventually(freed, "its buffers are free")

    def test_more_clients_than_slots_are_answered_in_turn(self, secret: Secret) -> None:
        limits = replace(STEADY, connections=2)
        with serving_with(secret, limits) as server, ThreadPoolExecutor(20) as clients:
            assert all(clients.map(lambda _: answered_by(server, secret), range(60)))

    def test_large_requests_that_are_too_much_at_one_time_are_refused_at_once(
        self, secret: Secret
    ) -> None:
        limits = replace(PATIENT, held_bytes=10, request_s=2 * DEADLINE_S)
        with (
            serving_with(secret, limits) as server,
            connected_to(server, secret) as first,
            client_of(server, secret) as second,
        ):
            first.sendall(WHOLE[:-1])
            eventually(lambda: server._application.held_bytes, "it is being read")
            refused = second.post("/echo", "x" * 100_000)
            assert (refused.status, refused.headers["retry-after"]) == (503, "1")
            assert second.post("/echo", "x" * 1000).status == 200
            first.sendall(WHOLE[-1:])
            assert status_of(first) == 200
            eventually(lambda: not server._application.held_bytes, "nothing is held any more")

    def test_answers_that_are_not_read_are_not_held_without_limit(self, secret: Secret) -> None:
        limits = replace(PATIENT, held_bytes=2**24, request_s=2 * DEADLINE_S)
        with serving_with(secret, limits) as server, client_of(server, secret) as client:
            with connected_to(server, secret) as lazy:
                lazy.sendall(LONG)
                eventually(lambda: server._application.held_bytes > 2**24, "it is being answered")
                assert client.post("/echo", "x" * 100_000).status == 503
                assert client.post("/echo", {}).status == 200
            eventually(lambda: not server._application.held_bytes, "nothing is held any more")
            assert client.post("/echo", "x" * 100_000).status == 200
            assert len(client.post("/long", {}).document) == 2**25
