"""The file with the answers of plugins of the QoS Resource Manager, which outlives the agent."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cpupool.core.errors import CPUPoolError
from cpupool.host import files
from cpupool.telemetry import log as logs
from cpupool.wire import answer_record

if TYPE_CHECKING:
    from pathlib import Path

    from cpupool.core.resource_plugins import Record

log = logs.get(__name__)


class AnswerRecord:
    """Keeps the file equal to the answers; only one thread writes.

    A node whose plugins have never answered has no file.

    Args:
        path: the file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._written: Record | None = None

    def read(self) -> Record:
        """Return the recorded answers; none where there is no file, or none that can be used."""
        try:
            data = self._path.read_bytes()
        except FileNotFoundError:
            return {}
        except OSError as error:
            log.warning("recorded answers are ignored", file=self._path, error=error.strerror)
            return {}
        try:
            self._written = answer_record.parse(data)
        except CPUPoolError as error:
            log.warning("recorded answers are ignored", file=self._path, error=error)
        return self._written or {}

    def write(self, record: Record) -> None:
        """Write the answers, if they are others than in the file, and wait until the disk has them.

        Raises:
            HostFileError: they cannot be written; the old file is unchanged.
        """
        if record == self._written or not (record or self._written):
            return
        files.make_folder(self._path.parent)
        files.write_atomically(self._path, answer_record.encode(record))
        self._written = record
