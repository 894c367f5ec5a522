"""cpupool answers the rows of the kubelet's own tests as listed, and the list is documented."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.conformance.kubelet_tables import tables
from tests.conformance.kubelet_tables.__main__ import listing, main
from tests.conformance.kubelet_tables.tables import Entry, Verdict

PAGE = Path(__file__).parents[2] / "docs/dev/kubelet-tables.md"
ENTRIES = tuple(tables.entries())
RETOLD = [entry for entry in ENTRIES if entry.verdict is not Verdict.LEFT_OUT]
MACHINES = tables.machines()


def identity(entry: Entry) -> str:
    return f"{entry.table}-{entry.number}"


@pytest.mark.parametrize("entry", RETOLD, ids=identity)
def test_a_row_has_the_listed_answer(entry: Entry) -> None:
    assert not entry.flaw(MACHINES)


def test_no_row_is_dropped() -> None:
    for file in tables.read_files():
        for rows in file.tables.values():
            assert [entry.number for entry in rows] == list(range(1, len(rows) + 1))


def test_every_difference_has_a_reason_and_every_reason_is_used() -> None:
    for entry in ENTRIES:
        assert (entry.reason is None) == (entry.verdict is Verdict.EQUAL), identity(entry)
    assert {entry.reason for entry in ENTRIES} - {None} == tables.reasons().keys()


def test_the_documented_list_is_true() -> None:
    assert listing() in PAGE.read_text()


def test_a_difference_that_has_become_equal_is_a_flaw() -> None:
    different = next(entry for entry in RETOLD if entry.verdict is Verdict.DIFFERENT)
    given = different.judge(different.row, MACHINES)
    same = {key: given[key] for key in different.expected}

    assert "listed as different" in with_answers(different, same, same).flaw(MACHINES)


def test_another_answer_is_a_flaw() -> None:
    assert "instead of" in with_answers(RETOLD[0], {"shared": "0"}).flaw(MACHINES)


def test_the_command_names_each_flaw(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main() == 0
    assert capsys.readouterr() == (f"{listing()}\n", "")

    wrong = with_answers(RETOLD[0], {"shared": "0"})
    monkeypatch.setattr(tables, "entries", lambda: iter([wrong]))
    assert main() == 1
    assert capsys.readouterr().err.startswith("TestStaticPolicyStart, row 1: {'shared': '1-11'}")


def with_answers(
    entry: Entry, kubelet: dict[str, object], ours: dict[str, object] | None = None
) -> Entry:
    """Return a row with other answers."""
    answers = {"kubelet": kubelet} if ours is None else {"kubelet": kubelet, "ours": ours}
    return replace(entry, row={**entry.row, **answers})
