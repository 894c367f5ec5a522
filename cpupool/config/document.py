"""YAML as the user wrote it: text, tables and lists that know their path, line and column.

PyYAML's node graph keeps what its constructors throw away: `on`, `010` and `1:30` are text here,
and every value can say where it stands. Duplicate keys and aliases are refused, because both make
a file mean something else than it seems to say.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeVar, cast

import yaml
from yaml.composer import Composer
from yaml.reader import ReaderError

from cpupool.config import yaml_loader
from cpupool.config.yaml_loader import FastLoader
from cpupool.core.errors import ConfigError, Location, Problem

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_MAX_DEPTH: Final = 32
"""A ConfigMap with its managed fields has 8 levels; each costs frames of Python's stack."""
_SEVERAL: Final = "expected a single document in the stream"
"""PyYAML's message about a second document."""
_NULL_TAG: Final = "tag:yaml.org,2002:null"
_Taken = TypeVar("_Taken")


@dataclass(frozen=True, slots=True)
class Origin:
    """The place where a document's text begins, in the file that the user sees.

    Attributes:
        file: its name.
        line: of the first character, from 1.
        column: of every line's first character, from 1.
        verbatim: whether the lines stand in the file as they are; otherwise (a quoted or folded
            scalar) every value in the document has its beginning as place.
    """

    file: str
    line: int = 1
    column: int = 1
    verbatim: bool = True

    def at(self, line: int, column: int) -> Location:
        """Locate a character of the document by its line and column, from 0."""
        if not self.verbatim:
            return Location(self.file, self.line, self.column)
        return Location(self.file, self.line + line, self.column + column)


@dataclass(frozen=True, slots=True)
class Value:
    """A value of a document.

    Attributes:
        path: the keys that lead to it, as `pools.default.cpus`; empty for the whole document.
        key: where its key stands; for the whole document where it begins.
        location: where it stands itself.
    """

    path: str
    key: Location
    location: Location


@dataclass(frozen=True, slots=True)
class Text(Value):
    """A scalar, as written; a null is the empty text.

    Attributes:
        text: its characters.
        origin: where the text begins, for one that is a document itself: inside a literal block
            scalar (`|`); for other styles the key stands for all of it.
        null: whether there is no value: nothing after the key, `~` or `null`.
    """

    text: str
    origin: Origin
    null: bool = False


@dataclass(frozen=True, slots=True)
class Table(Value):
    """A map from text to values."""

    entries: Mapping[str, Value]

    def get(self, key: str) -> Value:
        """Find the value of a key; a missing one is null, with the place of the map."""
        return self.entries.get(key) or _null(_joined(self.path, key), self.key)


@dataclass(frozen=True, slots=True)
class Listing(Value):
    """A list of values."""

    items: tuple[Value, ...]


def read_all(source: str | bytes, origin: Origin, problems: list[Problem]) -> tuple[Value, ...]:
    """Read each YAML document of a text.

    Args:
        source: the text.
        origin: where the text comes from.
        problems: takes one problem for each key that cannot be used; the first of two equal keys
            stays.

    Raises:
        ConfigError: the source cannot be read as YAML without aliases.
    """
    text = _decode(source, origin) if isinstance(source, bytes) else source
    viewer, start = _Viewer(text, origin, problems), origin.at(0, 0)
    return tuple(viewer.view(root, "", start) for root in _compose(text, origin, _each_node))


def read(source: str | bytes, origin: Origin, problems: list[Problem]) -> Value:
    """Read one YAML document.

    Args:
        source: its text.
        origin: where the text comes from.
        problems: takes one problem for each key that cannot be used; the first of two equal keys
            stays.

    Raises:
        ConfigError: the source cannot be read as one YAML document without aliases.
    """
    text = _decode(source, origin) if isinstance(source, bytes) else source
    root = _compose(text, origin, lambda loader: loader.get_single_node())
    start = origin.at(0, 0)
    if root is None:
        return _null("", start)
    return _Viewer(text, origin, problems).view(root, "", start)


def _decode(source: bytes, origin: Origin) -> str:
    try:
        return source.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        where = _after(error.object[: error.start].decode(), origin)
        what = f"the byte 0x{error.object[error.start]:02x} is not UTF-8"
        raise _unreadable(where, what, "save the file as UTF-8") from None


def _each_node(loader: _Loader | _FastLoader) -> list[yaml.Node]:
    found = []
    while loader.check_node():
        found.append(cast("yaml.Node", loader.get_node()))
    return found


def _compose(text: str, origin: Origin, take: Callable[[_Loader | _FastLoader], _Taken]) -> _Taken:
    if yaml_loader.is_fast(text):
        # PyYAML's own parser says what is wrong, and where.
        with suppress(ConfigError, yaml.YAMLError, ValueError, OverflowError):
            return take(_FastLoader(text, origin))
    try:
        loader = _Loader(text, origin)
    except ReaderError as error:
        what = f"the character U+{error.character:04X} is not allowed in YAML"
        raise _unreadable(_after(text[: error.position], origin), what, "remove it") from None
    try:
        return take(loader)
    except yaml.MarkedYAMLError as error:
        what = ", ".join(filter(None, (error.context, error.problem)))
        mark = error.problem_mark or loader.get_mark()
        remedy = "leave one of them here" if error.context == _SEVERAL else "correct the YAML"
        raise _unreadable(origin.at(mark.line, mark.column), what, remedy) from None
    except (ValueError, OverflowError):
        # PyYAML 6.0 passes the digits of \U escapes to chr() and those of %YAML to int().
        where = origin.at(loader.line, loader.column)
        raise _unreadable(where, "a number here is out of range", "correct the YAML") from None


class _Bounded(Composer):
    """A composer with a limit to nesting and without aliases."""

    def __init__(self, text: str, origin: Origin) -> None:
        super().__init__(text)  # type: ignore[call-arg]  # the loader's, which is next
        self._origin = origin
        self._depth = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        event = self.peek_event()  # type: ignore[attr-defined]  # the parser's
        where = self._origin.at(event.start_mark.line, event.start_mark.column)
        if isinstance(event, yaml.AliasEvent):
            raise _unreadable(where, "aliases are not supported", "write the value out in full")
        if self._depth == _MAX_DEPTH:
            raise _too_deep(where)
        self._depth += 1
        node = super().compose_node(parent, index)
        self._depth -= 1
        return node


class _FastLoader(_Bounded, FastLoader):
    """libyaml's parser."""


class _Loader(_Bounded, yaml.SafeLoader):
    """PyYAML's parser."""

    def fetch_flow_collection_start(self, TokenClass: type[yaml.Token]) -> None:  # noqa: N803
        # The scanner reads 1,024 characters ahead, and looks at every open bracket for each.
        if self.flow_level == _MAX_DEPTH:
            raise _too_deep(self._origin.at(self.line, self.column))
        super().fetch_flow_collection_start(TokenClass)


@dataclass(frozen=True, slots=True)
class _Viewer:
    """Turns the nodes of one document into values."""

    text: str
    origin: Origin
    problems: list[Problem]

    def view(self, node: yaml.Node, path: str, key: Location) -> Value:
        where = self._locate(node)
        if isinstance(node, yaml.MappingNode):
            return Table(path, key, where, self._entries(node, path))
        if isinstance(node, yaml.ScalarNode):
            null = node.tag == _NULL_TAG
            text = "" if null else node.value
            return Text(path, key, where, text, self._origin_of(node, key), null=null)
        items = (
            self.view(item, f"{path}[{place}]", self._locate(item))
            for place, item in enumerate(node.value)
        )
        return Listing(path, key, where, tuple(items))

    def _entries(self, table: yaml.MappingNode, path: str) -> Mapping[str, Value]:
        entries: dict[str, Value] = {}
        for key, value in table.value:
            where = self._locate(key)
            if not isinstance(key, yaml.ScalarNode):
                self._refuse(path, where, "a key must be text", "write a word")
                continue
            inner = _joined(path, key.value)
            if first := entries.get(key.value):
                what = f"this key stands here twice, first in line {first.key.line}"
                self._refuse(inner, where, what, "keep one of the two")
                continue
            entries[key.value] = self.view(value, inner, where)
        return entries

    def _origin_of(self, node: yaml.ScalarNode, key: Location) -> Origin:
        first = _first_written_line(node.value)
        if node.style != "|" or not first:
            return _beside(key)
        below = self.text[node.start_mark.index :].partition("\n")[2]
        indentation = len(_first_written_line(below)) - len(first)
        where = self.origin.at(node.start_mark.line + 1, indentation)
        return Origin(where.file, where.line, where.column)

    def _refuse(self, path: str, where: Location, what: str, remedy: str) -> None:
        self.problems.append(Problem(what, remedy, path=path, location=where))

    def _locate(self, node: yaml.Node) -> Location:
        return self.origin.at(node.start_mark.line, node.start_mark.column)


def locations(value: Value) -> dict[str, Location]:
    """List where everything in a value stands, by path: maps at their key, the rest itself."""
    if not isinstance(value, Table):
        return {value.path: value.location}
    found = {value.path: value.key}
    for entry in value.entries.values():
        found |= locations(entry)
    return found


def _shown(key: str) -> str:
    # A path is part of a one-line message, and a key can hold anything.
    return key if 0 < len(key) <= 63 and key.isprintable() else repr(key[:63])


def _joined(path: str, key: str) -> str:
    return f"{path}.{_shown(key)}" if path else _shown(key)


def _null(path: str, where: Location) -> Text:
    return Text(path, where, where, "", _beside(where), null=True)


def _beside(key: Location) -> Origin:
    return Origin(key.file, key.line, key.column, verbatim=False)


def _first_written_line(text: str) -> str:
    return next((line for line in text.splitlines() if line.strip()), "")


def _after(text: str, origin: Origin) -> Location:
    return origin.at(text.count("\n"), len(text) - text.rfind("\n") - 1)


def _too_deep(where: Location) -> ConfigError:
    return _unreadable(
        where, f"this is nested deeper than {_MAX_DEPTH} levels", "remove some levels"
    )


def _unreadable(where: Location, what: str, remedy: str) -> ConfigError:
    return ConfigError([Problem(what, remedy, location=where, unreadable=True)])
