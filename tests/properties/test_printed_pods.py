"""What `cpupool admit` prints is read back as the same."""

from __future__ import annotations

import yaml
from hypothesis import given
from hypothesis import strategies as st

from cpupool.commands.admit import _yaml
from cpupool.core import visible
from tests.searching import examples

PIECES = (
    *("a", "b c", " ", "\n", ": ", "#", "- ", "?", "[", "}", ",", "&", "*", "!", "|", "'", '"'),
    *("%", "@", "`", "\\", "---", "...", "=", "<<", "~", "y", "1e3", "0o7", "1", "2020-01-01"),
    *("é", "\u200b", "\xa0", "\x85", "\u2028", "\U0001f600", "\t", "\x1b", "long " * 30, "x" * 130),
)
texts = st.lists(st.sampled_from(PIECES), max_size=5).map("".join)
bodies = st.recursive(
    st.none() | st.booleans() | st.integers() | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)


@examples(600)
@given(st.dictionaries(texts, bodies, max_size=3))
def test_what_is_printed_is_read_back(body: dict[str, object]) -> None:
    text = _yaml(body)

    assert yaml.safe_load(text) == body
    assert text == visible.lines(text)
