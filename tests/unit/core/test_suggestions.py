"""What is suggested for a word that is not known."""

from __future__ import annotations

import pytest

from cpupool.core.suggestions import hint, nearest

KNOWN = ("none", "restricted", "single-numa-node")


@pytest.mark.parametrize(
    ("word", "meant"),
    [("restricte", "restricted"), ("Single-NUMA-node", "single-numa-node"), ("strange", "")],
)
def test_the_nearest_word_is_meant_whatever_its_case(word: str, meant: str) -> None:
    assert nearest(word, KNOWN) == meant


def test_where_no_word_is_near_all_are_named() -> None:
    assert hint("restricte", KNOWN) == "did you mean restricted?"
    assert hint("strange", KNOWN) == "use none or restricted or single-numa-node"
