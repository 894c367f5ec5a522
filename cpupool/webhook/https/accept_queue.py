"""The accept queue: accepted connections that have no slot yet, or that have lost their slot.

Theory of operation. A connection is in one of five states: silent, readable, reading, active, idle.
In the *tarpit* a connection stays open and counts as silent, and the server ignores its bytes. Only
the event loop's thread changes a state:

    accept ─► silent ── first byte ──► readable ── slot ──► reading ── request ──► active
                ▲                          │                   │                     │ ▲
                │                     too many wait         evicted         response ▼ │ request
                └──────── tarpit ◄─────────┴───────────────────┘                     idle
                                                                                       │
                                                                       closed ◄── evicted

* The queue has the silent and the readable connections. A connection that is reading, active or
  idle has a slot (`slots.py`), TLS and HTTP (`server.py`). The next slot goes to the address with
  the fewest reading connections. At this address it goes to the connection that is readable for the
  longest time.
* A silent connection costs a file descriptor and no work. One epoll set watches all of them, and
  the event loop watches that set. So thousands of silent connections take no slot from clients that
  send something. One timer closes them after `silent_s`. The timer runs only while a connection is
  silent.
* A connection goes to the tarpit when it is evicted before it has sent a whole request. It stays
  open. The server throws away the bytes that have come, and reads nothing more from it. From then
  on the connection counts as silent: the timer closes it after `silent_s`. A client that sees a
  closed connection would connect again at once, take the turn of another client, and cost a
  handshake.
* Readable connections above `most_readable` go to the tarpit, too, because the kernel holds their
  bytes in memory.
* The server closes an evicted connection that has sent a whole request. Its client may be an API
  server. If the connection stayed open, the API server would send its next request and never get a
  response.
* If the queue is full (the argument `most` is its limit), the server closes one connection for each
  new one. It closes the connection that is silent for the longest time. If no connection is silent,
  it takes the address with the most connections, and closes the one that is readable for the
  longest time.
"""

from __future__ import annotations

import asyncio
import select
import socket
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Final

from cpupool.telemetry import log as logs

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

log = logs.get(__name__)

_BATCH: Final = 64
"""How many connections are accepted, or become readable, before the server turns to its others."""
_MOST_SENT_BYTES: Final = 2**20
"""More than the kernel holds of a client."""
_TICK_S: Final = 0.25
"""The time between two looks at the silent connections."""
_CLOSED: Final = 16
"""How many of them are closed at a look: all clients of a flood would be back at the same time."""
_PAUSE_S: Final = 1.0
"""The pause after a connection failed for lack of file descriptors or memory."""


@dataclass(frozen=True, slots=True)
class Client:
    """A client that has connected.

    Attributes:
        socket: its connection.
        address: the IP address from which it comes.
        since_s: when it was accepted or came to the tarpit, by the event loop's clock.
    """

    socket: socket.socket
    address: str
    since_s: float

    @property
    def is_readable(self) -> bool:
        """Whether the client has sent a byte that nothing has read."""
        try:
            return bool(self.socket.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT))
        except OSError:
            return False


class AcceptQueue:
    """The connections without a slot, in the order in which they were accepted.

    Args:
        listening: the socket to which clients connect; it does not block.
        most: how many connections may be here.
        most_readable: the most connections with unread bytes; the bytes are in the kernel's memory.
        silent_s: how long a connection may be silent.
        readable: called when a connection has become readable.
    """

    def __init__(
        self,
        listening: socket.socket,
        most: int,
        most_readable: int,
        silent_s: float,
        readable: Callable[[], None],
    ) -> None:
        self._listening = listening
        self._most = most
        self._most_readable = most_readable
        self._silent_s = silent_s
        self._call_readable = readable
        self._silent: dict[int, Client] = {}
        self._readable: dict[str, dict[Client, None]] = {}
        self._loop = asyncio.get_running_loop()
        self._events = select.epoll()
        self._timer: asyncio.TimerHandle | None = None
        self._loop.add_reader(self._events, self._poll)
        self._listen()

    @property
    def addresses(self) -> Collection[str]:
        """The addresses of the readable connections; the longest waiting first."""
        return self._readable.keys()

    def next_from(self, address: str) -> Client | None:
        """Take the readable client of an address that waits for longest; None if it has gone."""
        client = next(iter(self._readable[address]))
        self._forget(client)
        if client.is_readable:
            client.socket.setblocking(False)  # noqa: FBT003 - the standard library's signature
            return client
        client.socket.close()
        return None

    def tarpit(self, client: Client) -> None:
        """Keep the connection of a client that was evicted, while there is room."""
        try:
            connection = client.socket.dup()
        except OSError:
            # It is closed already, or no file descriptor is left.
            return
        self._make_room()
        self._keep_unread(connection, client.address)

    def close(self) -> None:
        """Accept no more connections, and close those that wait."""
        if self._timer:
            self._timer.cancel()
        self._loop.remove_reader(self._listening)
        self._loop.remove_reader(self._events)
        self._listening.close()
        self._events.close()
        readable = [client for clients in self._readable.values() for client in clients]
        for client in (*self._silent.values(), *readable):
            client.socket.close()

    def _listen(self) -> None:
        if self._listening.fileno() >= 0:
            self._loop.add_reader(self._listening, self._accept)

    def _accept(self) -> None:
        for _ in range(_BATCH):
            try:
                connection, (address, *_) = self._listening.accept()
            except (BlockingIOError, ConnectionError):
                return
            except OSError as error:
                log.warning("connection not taken", reason=error.strerror)
                for _ in range(min(_CLOSED, len(self._silent))):
                    self._close_silent()
                self._loop.remove_reader(self._listening)
                self._loop.call_later(_PAUSE_S, self._listen)
                return
            self._make_room()
            self._add_silent(connection, address)
            self._events.register(connection, select.EPOLLIN)

    def _poll(self) -> None:
        for number, _ in self._events.poll(0, _BATCH):
            self._events.unregister(number)
            client = self._silent.pop(number)
            self._readable.setdefault(client.address, {})[client] = None
            if self._readable_count > self._most_readable:
                surplus = self._oldest_readable()
                self._keep_unread(surplus.socket, surplus.address)
        self._call_readable()

    def _make_room(self) -> None:
        if len(self._silent) + self._readable_count < self._most:
            return
        if self._silent:
            self._close_silent()
        else:
            self._oldest_readable().socket.close()

    @property
    def _readable_count(self) -> int:
        return sum(map(len, self._readable.values()))

    def _close_silent(self) -> None:
        """Close the connection that is silent for longest."""
        self._silent.pop(next(iter(self._silent))).socket.close()

    def _oldest_readable(self) -> Client:
        """Take the client that waits for longest, of the address with the most."""
        address = max(self._readable, key=lambda address: len(self._readable[address]))
        client = next(iter(self._readable[address]))
        self._forget(client)
        return client

    def _keep_unread(self, connection: socket.socket, address: str) -> None:
        # What the client has sent, and still sends, costs the kernel memory. With MSG_TRUNC, TCP
        # throws it away: tcp(7).
        with suppress(OSError):
            connection.recv(_MOST_SENT_BYTES, socket.MSG_TRUNC | socket.MSG_DONTWAIT)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
        self._add_silent(connection, address)

    def _forget(self, client: Client) -> None:
        readable = self._readable[client.address]
        del readable[client]
        if not readable:
            del self._readable[client.address]

    def _add_silent(self, connection: socket.socket, address: str) -> None:
        self._silent[connection.fileno()] = Client(connection, address, self._loop.time())
        self._await_expiry()

    def _await_expiry(self) -> None:
        """Let `_expire` run when the first connection has been silent for too long."""
        if self._timer is None and self._silent:
            due_s = next(iter(self._silent.values())).since_s + self._silent_s
            self._timer = self._loop.call_at(max(due_s, self._loop.time() + _TICK_S), self._expire)

    def _expire(self) -> None:
        """Close connections that have been silent for too long."""
        self._timer = None
        due_s = self._loop.time() - self._silent_s
        for client in list(islice(self._silent.values(), _CLOSED)):
            if client.since_s <= due_s:
                self._close_silent()
        self._await_expiry()
