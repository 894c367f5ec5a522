"""The HTTPS server: functions answer the JSON documents that clients POST to a few paths.

uvicorn reads and writes HTTP. This module does what uvicorn does not: it limits connections and
times, and presents the certificate. A bad client loses its own connection, and never affects
others.
"""

from __future__ import annotations

import asyncio
import logging
import math
import resource
import socket
import ssl
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import h11
from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from cpupool.core.errors import HostError
from cpupool.telemetry import log as logs
from cpupool.telemetry.server import CannotListen
from cpupool.webhook.https.accept_queue import AcceptQueue, Client
from cpupool.webhook.https.application import JSONApplication, Limits
from cpupool.webhook.https.slots import Slots

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Mapping
    from http import HTTPStatus
    from pathlib import Path

    from cpupool.webhook.https.application import Function

log = logs.get(__name__)

_BEAT_S: Final = 10.0
_BATCH: Final = 16
"""How many clients get a slot before those that have one have their turn."""
_OTHER_FILES: Final = 128
"""File descriptors that are not connections, also while an old client's is being closed."""
_FEWEST_QUEUED: Final = 64
_UNREAD_BYTES: Final = 32 * 1024
"""The bytes that the kernel keeps from a client until the server reads them, and of a response
until its client reads them. The kernel rounds the number up."""
_UNREAD_MS: Final = 10_000
"""How long the kernel keeps such a response, also after the server has closed the connection."""
_BACKLOG: Final = 4096
"""How many clients the kernel holds that the server has not seen yet."""
_GOODBYE_S: Final = 2.0
"""The time for a client to read the rest of its response, and to close its side, too."""
_LONGEST_HEADER_BYTES: Final = 16 * 1024


class CertificateError(HostError):
    """A certificate and its key that no server can use.

    Attributes:
        path: the path of the certificate.
    """

    def __init__(self, path: str, key: str, reason: str) -> None:
        self.path = path
        super().__init__(
            f"{path}: cannot be used with the key {key}: {reason}; write both again as PEM"
        )


class HTTPSServer:
    """The server; it listens from its construction until `run` ends.

    Args:
        address: where to listen; empty for every address, IPv4 and IPv6.
        port: 0 for any free port.
        functions: path → function from a document to its response; runs in a thread for each
            request; raises `RemoteProtocolError` for a document that it cannot answer.
        beat: called every few seconds while the server accepts connections.
        refused: called for each refused request, with its HTTP status.
        limits: the limits of the server.

    Raises:
        CannotListen: the port is taken, or the address is not this machine's.
    """

    def __init__(
        self,
        address: str,
        port: int,
        functions: Mapping[str, Function],
        *,
        beat: Callable[[], None] = lambda: None,
        refused: Callable[[HTTPStatus], None] = lambda _status: None,
        limits: Limits | None = None,
    ) -> None:
        self._limits = limits or Limits()
        self._beat = beat
        self._context: ssl.SSLContext | None = None
        self._application = JSONApplication(functions, refused, self._limits)
        self._http = Config(
            self._application.router(),
            interface="asgi3",
            http=H11Protocol,
            ws="none",
            lifespan="off",
            log_config=None,
            log_level=logging.CRITICAL,
            access_log=False,
            timeout_keep_alive=int(self._limits.idle_s),
            proxy_headers=False,
            server_header=False,
            date_header=False,
            h11_max_incomplete_event_size=_LONGEST_HEADER_BYTES,
        )
        self._http.load()
        self._state = ServerState()
        self._slots: Slots[Client] = Slots(
            self._limits.connections, self._limits.reading_s, self._limits.stay_s
        )
        self._connections: dict[Client, asyncio.Task[None]] = {}
        self._changed = asyncio.Event()
        self._socket = _listening(address, port)

    @property
    def port(self) -> int:
        """The port on which the server listens."""
        port: int = self._socket.getsockname()[1]
        return port

    @property
    def presents(self) -> bool:
        """Whether there is a certificate to present."""
        return self._context is not None

    def present(self, certificate: Path, key: Path) -> None:
        """Present this certificate to new clients; without one the server refuses all clients.

        Args:
            certificate: a PEM file with the certificate, and those that lead to its CA.
            key: a PEM file with its key, without a passphrase.

        Raises:
            CertificateError: they cannot be used; the server keeps the earlier certificate.
        """
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.options |= ssl.OP_NO_RENEGOTIATION
        try:
            # Without a passphrase OpenSSL would ask for it on the terminal.
            context.load_cert_chain(certificate, key, password="")
        except (OSError, ValueError) as error:
            reason = getattr(error, "reason", None) or getattr(error, "strerror", None) or error
            raise CertificateError(str(certificate), str(key), str(reason)) from error
        self._context = context

    def run(self, stop: threading.Event) -> None:
        """Serve until `stop` is set and a little longer, and finish the open requests."""
        asyncio.run(self._serve(stop))

    def close(self) -> None:
        """Stop listening; for a server that does not run."""
        self._socket.close()

    async def _serve(self, stop: threading.Event) -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(_log_failure)
        # One thread for each possible request, one for the heartbeat, and one that waits for the
        # end: a request that must ask the API server delays no other request.
        loop.set_default_executor(ThreadPoolExecutor(self._limits.connections + 2, "request"))
        # asyncio warns of clients that are gone when it writes their answer.
        logging.getLogger("asyncio").setLevel(logging.ERROR)
        waiting = asyncio.create_task(asyncio.to_thread(stop.wait))
        accepting = asyncio.create_task(self._accept())
        beating = asyncio.create_task(self._keep_beating())
        tasks = (accepting, beating, waiting)
        try:
            ended, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            # If the loop has failed, the waiting thread would delay its end.
            stop.set()
        for task in ended:
            task.result()
        # Clients that still connect must open their next connection elsewhere.
        self._state.default_headers = [(b"connection", b"close")]
        await asyncio.sleep(self._limits.linger_s)
        for task in (accepting, beating):
            task.cancel()
        await asyncio.wait((accepting, beating))
        self._socket.close()
        for connection in list(self._state.connections):
            connection.shutdown()
        if open_ones := list(self._connections.values()):
            await asyncio.wait(open_ones, timeout=self._limits.request_s)
        for task in open_ones:
            task.cancel()

    async def _keep_beating(self) -> None:
        while True:
            # In the request threads: if they all hang, the server must not look alive.
            await asyncio.to_thread(self._beat)
            await asyncio.sleep(_BEAT_S)

    async def _accept(self) -> None:
        """Give slots to the clients that have sent something."""
        files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        spare = files - self._limits.connections - _OTHER_FILES
        queue = AcceptQueue(
            self._socket,
            min(self._limits.queued, max(_FEWEST_QUEUED, spare)),
            self._limits.readable,
            self._limits.silent_s,
            self._changed.set,
        )
        try:
            while True:
                self._changed.clear()
                pause_s = self._assign_slots(queue)
                # In Python 3.11 `wait_for` loses a cancellation that comes with the event.
                with suppress(TimeoutError):
                    async with asyncio.timeout(pause_s):
                        await self._changed.wait()
        finally:
            queue.close()

    def _assign_slots(self, queue: AcceptQueue) -> float | None:
        """Give slots to some clients, and return when to go on: None after a change."""
        loop = asyncio.get_running_loop()
        for _ in range(_BATCH):
            if not queue.addresses:
                return None
            address = self._slots.fewest_reading(queue.addresses)
            if victim := self._slots.victim(address):
                oldest, until_s = victim
                if (pause_s := until_s - loop.time()) > 0:
                    return None if until_s == math.inf else pause_s
                if self._slots.is_reading(oldest, oldest.address):
                    queue.tarpit(oldest)
                self._slots.release(oldest, oldest.address)
                if task := self._connections.pop(oldest, None):
                    task.cancel()
            if client := queue.next_from(address):
                self._serve_soon(client)
        return 0.0

    def _serve_soon(self, client: Client) -> None:
        if self._context is None:
            client.socket.close()
            return
        self._slots.assign(client, client.address, asyncio.get_running_loop().time())
        task = asyncio.create_task(self._serve_client(client, self._context))
        self._connections[client] = task
        task.add_done_callback(partial(self._release, client))

    async def _serve_client(self, client: Client, context: ssl.SSLContext) -> None:
        connection = _Connection(
            self._http,
            self._state,
            self._limits,
            client,
            slots=self._slots,
            answered=self._changed.set,
        )
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: connection,
                client.socket,
                ssl=context,
                ssl_handshake_timeout=self._limits.handshake_s,
                ssl_shutdown_timeout=_GOODBYE_S,
            )
            await connection.ended.wait()
        except OSError as error:
            log.debug("no TLS with a client", reason=error)
            # The error's frames refer to the connection's buffers, and asyncio's future refers to
            # the error: a cycle of 300 KiB. Many clients would leave hundreds before a collection.
            error.__traceback__ = None
        finally:
            if connection.transport:
                connection.transport.abort()

    def _release(self, client: Client, _task: asyncio.Task[None]) -> None:
        # Also for a client that was evicted before its task has begun.
        self._connections.pop(client, None)
        self._slots.release(client, client.address)
        client.socket.close()
        self._changed.set()


class _Connection(H11Protocol):
    """A connection that closes when the client takes too long; uvicorn limits only the idle time.

    Args:
        http: uvicorn's settings.
        state: uvicorn's list of connections.
        limits: the limits of the server.
        client: the client.
        slots: the slots of all clients.
        answered: called when the client has a response.
    """

    def __init__(
        self,
        http: Config,
        state: ServerState,
        limits: Limits,
        client: Client,
        *,
        slots: Slots[Client],
        answered: Callable[[], None],
    ) -> None:
        super().__init__(http, state, {})
        self.ended = asyncio.Event()
        self._limits = limits
        self._client = client
        self._slots = slots
        self._answered = answered
        self._idle = True
        self._limit: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._restart_timer(self._limits.request_s)

    def data_received(self, data: bytes) -> None:
        if self._idle:
            self._idle = False
            self._restart_timer(self._limits.request_s)
        super().data_received(data)
        self._note_request()
        self._note_idle()

    def on_response_complete(self) -> None:
        # A client with an early answer has the same time again to send the rest of its request.
        self._restart_timer(self._limits.request_s)
        self._slots.has_answer(self._client, self._client.address)
        self._answered()
        super().on_response_complete()
        self._note_request()
        self._note_idle()

    def send_400_response(self, msg: str) -> None:
        # uvicorn also answers where the request was answered before its end, and h11 refuses that.
        if self.conn.our_state in {h11.IDLE, h11.SEND_RESPONSE}:
            super().send_400_response(msg)
        else:
            self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        # uvicorn keeps its timer after a reset, and the timer keeps the connection's buffers.
        for limit in (self._limit, self.timeout_keep_alive_task):
            if limit:
                limit.cancel()
        self.ended.set()

    def _note_request(self) -> None:
        """Note that the client has sent a whole request, and waits for the response."""
        whole = self.conn.their_state in {h11.DONE, h11.MUST_CLOSE}
        if whole and self.conn.our_state in {h11.SEND_RESPONSE, h11.SEND_BODY}:
            self._slots.has_request(self._client, self._client.address, self.loop.time())

    def _note_idle(self) -> None:
        """Note the connection as idle if neither side has begun anything."""
        nothing = {h11.CLIENT: h11.IDLE, h11.SERVER: h11.IDLE}
        if not self._idle and self.conn.states == nothing and not self.conn.trailing_data[0]:
            self._idle = True
            self._restart_timer(self._limits.idle_s)

    def _restart_timer(self, limit_s: float) -> None:
        """Start the time for the next step."""
        if self._limit:
            self._limit.cancel()
        self._limit = self.loop.call_later(limit_s, self.transport.abort)


def _listening(address: str, port: int) -> socket.socket:
    both = socket.has_dualstack_ipv6()
    host = address or ("::" if both else "0.0.0.0")  # noqa: S104 - API servers come from anywhere
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    dual = both and not address
    try:
        made = socket.create_server(
            (host, port), family=family, backlog=_BACKLOG, dualstack_ipv6=dual
        )
    except OSError as error:
        raise CannotListen(address, port, error.strerror or str(error), "HTTPS") from error
    # Connections inherit it. A response is written in two parts: with Nagle's algorithm, the second
    # waits 40 ms for the client to acknowledge the first.
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _UNREAD_BYTES)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _UNREAD_BYTES)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _UNREAD_MS)
    made.setblocking(False)  # noqa: FBT003 - the standard library's signature
    return made


def _log_failure(_loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Log a failed connection in one line, which asyncio would print as a traceback."""
    log.warning("connection failed", reason=context["message"], error=context.get("exception"))
