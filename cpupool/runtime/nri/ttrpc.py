"""Frames of ttrpc, containerd's small variant of gRPC.

A frame is a header of 10 bytes (the body's length and the stream's id, both big-endian, the type,
the flags) and a body of at most 4 MiB. Source: github.com/containerd/ttrpc, PROTOCOL.md and
channel.go.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

HEADER_BYTES: Final = 10
MAX_BODY_BYTES: Final = 4 * 1024 * 1024

REQUEST: Final = 1
RESPONSE: Final = 2
DATA: Final = 3
"""A message of a streaming call. No enum: a frame may have a type of a later version."""

_HEADER: Final = struct.Struct(">IIBB")


@dataclass(frozen=True, slots=True)
class Frame:
    """One frame.

    Attributes:
        stream: the id of the call that it belongs to; the caller counts up in odd numbers.
        type: `REQUEST`, `RESPONSE`, `DATA`, or one of a later version.
        body: the message; None where it was too long and the decoder skipped it.
        flags: zero for calls with one request and one response.
    """

    stream: int
    type: int
    body: bytes | None
    flags: int = 0


def encode(stream: int, kind: int, body: bytes) -> bytes:
    """Return a frame without flags.

    Raises:
        ValueError: the body is longer than 4 MiB.
    """
    if len(body) > MAX_BODY_BYTES:
        raise ValueError(f"{len(body)} bytes do not fit into a frame of {MAX_BODY_BYTES}")
    return _HEADER.pack(len(body), stream, kind, 0) + body


class Decoder:
    """A decoder of a byte stream in pieces of any size; it holds at most one incomplete frame."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._skip = 0

    def feed(self, data: bytes) -> list[Frame]:
        """Decode the next bytes of the stream; return the frames that they complete.

        A frame with a body that is too long comes at once, without its body; the decoder drops the
        rest of the body.
        """
        skipped = min(self._skip, len(data))
        self._skip -= skipped
        self._buffer += data[skipped:]
        frames = []
        start = 0
        while len(self._buffer) - start >= HEADER_BYTES:
            length, stream, kind, flags = _HEADER.unpack_from(self._buffer, start)
            end = start + HEADER_BYTES + length
            if length > MAX_BODY_BYTES:
                frames.append(Frame(stream, kind, None, flags))
                self._skip = max(end - len(self._buffer), 0)
                start = min(end, len(self._buffer))
            elif end <= len(self._buffer):
                body = bytes(self._buffer[start + HEADER_BYTES : end])
                frames.append(Frame(stream, kind, body, flags))
                start = end
            else:
                break
        del self._buffer[:start]
        return frames
