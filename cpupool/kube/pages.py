"""A page of a list, read object by object: a parsed object takes twenty times its text."""

from __future__ import annotations

import codecs
from typing import TYPE_CHECKING, Any, Final

from cpupool.core.errors import CPUPoolError
from cpupool.wire import json_text
from cpupool.wire.json_text import JSONRefused

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_SPACE: Final = " \t\n\r"
_AFTER: Final = frozenset(",]}" + _SPACE)
_ITEMS: Final = "items"


class PageError(CPUPoolError):
    """This is no page of a list: no JSON, no JSON object, or a part is too long or too deep."""


def read(pieces: Iterator[bytes], longest: int, take: Callable[[Any], None]) -> dict[str, Any]:
    """Read a page as it comes, and return it without the objects.

    Args:
        pieces: its JSON text in UTF-8, cut anywhere.
        longest: how many characters an object or another field may have.
        take: called with each object, which it alone keeps.

    Raises:
        PageError: this is no page; some objects may have been taken.
    """
    text = _Text(pieces, longest)
    page: dict[str, Any] = {}
    if text.mark() != "{":
        text.value()
        raise PageError("this is not a JSON object")
    for _ in text.elements("{", "}"):
        key = text.value()
        if not isinstance(key, str):
            raise PageError("this is not JSON: the name of a field is no text")
        text.skip(":")
        if key == _ITEMS and text.mark() == "[":
            for _ in text.elements("[", "]"):
                take(text.value())
        else:
            page[key] = text.value()
    if text.mark():
        raise PageError("this is not JSON: there is more behind its end")
    return page


class _Text:
    """A JSON text that comes in pieces; it parses a value once the whole value is there."""

    def __init__(self, pieces: Iterator[bytes], longest: int) -> None:
        self._pieces = pieces
        self._longest = longest
        self._decoder = codecs.getincrementaldecoder("utf-8")()
        self._text = ""
        self._at = 0
        self._ended = False

    def mark(self) -> str:
        """Return the next character that is no space; empty at the end."""
        while True:
            while self._at < len(self._text):
                if self._text[self._at] not in _SPACE:
                    return self._text[self._at]
                self._at += 1
            if self._ended:
                return ""
            self._more(1)

    def skip(self, mark: str) -> None:
        """Pass over this character.

        Raises:
            PageError: it is another.
        """
        if self.mark() != mark:
            raise PageError(f"this is not JSON: {mark!r} is missing")
        self._at += 1

    def elements(self, first: str, last: str) -> Iterator[None]:
        """Yield before each element between two brackets, which the caller then reads.

        Raises:
            PageError: a bracket or a comma is missing.
        """
        self.skip(first)
        if self.mark() != last:
            yield
            while self.mark() != last:
                self.skip(",")
                yield
        self.skip(last)

    def value(self) -> object:
        """Return the next value.

        Raises:
            PageError: there is none, or it is too long or too deep.
        """
        self.mark()
        while True:
            try:
                value, end = json_text.first(self._text, self._at)
            except JSONRefused as error:
                if self._ended or not error.line:
                    raise PageError(f"this is not JSON: {error}") from error
            else:
                # A number may go on where it is cut: 1, 1., 1.5
                whole = not isinstance(value, int | float) or self._text[end : end + 1] in _AFTER
                if whole or self._ended:
                    self._at = end
                    return value
            there = len(self._text) - self._at
            if there > self._longest:
                raise PageError(f"a part is longer than {self._longest} characters")
            # Twice as much each time: the parser reads no more in vain than it needs.
            self._more(2 * there)

    def _more(self, least: int) -> None:
        """Wait until so many characters are there, or all."""
        parts = [self._text[self._at :]]
        there = len(parts[0])
        while there < least and not self._ended:
            piece = next(self._pieces, b"")
            self._ended = not piece
            try:
                parts.append(self._decoder.decode(piece, final=self._ended))
            except UnicodeDecodeError as error:
                raise PageError(f"this is not JSON: {error}") from error
            there += len(parts[-1])
        self._text, self._at = "".join(parts), 0
