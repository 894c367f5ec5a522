"""JSON files of our own: a list of entries, with a version and a checksum."""

from __future__ import annotations

import json
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

    from cpupool.wire.checkpoint_checksum import Reader

_PLAIN: Final = json.JSONEncoder(separators=(",", ":"))
_SORTED: Final = json.JSONEncoder(separators=(",", ":"), sort_keys=True)


@dataclass(frozen=True, slots=True)
class Sealed:
    """A kind of JSON file with a list of entries, a version and a checksum.

    Attributes:
        reader: names the file in errors.
        version: of the entries' shape.
    """

    reader: Reader
    version: int

    def encode(self, entries: Iterable[dict[str, Any]]) -> bytes:
        """Write a file with these entries, one after the other: all would take megabytes."""
        written: list[bytes] = []
        checksum = zlib.crc32(b"[")
        for entry in entries:
            comma = b"," if written else b""
            checksum = zlib.crc32(comma + _SORTED.encode(entry).encode(), checksum)
            written.append(_PLAIN.encode(entry).encode())
        checksum = zlib.crc32(b"]", checksum)
        head = f'{{"version":{self.version},"checksum":{checksum},"entries":['
        return b"%s%s]}" % (head.encode(), b",".join(written))

    def entries(self, data: bytes) -> list[dict[str, Any]]:
        """Return the entries of a file.

        A right checksum says that no byte has changed, not that our program has written them.

        Raises:
            RemoteProtocolError: the file is damaged, or is not such a file.
        """
        document = self.reader.document(data)
        version = document.get("version")
        if version != self.version:
            words = f"its version is {str(version)[:20]}, and not {self.version}"
            raise self.reader.damaged(words)
        entries = self.reader.typed(document.get("entries"), list, "entries")
        if document.get("checksum") != (right := _checksum(entries)):
            raise self.reader.damaged(f"its checksum is not {right}, that of its content")
        return [self.reader.typed(entry, dict, "an entry") for entry in entries]


def _checksum(entries: object) -> int:
    return zlib.crc32(_SORTED.encode(entries).encode())
