"""YAML as the user wrote it, with places; and everything that is not readable as such."""

from __future__ import annotations

import pytest

from cpupool.config import document
from cpupool.config.document import Listing, Origin, Table, Text
from cpupool.core.errors import ConfigError, Location, Problem


def read(source: str | bytes) -> tuple[document.Value, list[Problem]]:
    problems: list[Problem] = []
    return document.read(source, Origin("a.yaml"), problems), problems


def table(source: str | bytes) -> Table:
    root, problems = read(source)
    assert isinstance(root, Table)
    assert not problems
    return root


def text(value: document.Value) -> str:
    assert isinstance(value, Text)
    return value.text


def at(line: int, column: int) -> Location:
    return Location("a.yaml", line, column)


@pytest.mark.parametrize(
    ("written", "read_as"),
    [
        ("on", "on"),
        ("010", "010"),
        ("1:30", "1:30"),
        ("2", "2"),
        ("1e3", "1e3"),
        ("2026-01-01", "2026-01-01"),
        ("=", "="),
        ("!!int 4", "4"),
        ("!theirs 4", "4"),
        ("&here 4", "4"),
        ("'2-7'", "2-7"),
        ('"a\\tb"', "a\tb"),
        ("", ""),
        ("null", ""),
        ("~", ""),
        ("'null'", "null"),
        ("2-7 # all", "2-7"),
    ],
)
def test_a_scalar_is_the_text_that_was_written(written: str, read_as: str) -> None:
    assert text(table(f"cpus: {written}").get("cpus")) == read_as


def test_every_value_knows_its_path_and_its_places() -> None:
    root = table("# first\npools:\n  a b:\n    cpus : 2\n  list: [1]\n")
    pools = root.get("pools")
    assert isinstance(pools, Table)
    inner = pools.get("a b")
    assert isinstance(inner, Table)
    assert (root.path, root.key) == ("", at(1, 1))
    assert (pools.path, pools.key, pools.location) == ("pools", at(2, 1), at(3, 3))
    assert inner.get("cpus") == Text(
        "pools.a b.cpus", at(4, 5), at(4, 12), "2", Origin("a.yaml", 4, 5, verbatim=False)
    )
    origin = Origin("a.yaml", 5, 10, verbatim=False)
    item = Text("pools.list[0]", at(5, 10), at(5, 10), "1", origin)
    assert pools.get("list") == Listing("pools.list", at(5, 3), at(5, 9), (item,))
    assert document.locations(root) == {
        "": at(1, 1),
        "pools": at(2, 1),
        "pools.a b": at(3, 3),
        "pools.a b.cpus": at(4, 12),
        "pools.list": at(5, 9),
    }


def test_a_missing_key_is_a_null_where_its_map_stands() -> None:
    pools = table("pools: {a: 1}").get("pools")
    assert isinstance(pools, Table)
    missing = pools.get("b")
    assert (missing.path, text(missing), missing.location) == ("pools.b", "", at(1, 1))


@pytest.mark.parametrize("source", ["", "# nothing\n", "---\n", b"\xef\xbb\xbf"])
def test_an_empty_document_is_a_null(source: str | bytes) -> None:
    root, problems = read(source)
    assert text(root) == ""
    assert (root.path, problems) == ("", [])


def test_a_byte_order_mark_moves_no_column() -> None:
    assert table(b"\xef\xbb\xbfa: 1").get("a").key == at(1, 1)


def test_of_two_equal_keys_the_first_stays_and_the_second_is_reported() -> None:
    root, problems = read("a: {x: 1}\nb: {x: 1, x: 2}\na: 3\n")
    assert isinstance(root, Table)
    assert list(root.entries) == ["a", "b"]
    assert isinstance(root.get("a"), Table)
    assert [str(problem) for problem in problems] == [
        "a.yaml:2:11: b.x: this key stands here twice, first in line 2; keep one of the two",
        "a.yaml:3:1: a: this key stands here twice, first in line 1; keep one of the two",
    ]


@pytest.mark.parametrize("key", ["[a]", "{a: b}", "? - a\n"])
def test_a_key_that_is_no_text_is_reported(key: str) -> None:
    root, problems = read(f"x: 1\n{key}: 2\n")
    assert isinstance(root, Table)
    assert list(root.entries) == ["x"]
    assert [problem.what for problem in problems] == ["a key must be text"]


@pytest.mark.parametrize(
    ("key", "path"),
    [
        ('"a\\nb"', r"'a\nb'"),
        ('"\\ud800"', r"'\ud800'"),
        ('""', "''"),
        ("a" * 63, "a" * 63),
        ("a" * 64, repr("a" * 63)),
    ],
)
def test_a_path_stays_one_short_line(key: str, path: str) -> None:
    (entry,) = table(f"{key}: 1").entries.values()
    assert entry.path == path


@pytest.mark.parametrize(
    ("source", "place", "what"),
    [
        pytest.param("a: 1\nb: c: d\n", at(2, 5), "mapping values", id="a colon too many"),
        pytest.param("a:\n\tb: 1\n", at(2, 1), "found character '\\t'", id="a tab"),
        pytest.param("a: [1,\n", at(2, 1), "while parsing a flow", id="an open bracket"),
        pytest.param("a: 1\n---\nb: 2\n", at(2, 1), "another document", id="two documents"),
        pytest.param("a: &x 1\nb: *x\n", at(2, 4), "aliases are not supported", id="an alias"),
        pytest.param("a: *x\n", at(1, 4), "aliases are not supported", id="an alias of nothing"),
        pytest.param("a: 1\nb: \x00\n", at(2, 4), "U+0000", id="a character that YAML forbids"),
        pytest.param("a: 1\nb: \ud800\n", at(2, 4), "U+D800", id="half a character"),
        pytest.param("é: 1\nb: é\xff".encode("latin-1"), at(1, 1), "byte 0xe9", id="Latin-1"),
        pytest.param("é: 1\né: é\n".encode() + b"\xff", at(3, 1), "byte 0xff", id="a late byte"),
        pytest.param(
            "ab: é".encode() + b"\xff", at(1, 6), "byte 0xff", id="columns are characters"
        ),
        pytest.param('a: "\\U00ffffff"', at(1, 7), "out of range", id="an escape too large"),
        pytest.param('a: "\\Uffffffff"', at(1, 7), "out of range", id="an escape far too large"),
        pytest.param(f"%YAML 1.{'1' * 5000}\n---\n", at(1, 9), "out of range", id="a version"),
        pytest.param("%YAML 2.0\n---\na: 1", at(1, 1), "incompatible", id="another YAML"),
        pytest.param("[" * 40, at(1, 33), "deeper than 32 levels", id="brackets nested deeply"),
        pytest.param(f"[{'a, ' * 9}" + "[" * 40, at(1, 60), "deeper than 32", id="late brackets"),
        pytest.param("[" * 40 + "@", at(1, 33), "deeper than 32", id="the scanner stops, too"),
        pytest.param("- " * 9000, at(1, 65), "deeper than 32 levels", id="lists nested deeply"),
        pytest.param("? " * 9000, at(1, 65), "deeper than 32 levels", id="keys nested deeply"),
    ],
)
def test_what_cannot_be_read_is_one_problem_with_its_place(
    source: str | bytes, place: Location, what: str
) -> None:
    with pytest.raises(ConfigError) as raised:
        read(source)
    (problem,) = raised.value.problems
    assert problem.location == place
    assert what in problem.what


def test_nesting_within_the_limit_is_read() -> None:
    assert isinstance(read("[" * 32 + "]" * 32)[0], Listing)
    assert len(table(", ".join(f"{{a{n}: 1}}" for n in range(40)).join(["x: [", "]"])).entries) == 1


@pytest.mark.parametrize(
    ("source", "origin"),
    [
        pytest.param("a: |\n  text\n", Origin("a.yaml", 2, 3), id="a literal block"),
        pytest.param("a: |-\n\n\n   text\n", Origin("a.yaml", 2, 4), id="blank lines come first"),
        pytest.param("a: |1\n   text\n", Origin("a.yaml", 2, 2), id="indentation is given"),
        pytest.param("a: | # why\r\n  text\r\n", Origin("a.yaml", 2, 3), id="line ends of DOS"),
        pytest.param("a: |\n\n", Origin("a.yaml", 1, 1, verbatim=False), id="an empty block"),
        pytest.param("a: |", Origin("a.yaml", 1, 1, verbatim=False), id="a block cut off"),
        pytest.param("a: >\n  text\n", Origin("a.yaml", 1, 1, verbatim=False), id="a folded one"),
        pytest.param("a: 'text'", Origin("a.yaml", 1, 1, verbatim=False), id="a quoted one"),
    ],
)
def test_a_literal_block_knows_where_its_text_begins(source: str, origin: Origin) -> None:
    value = table(source).get("a")
    assert isinstance(value, Text)
    assert value.origin == origin


def test_a_document_inside_another_counts_from_its_origin() -> None:
    inside = Origin("a.yaml", 5, 3)
    assert inside.at(0, 0) == at(5, 3)
    assert inside.at(2, 4) == at(7, 7)
    assert Origin("a.yaml", 5, 3, verbatim=False).at(2, 4) == at(5, 3)
