"""An open watch, and the lines that are to be written into it."""

from __future__ import annotations

import json
import os
import select
import time
from collections import deque
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import socket
    from collections.abc import Mapping

    from tests.apiserver.paths import Path

DROP = object()
END = object()


class Watch:
    """One open watch, and what is to be written into it."""

    def __init__(self, collection: Path, parameters: Mapping[str, str]) -> None:
        self.collection = collection
        self.parameters = parameters
        self._lines: deque[object] = deque()
        self._news = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def wants(self, path: Path, body: Mapping[str, Any]) -> bool:
        return self.collection.covers(path) and matches(body, self.parameters)

    def put(self, line: object) -> None:
        self._lines.append(line)
        os.eventfd_write(self._news, 1)

    def next(self, connection: socket.socket, ends_s: float) -> object:
        """Wait for a line until the time is over or the client, who has nothing to say, is gone."""
        poll = select.poll()
        poll.register(self._news, select.POLLIN)
        poll.register(connection, select.POLLIN)
        while not self._lines:
            ready = [fd for fd, _ in poll.poll(max(ends_s - time.monotonic(), 0) * 1000)]
            if self._news not in ready:
                return DROP if ready else END
            os.eventfd_read(self._news)
        return self._lines.popleft()

    def close(self) -> None:
        os.close(self._news)


def matches(body: Mapping[str, Any], parameters: Mapping[str, str]) -> bool:
    """Apply a field selector of the form `a.b=c,d.e=f`, and a label selector `a=b,c=d`."""
    labels = body["metadata"].get("labels") or {}
    return all(
        _field(body, path) == wanted for path, wanted in _terms(parameters, "fieldSelector")
    ) and all(labels.get(key) == wanted for key, wanted in _terms(parameters, "labelSelector"))


def _terms(parameters: Mapping[str, str], selector: str) -> list[tuple[str, str]]:
    terms = filter(None, parameters.get(selector, "").split(","))
    return [(key, wanted) for key, _, wanted in (term.partition("=") for term in terms)]


def _field(body: Mapping[str, Any], path: str) -> Any:
    value: Any = body
    for key in path.split("."):
        value = value.get(key, {}) if isinstance(value, dict) else {}
    return value


def line(kind: str, body: Mapping[str, Any]) -> bytes:
    return json.dumps({"type": kind, "object": body}).encode() + b"\n"
