"""The wire: connections, requests and answers over HTTP/1.1."""

from __future__ import annotations

import json
import socket
import sys
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping


class Answering(Protocol):
    """What answers, and knows the open connections."""

    def opened(self, connection: socket.socket) -> socket.socket: ...

    def closed(self, connection: socket.socket) -> None: ...

    def answer(self, handler: Handler, method: str) -> None: ...


class Server(ThreadingHTTPServer):
    daemon_threads = False

    def __init__(self, address: tuple[str, int], answering: Answering) -> None:
        super().__init__(address, Handler, bind_and_activate=False)
        self.answering = answering

    def get_request(self) -> tuple[socket.socket, Any]:
        connection, address = super().get_request()
        return self.answering.opened(connection), address

    def shutdown_request(self, request: Any) -> None:
        self.answering.closed(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of clients that went away or that trust another CA."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server

    def do_GET(self) -> None:
        self.server.answering.answer(self, "GET")

    def do_POST(self) -> None:
        self.server.answering.answer(self, "POST")

    def do_PUT(self) -> None:
        self.server.answering.answer(self, "PUT")

    def do_PATCH(self) -> None:
        self.server.answering.answer(self, "PATCH")

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
