r"""Texts from outside, as a terminal, a log or an Event can show them: none of them is a command.

A character that is not printable becomes its escape, as JSON and Python write it: ESC is `\u001b`.
These are the control characters, the marks that reorder a line, line separators, and halves of
surrogate pairs: Unicode's categories Other and Separator, without the blank.
"""

from __future__ import annotations

import re
from typing import Final

_ODD: Final = re.compile(r"[^ -~]")
_ODD_IN_LINES: Final = re.compile(r"[^\n\t -~]")


def line(text: str) -> str:
    """Return a text as one printable line."""
    return text if text.isprintable() else _ODD.sub(_escaped, text)


def lines(text: str) -> str:
    """Return a text with its line ends and tabs, and else printable."""
    return text if text.isprintable() else _ODD_IN_LINES.sub(_escaped, text)


def shown(text: str) -> str:
    """Return a name from outside in a form that fits into a line of a message."""
    return text if 0 < len(text) <= 63 and text.isprintable() else repr(text[:63])


def cut(text: str, most_bytes: int) -> str:
    """Return the beginning of a text as one printable line of at most so many bytes of UTF-8."""
    # No character becomes shorter.
    return line(text[:most_bytes]).encode()[:most_bytes].decode(errors="ignore")


def _escaped(found: re.Match[str]) -> str:
    character = found[0]
    if character.isprintable():
        return character
    code = ord(character)
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"
