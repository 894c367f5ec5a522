from __future__ import annotations

import sys

import pytest

from cpupool.core import visible
from tests.printed import EVIL


def test_an_escape_is_printable_and_is_that_of_json_and_python() -> None:
    said = "a\tb\n\x1b\xa0\U000e0041é✓ \\"
    assert visible.line(said) == r"a\u0009b\u000a\u001b\u00a0\U000e0041é✓ " + "\\"
    assert visible.line(EVIL).isprintable()
    assert visible.line(EVIL).encode().decode("unicode-escape") == EVIL


def test_lines_stay_lines() -> None:
    assert visible.lines("a\tb\n\x1b\r\n") == "a\tb\n\\u001b\\u000d\n"


def test_every_character_is_shown() -> None:
    every = "".join(map(chr, range(sys.maxunicode + 1)))
    assert visible.line(every).isprintable()


@pytest.mark.parametrize(
    ("text", "most_bytes", "cut"),
    [("é" * 10 + "\n", 5, "éé"), ("\n" * 10, 8, "\\u000a\\u"), ("abc", 3, "abc"), ("", 3, "")],
)
def test_a_text_is_cut_between_characters(text: str, most_bytes: int, cut: str) -> None:
    assert visible.cut(text, most_bytes) == cut
