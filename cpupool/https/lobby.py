"""Where clients wait that have connected and have no place yet, or have lost it.

A client that sends nothing costs a socket and no work: one epoll set watches all of them. So
thousands of silent clients take no place from those that speak. Strangers that have lost their
place, or that are too many to wait for one, stay here and are not read any more: a client that sees
its connection closed would come back at once, take the turn of another, and cost a handshake.

A client that has sent a whole request does not stay here: it may be an API server, and would wait
for the answer to its next request in vain.
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
"""How many clients connect, or are heard, before the server turns to its other clients."""
_MOST_SENT_BYTES: Final = 2**20
"""More than the kernel holds of a client."""
_TICK_S: Final = 0.25
_LEAVING: Final = 16
"""How many clients must leave in a tick: all of a crowd would be back at the same time."""
_PAUSE_S: Final = 1.0
"""The pause after a connection failed for lack of file descriptors or memory."""


@dataclass(frozen=True, slots=True)
class Client:
    """A client that has connected.

    Attributes:
        socket: its connection.
        address: the IP address from which it comes.
        since_s: when it connected, by the event loop's clock.
    """

    socket: socket.socket
    address: str
    since_s: float

    @property
    def speaks(self) -> bool:
        """Whether the client has sent a byte that nothing has read."""
        try:
            return bool(self.socket.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT))
        except OSError:
            return False


class Lobby:
    """The clients without a place, in the order in which they came.

    Args:
        listening: the socket to which clients connect; it does not block.
        most: how many clients may wait.
        most_asking: how many of them may have sent something; the kernel holds it.
        silent_s: how long a client may send nothing.
        heard: called when a client has sent its first bytes.
    """

    def __init__(
        self,
        listening: socket.socket,
        most: int,
        most_asking: int,
        silent_s: float,
        heard: Callable[[], None],
    ) -> None:
        self._listening = listening
        self._most = most
        self._most_asking = most_asking
        self._silent_s = silent_s
        self._heard = heard
        self._silent: dict[int, Client] = {}
        self._asking: dict[str, dict[Client, None]] = {}
        self._loop = asyncio.get_running_loop()
        self._events = select.epoll()
        self._timer = self._loop.call_later(_TICK_S, self._expire)
        self._loop.add_reader(self._events, self._hear)
        self._listen()

    @property
    def addresses(self) -> Collection[str]:
        """The addresses of the clients that have sent something; the longest waiting first."""
        return self._asking.keys()

    def next_of(self, address: str) -> Client | None:
        """Take the client of an address that waits for longest; None if it has gone."""
        asking = self._asking[address]
        client = next(iter(asking))
        self._forget(client)
        if client.speaks:
            client.socket.setblocking(False)  # noqa: FBT003 - the standard library's signature
            return client
        client.socket.close()
        return None

    def park(self, client: Client) -> None:
        """Keep the connection of a stranger that has lost its place, while there is room."""
        try:
            connection = client.socket.dup()
        except OSError:
            # It is closed already, or no file descriptor is left.
            return
        self._make_room()
        self._park(connection, client.address)

    def close(self) -> None:
        """Let no more clients in, and hang up on those that wait."""
        self._timer.cancel()
        self._loop.remove_reader(self._listening)
        self._loop.remove_reader(self._events)
        self._listening.close()
        self._events.close()
        asking = [client for clients in self._asking.values() for client in clients]
        for client in (*self._silent.values(), *asking):
            client.socket.close()

    def _listen(self) -> None:
        if self._listening.fileno() >= 0:
            self._loop.add_reader(self._listening, self._take)

    def _take(self) -> None:
        for _ in range(_BATCH):
            try:
                connection, (address, *_) = self._listening.accept()
            except (BlockingIOError, ConnectionError):
                return
            except OSError as error:
                log.warning("connection not taken", reason=error.strerror)
                for _ in range(min(_LEAVING, len(self._silent))):
                    self._drop_silent()
                self._loop.remove_reader(self._listening)
                self._loop.call_later(_PAUSE_S, self._listen)
                return
            self._make_room()
            client = Client(connection, address, self._loop.time())
            self._silent[connection.fileno()] = client
            self._events.register(connection, select.EPOLLIN)

    def _hear(self) -> None:
        for number, _ in self._events.poll(0, _BATCH):
            self._events.unregister(number)
            client = self._silent.pop(number)
            self._asking.setdefault(client.address, {})[client] = None
            if self._asking_count > self._most_asking:
                surplus = self._oldest_asking()
                self._park(surplus.socket, surplus.address)
        self._heard()

    def _make_room(self) -> None:
        if len(self._silent) + self._asking_count < self._most:
            return
        if self._silent:
            self._drop_silent()
        else:
            self._oldest_asking().socket.close()

    @property
    def _asking_count(self) -> int:
        return sum(map(len, self._asking.values()))

    def _drop_silent(self) -> None:
        """Hang up on the client that is silent for longest."""
        self._silent.pop(next(iter(self._silent))).socket.close()

    def _oldest_asking(self) -> Client:
        """Take the client that waits for longest, of the largest crowd."""
        crowd = max(self._asking, key=lambda address: len(self._asking[address]))
        client = next(iter(self._asking[crowd]))
        self._forget(client)
        return client

    def _park(self, connection: socket.socket, address: str) -> None:
        # What the client has sent, and still sends, costs the kernel memory. With MSG_TRUNC, TCP
        # throws it away: tcp(7).
        with suppress(OSError):
            connection.recv(_MOST_SENT_BYTES, socket.MSG_TRUNC | socket.MSG_DONTWAIT)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
        self._silent[connection.fileno()] = Client(connection, address, self._loop.time())

    def _forget(self, client: Client) -> None:
        asking = self._asking[client.address]
        del asking[client]
        if not asking:
            del self._asking[client.address]

    def _expire(self) -> None:
        """Hang up on clients that have sent nothing for too long."""
        due_s = self._loop.time() - self._silent_s
        for client in list(islice(self._silent.values(), _LEAVING)):
            if client.since_s <= due_s:
                self._drop_silent()
        self._timer = self._loop.call_later(_TICK_S, self._expire)
