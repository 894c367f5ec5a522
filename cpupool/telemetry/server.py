"""The HTTP server of probes and metrics: GET and HEAD of /healthz, /readyz and /metrics.

It is plain HTTP on a port that any client may reach, so no client can block the others: a
connection serves one request, has a few seconds for each read, and is closed after a number of
newer connections, when it is either done or stuck.
"""

from __future__ import annotations

import socket
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from socketserver import TCPServer, ThreadingMixIn
from typing import TYPE_CHECKING, Any, Final

from cpupool.core.errors import HostError
from cpupool.telemetry import log as logs

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Mapping

    from cpupool.telemetry.health import Health, Report
    from cpupool.telemetry.metrics import ProcessMetrics

_READ_S: Final = 5.0
_PLACES: Final = 32

log = logs.get(__name__)


class CannotListen(HostError):
    """A port on which the process cannot listen.

    Attributes:
        address: the requested address; empty for every address of the machine.
        port: the requested port.
    """

    def __init__(
        self, address: str, port: int, reason: str, purpose: str = "probes and metrics"
    ) -> None:
        self.address = address
        self.port = port
        super().__init__(
            f"port {port} for {purpose}{address and f' on {address}'}: {reason};"
            " choose another, or end what uses it"
        )


class TelemetryServer:
    """The server for probes and scrapes; it listens from its construction until `run` ends.

    Args:
        address: where to listen; empty for every address, IPv4 and IPv6.
        port: 0 for any free port.
        metrics: the source of /metrics.
        health: the source of /healthz and /readyz.

    Raises:
        CannotListen: the port is taken, or the address is not this machine's.
    """

    def __init__(self, address: str, port: int, metrics: ProcessMetrics, health: Health) -> None:
        pages: dict[str, Callable[[], _Page]] = {
            "/healthz": lambda: _probe(health.live()),
            "/readyz": lambda: _probe(health.ready()),
            "/metrics": lambda: _Page(HTTPStatus.OK, *metrics.render()),
        }
        try:
            self._server = _Server(address, port, pages)
        except OSError as error:
            raise CannotListen(address, port, error.strerror or str(error)) from error

    @property
    def port(self) -> int:
        """The port on which the server listens."""
        port: int = self._server.server_address[1]
        return port

    def run(self, stop: threading.Event) -> None:
        """Serve until `stop` is set and `wake` called."""
        try:
            while not stop.is_set():
                self._server.handle_request()
        finally:
            self.close()

    def wake(self) -> None:
        """Stop listening, so that `run` notices that it must stop."""
        _hang_up(self._server.socket)

    def close(self) -> None:
        """Stop listening, and end the open requests."""
        self._server.server_close()


@dataclass(frozen=True, slots=True)
class _Page:
    status: HTTPStatus
    content_type: str
    body: bytes

    @classmethod
    def text(cls, status: HTTPStatus, text: str) -> _Page:
        return cls(status, "text/plain; charset=utf-8", f"{text}\n".encode())


def _probe(report: Report) -> _Page:
    status = HTTPStatus.OK if report.ok else HTTPStatus.SERVICE_UNAVAILABLE
    return _Page.text(status, "\n".join(report.lines) or "ok")


class _Server(ThreadingMixIn, TCPServer):
    allow_reuse_address = True
    request_queue_size = 128

    def __init__(self, address: str, port: int, pages: Mapping[str, Callable[[], _Page]]) -> None:
        # The kubelet and Prometheus come from outside the pod, by either family.
        everywhere = "::" if socket.has_dualstack_ipv6() else "0.0.0.0"  # noqa: S104
        host = address or everywhere
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self.pages = pages
        self._newest: deque[socket.socket] = deque(maxlen=_PLACES)
        super().__init__((host, port), _Handler)

    def server_bind(self) -> None:
        if self.address_family == socket.AF_INET6:
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        super().server_bind()

    def get_request(self) -> tuple[socket.socket, Any]:
        connection, client = super().get_request()
        if len(self._newest) == _PLACES:
            _hang_up(self._newest[0])
        self._newest.append(connection)
        return connection, client

    def server_close(self) -> None:
        for connection in self._newest:
            _hang_up(connection)
        super().server_close()


def _hang_up(connection: socket.socket) -> None:
    # Most connections are closed already. In an open one the thread's read, write or wait ends.
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    server_version = "cpupool"
    sys_version = ""
    timeout = _READ_S

    def handle(self) -> None:
        try:
            super().handle()
        except OSError as error:
            log.debug("client hung up", client=self.client_address[0], error=error)
        except Exception:  # the thread's edge: socketserver would print it past the log
            log.exception("request failed", path=self.path)

    def do_GET(self) -> None:
        self._answer(self._page())

    def do_HEAD(self) -> None:
        self._answer(self._page())

    def do_POST(self) -> None:
        self._answer(_Page.text(HTTPStatus.METHOD_NOT_ALLOWED, "only GET and HEAD are answered"))

    do_PUT = do_PATCH = do_DELETE = do_OPTIONS = do_POST  # noqa: N815 - the base class's names

    def log_message(self, *_args: object) -> None:
        """Log nothing: a probe every few seconds is not an event."""

    def _page(self) -> _Page:
        page = self.server.pages.get(self.path.partition("?")[0])
        if page is None:
            there = ", ".join(self.server.pages)
            return _Page.text(HTTPStatus.NOT_FOUND, f"not here; there are {there}")
        return page()

    def _answer(self, page: _Page) -> None:
        self.send_response(page.status)
        self.send_header("Content-Type", page.content_type)
        self.send_header("Content-Length", str(len(page.body)))
        if page.status is HTTPStatus.METHOD_NOT_ALLOWED:
            self.send_header("Allow", "GET, HEAD")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(page.body)
