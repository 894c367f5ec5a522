"""Frames of ttrpc, written and read as Go does."""

from __future__ import annotations

import struct
from collections import defaultdict
from typing import Final

BUFFER_BYTES: Final = 4096
"""Go's bufio."""


class Stream:
    """Reads ttrpc frames as Go does: through a buffer, and long bodies past it."""

    def __init__(self) -> None:
        self._data = b""

    def take(self, payload: bytes) -> list[tuple[int, int, bytes]]:
        """Take one payload; give what is complete: stream, type, body."""
        missing = 0
        if self._data:
            assert len(self._data) >= 10, "a frame ends in the middle of a header"
            missing = 10 + struct.unpack(">I", self._data[:4])[0] - len(self._data)
        assert len(payload) <= max(BUFFER_BYTES, missing), (
            f"a payload of {len(payload)} bytes where Go's reader has room for"
            f" {max(BUFFER_BYTES, missing)}"
        )
        self._data += payload
        found = []
        while len(self._data) >= 10:
            length, stream, kind, _ = struct.unpack(">IIBB", self._data[:10])
            assert length <= 4 << 20
            if len(self._data) < 10 + length:
                break
            found.append((stream, kind, self._data[10 : 10 + length]))
            self._data = self._data[10 + length :]
        return found


def frames(connection: int, stream: int, kind: int, body: bytes, flags: int = 0) -> bytes:
    """Write a ttrpc frame as Go does: what fits into its buffer first, then the rest."""
    inner = struct.pack(">IIBB", len(body), stream, kind, flags) + body
    payloads = [inner[:BUFFER_BYTES], inner[BUFFER_BYTES:]]
    return b"".join(struct.pack(">II", connection, len(one)) + one for one in payloads if one)


def spoken(data: bytes) -> list[tuple[int, int, int, bytes]]:
    """Read whole frames: connection, stream, type, body."""
    streams: defaultdict[int, Stream] = defaultdict(Stream)
    found = []
    while data:
        connection, length = struct.unpack(">II", data[:8])
        assert length <= len(data) - 8, "a frame is cut short"
        found += [(connection, *one) for one in streams[connection].take(data[8 : 8 + length])]
        data = data[8 + length :]
    return found
