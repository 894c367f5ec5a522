"""A file that outlives the process that writes it, as the answers of plugins."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

from cpupool.core.errors import CPUPoolError
from cpupool.host import files
from cpupool.telemetry import log as logs

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

log = logs.get(__name__)

T = TypeVar("T")


class RecordFile(Generic[T]):
    """Keeps a file equal to a value; only one thread writes.

    While there has been only the empty value there is no file.

    Args:
        path: the file.
        empty: the value without a file, or with one that cannot be used.
        encode: returns the content of the file for a value.
        parse: returns the value of a content; raises CPUPoolError if there is none.

    Attributes:
        absent: whether `read` has found no file.
    """

    def __init__(
        self, path: Path, empty: T, encode: Callable[[T], bytes], parse: Callable[[bytes], T]
    ) -> None:
        self._path = path
        self._empty = empty
        self._encode = encode
        self._parse = parse
        self._written = empty
        self.absent = False

    def read(self) -> T:
        """Return the recorded value; the empty one where there is no file that can be used."""
        try:
            data = self._path.read_bytes()
        except FileNotFoundError:
            self.absent = True
            return self._empty
        except OSError as error:
            log.warning("record is ignored", file=self._path, error=error.strerror)
            return self._empty
        try:
            self._written = self._parse(data)
        except CPUPoolError as error:
            log.warning("record is ignored", file=self._path, error=error)
        return self._written

    def write(self, value: T) -> None:
        """Write a value, if it is another than in the file, and wait until the disk has it.

        Raises:
            HostFileError: it cannot be written; the old file is unchanged.
        """
        if value == self._written:
            return
        files.make_folder(self._path.parent)
        files.write_atomically(self._path, self._encode(value))
        self._written = value
