"""JSON files of our own: a list of entries, with a version and a checksum."""

from __future__ import annotations

import json
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cpupool.wire.checkpoints import Reader


@dataclass(frozen=True, slots=True)
class Sealed:
    """A kind of JSON file with a list of entries, a version and a checksum.

    Attributes:
        reader: names the file in errors.
        version: of the entries' shape.
    """

    reader: Reader
    version: int

    def encode(self, entries: list[dict[str, Any]]) -> bytes:
        """Write a file with these entries."""
        return json.dumps(
            {"version": self.version, "checksum": _checksum(entries), "entries": entries},
            separators=(",", ":"),
        ).encode()

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
    return zlib.crc32(json.dumps(entries, separators=(",", ":"), sort_keys=True).encode())
