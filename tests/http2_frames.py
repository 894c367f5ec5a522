"""Frames of HTTP/2 as bytes, for peers that break the rules. Source: RFC 9113."""

from __future__ import annotations

import socket
import struct
import threading
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final

from hpack import Encoder

from tests.waiting import DEADLINE_S

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

DATA: Final = 0
HEADERS: Final = 1
PRIORITY: Final = 2
RESET: Final = 3
SETTINGS: Final = 4
PING: Final = 6
GOAWAY: Final = 7
WINDOW_UPDATE: Final = 8
CONTINUATION: Final = 9
UNKNOWN: Final = 0xBA
END_STREAM: Final = 1
ACK: Final = 1
END_HEADERS: Final = 4
CALM: Final = 0xB
"""ENHANCE_YOUR_CALM."""

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


def frame(kind: int, flags: int = 0, stream: int = 0, content: bytes = b"") -> bytes:
    """Return a frame."""
    return struct.pack(">I", len(content))[1:] + struct.pack(">BBI", kind, flags, stream) + content


GREETING: Final = PREFACE + frame(SETTINGS)


def request(stream: int, path: str, *more: tuple[str, str], flags: int = END_HEADERS) -> bytes:
    """Return the headers of a call."""
    return frame(HEADERS, flags, stream, call_headers(path, *more))


def call_headers(path: str, *more: tuple[str, str]) -> bytes:
    """Return the header list of a call, encoded without memory of others."""
    headers = (
        *((":method", "POST"), (":scheme", "http"), (":authority", "localhost"), (":path", path)),
        *(("te", "trailers"), ("content-type", "application/grpc"), *more),
    )
    return encoded(headers)


def encoded(headers: Iterable[tuple[str, str]]) -> bytes:
    """Return a header list, encoded without memory of others."""
    return bytes(Encoder().encode(list(headers), huffman=False))


def call(stream: int, path: str, message: bytes = b"") -> bytes:
    """Return a whole call."""
    data = struct.pack(">BI", 0, len(message)) + message
    return request(stream, path) + frame(DATA, END_STREAM, stream, data)


def reset(stream: int) -> bytes:
    """Return a frame that resets a stream."""
    return frame(RESET, 0, stream, struct.pack(">I", 8))


def setting(identifier: int, value: int) -> bytes:
    """Return one setting, the content of a frame of settings."""
    return struct.pack(">HI", identifier, value)


@contextmanager
def connected(path: Path) -> Iterator[socket.socket]:
    """Connect to a server, and greet it."""
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(DEADLINE_S)
        client.connect(str(path))
        client.sendall(GREETING)
        yield client


class Frames:
    """The frames that come over a socket.

    Args:
        peer: the socket.
        preface: what comes before them; empty from a server.
    """

    def __init__(self, peer: socket.socket, preface: bytes = b"") -> None:
        self._peer = peer
        self._data = b""
        while len(self._data) < len(preface):
            self._data += peer.recv(1 << 16)
        self._data = self._data[len(preface) :]

    def __iter__(self) -> Iterator[tuple[int, int, int, bytes]]:
        """Yield type, flags, stream and content of each frame, until the peer closes."""
        while True:
            while len(self._data) >= 9:
                length = int.from_bytes(self._data[:3])
                if len(self._data) < 9 + length:
                    break
                kind, flags, stream = struct.unpack(">BBI", self._data[3:9])
                content, self._data = self._data[9 : 9 + length], self._data[9 + length :]
                yield kind, flags, stream, content
            try:
                more = self._peer.recv(1 << 16)
            except ConnectionError:
                return
            if not more:
                return
            self._data += more

    def until(self, kind: int, stream: int | None = None) -> tuple[int, bytes]:
        """Return flags and content of the next frame of a type; fail if none comes."""
        for found, flags, of, content in self:
            if found == kind and stream in (None, of):
                return flags, content
        raise AssertionError(f"the peer has closed without a frame {kind} on stream {stream}")


def goodbye(path: Path, data: bytes) -> int | None:
    """Send a server any bytes, and read all that it sends; return the code of its farewell."""
    codes: list[int] = []

    with connected(path) as client:

        def read() -> None:
            for kind, _, _, content in Frames(client):
                if kind == GOAWAY:
                    codes.append(int.from_bytes(content[4:8]))

        reader = threading.Thread(target=read)
        reader.start()
        with suppress(ConnectionError):
            client.sendall(data)
            client.shutdown(socket.SHUT_WR)
        reader.join()
    return codes[0] if codes else None
