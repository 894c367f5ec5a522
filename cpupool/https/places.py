"""Who may have one of the server's places, and who must go for a new client.

A stranger has not sent a whole request yet. Strangers cannot take the places of those who have, and
a crowd from one address cannot take the places of others: the address with the most clients loses
its oldest. More requests keep no place for longer: a crowd that repeats them would have all places.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

_Client = TypeVar("_Client")


class Places(Generic[_Client]):
    """The places; a client that is known has sent a whole request.

    Args:
        most: how many places there are; strangers have two thirds of them at most.
        stranger_s: how long a stranger keeps its place while others wait.
        stay_s: how long a known client does so from its first request on, and until its answer.
    """

    def __init__(self, most: int, stranger_s: float, stay_s: float) -> None:
        self._most = most
        self._most_strangers = most - most // 3
        self._stranger_s = stranger_s
        self._stay_s = stay_s
        self._strangers: _Clients[_Client] = _Clients()
        self._asking: _Clients[_Client] = _Clients()
        self._idle: _Clients[_Client] = _Clients()

    def __len__(self) -> int:
        return len(self._strangers) + len(self._asking) + len(self._idle)

    def fewest_strangers(self, addresses: Iterable[str]) -> str:
        """Return the address from which the next stranger must come; the first of equals."""
        return min(addresses, key=self._strangers.count)

    def in_the_way(self, address: str) -> tuple[_Client, float] | None:
        """Find who must go before a stranger from an address can have a place.

        Returns:
            None if a place is free; otherwise the client, and the time at which it must go:
            infinite before a client of the largest crowd has its answer.
        """
        if len(self._strangers) >= self._most_strangers:
            crowd = max(self._strangers.addresses, key=self._strangers.count)
            oldest, since_s = self._strangers.oldest(crowd)
            outnumbered = self._strangers.count(crowd) > self._strangers.count(address) + 1
            return oldest, since_s if outnumbered else since_s + self._stranger_s
        if len(self) < self._most:
            return None
        # Strangers do not have all places, so at least one client is known.
        crowd = max({*self._idle.addresses, *self._asking.addresses}, key=self._precedence)
        if not self._idle.count(crowd):
            oldest, _ = self._asking.oldest(crowd)
            return oldest, math.inf
        oldest, since_s = self._idle.oldest(crowd)
        return oldest, since_s + self._stay_s

    def take(self, client: _Client, address: str, now_s: float) -> None:
        """Give a stranger a place."""
        self._strangers.add(client, address, now_s)

    def asks(self, client: _Client, address: str, now_s: float) -> None:
        """Note that a client has sent a whole request, unless it has gone."""
        if self._strangers.remove(client, address) is not None:
            self._asking.add(client, address, now_s)
        elif (since_s := self._idle.remove(client, address)) is not None:
            self._asking.add(client, address, since_s)

    def has_answer(self, client: _Client, address: str) -> None:
        """Note that a client has the answer to its request, unless it has gone."""
        if (since_s := self._asking.remove(client, address)) is not None:
            self._idle.add(client, address, since_s)

    def is_stranger(self, client: _Client, address: str) -> bool:
        """Return whether a client has a place, and has not sent a whole request yet."""
        return self._strangers.has(client, address)

    def leave(self, client: _Client, address: str) -> None:
        """Take the place of a client, if it has one."""
        for clients in (self._strangers, self._asking, self._idle):
            clients.remove(client, address)

    def _precedence(self, address: str) -> tuple[int, float]:
        """Return how many known clients an address has, and how long ago the oldest came."""
        idle = self._idle.count(address)
        since_s = self._idle.oldest(address)[1] if idle else math.inf
        return idle + self._asking.count(address), -since_s


class _Clients(Generic[_Client]):
    """Clients by address, each with the time from which on it has its place."""

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
        """Return the client of an address that has its place for longest, and its time."""
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
