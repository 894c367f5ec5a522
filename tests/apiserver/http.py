"""The wire: connections, requests and answers over HTTP/1.1."""

from __future__ import annotations

import json
import socket
import sys
import threading
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ssl import SSLSocket
from typing import TYPE_CHECKING, Any

from tests.waiting import DEADLINE_S

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Mapping

    Answer = Callable[["Handler", str], None]


class Listener:
    """Takes connections at one port of this machine; it keeps the port between two starts.

    Args:
        answer: answers a request of this method, on a thread of its own.
        tls: serve https with this context.

    Attributes:
        url: where it listens; the same all its life.
    """

    def __init__(self, answer: Answer, tls: ssl.SSLContext | None) -> None:
        self._answer = answer
        self._tls = tls
        self._lock = threading.Lock()
        self._sockets: set[socket.socket] = set()
        self._serving: threading.Thread | None = None
        self._port = 0
        self.bind()
        self.url = f"{'https' if tls else 'http'}://127.0.0.1:{self._port}"

    def bind(self) -> None:
        """Keep the port: bound and not listening, it refuses connections."""
        self._server = _Server(("127.0.0.1", self._port), self)
        self._server.server_bind()
        self._port = self._server.server_port

    def start(self) -> None:
        if self._serving is None:
            self._server.server_activate()
            self._serving = threading.Thread(
                target=self._server.serve_forever, kwargs={"poll_interval": 0.02}
            )
            self._serving.start()

    def stop(self) -> None:
        """Take no more connections."""
        if self._serving is not None:
            self._server.shutdown()
            self._serving.join(DEADLINE_S)
            self._serving = None

    def hang_up(self) -> None:
        """End every connection, and wait for what answers it."""
        with self._lock:
            for connection in self._sockets:
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
        self._server.server_close()

    def opened(self, connection: socket.socket) -> socket.socket:
        # The handshake is the handler's, so that one client cannot hold up the others.
        if self._tls:
            connection = self._tls.wrap_socket(
                connection, server_side=True, do_handshake_on_connect=False
            )
        with self._lock:
            self._sockets.add(connection)
        return connection

    def closed(self, connection: socket.socket) -> None:
        with self._lock:
            self._sockets.discard(connection)

    def answer(self, handler: Handler, method: str) -> None:
        self._answer(handler, method)


class _Server(ThreadingHTTPServer):
    daemon_threads = False

    def __init__(self, address: tuple[str, int], listener: Listener) -> None:
        super().__init__(address, Handler, bind_and_activate=False)
        self.listener = listener

    def get_request(self) -> tuple[socket.socket, Any]:
        connection, address = super().get_request()
        return self.listener.opened(connection), address

    def shutdown_request(self, request: Any) -> None:
        self.listener.closed(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of clients that went away or that trust another CA."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def do_GET(self) -> None:
        self.server.listener.answer(self, "GET")

    def do_POST(self) -> None:
        self.server.listener.answer(self, "POST")

    def do_PUT(self) -> None:
        self.server.listener.answer(self, "PUT")

    def do_PATCH(self) -> None:
        self.server.listener.answer(self, "PATCH")

    def user(self) -> str:
        """Give the common name of the client's certificate."""
        shown = self.connection.getpeercert() if isinstance(self.connection, SSLSocket) else None
        subject: Any = (shown or {}).get("subject", ())
        return "".join(value for ((key, value),) in subject if key == "commonName")

    def log_message(self, *_: object) -> None:
        pass

    def reply(
        self, status: int, headers: Mapping[str, str], body: Mapping[str, Any] | bytes
    ) -> None:
        text = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        kind = "text/plain" if isinstance(body, bytes) else "application/json"
        for name, value in {"Content-Type": kind, **headers}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def begin_chunks(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()

    def write_chunk(self, data: bytes) -> None:
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")

    def drop(self) -> None:
        self.close_connection = True
        with suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)
