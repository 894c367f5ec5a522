from __future__ import annotations

import logging
import ssl
import threading
from contextlib import ExitStack, suppress
from dataclasses import replace
from typing import Any

import pytest

from cpupool.webhook.https.server import HTTPSServer
from tests.unit.webhook.https.clients import (
    BODY,
    FUNCTIONS,
    HEAD,
    SHORT_S,
    WHOLE,
    answered_by,
    client_of,
    connected_to,
    end_of,
    plain_to,
    rest_of,
    serving_with,
    status_of,
)
from tests.waiting import DEADLINE_S
from tests.webhooks import JSON, LOCALHOST, PATIENT, Client, Secret, serving


class TestAnswers:
    def test_requests_that_wait_for_somebody_keep_no_other_waiting(self, secret: Secret) -> None:
        answered = threading.Event()
        asked = threading.Semaphore(0)

        def ask(_document: object) -> object:
            asked.release()
            return answered.wait(DEADLINE_S)

        server = HTTPSServer(LOCALHOST, 0, {**FUNCTIONS, "/ask": ask}, limits=PATIENT)
        server.present(secret.certificate, secret.key)
        with serving(server), ExitStack() as stack:
            clients = [stack.enter_context(client_of(server, secret)) for _ in range(40)]
            for client in clients:
                client.connection.request("POST", "/ask", BODY, dict(JSON))
            try:
                assert all(asked.acquire(timeout=DEADLINE_S) for _ in clients)
                assert answered_by(server, secret)
            finally:
                answered.set()
            assert [client.answer().document for client in clients] == [True] * 40

    def test_documents_are_answered_on_a_connection_that_is_kept(self, client: Client) -> None:
        bodies: list[Any] = [{"a": [1, "é\ud800", None]}, [], "x" * 100_000]
        for body in bodies:
            answer = client.post("/echo", body)
            assert (answer.status, answer.document) == (200, body)
            kept = client.connection.sock
        assert answer.headers["content-type"] == "application/json"
        assert client.post("/echo", {}).status == 200
        assert client.connection.sock is kept

    @pytest.mark.parametrize(
        ("method", "path", "headers", "status"),
        [
            ("GET", "/echo", JSON, 405),
            ("PUT", "/echo", JSON, 405),
            ("POST", "/", JSON, 404),
            ("POST", "/echo/", JSON, 404),
            ("POST", "//echo", JSON, 404),
            ("POST", "/echo", {}, 415),
            ("POST", "/echo", {"Content-Type": "application/yaml"}, 415),
            ("POST", "/echo?timeout=5s", {"Content-Type": "Application/JSON; charset=utf-8"}, 200),
        ],
    )
    def test_only_json_is_taken_by_post_at_its_path(
        self, client: Client, method: str, path: str, headers: dict[str, str], status: int
    ) -> None:
        answer = client.ask(method, path, BODY, headers)
        assert answer.status == status
        assert answer.headers.get("allow") == ("POST" if status == 405 else None)
        assert client.post("/echo", {}).status == 200

    @pytest.mark.parametrize(
        "body",
        [
            b"",
            b"{",
            b"{} {}",
            b"\xff\xfe",
            b'{"a": NaN}',
            b"-Infinity",
            b"9" * 5000,
            b"[" * 200_000,
            # Deeper than any Python reads: 3.13 reads some thousand levels.
            b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
        ],
        ids=range(9),
    )
    def test_what_is_no_json_is_refused_with_one_line(self, client: Client, body: bytes) -> None:
        answer = client.post("/echo", body)
        assert answer.status == 400
        assert answer.text.startswith("this is no JSON: ")
        assert answer.text.count("\n") == 1
        assert client.post("/echo", {}).status == 200

    def test_a_document_that_the_function_refuses_is_refused_with_the_reason(
        self, client: Client
    ) -> None:
        answer = client.post("/refuse", {})
        assert (answer.status, answer.text) == (
            400, "this is not what was agreed; send something else\n",
        )  # fmt: skip

    def test_a_bug_costs_one_request_and_is_logged(
        self, client: Client, caplog: pytest.LogCaptureFixture
    ) -> None:
        answer = client.post("/fail", {})
        assert (answer.status, answer.text) == (500, "the server has a bug; see its log\n")
        (record,) = caplog.records
        assert record.exc_info
        assert client.post("/echo", {}).status == 200

    def test_an_answer_that_takes_its_time_keeps_no_other_waiting(self, secret: Secret) -> None:
        asked, told = threading.Event(), threading.Event()

        def wait(_document: object) -> object:
            asked.set()
            return told.wait(DEADLINE_S)

        functions = {"/wait": wait, "/tell": lambda _document: told.set()}
        server = HTTPSServer(LOCALHOST, 0, functions, limits=PATIENT)
        server.present(secret.certificate, secret.key)
        with serving(server), client_of(server, secret) as slow, client_of(server, secret) as quick:
            slow.connection.request("POST", "/wait", BODY, dict(JSON))
            assert asked.wait(DEADLINE_S)
            assert quick.post("/tell", BODY).status == 200
            assert slow.answer().document is True

    def test_requests_sent_at_once_are_answered_in_turn(
        self, server: HTTPSServer, secret: Secret
    ) -> None:
        last = WHOLE.replace(b"Host: a", b"Host: a\r\nConnection: close")
        with connected_to(server, secret) as connection:
            connection.sendall(WHOLE * 20 + last)
            said = rest_of(connection)
        assert said.count(b"HTTP/1.1 200 OK") == said.count(BODY) == 21


class TestSizes:
    LIMITS = replace(PATIENT, body_bytes=100_000)

    def test_a_body_that_is_too_large_is_refused_before_it_is_sent(self, secret: Secret) -> None:
        head = HEAD + b"Content-Length: 100001\r\n\r\n"
        with (
            serving_with(secret, self.LIMITS) as server,
            connected_to(server, secret) as connection,
        ):
            connection.sendall(head)
            assert status_of(connection) == 413
            # What it sends all the same is passed over, and the next request answered.
            connection.sendall(b" " * 100_001 + WHOLE)
            assert status_of(connection) == 200

    def test_a_body_without_a_length_is_refused_when_it_has_grown_too_large(
        self, secret: Secret
    ) -> None:
        with serving_with(secret, self.LIMITS) as server, client_of(server, secret) as client:
            answer = client.post("/echo", iter([b" " * 60_000] * 3))
            assert answer.status == 413
            assert answer.text == "a request has at most 100000 bytes; send less\n"
            assert client.post("/echo", iter([b" " * 60_000, b"1"])).document == 1

    def test_a_head_that_is_too_long_is_refused(self, server: HTTPSServer, secret: Secret) -> None:
        with connected_to(server, secret) as connection:
            # It may hang up before it has read all, and what it says is lost then.
            with suppress(ConnectionError, ssl.SSLError):
                connection.sendall(HEAD + b"X: " + b"x" * 70_000)
            assert rest_of(connection)[:13] in (b"HTTP/1.1 400 ", b"")
        assert answered_by(server, secret)


class TestNonsense:
    @pytest.mark.parametrize(
        "said",
        [
            b"",
            b"\r\n\r\n",
            b"GET / HTTP/1.1\r\n\r\n",
            b"\x16\x03\x01\x02\x00\x01\x00",
            b"\x16\x03\x01\xff\xff" + b"\x00" * 70_000,
            b"\x00" * 5,
        ],
        ids=range(6),
    )
    @pytest.mark.parametrize("reset", [False, True])
    def test_what_is_no_tls_costs_its_own_connection_only(
        self,
        server: HTTPSServer,
        secret: Secret,
        said: bytes,
        reset: bool,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        with plain_to(server) as connection, suppress(ConnectionError):
            connection.sendall(said)
            end_of(connection, reset=reset)
        assert answered_by(server, secret)
        assert not caplog.records

    @pytest.mark.parametrize(
        "said",
        [
            b"\r\n" * 10,
            b"\x00\xff" * 100,
            b"POST\r\n\r\n",
            b"POST /echo HTTP/9.9\r\n\r\n",
            b"POST /echo HTTP/1.1\r\n\r\n",
            b"POST /\xff HTTP/1.1\r\nHost: a\r\n\r\n",
            b"POST /%ff%00 HTTP/1.1\r\nHost: a\r\n\r\n",
            HEAD,
            HEAD + b"Content-Length: -1\r\n\r\n",
            HEAD + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\n",
            HEAD + b"Content-Length: " + b"9" * 5000 + b"\r\n\r\n",
            HEAD + b"Content-Length: 9\r\n\r\n" + BODY,
            HEAD + b"Transfer-Encoding: gzip\r\n\r\n",
            HEAD + b"Transfer-Encoding: chunked\r\n\r\nxyz\r\n",
            HEAD + b"Transfer-Encoding: chunked\r\n\r\n1\r\n1\r\nffffffffffffffffffffff\r\n",
            HEAD + b"Upgrade: websocket\r\nConnection: upgrade\r\n\r\n",
            HEAD + b"Expect: 100-continue\r\nContent-Length: 9\r\n\r\n",
            WHOLE + b"\x00nonsense\r\n\r\n",
            WHOLE * 3 + HEAD + b"Transfer-Encoding: chunked\r\n\r\nxyz\r\n",
        ],
        ids=range(19),
    )
    @pytest.mark.parametrize("ending", ["close", "reset", "half", "all"])
    def test_what_is_no_http_costs_its_own_connection_only(
        self,
        server: HTTPSServer,
        secret: Secret,
        said: bytes,
        ending: str,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        caplog.set_level(logging.WARNING)
        with connected_to(server, secret) as connection, suppress(ConnectionError, ssl.SSLError):
            connection.sendall(said)
            if ending == "half":
                connection.settimeout(SHORT_S)
                with suppress(TimeoutError):
                    connection.recv(1000)
            elif ending == "all":
                connection.unwrap()
            end_of(connection, reset=ending == "reset")
        assert answered_by(server, secret)
        assert not caplog.records

    def test_what_is_no_http_after_an_early_answer_is_not_answered_again(
        self, server: HTTPSServer, secret: Secret, caplog: pytest.LogCaptureFixture
    ) -> None:
        chunked = HEAD.replace(b"/echo", b"/nothing") + b"Transfer-Encoding: chunked\r\n\r\n"
        with connected_to(server, secret) as connection:
            connection.sendall(chunked)
            assert status_of(connection) == 404
            connection.sendall(b"xyz\r\n")
            assert rest_of(connection) == b""
        assert not caplog.records
