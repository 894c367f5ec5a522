"""YAML says the same by libyaml's parser as by PyYAML's: values, places and mistakes."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml
from hypothesis import assume, given
from hypothesis import strategies as st

from cpupool.config import document, yaml_loader
from cpupool.config.document import Origin
from cpupool.core.errors import ConfigError, ManifestError
from cpupool.kube import manifest_text
from tests.searching import examples

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
FILES = [
    path.read_text()
    for folder in ("configmaps", "daemonsets", "examples", "tests/data")
    for path in sorted((ROOT / folder).rglob("*.yaml"))
]
BLOCKS = [
    block.partition("```")[0].partition("\n")[2]
    for path in sorted((ROOT / "docs").rglob("*.md"))
    for block in path.read_text().split("```yaml")[1:]
]
PIECES = (
    *("a", "b: ", "c:", "- ", "-", "? ", "?", ": ", ":", ", ", ",", "[", "]", "{", "}"),
    *("\n", "\n  ", "\n    ", "\n\n", "\r\n", "\r", "\x85", "\u2028", " ", "  ", "\t", "\ufeff"),
    *("|\n", ">\n", "|-\n", "|+\n", ">2\n", '"', "'", "''", '""', "#", " # x", "\\n", "\\x41"),
    *("&a ", "*a ", "!t ", "!!str ", "!!bool x", "!<x> ", "%YAML 1.1\n", "%TAG ! x\n", "<<: ", "="),
    *("---\n", "--- ", "...\n", "1", "0x1", "1:30", "2020-01-01", ".nan", "~", "null", "on", "2-7"),
    *("é", "\U0001f600", "\\U00110000", "\x00", "\x7f", "key: value\n", "list:\n- a\n- b\n"),
    *("a: |\n  x\n  y\n", "{k: v}", "[1, 2]", "a: {b: ?}", "{a: , b}", "a: &x 1\nb: *x\n"),
)
made = st.lists(st.sampled_from(PIECES), max_size=14).map("".join)


@st.composite
def edited(draw: st.DrawFn) -> str:
    """Give a part of a file that somebody has written, with edits."""
    text = draw(st.sampled_from((*FILES, *BLOCKS)))
    start = draw(st.integers(0, len(text)))
    text = text[start : start + 300]
    for _ in range(draw(st.integers(0, 3))):
        place = draw(st.integers(0, len(text)))
        skipped = draw(st.integers(0, 2))
        text = text[:place] + draw(st.sampled_from(PIECES)) + text[place + skipped :]
    return text


@contextmanager
def slow() -> Iterator[None]:
    """Read by PyYAML's parser alone."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(yaml_loader, "is_fast", lambda _: False)
        yield


def as_documents(text: str) -> tuple[object, ...]:
    """Give what a text says, and all that is wrong with it, each with its place."""
    problems: list[object] = []
    read: object
    try:
        read = document.read_all(text, Origin("f"), problems)  # type: ignore[arg-type]
    except ConfigError as error:
        read = str(error)
    return read, problems


def as_manifests(text: str) -> list[str]:
    found = []
    try:
        for place, body in manifest_text.documents("f", text):
            found.append(f"{place} {body!r}")
    except ManifestError as error:
        found.append(str(error))
    return found


def assert_alike(text: str) -> None:
    said = as_documents(text), as_manifests(text)
    with slow():
        assert (as_documents(text), as_manifests(text)) == said


@examples(1000)
@given(made | edited())
def test_both_parsers_say_the_same(text: str) -> None:
    assert_alike(text)


def nodes(loader: yaml_loader.FastLoader | yaml.SafeLoader) -> list[object]:
    found: list[object] = []
    while loader.check_node():
        node = loader.get_node()
        assert node is not None
        found.append(told(node))
    return found


def told(node: yaml.Node) -> object:
    where = (node.tag, node.start_mark.line, node.start_mark.column)
    if isinstance(node, yaml.ScalarNode):
        literal = node.start_mark.index if node.style == "|" else None
        return *where, node.value, literal
    if isinstance(node, yaml.MappingNode):
        return *where, [(told(key), told(value)) for key, value in node.value]
    return *where, [told(item) for item in node.value]


@examples(1000)
@given(made | edited())
def test_what_the_fast_loader_takes_has_the_same_nodes(text: str) -> None:
    assume(yaml_loader.is_fast(text))
    try:
        fast = nodes(yaml_loader.FastLoader(text))
    except (yaml.YAMLError, ValueError, OverflowError):
        return
    assert fast == nodes(yaml.SafeLoader(text))


def test_the_files_of_this_repository_are_read_fast_and_alike() -> None:
    assert len(FILES) > 20
    for text in (*FILES, *BLOCKS):
        assert_alike(text)
        if yaml_loader.is_fast(text):
            assert nodes(yaml_loader.FastLoader(text)) == nodes(yaml.SafeLoader(text))
    assert all(map(yaml_loader.is_fast, FILES)) is yaml.__with_libyaml__
