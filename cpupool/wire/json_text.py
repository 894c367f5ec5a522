"""JSON from outside, read within bounds; a member of another type than it should have is refused.

`json.loads` alone takes NaN, 1e400 and two equal keys, and raises `RecursionError` and a plain
`ValueError`, too. RFC 8259 leaves the bounds to the reader.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

from cpupool.core.errors import RemoteProtocolError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

LONGEST: Final = 64 * 2**20
"""More bytes, or characters, than the pods of a node have."""
DEEPEST: Final = 100
"""Ten times the depth of Kubernetes' objects and our files; a writer of JSON or YAML recurses."""
_LARGEST: Final = 2**63 - 1
_SHOWN: Final = 60
_LONGEST_REASON: Final = 200
_KINDS: Final[Mapping[type, str]] = {
    str: "a text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    list: "a list",
    dict: "an object",
    type(None): "null",
}
_CONTAINERS: Final = frozenset((dict, list))
_T = TypeVar("_T")


class JSONRefused(RemoteProtocolError, ValueError):
    """A text that is no JSON within the bounds, or JSON of another shape than it should have.

    Attributes:
        what: the fact.
        line: where the text ends to be JSON; 0 where that is not a place.
        column: the same.
    """

    def __init__(self, what: str, line: int = 0, column: int = 0) -> None:
        self.what = what
        self.line = line
        self.column = column
        super().__init__(f"{what}: line {line} column {column}" if line else what)


def is_text(text: str) -> bool:
    """Return whether a file can hold a text: it has no half of a surrogate pair."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def load(data: bytes | str, *, unique: bool = False, bounded: bool = True) -> Any:  # noqa: ANN401 - any JSON value
    """Return the value of a JSON text, at most `LONGEST` long and `DEEPEST` levels deep.

    Args:
        data: the text, or its UTF-8.
        unique: whether an object may have a key only once; otherwise the last one is taken, as in
            Go.
        bounded: whether to count the levels; a reader that takes single members, and neither
            compares nor writes the value, can do with those that Python reads.

    Raises:
        JSONRefused: it is none.
    """
    if len(data) > LONGEST:
        raise JSONRefused(f"it is longer than {LONGEST} bytes")
    with _refusals():
        text = data if isinstance(data, str) else data.decode()
        value = (_UNIQUE if unique else _USUAL).decode(text)
    if bounded:
        _check_depth(value)
    return value


def first(text: str, start: int) -> tuple[Any, int]:
    """Return the value that begins at an offset of a text, as `load`, and the offset of its end.

    Raises:
        JSONRefused: there is none; with a line if that is for what follows, which may be cut off.
    """
    with _refusals():
        value, end = _USUAL.raw_decode(text, start)
    _check_depth(value)
    return value, end


@contextmanager
def _refusals() -> Iterator[None]:
    try:
        yield
    except JSONRefused:
        raise
    except json.JSONDecodeError as error:
        raise JSONRefused(error.msg, error.lineno, error.colno) from error
    except UnicodeDecodeError as error:
        what = f"the byte 0x{error.object[error.start]:02x} is not UTF-8"
        raise JSONRefused(what) from error
    except ValueError as error:
        raise JSONRefused("a number has thousands of digits") from error
    except RecursionError as error:
        raise _too_deep() from error


@dataclass(frozen=True, slots=True)
class Fields:
    """An object of a JSON text, with methods that read members as the types they should have.

    Attributes:
        members: the object.
        path: its place in the text, as `containers[0]`; empty for the whole text.
    """

    members: Mapping[str, Any]
    path: str = ""

    @classmethod
    def of(cls, value: object, path: str = "") -> Self:
        """Return the members of a value.

        Raises:
            JSONRefused: it is no object.
        """
        return cls(_typed(value, dict, path or "the text"), path)

    def refusal(self, key: str, what: str) -> JSONRefused:
        """Return the error for a member."""
        return JSONRefused(f"{self._place(key)} {what}")

    def get(self, key: str, kind: type[_T], default: _T | None = None) -> _T:
        """Return a member of this type; the default where there is none.

        Raises:
            JSONRefused: it is missing, or has another type.
        """
        if key in self.members:
            return _typed(self.members[key], kind, self._place(key))
        if default is None:
            raise self.refusal(key, "is missing")
        return default

    def read(self, key: str, parse: Callable[[str], _T], default: str | None = None) -> _T:
        """Return the meaning of a text; that of the default where there is none.

        Args:
            key: the member.
            parse: raises ValueError for a text that means nothing.
            default: the text to take then; None if there must be one.

        Raises:
            JSONRefused: it is missing, or no text that means something.
        """
        return _parsed(self.get(key, str, default), parse, self._place(key))

    def part(self, key: str) -> Fields | None:
        """Return the object of a member; None for no such member, and for null.

        Raises:
            JSONRefused: it is something else.
        """
        return None if self.members.get(key) is None else self.within(key)

    def texts(self, key: str) -> tuple[str, ...]:
        """Return the texts of a list; none where there is no list.

        Raises:
            JSONRefused: it is no list of texts.
        """
        listed: list[object] = self.get(key, list, [])
        return tuple(
            _typed(each, str, f"{self._place(key)}[{at}]") for at, each in enumerate(listed)
        )

    def objects(self, key: str, *, optional: bool = False) -> Iterator[Fields]:
        """Yield the objects of a list.

        Raises:
            JSONRefused: it is no list of objects, or missing.
        """
        for at, each in enumerate(self.get(key, list, [] if optional else None)):
            yield Fields.of(each, f"{self._place(key)}[{at}]")

    def within(self, key: str, *, optional: bool = False) -> Fields:
        """Return the object of a member; an empty one where there may be none.

        Raises:
            JSONRefused: it is no object, or missing.
        """
        return Fields(self.get(key, dict, {} if optional else None), self._place(key))

    def _place(self, key: str) -> str:
        key = key if len(key) <= _SHOWN else f"{key[:_SHOWN]}..."
        return f"{self.path}.{key}" if self.path else key


def _typed(value: object, kind: type[_T], place: str) -> _T:
    # A boolean is an int in Python, but not in JSON.
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        found = _KINDS[type(value)]
        raise JSONRefused(f"{place} is {found}, and not {_KINDS[kind]}")
    if isinstance(value, int) and abs(value) > _LARGEST:
        raise JSONRefused(f"{place} is a number beyond 64 bits")
    return value


def _parsed(text: str, parse: Callable[[str], _T], place: str) -> _T:
    try:
        return parse(text)
    except ValueError as error:
        raise JSONRefused(f"{place}: {str(error)[:_LONGEST_REASON]}") from error


def _check_depth(value: object) -> None:
    level: list[Any] = [value] if type(value) in _CONTAINERS else []
    for _ in range(DEEPEST):
        if not level:
            return
        level = [
            child
            for each in level
            for child in (each.values() if type(each) is dict else each)
            if type(child) in _CONTAINERS
        ]
    if level:
        raise _too_deep()


def _too_deep() -> JSONRefused:
    return JSONRefused(f"it is nested too deep: more than {DEEPEST} levels")


def _finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise JSONRefused(f"{text[:_SHOWN]} is too large a number")
    return number


def _no_constant(word: str) -> None:
    raise JSONRefused(f"{word} is no value of JSON")


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        many = Counter(key for key, _ in pairs)
        twice, _ = many.most_common(1)[0]
        raise JSONRefused(f"the key {twice[:_SHOWN]!r} is there twice")
    return found


_USUAL: Final = json.JSONDecoder(parse_float=_finite, parse_constant=_no_constant)
_UNIQUE: Final = json.JSONDecoder(
    parse_float=_finite, parse_constant=_no_constant, object_pairs_hook=_once
)
