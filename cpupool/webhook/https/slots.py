"""Which clients have one of the server's slots, and which one is evicted for another.

A client is *reading* from the time at which it gets a slot until the server has read a whole
request, *active* until it has the response, and then *idle* until its next request. Reading clients
cannot take the slots of those that have sent a whole request. Slots are shared per address: the
address with the most clients loses its oldest client. A further request does not extend the time
for which a client keeps its slot. Otherwise clients that send request after request would have all
slots.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

_Client = TypeVar("_Client")


class Slots(Generic[_Client]):
    """The slots.

    Args:
        most: how many there are; reading clients have two thirds of them at most.
        reading_s: how long a reading client keeps its slot while others wait.
        stay_s: how long any other client keeps its slot from its first request on, while others
            wait. The server never evicts a client that waits for its response.
    """

    def __init__(self, most: int, reading_s: float, stay_s: float) -> None:
        self._most = most
        self._most_reading = most - most // 3
        self._reading_s = reading_s
        self._stay_s = stay_s
        self._reading: _Clients[_Client] = _Clients()
        self._active: _Clients[_Client] = _Clients()
        self._idle: _Clients[_Client] = _Clients()

    def __len__(self) -> int:
        return len(self._reading) + len(self._active) + len(self._idle)

    def fewest_reading(self, addresses: Iterable[str]) -> str:
        """Return the address from which the next client must come; the first of equals."""
        return min(addresses, key=self._reading.count)

    def victim(self, address: str) -> tuple[_Client, float] | None:
        """Find whom to evict before a client from an address can have a slot.

        Returns:
            None if a slot is free; otherwise the client, and the time at which to evict it:
            infinite before a client of the address with the most has its response.
        """
        if len(self._reading) >= self._most_reading:
            largest = max(self._reading.addresses, key=self._reading.count)
            oldest, since_s = self._reading.oldest(largest)
            outnumbered = self._reading.count(largest) > self._reading.count(address) + 1
            return oldest, since_s if outnumbered else since_s + self._reading_s
        if len(self) < self._most:
            return None
        # Reading clients do not have all slots, so at least one client is active or idle.
        largest = max({*self._idle.addresses, *self._active.addresses}, key=self._precedence)
        if not self._idle.count(largest):
            oldest, _ = self._active.oldest(largest)
            return oldest, math.inf
        oldest, since_s = self._idle.oldest(largest)
        return oldest, since_s + self._stay_s

    def assign(self, client: _Client, address: str, now_s: float) -> None:
        """Give a client a slot."""
        self._reading.add(client, address, now_s)

    def has_request(self, client: _Client, address: str, now_s: float) -> None:
        """Note that a client has sent a whole request, unless it has gone."""
        if self._reading.remove(client, address) is not None:
            self._active.add(client, address, now_s)
        elif (since_s := self._idle.remove(client, address)) is not None:
            self._active.add(client, address, since_s)

    def has_answer(self, client: _Client, address: str) -> None:
        """Note that a client has the response to its request, unless it has gone."""
        if (since_s := self._active.remove(client, address)) is not None:
            self._idle.add(client, address, since_s)

    def is_reading(self, client: _Client, address: str) -> bool:
        """Return whether a client has a slot, and has not sent a whole request yet."""
        return self._reading.has(client, address)

    def release(self, client: _Client, address: str) -> None:
        """Free the slot of a client, if it has one."""
        for clients in (self._reading, self._active, self._idle):
            clients.remove(client, address)

    def _precedence(self, address: str) -> tuple[int, float]:
        """Return how many active and idle clients an address has, and since when the oldest."""
        idle = self._idle.count(address)
        since_s = self._idle.oldest(address)[1] if idle else math.inf
        return idle + self._active.count(address), -since_s


class _Clients(Generic[_Client]):
    """Clients by address, each with the time from which on it has its slot."""

    def __init__(self) -> None:
        self._at: dict[str, dict[_Client, float]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._at.values()))

    @property
    def addresses(self) -> Collection[str]:
        return self._at.keys()

    def count(self, address: str) -> int:
        return len(self._at.get(address, ()))

    def has(self, client: _Client, address: str) -> bool:
        return client in self._at.get(address, ())

    def oldest(self, address: str) -> tuple[_Client, float]:
        """Return the client of an address that has its slot for longest, and its time."""
        return min(self._at[address].items(), key=lambda item: item[1])

    def add(self, client: _Client, address: str, since_s: float) -> None:
        self._at.setdefault(address, {})[client] = since_s

    def remove(self, client: _Client, address: str) -> float | None:
        """Remove a client, and return its time; None if it is not there."""
        clients = self._at.get(address, {})
        since_s = clients.pop(client, None)
        if since_s is not None and not clients:
            del self._at[address]
        return since_s
