"""The number of messages within a message, which this module finds without parsing it.

Parsed, a message of two bytes takes fifty: a limit of bytes alone would let a peer's few MB become
a hundred. Source: protobuf.dev, Encoding.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

    from google.protobuf.message import Message

    Descriptor = Any
    """The type of a descriptor, of two: the library is implemented in C, and in Python."""

_SMALL_BYTES: Final = 128 * 1024
"""Whatever it holds, parsed it takes a few MB."""
_MOST_FIELDS: Final = 500_000
"""The most fields of all messages together; a list of 8,000 containers has half of them."""
_FIXED_BYTES: Final = {1: 8, 5: 4}
_VARINT, _LENGTH = 0, 2
_VARINT_BYTES: Final = 10
"""The most of a number."""


class TooManyParts(Exception):
    """A message with more messages in it than its reader needs; its text says how many."""


def check_parts(kind: type[Message], data: bytes, most: int) -> None:
    """Check how many messages there are within a message, at any depth.

    Bytes that are no message pass: the parser refuses them.

    Args:
        kind: the type of the message.
        data: its bytes.
        most: the most messages within it.

    Raises:
        TooManyParts: there are more.
    """
    if len(data) > _SMALL_BYTES:
        _Count(data, most).walk(kind.DESCRIPTOR, 0, len(data))


class _Count:
    def __init__(self, data: bytes, most: int) -> None:
        self._data = data
        self._most = most
        self._parts = self._fields = 0

    def walk(self, kind: Descriptor, at: int, end: int) -> None:
        within, data = _within(kind), self._data
        while at < end:
            self._fields += 1
            if self._fields > _MOST_FIELDS:
                raise TooManyParts(f"more than {_MOST_FIELDS} fields")
            key, at = self._varint(at, end) if data[at] & 0x80 else (data[at], at + 1)
            wire_type = key & 7
            if wire_type == _LENGTH:
                length, at = self._varint(at, end)
                if part := within.get(key >> 3):
                    self._take(part, at, min(at + length, end))
                at += length
            elif wire_type == _VARINT:
                _, at = self._varint(at, end)
            else:
                # The marks that begin and end a group have no bytes of their own.
                at += _FIXED_BYTES.get(wire_type, 0)

    def _take(self, part: Descriptor, at: int, end: int) -> None:
        self._parts += 1
        if self._parts > self._most:
            raise TooManyParts(f"more than {self._most} messages in one")
        if at < end and _within(part):
            self.walk(part, at, end)

    def _varint(self, at: int, end: int) -> tuple[int, int]:
        """Return a number, and where the next begins; where there is none, the end of all."""
        value = 0
        for index, byte in enumerate(self._data[at : min(at + _VARINT_BYTES, end)]):
            value |= (byte & 0x7F) << 7 * index
            if byte < 0x80:
                return value, at + index + 1
        return 0, len(self._data)


@cache
def _within(kind: Descriptor) -> Mapping[int, Descriptor]:
    """Return field number → type, for the fields of a type that are messages."""
    return {field.number: field.message_type for field in kind.fields if field.message_type}
