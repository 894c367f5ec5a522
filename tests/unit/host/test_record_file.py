"""The record of answers; what holds for any record that cannot be used is shown by it."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from cpupool.core.errors import HostFileError
from cpupool.core.plugin_facts import RecordedAnswer
from cpupool.core.workloads import ContainerRef
from cpupool.host.record_file import NOT_READ, SET_ASIDE
from cpupool.qrm.assembly import answers_file

if TYPE_CHECKING:
    from collections.abc import Callable

ONE = {ContainerRef("a", "main"): {"cpu": RecordedAnswer(1.0)}}
FULL = OSError(errno.ENOSPC, "No space left on device")


class Said:
    """Takes what a record complains of."""

    def __init__(self) -> None:
        self.all: list[tuple[str, str]] = []

    def __call__(self, reason: str, what: str) -> None:
        self.all.append((reason, what))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "answers.json"


def names(file: Path) -> list[str]:
    return sorted(path.name for path in file.parent.iterdir())


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\x00", b'{"version":9}', b"[" * 100_000])
def test_a_damaged_record_is_set_aside(file: Path, content: bytes) -> None:
    file.write_bytes(content)
    said, aside = Said(), file.with_name("answers.json.corrupt")
    record = answers_file(file, said)
    assert record.read() == {}
    assert not record.absent
    ((reason, what),) = said.all
    assert reason == SET_ASIDE
    assert f"{file} is not used: the record of answers is not readable" in what
    assert "it is kept as answers.json.corrupt" in what
    assert "check the disk" in what
    assert aside.read_bytes() == content

    record.write(ONE)
    assert (answers_file(file).read(), aside.read_bytes()) == (ONE, content)


def test_a_file_that_is_far_too_long_is_set_aside_unread(file: Path) -> None:
    with file.open("wb") as made:
        made.truncate(2**40)
    said = Said()
    assert answers_file(file, said).read() == {}
    ((reason, what),) = said.all
    assert (reason, "it is longer than" in what) == (SET_ASIDE, True)
    assert names(file) == ["answers.json.corrupt"]


def test_a_pipe_in_its_place_is_set_aside(file: Path) -> None:
    os.mkfifo(file)
    said = Said()
    assert answers_file(file, said).read() == {}
    assert [reason for reason, _ in said.all] == [SET_ASIDE]
    assert names(file) == ["answers.json.corrupt"]


def test_one_damaged_record_is_kept_the_newest(file: Path) -> None:
    for content in (b"first", b"second"):
        file.write_bytes(content)
        answers_file(file).read()
    assert names(file) == ["answers.json.corrupt"]
    assert file.with_name("answers.json.corrupt").read_bytes() == b"second"


def test_a_node_with_a_damaged_record_is_no_node_without_a_record(file: Path) -> None:
    record = answers_file(file)
    record.read()
    assert record.absent
    file.write_bytes(b"{")
    answers_file(file).read()
    later = answers_file(file)
    assert later.read() == {}
    assert not later.absent


def failing(call: Callable[..., object], error: OSError, *, times: int) -> Callable[..., object]:
    left = [error] * times

    def fails(*arguments: object) -> object:
        if left:
            raise left.pop()
        return call(*arguments)

    return fails


def test_a_full_disk_while_it_is_set_aside_loses_nothing(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file.write_bytes(b"{")
    said = Said()
    record = answers_file(file, said)
    monkeypatch.setattr(Path, "rename", failing(Path.rename, FULL, times=2))
    record.read()
    ((reason, what),) = said.all
    assert reason == SET_ASIDE
    assert "cannot be renamed to answers.json.corrupt (No space left on device)" in what
    with pytest.raises(HostFileError, match="nothing is recorded until it can"):
        record.write(ONE)
    assert (names(file), file.read_bytes()) == (["answers.json"], b"{")

    record.write(ONE)
    assert answers_file(file).read() == ONE
    assert file.with_name("answers.json.corrupt").read_bytes() == b"{"


@pytest.mark.parametrize("number", [errno.EIO, errno.EACCES])
def test_a_record_that_cannot_be_read_is_not_overwritten(
    file: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    answers_file(file).write(ONE)
    before, said = file.read_bytes(), Said()
    record = answers_file(file, said)
    error = OSError(number, os.strerror(number))
    with monkeypatch.context() as patch:
        patch.setattr(os, "open", failing(os.open, error, times=1))
        assert record.read() == {}
    assert not record.absent
    ((reason, what),) = said.all
    assert reason == NOT_READ
    assert os.strerror(number) in what
    # It may be readable for the next agent, and stays until there is something else to record.
    record.write({})
    assert answers_file(file).read() == ONE
    other = {ContainerRef("b", "main"): {"cpu": RecordedAnswer(2.0)}}
    record.write(other)
    assert file.with_name("answers.json.unreadable").read_bytes() == before
    assert answers_file(file).read() == other


def test_a_folder_in_its_place_stays(file: Path) -> None:
    file.mkdir()
    said = Said()
    record = answers_file(file, said)
    assert record.read() == {}
    with pytest.raises(HostFileError, match="cannot be written"):
        record.write(ONE)
    assert file.is_dir()
    assert not said.all


def test_the_next_agent_reads_what_was_written(tmp_path: Path) -> None:
    file = tmp_path / "state/answers.json"
    record = answers_file(file)
    assert record.read() == {}
    record.write(ONE)
    assert answers_file(file).read() == ONE
    record.write({})
    assert answers_file(file).read() == {}


def test_what_the_file_has_is_not_written_again(tmp_path: Path) -> None:
    file = tmp_path / "answers.json"
    answers_file(file).write({})
    assert not file.exists()
    answers_file(file).write(ONE)
    next_agent = answers_file(file)
    next_agent.read()
    file.unlink()
    next_agent.write(ONE)
    assert not file.exists()


def test_a_folder_that_cannot_be_made_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("")
    with pytest.raises(HostFileError, match="cannot be made"):
        answers_file(tmp_path / "state/answers.json").write(ONE)
