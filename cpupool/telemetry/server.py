"""The HTTP server of probes and metrics: GET and HEAD of /healthz, /readyz and /metrics.

It is plain HTTP on a port that any client may reach, so no client can block the others: a
connection serves one request, has a few seconds for it, and is closed after a number of newer
connections, when it is either done or stuck. One thread serves all of them.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from io import BytesIO
from typing import TYPE_CHECKING, Final

from cpupool.core import visible
from cpupool.core.errors import HostError
from cpupool.telemetry import log as logs

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Mapping

    from cpupool.telemetry.health import Health, Report
    from cpupool.telemetry.metrics import ProcessMetrics

_REQUEST_S: Final = 5.0
_NEWER: Final = 32
"""A connection is closed once there are so many newer ones."""
_BACKLOG: Final = 128

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

    Attributes:
        port: where it listens.

    Raises:
        CannotListen: the port is taken, or the address is not this machine's.
    """

    def __init__(self, address: str, port: int, metrics: ProcessMetrics, health: Health) -> None:
        self._pages: dict[str, Callable[[], _Page]] = {
            "/healthz": lambda: _probe(health.live()),
            "/readyz": lambda: _probe(health.ready()),
            "/metrics": lambda: _Page(HTTPStatus.OK, *metrics.render()),
        }
        self._newest: deque[asyncio.StreamWriter] = deque(maxlen=_NEWER)
        self._end: Callable[[], object] = lambda: None
        try:
            self._socket = _listening(address, port)
        except OSError as error:
            reason = os.strerror(error.errno) if error.errno else str(error)
            raise CannotListen(address, port, reason) from error
        self.port: Final[int] = self._socket.getsockname()[1]

    def run(self, stop: threading.Event) -> None:
        """Serve until `stop` is set and `wake` called."""
        try:
            with asyncio.Runner() as runner:
                runner.run(self._serve(stop))
        finally:
            self.close()

    def wake(self) -> None:
        """Let `run` notice that it must stop; any thread may call it."""
        with suppress(RuntimeError):  # the loop is closed
            self._end()

    def close(self) -> None:
        """Stop listening."""
        self._socket.close()

    async def _serve(self, stop: threading.Event) -> None:
        ended, loop = asyncio.Event(), asyncio.get_running_loop()
        self._end = lambda: loop.call_soon_threadsafe(ended.set)
        server = await asyncio.start_server(self._answer, sock=self._socket, backlog=_BACKLOG)
        while not stop.is_set():
            await ended.wait()
            ended.clear()
        # The end of the loop cancels the open requests.
        server.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._newest) == _NEWER:
            self._newest[0].transport.abort()
        self._newest.append(writer)
        try:
            async with asyncio.timeout(_REQUEST_S):
                writer.write(_Handler(await _request(reader), self._pages).answer())
                await writer.drain()
        except (OSError, asyncio.LimitOverrunError) as error:
            log.debug("client hung up", error=error)
        finally:
            writer.close()


async def _request(reader: asyncio.StreamReader) -> bytes:
    """Return a request without its body; what there is of it if the client has sent no more."""
    try:
        return await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError as error:
        return error.partial


def _listening(address: str, port: int) -> socket.socket:
    # The kubelet and Prometheus come from outside the pod, by either family.
    everywhere = "::" if socket.has_dualstack_ipv6() else "0.0.0.0"  # noqa: S104
    host = address or everywhere
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server(
        (host, port), family=family, backlog=_BACKLOG, dualstack_ipv6=family is socket.AF_INET6
    )


@dataclass(frozen=True, slots=True)
class _Page:
    status: HTTPStatus
    content_type: str
    body: bytes

    @classmethod
    def text(cls, status: HTTPStatus, text: str) -> _Page:
        return cls(status, "text/plain; charset=utf-8", f"{visible.lines(text)}\n".encode())


def _probe(report: Report) -> _Page:
    status = HTTPStatus.OK if report.ok else HTTPStatus.SERVICE_UNAVAILABLE
    return _Page.text(status, "\n".join(report.lines) or "ok")


class _Handler(BaseHTTPRequestHandler):
    """Reads a request from memory, and writes its response there."""

    server_version = "cpupool"
    sys_version = ""

    def __init__(self, request: bytes, pages: Mapping[str, Callable[[], _Page]]) -> None:
        self.rfile = BytesIO(request)
        self.wfile = self._answer = BytesIO()
        self._pages = pages

    def answer(self) -> bytes:
        """Return the response; nothing for bytes that are no request."""
        try:
            self.handle()
        except Exception:  # the connection's edge: asyncio would print it past the log
            log.exception("request failed", path=self.path)
        return self._answer.getvalue()

    def do_GET(self) -> None:
        self._write(self._page())

    def do_HEAD(self) -> None:
        self._write(self._page())

    def do_POST(self) -> None:
        self._write(_Page.text(HTTPStatus.METHOD_NOT_ALLOWED, "only GET and HEAD are answered"))

    do_PUT = do_PATCH = do_DELETE = do_OPTIONS = do_POST  # noqa: N815 - the base class's names

    def log_message(self, *_args: object) -> None:
        """Log nothing: a probe every few seconds is not an event."""

    def _page(self) -> _Page:
        page = self._pages.get(self.path.partition("?")[0])
        if page is None:
            there = ", ".join(self._pages)
            return _Page.text(HTTPStatus.NOT_FOUND, f"not here; there are {there}")
        return page()

    def _write(self, page: _Page) -> None:
        self.send_response(page.status)
        self.send_header("Content-Type", page.content_type)
        self.send_header("Content-Length", str(len(page.body)))
        if page.status is HTTPStatus.METHOD_NOT_ALLOWED:
            self.send_header("Allow", "GET, HEAD")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(page.body)
