from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from cpupool.wire import json_text
from cpupool.wire.json_text import DEEPEST, LONGEST, Fields, JSONRefused

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "Expecting value: line 1 column 1"),
        ('{\n"a": }', "Expecting value: line 2 column 6"),
        (b'"\xff"', "the byte 0xff is not UTF-8"),
        (b"\xef\xbb\xbf{}", "Expecting value"),
        ('"'.encode("utf-16"), "is not UTF-8"),
        ("NaN", "NaN is no value of JSON"),
        ("[-Infinity]", "-Infinity is no value of JSON"),
        ("1e400", "1e400 is too large a number"),
        ("9" * 5000, "a number has thousands of digits"),
        ("[" * 10**6, "it is nested too deep"),
        ('{"a":' * 10**6, "it is nested too deep"),
        ("[" * (DEEPEST + 1) + "]" * (DEEPEST + 1), "it is nested too deep: more than 100 levels"),
        (b" " * (LONGEST + 1), f"it is longer than {LONGEST} bytes"),
    ],
)
def test_what_is_no_json_within_the_bounds_is_refused(text: str | bytes, said: str) -> None:
    with pytest.raises(JSONRefused) as error:
        json_text.load(text)
    assert said in str(error.value)
    assert len(str(error.value)) < 100


def test_what_json_has_is_read_as_json_reads_it() -> None:
    deep = "[" * DEEPEST + "]" * DEEPEST
    for text in ("null", "-0.5e-3", '"\\ud800"', '{"a": 1, "a": 2}', deep, "9" * 4000):
        assert json_text.load(text) == json_text.load(text.encode()) == json.loads(text)


def test_a_reader_of_single_members_need_not_count_the_levels() -> None:
    deeper = "[" * (DEEPEST + 1) + "]" * (DEEPEST + 1)
    assert json_text.load(deeper, bounded=False) == json.loads(deeper)
    with pytest.raises(JSONRefused, match="nested too deep"):
        json_text.load("[" * 10**6, bounded=False)


def test_a_key_may_have_to_be_there_once() -> None:
    with pytest.raises(JSONRefused, match="the key 'b' is there twice"):
        json_text.load('{"a": [{"b": 1, "c": 2, "b": 3}]}', unique=True)
    assert json_text.load('{"a": [{"b": 1}, {"b": 1}]}', unique=True) == {"a": [{"b": 1}, {"b": 1}]}


FIELDS = Fields.of(
    {"text": "x", "number": 7, "truth": True, "list": ["a", 1], "none": None, "in": {"k" * 99: 1}}
)


@pytest.mark.parametrize(
    ("read", "said"),
    [
        (lambda: FIELDS.get("gone", str), "gone is missing"),
        (lambda: FIELDS.get("text", int), "text is a text, and not a whole number"),
        (lambda: FIELDS.get("truth", int), "truth is true or false, and not a whole number"),
        (lambda: FIELDS.get("number", bool), "number is a whole number, and not true or false"),
        (lambda: FIELDS.get("none", str, "x"), "none is null, and not a text"),
        (lambda: FIELDS.read("text", int), "text: invalid literal for int()"),
        (lambda: FIELDS.texts("list"), "list[1] is a whole number, and not a text"),
        (lambda: list(FIELDS.objects("list")), "list[0] is a text, and not an object"),
        (lambda: list(FIELDS.objects("gone")), "gone is missing"),
        (lambda: FIELDS.part("text"), "text is a text, and not an object"),
        (lambda: FIELDS.within("gone"), "gone is missing"),
        (lambda: FIELDS.within("in").get("k" * 99, str), f"in.{'k' * 60}... is a whole number"),
        (lambda: Fields.of([]), "the text is a list, and not an object"),
        (lambda: Fields.of({"a": 2**63}).get("a", int), "a is a number beyond 64 bits"),
    ],
)
def test_a_member_that_is_something_else_is_named(read: Callable[[], object], said: str) -> None:
    with pytest.raises(JSONRefused) as error:
        read()
    assert said in str(error.value)


def test_a_member_is_what_it_should_be() -> None:
    assert FIELDS.get("text", str) == "x"
    assert FIELDS.get("gone", str, "default") == "default"
    assert FIELDS.read("gone", int, "5") == 5
    assert FIELDS.texts("gone") == ()
    assert list(FIELDS.objects("gone", optional=True)) == []
    assert FIELDS.part("none") is FIELDS.part("gone") is None
    assert FIELDS.within("gone", optional=True).members == {}
