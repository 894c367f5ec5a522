"""The file with the answers of plugins of the QoS Resource Manager, which outlives the agent."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cpupool.core.plugin_facts import Record
from cpupool.host.record_file import RecordFile
from cpupool.qrm import answer_record_codec

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


class AnswerRecord(RecordFile[Record]):
    """The file; a node whose plugins have never answered has none.

    Args:
        path: the file.
        complain: as for `RecordFile`.
    """

    def __init__(
        self, path: Path, complain: Callable[[str, str], None] = lambda _reason, _what: None
    ) -> None:
        super().__init__(
            path, {}, answer_record_codec.encode, answer_record_codec.parse, complain=complain
        )
