"""The files and the machine that a command line names."""

from __future__ import annotations

import argparse
import errno
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from cpupool.commands.shell.exit_codes import UsageError
from cpupool.core.errors import HostFileError
from cpupool.host.sysfs import open_topology

if TYPE_CHECKING:
    from cpupool.core.topology import CPUTopology

_STDIN: Final = Path("/dev/stdin")
_LARGEST_BYTES: Final = 16 * 2**20


def open_machine(spec: str) -> CPUTopology:
    """Read the machine that `--topology` names.

    Raises:
        UsageError: there is none, or none that can be read.
    """
    try:
        return open_topology(spec)
    except HostFileError as error:
        raise UsageError(f"--topology: {error}") from error


def input_file(text: str) -> Path:
    """Read the name of a file to read from the command line; `-` is standard input.

    Raises:
        ArgumentTypeError: it names none, as an unset variable of a shell does.
    """
    if not text:
        raise argparse.ArgumentTypeError("no file is named; write one, or leave the option out")
    return _STDIN if text == "-" else Path(text)


def writable(text: str) -> Path:
    """Read the name of a file to write from the command line.

    Raises:
        ArgumentTypeError: it cannot be written.
    """
    path = Path(text)
    try:
        usable = not path.is_dir() and os.access(path if path.exists() else path.parent, os.W_OK)
    except OSError:
        usable = False
    if not usable:
        raise argparse.ArgumentTypeError(
            f"{text} cannot be written; name a file in a folder where you may write"
        )
    return path


def read_file(path: Path) -> bytes:
    """Read a file or a pipe that the command line names.

    Raises:
        UsageError: it cannot be read.
    """
    try:
        return file_content(path)
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}; name a file that can be read") from error


def file_content(path: Path) -> bytes:
    """Read a file or a pipe.

    Raises:
        OSError: it cannot be read, or is too long.
    """
    if path == _STDIN:
        content = _read_stdin()
    else:
        with path.open("rb") as file:
            content = file.read(_LARGEST_BYTES + 1)
    if len(content) > _LARGEST_BYTES:
        raise OSError(errno.EFBIG, f"it has more than {_LARGEST_BYTES} bytes")
    return content


def read_text(path: Path) -> str:
    """Read a file or a pipe that the command line names as text.

    Raises:
        UsageError: it cannot be read, or is no text.
    """
    try:
        return read_file(path).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: this is not UTF-8; save it as UTF-8") from error


def _read_stdin() -> bytes:
    if sys.stdin is None:
        raise UsageError("standard input is closed; name a file")
    return sys.stdin.buffer.read(_LARGEST_BYTES + 1)
