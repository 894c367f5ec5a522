from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace

import pytest

from tests.unit.webhook.https.clients import (
    BODY,
    HEAD,
    LONG,
    ROOMS_S,
    SHORT_S,
    WHOLE,
    answers,
    connected_to,
    lost_by,
    plain_to,
    rest_of,
    serving_with,
)
from tests.waiting import DEADLINE_S, eventually
from tests.webhooks import PATIENT, Secret


class TestTime:
    """Each server has one short limit, which the client at hand meets."""

    def test_a_client_that_does_not_speak_tls_is_hung_up_on(self, secret: Secret) -> None:
        limits = replace(PATIENT, handshake_s=SHORT_S)
        with serving_with(secret, limits) as server, plain_to(server) as connection:
            connection.sendall(b"\x16")
            assert rest_of(connection) == b""

    def test_clients_that_say_nothing_are_hung_up_on(self, secret: Secret) -> None:
        limits = replace(PATIENT, silent_s=SHORT_S)
        with serving_with(secret, limits) as server, ExitStack() as stack:
            for connection in [stack.enter_context(plain_to(server)) for _ in range(40)]:
                assert rest_of(connection) == b""

    @pytest.mark.parametrize(
        "said",
        [
            b"",
            b"POST /echo",
            HEAD,
            HEAD + b"Content-Length: 9\r\n\r\n" + BODY,
            HEAD + b"Transfer-Encoding: chunked\r\n\r\n1\r\n1\r\n",
        ],
        ids=["nothing", "half a line", "half a head", "half a body", "half of the chunks"],
    )
    def test_a_client_that_does_not_end_its_request_is_hung_up_on(
        self, secret: Secret, said: bytes
    ) -> None:
        limits = replace(PATIENT, request_s=SHORT_S)
        with serving_with(secret, limits) as server, connected_to(server, secret) as connection:
            lost_by(connection, said)
            assert rest_of(connection) == b""

    def test_a_kept_connection_has_no_longer_for_its_next_request(self, secret: Secret) -> None:
        def is_hung_up_on(room_s: float) -> bool:
            limits = replace(PATIENT, request_s=room_s, idle_s=2 * DEADLINE_S)
            with serving_with(secret, limits) as server, connected_to(server, secret) as connection:
                if not answers(connection):
                    return False
                connection.sendall(HEAD)
                assert rest_of(connection) == b""
                return True

        assert any(map(is_hung_up_on, ROOMS_S))

    def test_a_byte_now_and_then_does_not_help(self, secret: Secret) -> None:
        limits = replace(PATIENT, request_s=SHORT_S)
        with serving_with(secret, limits) as server, connected_to(server, secret) as connection:
            eventually(lambda: lost_by(connection, b"P"), "it is hung up on")

    def test_a_body_that_goes_on_after_its_refusal_is_not_read_for_ever(
        self, secret: Secret
    ) -> None:
        limits = replace(PATIENT, request_s=SHORT_S, body_bytes=10)
        with serving_with(secret, limits) as server, connected_to(server, secret) as connection:
            lost_by(connection, HEAD + b"Transfer-Encoding: chunked\r\n\r\n")
            eventually(lambda: lost_by(connection, b"8\r\n" + BODY + b"\r\n"), "it is hung up on")

    def test_a_kept_connection_is_closed_when_nothing_more_comes(self, secret: Secret) -> None:
        limits = replace(PATIENT, idle_s=SHORT_S)
        with serving_with(secret, limits) as server, connected_to(server, secret) as connection:
            connection.sendall(WHOLE)
            assert rest_of(connection).endswith(BODY)

    def test_a_kept_connection_may_be_quiet_for_longer_than_a_request_may_take(
        self, secret: Secret
    ) -> None:
        def is_kept(room_s: float) -> bool:
            limits = replace(PATIENT, request_s=room_s)
            with serving_with(secret, limits) as server, connected_to(server, secret) as kept:
                if not answers(kept):
                    return False
                with connected_to(server, secret) as later:
                    assert rest_of(later) == b""
                return answers(kept)

        assert any(map(is_kept, ROOMS_S))

    def test_a_client_that_does_not_read_its_answer_is_hung_up_on(self, secret: Secret) -> None:
        limits = replace(PATIENT, request_s=ROOMS_S[0], idle_s=2 * DEADLINE_S)
        with serving_with(secret, limits) as server, connected_to(server, secret) as connection:
            lost_by(connection, LONG)
            eventually(lambda: not server._slots, "no connection is left")
            assert len(rest_of(connection)) < 2**25
