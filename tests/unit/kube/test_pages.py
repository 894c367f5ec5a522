from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cpupool.kube import pages

if TYPE_CHECKING:
    from collections.abc import Iterator

LONGEST = 1 << 20
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text()
)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=8
)


def cut(text: bytes, size: int) -> Iterator[bytes]:
    return (text[place : place + size] for place in range(0, len(text), size))


def read(text: bytes, size: int = 7, longest: int = LONGEST) -> tuple[dict[str, Any], list[Any]]:
    taken: list[Any] = []
    return pages.read(cut(text, size), longest, taken.append), taken


@given(
    page=st.dictionaries(st.text(), VALUES),
    items=st.lists(VALUES),
    size=st.integers(1, 40),
    indent=st.sampled_from([None, 1]),
    ascii_only=st.booleans(),
)
def test_a_page_is_what_json_says_it_is_however_it_is_cut(
    page: dict[str, Any], items: list[Any], size: int, indent: int | None, *, ascii_only: bool
) -> None:
    page.pop("items", None)
    whole = {"kind": "List", "items": items, **page}
    text = json.dumps(whole, indent=indent, ensure_ascii=ascii_only).encode()

    assert read(text, size) == ({"kind": "List", **page}, items)


def test_an_object_is_taken_before_the_next_one_is_there() -> None:
    taken: list[object] = []

    def pieces() -> Iterator[bytes]:
        yield b'{"items": [{"n": 1}, '
        assert taken == [{"n": 1}]
        yield b'{"n": 2'
        assert taken == [{"n": 1}]
        yield b'}, {"n": 3}'
        assert taken == [{"n": 1}, {"n": 2}, {"n": 3}]
        yield b'], "metadata": {}}'

    assert pages.read(pieces(), LONGEST, taken.append) == {"metadata": {}}


@pytest.mark.parametrize("items", [None, 7, "x", {}, {"a": 1}])
def test_items_that_are_no_list_stay_in_the_page(items: object) -> None:
    text = json.dumps({"items": items}).encode()
    assert read(text) == ({"items": items}, [])


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b" ",
        b"<html>",
        b"7",
        b"[{}]",
        b"{",
        b'{"items"',
        b'{"items": [',
        b'{"items": [{}',
        b'{"items": [{},]}',
        b'{"items": [{} {}]}',
        b'{"items": [,{}]}',
        b'{"items": [{}]',
        b'{"items": [{}],}',
        b'{"items" [{}]}',
        b'{"items": [{}]} {}',
        b"{7: [{}]}",
        b'{"a": "\xff"}',
        b'{"a": "\xc3',
        b'{"a": 1' + b"1" * 5000 + b"}",
        b'{"items": [' + b"[" * 100_000 + b"]" * 100_000 + b"]}",
        b'{"items": [' + b"[" * 101 + b"]" * 101 + b"]}",
        b'{"items": [NaN]}',
        b'{"items": [1e400]}',
    ],
)
@pytest.mark.parametrize("size", [1 << 16, 3])
def test_what_is_no_page_is_refused(text: bytes, size: int) -> None:
    if size == 3 and len(text) > 50_000:
        text = text[:3000]
    with pytest.raises(pages.PageError):
        read(text, size)


def test_an_endless_object_is_cut_off() -> None:
    def endless() -> Iterator[bytes]:
        yield b'{"items": ["'
        for _ in range(100):
            yield b"x" * 1000
        raise AssertionError("it has read on")

    with pytest.raises(pages.PageError, match="longer than 20000 characters"):
        pages.read(endless(), 20_000, lambda _: None)


def test_endless_space_is_not_kept() -> None:
    spaces = (b" " * 1000 for _ in range(100))
    with pytest.raises(pages.PageError):
        pages.read(spaces, 20_000, lambda _: None)


def test_a_fault_of_the_taker_is_its_own() -> None:
    def take(_: object) -> None:
        raise ValueError("a bug")

    with pytest.raises(ValueError, match="a bug"):
        pages.read(iter([b'{"items": [1]}']), LONGEST, take)
