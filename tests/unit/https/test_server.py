"""The HTTPS server over real sockets: what it answers, and what it does not put up with."""

from __future__ import annotations

import gc
import http.client
import logging
import socket
import ssl
import struct
import threading
import warnings
from asyncio.sslproto import SSLProtocol
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import trustme

from cpupool.core.errors import RemoteProtocolError
from cpupool.https.server import CertificateError, HTTPSServer
from cpupool.telemetry.server import CannotListen
from tests.waiting import DEADLINE_S, eventually
from tests.webhooks import JSON, LOCALHOST, PATIENT, Client, Secret, serving

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from cpupool.https.desk import Limits

"""No limit of time that a test could meet on a slow machine."""
SHORT_S = 0.2
ROOM_S = 4.0
"""Where something has to be done within the limit, and the limit met afterwards."""
BODY = b'{"a": 1}'
HEAD = b"POST /echo HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
WHOLE = HEAD + b"Content-Length: 8\r\n\r\n" + BODY
LONG = WHOLE.replace(b"/echo", b"/long")


def _refuse(_document: object) -> object:
    raise RemoteProtocolError("this is not what was agreed; send something else")


def _fail(_document: object) -> object:
    raise ZeroDivisionError


FUNCTIONS = {
    "/echo": lambda document: document,
    "/refuse": _refuse,
    "/fail": _fail,
    "/long": lambda _document: "x" * 2**25,
}


@pytest.fixture(scope="module")
def secret(tmp_path_factory: pytest.TempPathFactory) -> Secret:
    made = Secret(tmp_path_factory.mktemp("secret"))
    made.rotate()
    return made


@contextmanager
def _server(secret: Secret, limits: Limits = PATIENT) -> Iterator[HTTPSServer]:
    server = HTTPSServer(LOCALHOST, 0, FUNCTIONS, limits=limits)
    server.present(secret.certificate, secret.key)
    with serving(server):
        yield server


@pytest.fixture
def server(secret: Secret) -> Iterator[HTTPSServer]:
    with _server(secret) as made:
        yield made


@pytest.fixture
def client(server: HTTPSServer, secret: Secret) -> Iterator[Client]:
    with _client(server, secret) as made:
        yield made


def _client(server: HTTPSServer, secret: Secret) -> closing[Client]:
    return closing(Client(server.port, secret.trusting()))


def _plain(server: HTTPSServer) -> socket.socket:
    return socket.create_connection((LOCALHOST, server.port), timeout=DEADLINE_S)


def _connected(server: HTTPSServer, secret: Secret) -> ssl.SSLSocket:
    return secret.trusting().wrap_socket(_plain(server), server_hostname=LOCALHOST)


def _rest(connection: socket.socket) -> bytes:
    """Read what the server still says before it hangs up."""
    said = b""
    with suppress(ssl.SSLError, ConnectionError):
        while part := connection.recv(65536):
            said += part
    return said


def _lost(connection: socket.socket, more: bytes) -> bool:
    """Send something more, and tell whether the server has hung up."""
    try:
        connection.sendall(more)
    except (ConnectionError, ssl.SSLError):
        return True
    return False


def _status(connection: socket.socket) -> int:
    """Read one answer."""
    with closing(http.client.HTTPResponse(connection)) as response:
        response.begin()
        response.read()
        return response.status


def _answered(server: HTTPSServer, secret: Secret) -> bool:
    with _client(server, secret) as client:
        return client.post("/echo", {"a": 1}).text == '{"a": 1}'


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
            crowd = [stack.enter_context(_client(server, secret)) for _ in range(40)]
            for client in crowd:
                client.connection.request("POST", "/ask", BODY, dict(JSON))
            try:
                assert all(asked.acquire(timeout=DEADLINE_S) for _ in crowd)
                assert _answered(server, secret)
            finally:
                answered.set()
            assert [client.answer().document for client in crowd] == [True] * 40

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

    def test_a_document_that_the_function_refuses_is_told_why(self, client: Client) -> None:
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

    def test_an_answer_that_takes_its_time_keeps_nobody_else_waiting(self, secret: Secret) -> None:
        asked, told = threading.Event(), threading.Event()

        def wait(_document: object) -> object:
            asked.set()
            return told.wait(DEADLINE_S)

        functions = {"/wait": wait, "/tell": lambda _document: told.set()}
        server = HTTPSServer(LOCALHOST, 0, functions, limits=PATIENT)
        server.present(secret.certificate, secret.key)
        with serving(server), _client(server, secret) as slow, _client(server, secret) as quick:
            slow.connection.request("POST", "/wait", BODY, dict(JSON))
            assert asked.wait(DEADLINE_S)
            assert quick.post("/tell", BODY).status == 200
            assert slow.answer().document is True

    def test_requests_sent_at_once_are_answered_in_turn(
        self, server: HTTPSServer, secret: Secret
    ) -> None:
        last = WHOLE.replace(b"Host: a", b"Host: a\r\nConnection: close")
        with _connected(server, secret) as connection:
            connection.sendall(WHOLE * 20 + last)
            said = _rest(connection)
        assert said.count(b"HTTP/1.1 200 OK") == said.count(BODY) == 21


class TestSizes:
    LIMITS = replace(PATIENT, body_bytes=100_000)

    def test_a_body_that_is_too_large_is_refused_before_it_is_sent(self, secret: Secret) -> None:
        head = HEAD + b"Content-Length: 100001\r\n\r\n"
        with _server(secret, self.LIMITS) as server, _connected(server, secret) as connection:
            connection.sendall(head)
            assert _status(connection) == 413
            # What it sends all the same is passed over, and the next request answered.
            connection.sendall(b" " * 100_001 + WHOLE)
            assert _status(connection) == 200

    def test_a_body_without_a_length_is_refused_when_it_has_grown_too_large(
        self, secret: Secret
    ) -> None:
        with _server(secret, self.LIMITS) as server, _client(server, secret) as client:
            answer = client.post("/echo", iter([b" " * 60_000] * 3))
            assert answer.status == 413
            assert answer.text == "a request has at most 100000 bytes; send less\n"
            assert client.post("/echo", iter([b" " * 60_000, b"1"])).document == 1

    def test_a_head_that_is_too_long_is_refused(self, server: HTTPSServer, secret: Secret) -> None:
        with _connected(server, secret) as connection:
            # It may hang up before it has read all, and what it says is lost then.
            with suppress(ConnectionError, ssl.SSLError):
                connection.sendall(HEAD + b"X: " + b"x" * 70_000)
            assert _rest(connection)[:13] in (b"HTTP/1.1 400 ", b"")
        assert _answered(server, secret)


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
        with _plain(server) as connection, suppress(ConnectionError):
            connection.sendall(said)
            _end(connection, reset=reset)
        assert _answered(server, secret)
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
        with _connected(server, secret) as connection, suppress(ConnectionError, ssl.SSLError):
            connection.sendall(said)
            if ending == "half":
                connection.settimeout(SHORT_S)
                with suppress(TimeoutError):
                    connection.recv(1000)
            elif ending == "all":
                connection.unwrap()
            _end(connection, reset=ending == "reset")
        assert _answered(server, secret)
        assert not caplog.records


def _end(connection: socket.socket, *, reset: bool) -> None:
    if reset:
        linger = struct.pack("ii", 1, 0)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    connection.close()


class TestTime:
    """Each server has one short limit, which the client at hand meets."""

    def test_a_client_that_does_not_speak_tls_is_hung_up_on(self, secret: Secret) -> None:
        limits = replace(PATIENT, handshake_s=SHORT_S)
        with _server(secret, limits) as server, _plain(server) as connection:
            assert _rest(connection) == b""

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
        with _server(secret, limits) as server, _connected(server, secret) as connection:
            _lost(connection, said)
            assert _rest(connection) == b""

    def test_a_kept_connection_has_no_longer_for_its_next_request(self, secret: Secret) -> None:
        limits = replace(PATIENT, request_s=ROOM_S, idle_s=2 * DEADLINE_S)
        with _server(secret, limits) as server, _connected(server, secret) as connection:
            connection.sendall(WHOLE)
            assert _status(connection) == 200
            connection.sendall(HEAD)
            assert _rest(connection) == b""

    def test_a_byte_now_and_then_does_not_help(self, secret: Secret) -> None:
        limits = replace(PATIENT, request_s=SHORT_S)
        with _server(secret, limits) as server, _connected(server, secret) as connection:
            eventually(lambda: _lost(connection, b"P"), "it is hung up on")

    def test_a_body_that_goes_on_after_its_refusal_is_not_read_for_ever(
        self, secret: Secret
    ) -> None:
        limits = replace(PATIENT, request_s=SHORT_S, body_bytes=10)
        with _server(secret, limits) as server, _connected(server, secret) as connection:
            _lost(connection, HEAD + b"Transfer-Encoding: chunked\r\n\r\n")
            eventually(lambda: _lost(connection, b"8\r\n" + BODY + b"\r\n"), "it is hung up on")

    def test_a_kept_connection_is_closed_when_nothing_more_comes(self, secret: Secret) -> None:
        limits = replace(PATIENT, idle_s=SHORT_S)
        with _server(secret, limits) as server, _connected(server, secret) as connection:
            connection.sendall(WHOLE)
            assert _rest(connection).endswith(BODY)

    def test_a_kept_connection_may_be_quiet_for_longer_than_a_request_may_take(
        self, secret: Secret
    ) -> None:
        limits = replace(PATIENT, request_s=ROOM_S)
        with _server(secret, limits) as server, _connected(server, secret) as kept:
            kept.sendall(WHOLE)
            assert _status(kept) == 200
            with _connected(server, secret) as later:
                assert _rest(later) == b""
            kept.sendall(WHOLE)
            assert _status(kept) == 200

    def test_a_client_that_does_not_read_its_answer_is_hung_up_on(self, secret: Secret) -> None:
        limits = replace(PATIENT, request_s=ROOM_S, idle_s=2 * DEADLINE_S)
        with _server(secret, limits) as server, _connected(server, secret) as connection:
            _lost(connection, LONG)
            eventually(lambda: not server._clients, "no connection is left")
            assert len(_rest(connection)) < 2**25


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


class TestCrowds:
    @pytest.mark.parametrize("said", [b"", HEAD, WHOLE[:-1], WHOLE])
    def test_a_crowd_that_does_not_come_on_keeps_nobody_out(
        self, secret: Secret, said: bytes
    ) -> None:
        limits = replace(PATIENT, connections=8, stay_s=0.0, request_s=2 * DEADLINE_S)
        with _server(secret, limits) as server, ExitStack() as stack:
            crowd = [stack.enter_context(_connected(server, secret)) for _ in range(9)]
            for connection in crowd[1:]:
                _lost(connection, said)
            assert _rest(crowd[0]) == b"", "the oldest had to go"
            for _ in range(20):
                assert _answered(server, secret)

    def test_a_crowd_that_does_not_even_speak_tls_keeps_nobody_out(self, secret: Secret) -> None:
        limits = replace(PATIENT, connections=8, stay_s=0.0, handshake_s=2 * DEADLINE_S)
        with _server(secret, limits) as server, ExitStack() as stack:
            crowd = [stack.enter_context(_plain(server)) for _ in range(50)]
            assert _answered(server, secret)
            assert crowd[0].recv(1) == b"", "the oldest had to go"

    @pytest.mark.parametrize("said", [b"", b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x02\x00"])
    @pytest.mark.parametrize("reset", [False, True])
    def test_a_client_without_tls_leaves_nothing_for_the_garbage_collector(
        self, secret: Secret, said: bytes, reset: bool
    ) -> None:
        with _server(secret) as server, _uncollected():
            with _plain(server) as connection:
                eventually(lambda: server._clients, "it is there")
                connection.sendall(said)
                _end(connection, reset=reset)
            eventually(lambda: not server._clients, "it is gone")
            eventually(lambda: not _held(), "its buffers are free")

    def test_a_kept_connection_that_is_reset_leaves_nothing_behind(self, secret: Secret) -> None:
        def freed() -> bool:
            gc.collect()
            return not _held()

        with _server(secret) as server:
            with _connected(server, secret) as connection:
                connection.sendall(WHOLE)
                assert _status(connection) == 200
                _end(connection, reset=True)
            eventually(freed, "its buffers are free")

    def test_more_clients_than_places_are_answered_in_turn(self, secret: Secret) -> None:
        limits = replace(PATIENT, connections=2, stay_s=2 * DEADLINE_S)
        with _server(secret, limits) as server, ThreadPoolExecutor(20) as clients:
            assert all(clients.map(lambda _: _answered(server, secret), range(60)))

    def test_large_requests_that_are_too_much_at_one_time_are_refused_at_once(
        self, secret: Secret
    ) -> None:
        limits = replace(PATIENT, held_bytes=10, request_s=2 * DEADLINE_S)
        with (
            _server(secret, limits) as server,
            _connected(server, secret) as first,
            _client(server, secret) as second,
        ):
            first.sendall(WHOLE[:-1])
            eventually(lambda: server._desk.held_bytes, "it is being read")
            refused = second.post("/echo", "x" * 100_000)
            assert (refused.status, refused.headers["retry-after"]) == (503, "1")
            assert second.post("/echo", "x" * 1000).status == 200
            first.sendall(WHOLE[-1:])
            assert _status(first) == 200
            eventually(lambda: not server._desk.held_bytes, "nothing is held any more")

    def test_answers_that_are_not_read_are_not_held_without_limit(self, secret: Secret) -> None:
        limits = replace(PATIENT, held_bytes=2**24, request_s=2 * DEADLINE_S)
        with _server(secret, limits) as server, _client(server, secret) as client:
            with _connected(server, secret) as lazy:
                lazy.sendall(LONG)
                eventually(lambda: server._desk.held_bytes > 2**24, "it is being answered")
                assert client.post("/echo", "x" * 100_000).status == 503
                assert client.post("/echo", {}).status == 200
            eventually(lambda: not server._desk.held_bytes, "nothing is held any more")
            assert client.post("/echo", "x" * 100_000).status == 200
            assert len(client.post("/long", {}).document) == 2**25


class TestCertificates:
    def test_until_there_is_one_nobody_is_let_in(self, secret: Secret) -> None:
        server = HTTPSServer(LOCALHOST, 0, FUNCTIONS, limits=PATIENT)
        with serving(server):
            assert not server.presents
            with _plain(server) as connection:
                assert connection.recv(1) == b""
            server.present(secret.certificate, secret.key)
            assert _answered(server, secret)

    def test_a_pair_that_cannot_be_used_leaves_the_one_of_before(
        self, server: HTTPSServer, secret: Secret, tmp_path: Path
    ) -> None:
        with _client(server, secret) as client:
            before = client.shown()
        certificate, key = secret.certificate.read_text(), secret.key.read_text()
        other = trustme.CA().issue_cert(LOCALHOST).private_key_pem.bytes().decode()
        for number, (one, two) in enumerate(
            [(certificate, other), ("", key), (certificate, ""), ("x", "y"), (key, certificate)]
        ):
            bad = Secret(tmp_path / str(number))
            bad.show(one, two)
            with pytest.raises(CertificateError, match=r"tls\.crt: cannot be used with"):
                server.present(bad.certificate, bad.key)
        with pytest.raises(CertificateError, match="No such file"):
            server.present(tmp_path / "missing", secret.key)
        with _client(server, secret) as client:
            assert client.shown() == before
            assert client.post("/echo", {}).status == 200

    def test_a_key_with_a_passphrase_is_refused_and_nobody_is_asked(
        self, server: HTTPSServer, secret: Secret, tmp_path: Path
    ) -> None:
        text = secret.key.read_text()
        locked = tmp_path / "locked.key"
        locked.write_text(_locked(text))
        with pytest.raises(CertificateError):
            server.present(secret.certificate, locked)

    def test_a_chain_with_an_rsa_key_is_shown_whole(
        self, server: HTTPSServer, tmp_path: Path
    ) -> None:
        root = trustme.CA()
        pair = root.create_child_ca().issue_cert(LOCALHOST, key_type=trustme.KeyType.RSA)
        chained = Secret(tmp_path)
        chain = b"".join(pem.bytes() for pem in pair.cert_chain_pems).decode()
        chained.show(chain, pair.private_key_pem.bytes().decode())
        server.present(chained.certificate, chained.key)
        trusting = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        root.configure_trust(trusting)
        with closing(Client(server.port, trusting)) as client:
            assert client.post("/echo", {}).status == 200

    def test_old_tls_is_refused(self, server: HTTPSServer, secret: Secret) -> None:
        context = secret.trusting()
        context.set_ciphers("ALL:@SECLEVEL=0")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            context.minimum_version = ssl.TLSVersion.TLSv1_1
            context.maximum_version = ssl.TLSVersion.TLSv1_1
        with _plain(server) as connection, pytest.raises(ssl.SSLError):
            context.wrap_socket(connection, server_hostname=LOCALHOST)


def _locked(key: str) -> str:
    from cryptography.hazmat.primitives.serialization import (  # noqa: PLC0415
        BestAvailableEncryption,
        Encoding,
        PrivateFormat,
        load_pem_private_key,
    )

    loaded = load_pem_private_key(key.encode(), None)
    encryption = BestAvailableEncryption(b"secret")
    return loaded.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption).decode()


class TestEnding:
    def test_what_is_under_way_is_finished_and_what_is_quiet_closed(self, secret: Secret) -> None:
        before = set(threading.enumerate())
        server = HTTPSServer(LOCALHOST, 0, FUNCTIONS, limits=PATIENT)
        server.present(secret.certificate, secret.key)
        port = server.port
        with serving(server) as stop, ExitStack() as stack:
            busy = stack.enter_context(_connected(server, secret))
            busy.sendall(WHOLE[:-1])
            quiet = [stack.enter_context(_connected(server, secret)) for _ in range(3)]
            quiet[0].sendall(WHOLE)
            assert _status(quiet[0]) == 200
            eventually(lambda: server._desk.held_bytes, "one is under way")
            stop.set()
            assert [_rest(connection) for connection in quiet] == [b""] * 3
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection((LOCALHOST, port))
            busy.sendall(WHOLE[-1:])
            assert _rest(busy).endswith(BODY)
        assert set(threading.enumerate()) <= before

    def test_what_does_not_end_is_ended(self, secret: Secret) -> None:
        limits = replace(PATIENT, request_s=SHORT_S, handshake_s=2 * DEADLINE_S)
        with _server(secret, limits) as server:
            connection = _plain(server)
            eventually(lambda: server._clients, "it is there")
        with connection:
            assert _rest(connection) == b""


def test_a_taken_port_is_named_with_what_to_do(server: HTTPSServer) -> None:
    with pytest.raises(CannotListen, match=f"port {server.port} for HTTPS.*choose another"):
        HTTPSServer(LOCALHOST, server.port, {})


def test_the_address_of_all_families_answers_by_ipv4_too(secret: Secret) -> None:
    server = HTTPSServer("", 0, FUNCTIONS, limits=PATIENT)
    server.present(secret.certificate, secret.key)
    with serving(server):
        assert _answered(server, secret)


def test_it_says_that_it_is_alive() -> None:
    beats = threading.Event()
    with serving(HTTPSServer(LOCALHOST, 0, {}, beat=beats.set, limits=PATIENT)):
        assert beats.wait(DEADLINE_S)


@pytest.mark.parametrize("task", ["_accept", "_keep_beating"])
def test_a_task_that_fails_ends_the_server(monkeypatch: pytest.MonkeyPatch, task: str) -> None:
    async def fail(_server: HTTPSServer) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(HTTPSServer, task, fail)
    server, stop = HTTPSServer(LOCALHOST, 0, {}, limits=PATIENT), threading.Event()
    with closing(server), pytest.raises(ZeroDivisionError):
        server.run(stop)
    assert stop.is_set()
