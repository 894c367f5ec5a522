"""The door of the command line: all output passes it, so no text can command the terminal.

`cli.py` puts it in the place of standard output and standard error, so `print`, the log, argparse
and a traceback need not know it. Only a picture goes past it, whose colours are our own: the
drawing code makes its words harmless itself.
"""

from __future__ import annotations

import io
import re
import sys
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from typing import TYPE_CHECKING, Any, Final, TextIO, cast

from cpupool.core import visible

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_PARAMETER: Final = (
    r"(?:[0-4]|[39][0-79]|4[0-79]|10[0-7]|[34]8;(?:5;[0-9]{1,3}|2(?:;[0-9]{1,3}){3}))"
)
_COLOUR: Final = re.compile(rf"(\x1b\[{_PARAMETER}(?:;{_PARAMETER})*m)")
_RESET: Final = "\x1b[0m"


class Door:
    """A stream whose texts command no terminal; all but writing is that of the stream behind it.

    Args:
        behind: the stream.
    """

    def __init__(self, behind: TextIO) -> None:
        self.behind = behind
        if isinstance(behind, io.TextIOWrapper):
            # A stream of another character set than UTF-8 takes every text, too.
            behind.reconfigure(errors="backslashreplace")

    def write(self, text: str) -> int:
        """Write a text without control characters; lines stay lines."""
        self.behind.write(visible.lines(text))
        return len(text)

    def writelines(self, texts: Iterable[str]) -> None:
        """Write several texts."""
        for text in texts:
            self.write(text)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - the other methods of a stream
        return getattr(self.behind, name)


@contextmanager
def guard() -> Iterator[None]:
    """Put the door before standard output and standard error, as long as the context lasts."""
    with redirect_stdout(_before(sys.stdout)), redirect_stderr(_before(sys.stderr)):
        yield


def tell(text: str, out: TextIO) -> None:
    """Print a text as one line, also where it has words with line ends."""
    out.write(f"{visible.line(text)}\n")


def behind(out: TextIO) -> TextIO:
    """Return the stream behind the door, for code that has made its words harmless itself."""
    return out.behind if isinstance(out, Door) else out


def write_picture(picture: str, out: TextIO) -> None:
    """Write a picture that another cpupool has drawn: of all control characters colours stay."""
    pieces = _COLOUR.split(picture)
    words = (visible.lines(piece) for piece in pieces[::2])
    shown = "".join(word + colour for word, colour in zip(words, (*pieces[1::2], ""), strict=True))
    colours = pieces[1::2]
    # The text after it has none of its colours.
    behind(out).write(shown + (_RESET if colours and colours[-1] != _RESET else ""))


def _before(stream: TextIO | None) -> TextIO | None:
    # A closed output (`>&-`) is None.
    if stream is None or isinstance(stream, Door):
        return stream
    return cast("TextIO", Door(stream))
