"""Who may have one of the server's places, and who must go for a new client.

A stranger has not sent a whole request yet. Strangers cannot take the places of those who have, and
a crowd from one address cannot take the places of others: of two addresses the one with more
strangers loses its oldest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterable

_Client = TypeVar("_Client")


class Places(Generic[_Client]):
    """The places; a client that is known has sent a whole request.

    Args:
        most: how many places there are; strangers have two thirds of them at most.
        stranger_s: how long a stranger keeps its place while others wait.
        stay_s: how long a known client does so after its last request or answer.
    """

    def __init__(self, most: int, stranger_s: float, stay_s: float) -> None:
        self._most = most
        self._most_strangers = most - most // 3
        self._stranger_s = stranger_s
        self._stay_s = stay_s
        self._strangers: dict[str, dict[_Client, float]] = {}
        self._known: dict[_Client, float] = {}

    def __len__(self) -> int:
        return len(self._known) + self._stranger_count

    def fewest_strangers(self, addresses: Iterable[str]) -> str:
        """Return the address from which the next stranger must come; the first of equals."""
        return min(addresses, key=self._count)

    def in_the_way(self, address: str) -> tuple[_Client, float] | None:
        """Find who must go before a stranger from an address can have a place.

        Returns:
            None if a place is free; otherwise the client, and the time at which it must go.
        """
        if self._stranger_count >= self._most_strangers:
            crowd = max(self._strangers, key=self._count)
            oldest, since_s = next(iter(self._strangers[crowd].items()))
            outnumbered = self._count(crowd) > self._count(address) + 1
            return oldest, since_s if outnumbered else since_s + self._stranger_s
        if len(self) >= self._most:
            # Strangers do not have all places, so at least one client is known.
            oldest, since_s = next(iter(self._known.items()))
            return oldest, since_s + self._stay_s
        return None

    def take(self, client: _Client, address: str, now_s: float) -> None:
        """Give a stranger a place."""
        self._strangers.setdefault(address, {})[client] = now_s

    def know(self, client: _Client, address: str, now_s: float) -> None:
        """Note that a client has sent a whole request, or has its answer, unless it has gone."""
        if self._leave_strangers(client, address) or self._known.pop(client, None) is not None:
            self._known[client] = now_s

    def is_stranger(self, client: _Client, address: str) -> bool:
        """Return whether a client has a place, and has not sent a whole request yet."""
        return client in self._strangers.get(address, {})

    def leave(self, client: _Client, address: str) -> None:
        """Take the place of a client, if it has one."""
        if not self._leave_strangers(client, address):
            self._known.pop(client, None)

    @property
    def _stranger_count(self) -> int:
        return sum(map(len, self._strangers.values()))

    def _count(self, address: str) -> int:
        return len(self._strangers.get(address, ()))

    def _leave_strangers(self, client: _Client, address: str) -> bool:
        those = self._strangers.get(address, {})
        if those.pop(client, None) is None:
            return False
        if not those:
            del self._strangers[address]
        return True
