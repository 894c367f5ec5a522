"""The common parts of the kubelet's checkpoint files: JSON with a checksum over Go's dump of it.

Source: kubernetes pkg/kubelet/checkpointmanager/checksum. The checksum is FNV-1a with 32 bits over
the content, printed by Go's spew package with `%#v`: with types, strings without quotes, maps in
the order of their keys.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

from cpupool.core.errors import RemoteProtocolError
from cpupool.wire import json_text
from cpupool.wire.json_text import JSONRefused, is_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

_POLICY: Final = "policyName"
_LARGEST: Final = 2**64
"""The largest number in a file; no count of ours gets there."""
_T = TypeVar("_T")
_V = TypeVar("_V")


@dataclass(frozen=True, slots=True)
class Reader:
    """Reads the JSON of one kind of file; each problem becomes one error.

    Attributes:
        file: the name of the file in errors.
        remedy: how the file becomes readable again.
    """

    file: str
    remedy: str

    def damaged(self, what: str) -> RemoteProtocolError:
        """Return the error for a file that cannot be read."""
        # Names come from the file and may have characters that a terminal or log cannot print.
        printable = what.encode("ascii", "backslashreplace").decode()
        return RemoteProtocolError(f"{self.file} is not readable: {printable}; {self.remedy}")

    def document(self, data: bytes | str) -> dict[str, Any]:
        """Return the JSON object of a file.

        Raises:
            RemoteProtocolError: the file has something else.
        """
        try:
            read = json_text.load(data)
        except JSONRefused as error:
            raise self.damaged(f"it is not JSON ({error})") from error
        return self.typed(read, dict, "it")

    def typed(self, value: object, kind: type[_T], where: str) -> _T:
        """Return a value of this type.

        Raises:
            RemoteProtocolError: the value has another type.
        """
        # A boolean is an int in Python, but not in JSON.
        if not isinstance(value, kind) or isinstance(value, bool):
            raise self.damaged(f"{where[:80]} is not of type {kind.__name__}")
        return value

    def optional(self, value: object, kind: type[_T], where: str) -> _T:
        """Return a Go slice or map, whose nil is JSON's null.

        Raises:
            RemoteProtocolError: the value has another type.
        """
        return kind() if value is None else self.typed(value, kind, where)

    def text(self, value: object, where: str) -> str:
        """Return a text without half of a surrogate pair, which no file can hold.

        Raises:
            RemoteProtocolError: the value is something else.
        """
        found = self.typed(value, str, where)
        if not is_text(found):
            raise self.damaged(f"{where[:80]} holds half of a surrogate pair")
        return found

    def texts(self, value: object, where: str) -> dict[str, str]:
        """Return an object of texts.

        Raises:
            RemoteProtocolError: the value is something else.
        """
        found = self.typed(value, dict, where)
        return {self.text(key, where): self.text(text, where) for key, text in found.items()}

    def amount(self, value: object, where: str) -> float:
        """Return a finite number, zero or more.

        Raises:
            RemoteProtocolError: the value is something else.
        """
        found = value if isinstance(value, float) else self.typed(value, int, where)
        # Not NaN either.
        if not 0 <= found <= sys.float_info.max:
            raise self.damaged(f"{where[:80]} is no amount")
        return found

    def whole(self, value: object, where: str) -> int:
        """Return a whole number, zero or more.

        Raises:
            RemoteProtocolError: the value is something else.
        """
        if not 0 <= (found := self.typed(value, int, where)) <= _LARGEST:
            raise self.damaged(f"{where[:80]} is no whole number")
        return found

    def flag(self, value: object, where: str) -> bool:
        """Return true or false.

        Raises:
            RemoteProtocolError: the value is something else.
        """
        if not isinstance(value, bool):
            raise self.damaged(f"{where[:80]} is not true or false")
        return value

    def checksum(self, dump: str) -> int:
        """Return the checksum of a dump.

        Raises:
            RemoteProtocolError: the dump has half of a surrogate pair.
        """
        try:
            return fnv1a(dump)
        except UnicodeEncodeError as error:
            raise self.damaged("it holds half of a surrogate pair") from error


def policy(file: str, data: bytes) -> str:
    """Return the policy that the state of a manager names.

    Sources: kubernetes pkg/kubelet/cm/cpumanager/state, pkg/kubelet/cm/memorymanager/state
    (checkpoint.go).

    Raises:
        RemoteProtocolError: the file is damaged, or is not such a file.
    """
    reader = Reader(file, "the kubelet writes it again when it next starts without it")
    return reader.typed(reader.document(data).get(_POLICY), str, _POLICY)


def fnv1a(text: str) -> int:
    """Return the hash FNV-1a, with 32 bits, of a text."""
    value = 2166136261
    for byte in text.encode():
        value = (value ^ byte) * 16777619 & 0xFFFFFFFF
    return value


def dump_slice(items: Iterable[str] | None) -> str:
    """Return Go's dump of a slice."""
    return "<nil>" if items is None else f"[{' '.join(items)}]"


def dump_map(members: Mapping[Any, _V] | None, dump: Callable[[_V], str]) -> str:
    """Return Go's dump of a map.

    Args:
        members: the map; None for Go's nil.
        dump: returns the dump of one value.
    """
    if members is None:
        return "<nil>"
    return f"map[{' '.join(f'{key}:{dump(members[key])}' for key in sorted(members))}]"
