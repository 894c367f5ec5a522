"""NRI's multiplexing: two ttrpc connections, one in each direction, over one socket.

A frame is a header of 8 bytes (the connection's id and the payload's length, both big-endian) and
the payload. Each connection is a byte stream; the frame boundaries in it have no meaning.
Source: github.com/containerd/nri, pkg/net/multiplex.
"""

from __future__ import annotations

import struct
from typing import Final

from cpupool.core.errors import RemoteProtocolError
from cpupool.runtime.nri import ttrpc

PLUGIN_SERVICE: Final = 1
"""The connection on which the runtime calls the plugin."""
RUNTIME_SERVICE: Final = 2
"""The connection on which the plugin calls the runtime."""
MAX_PAYLOAD_BYTES: Final = ttrpc.HEADER_BYTES + ttrpc.MAX_BODY_BYTES

_HEADER: Final = struct.Struct(">II")
_FIRST_BYTES: Final = 4096
"""The runtime's ttrpc reads a header through a buffer of this size, and its multiplexer fails the
whole connection on a frame larger than the reader's buffer. The next frame goes directly into the
message."""


def encode(connection: int, message: bytes) -> bytes:
    """Wrap one ttrpc frame so that a runtime can read it: in one frame, or in two if it is long.

    Args:
        connection: `PLUGIN_SERVICE` or `RUNTIME_SERVICE`.
        message: one whole ttrpc frame.
    """
    first, rest = message[:_FIRST_BYTES], message[_FIRST_BYTES:]
    return b"".join(
        _HEADER.pack(connection, len(payload)) + payload for payload in (first, rest) if payload
    )


class Decoder:
    """A decoder that splits a socket's bytes by connection; it holds only an incomplete header."""

    def __init__(self) -> None:
        self._header = b""
        self._connection = 0
        self._left = 0

    def feed(self, data: bytes) -> list[tuple[int, bytes]]:
        """Decode the next bytes; return (connection id, piece of its stream) in their order.

        Raises:
            RemoteProtocolError: a frame is longer than any runtime sends; the following bytes
                cannot be decoded.
        """
        pieces = []
        data = self._header + data
        start = 0
        while start < len(data):
            if not self._left:
                if len(data) - start < _HEADER.size:
                    break
                self._connection, self._left = _HEADER.unpack_from(data, start)
                start += _HEADER.size
                if self._left > MAX_PAYLOAD_BYTES:
                    raise RemoteProtocolError(
                        f"NRI: a frame of {self._left} bytes, the longest has {MAX_PAYLOAD_BYTES};"
                        " check that a container runtime is behind the socket"
                    )
            piece = data[start : start + self._left]
            start += len(piece)
            self._left -= len(piece)
            if piece:
                pieces.append((self._connection, piece))
        self._header = data[start:]
        return pieces
