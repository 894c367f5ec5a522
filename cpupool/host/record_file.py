"""A file that outlives the process that writes it, for example with the answers of plugins."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from cpupool.core.errors import CPUPoolError, HostFileError
from cpupool.host import files
from cpupool.telemetry import log as logs
from cpupool.wire.json_text import LONGEST

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

log = logs.get(__name__)

T = TypeVar("T")

_CORRUPT: Final = ".corrupt"
_UNREADABLE: Final = ".unreadable"
SET_ASIDE: Final = "RecordSetAside"
"""The reason of the Event about a file whose content is damaged."""
NOT_READ: Final = "RecordNotRead"
"""The reason of the Event about a file that the machine does not let the agent read."""


def put_away(path: Path, why: str) -> str:
    """Rename a file with damaged content, over the one before; return a message about it.

    Args:
        path: the file. It stays if it cannot be renamed.
        why: the reason.
    """
    said = f"{path} is not used: {why}"
    try:
        _rename(path, _CORRUPT)
    except HostFileError as error:
        return f"{said}; {error}"
    name = _aside(path, _CORRUPT).name
    return f"{said}; it is kept as {name}: check the disk, and remove it when you have looked at it"


def _rename(path: Path, suffix: str) -> None:
    """Rename a file, if it is there.

    Raises:
        HostFileError: it cannot be renamed, and stays.
    """
    to = _aside(path, suffix)
    try:
        if os.path.lexists(path):
            path.rename(to)
    except OSError as error:
        why = f"cannot be renamed to {to.name} ({error.strerror})"
        remedy = "nothing is recorded until it can, or until you have moved it away"
        raise HostFileError(str(path), why, remedy) from error


def _aside(path: Path, suffix: str) -> Path:
    return path.with_name(f"{path.name}{suffix}")


class RecordFile(Generic[T]):
    """Keeps a file equal to a value; only one thread writes.

    While there has been only the empty value there is no file. No write replaces a file that could
    not be used: this class renames one with damaged content at once (`.corrupt`), and one that
    cannot be read before the next write (`.unreadable`). The newest file of each kind stays. While
    such a file cannot be renamed, this class writes nothing.

    Args:
        path: the file.
        empty: the value without a file, or with one that cannot be used.
        encode: returns the content of the file for a value.
        parse: returns the value of a content; raises CPUPoolError if there is none.
        complain: called with the reason of an Event, and with what is wrong and what to do.
        durable: whether a write waits until the disk has the content.

    Attributes:
        absent: whether `read` has found no file, and no earlier one that was renamed.
    """

    def __init__(
        self,
        path: Path,
        empty: T,
        encode: Callable[[T], bytes],
        parse: Callable[[bytes], T],
        *,
        complain: Callable[[str, str], None] = lambda _reason, _what: None,
        durable: bool = True,
    ) -> None:
        self._path = path
        self._empty = empty
        self._encode = encode
        self._parse = parse
        self._complain = complain
        self._durable = durable
        self._written = empty
        self._unusable = ""
        self.absent = False

    def read(self) -> T:
        """Return the recorded value; the empty one where there is no file that can be used."""
        try:
            data = files.read_first(self._path, LONGEST + 1)
        except FileNotFoundError:
            renamed = (_aside(self._path, suffix) for suffix in (_CORRUPT, _UNREADABLE))
            self.absent = not any(os.path.lexists(path) for path in renamed)
            return self._empty
        except IsADirectoryError:
            # No write replaces a folder: the first one fails, and its caller reports that.
            log.warning("record is not used", file=self._path, reason="it is a folder")
            return self._empty
        except OSError as error:
            self._unusable = _UNREADABLE
            later = f"the next write keeps it as {_aside(self._path, _UNREADABLE).name}"
            what = f"{self._path} cannot be read ({error.strerror}): it is not used, and {later}"
            self._report(NOT_READ, f"{what}; check the disk and the folder's rights")
            return self._empty
        try:
            self._written = self._parse(data)
        except CPUPoolError as error:
            self._unusable = _CORRUPT
            self._report(SET_ASIDE, put_away(self._path, str(error)))
        return self._written

    def write(self, value: T) -> None:
        """Write a value, if it is another than in the file; wait for the disk if it is durable.

        Raises:
            HostFileError: it cannot be written; the old file is unchanged.
        """
        if value == self._written:
            return
        files.make_folder(self._path.parent)
        if self._unusable:
            _rename(self._path, self._unusable)
            self._unusable = ""
        files.write_atomically(self._path, self._encode(value), durable=self._durable)
        self._written = value

    def _report(self, reason: str, what: str) -> None:
        log.warning("record is not used", file=self._path, reason=what)
        self._complain(reason, what)
