"""What a command prints, in the bytes that reach the terminal."""

from __future__ import annotations

import io
import re
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from unittest import mock

from cpupool import cli

EVIL = "\x1b]0;owned\x07\x1b[2J\r\x9b31m\x00\x7f\u202e\u2066\u2028\u2029\x85\ud800\U000e0041"
"""ESC, BEL, CR, CSI as one character, NUL, DEL, marks that reorder, line ends, half a pair."""
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


@dataclass(frozen=True, slots=True)
class Printed:
    """What a command has printed, and its exit code."""

    code: int
    out: str
    err: str

    def check(self, *, colours: bool = False) -> None:
        """Assert that no byte of it commands a terminal; a picture may have colours."""
        out = _COLOUR.sub("", self.out) if colours else self.out
        for text in (out, self.err):
            assert {char for char in text if not char.isprintable()} <= {"\n"}

    def check_refusal(self) -> None:
        """Assert that it is one line which says what is wrong, and the exit code of bad input."""
        self.check()
        assert (self.code, self.out) == (2, "")
        assert self.err.startswith("cpupool: ")
        assert self.err.count("\n") == 1
        assert "; " in self.err
        assert len(self.err) < 2000


def printed(*arguments: str, colours: bool = False, encoding: str = "utf-8") -> Printed:
    """Run a command line in this process, on a terminal that has colours or on a pipe."""
    streams = [io.TextIOWrapper(io.BytesIO(), encoding, newline="\n") for _ in range(2)]
    environment = {"COLUMNS": "100", "LINES": "40"}
    environment |= {"FORCE_COLOR": "1", "TERM": "xterm-256color"} if colours else {}
    with (
        mock.patch.dict("os.environ", environment),
        redirect_stdout(streams[0]),
        redirect_stderr(streams[1]),
    ):
        code = cli.main(arguments)
    for stream in streams:
        stream.flush()
    out, err = (stream.buffer.getvalue().decode(encoding) for stream in streams)
    return Printed(code, out, err)
