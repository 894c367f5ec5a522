"""Columns that share a width, and texts that are broken where a reader expects it."""

from __future__ import annotations

import io
import itertools

import pytest
from rich.console import Console

from cpupool.commands.pictures import columns, drawing

ROWS = [
    (
        "dpdk/user-plane-7d9f8b6c5d-x2x4z/packet-forwarder",
        "exclusive_dpdk 4, shared_mixed 250",
        "EXCLUSIVE_CPUS=2-5, SHARED_CPUS=0-1",
        "0-5",
        "0-5",
        "right",
    ),
    ("dpdk/user-plane-7d9f8b6c5d-x2x4z (sandbox)", "", "", "0,2,4,6,8,10,12", "0,2,4", "WRONG"),
]
TITLES = ("process", "requests", "environment", "belongs on", "runs on", "")


def drawn(width: int) -> str:
    out = io.StringIO()
    Console(file=out, width=width).print(drawing.table(TITLES, ROWS))
    return out.getvalue()


@pytest.mark.parametrize("width", [88, 90, 100, 120])
def test_no_name_is_broken(width: int) -> None:
    lines = drawn(width).splitlines()

    assert max(map(len, lines)) <= width
    words = " ".join(lines).replace("/", "/ ").replace(",", ", ").split()
    for row in ROWS:
        for word in " ".join(row).replace("/", "/ ").replace(",", ", ").split():
            assert word in words


def test_eighty_columns_break_a_long_name_at_its_joints() -> None:
    assert [line[:18].rstrip() for line in drawn(80).splitlines()[3:6]] == [
        "dpdk/user-plane-",
        "7d9f8b6c5d-x2x4z/",
        "packet-forwarder",
    ]


def test_with_room_nothing_is_broken() -> None:
    assert len(drawn(200).splitlines()) == 2 + len(ROWS)


@pytest.mark.parametrize(
    ("line", "width", "broken"),
    [
        ("one two three", 8, ["one two ", "three"]),
        ("one two three", 13, ["one two three"]),
        ("see default/web/main", 12, ["see default/", "web/main"]),
        ("0-3,8,12-15", 6, ["0-3,8,", "12-15"]),
        ("abcdefgh", 3, ["abc", "def", "gh"]),
        ("", 5, [""]),
    ],
)
def test_a_line_is_broken_at_blanks_then_at_commas_and_slashes_then_anywhere(
    line: str, width: int, broken: list[str]
) -> None:
    offsets = [0, *columns.breaks(line, width), len(line)]

    assert [line[start:end] for start, end in itertools.pairwise(offsets)] == broken


@pytest.mark.parametrize(
    ("room", "expected"),
    [(30, [13, 5, 8]), (20, [7, 5, 8]), (18, [5, 5, 8]), (14, [5, 5, 4]), (6, [2, 2, 2])],
)
def test_columns_shrink_where_their_texts_can_be_broken(room: int, expected: list[int]) -> None:
    rows = [["one two three", "right", "web/main"], ["one", "", "a"]]

    assert columns.widths(rows, room) == expected
