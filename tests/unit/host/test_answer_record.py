from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from cpupool.core.errors import HostFileError
from cpupool.core.resource_plugins import Given
from cpupool.core.workloads import ContainerRef
from cpupool.host.answer_record import AnswerRecord

if TYPE_CHECKING:
    from pathlib import Path

ONE = {ContainerRef("a", "main"): {"cpu": Given(1.0)}}


def test_the_next_agent_reads_what_was_written(tmp_path: Path) -> None:
    file = tmp_path / "state/answers.json"
    record = AnswerRecord(file)
    assert record.read() == {}
    record.write(ONE)
    assert AnswerRecord(file).read() == ONE
    record.write({})
    assert AnswerRecord(file).read() == {}


def test_what_the_file_has_is_not_written_again(tmp_path: Path) -> None:
    file = tmp_path / "answers.json"
    AnswerRecord(file).write({})
    assert not file.exists()
    AnswerRecord(file).write(ONE)
    next_agent = AnswerRecord(file)
    next_agent.read()
    file.unlink()
    next_agent.write(ONE)
    assert not file.exists()


@pytest.mark.parametrize("content", [b"{", None])
def test_a_file_that_cannot_be_used_is_ignored(tmp_path: Path, content: bytes | None) -> None:
    file = tmp_path / "answers.json"
    if content is None:
        file.mkdir()
    else:
        file.write_bytes(content)
    assert AnswerRecord(file).read() == {}


def test_a_folder_that_cannot_be_made_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("")
    with pytest.raises(HostFileError, match="cannot be made"):
        AnswerRecord(tmp_path / "state/answers.json").write(ONE)
