"""The division of a terminal's width among the columns of a table, and the breaks in their texts.

A text is broken at blanks; where that is not enough, behind commas and slashes, which leaves names
whole; then at the joints of a name, and between any two characters only where nothing else is left.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_LEVELS: Final = (
    re.compile(r"\S*\s+|\S+"),
    re.compile(r"[^,/\s]*[,/]+\s*|[^,/\s]+\s*"),
    re.compile(r"[^-=._\s]*[-=._]+\s*|[^-=._\s]+\s*"),
    re.compile(r"\S\s*"),
)
"""The pieces that stay whole while there is room: words, parts of lists, paths and names."""


def widths(rows: Sequence[Sequence[str]], room: int) -> list[int]:
    """Return the width of each column: that of its texts, or less if there is no room.

    Args:
        rows: the texts, as many in each row; each may have several lines.
        room: for all columns, without what is between them.
    """
    columns = [
        [line for text in column for line in text.splitlines()]
        for column in zip(*rows, strict=True)
    ]
    found = [max(map(len, lines), default=0) for lines in columns]
    for level in _LEVELS:
        floor = [_longest(lines, level) for lines in columns]
        while sum(found) > room and any(map(int.__gt__, found, floor)):
            # The widest of those that may still shrink.
            _, column = max((found[at], at) for at, least in enumerate(floor) if found[at] > least)
            found[column] -= 1
    return found


def breaks(line: str, width: int) -> list[int]:
    """Return the offsets at which a line is broken, so that no piece is wider."""
    offsets, start, end = [], 0, 0
    for piece in _pieces(line, width, _LEVELS):
        if end > start and end + len(piece.rstrip()) - start > width:
            offsets.append(end)
            start = end
        end += len(piece)
    return offsets


def _longest(lines: Sequence[str], part: re.Pattern[str]) -> int:
    return max((len(piece.rstrip()) for line in lines for piece in part.findall(line)), default=0)


def _pieces(line: str, width: int, levels: Sequence[re.Pattern[str]]) -> Iterator[str]:
    """Divide a line into pieces that stay whole in so many columns."""
    level, *finer = levels
    for piece in level.findall(line):
        if not finer or len(piece.rstrip()) <= width:
            yield piece
        else:
            yield from _pieces(piece, width, finer)
