"""Writes a recording into a file that is not there yet, whole or not at all; or to a pipe."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Final

from cpupool.commands.shell import door
from cpupool.commands.shell.exit_codes import UsageError
from cpupool.core.errors import HostFileError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from typing import TextIO

    from cpupool.host.recording import Recording

STDOUT: Final = "-"
"""The name of a file that means standard output."""


def write_stdout(option: str, collect: Callable[[], Recording]) -> None:
    """Write an archive to standard output.

    Args:
        option: the option that names a file instead.
        collect: returns what to write.

    Raises:
        UsageError: standard output is closed, or a terminal.
    """
    if sys.stdout is None:
        raise UsageError(f"standard output is closed; name a file with {option}")
    if sys.stdout.isatty():
        raise UsageError(f"a terminal cannot show an archive; name a file with {option}, or a pipe")
    collect().write(sys.stdout.buffer)


def write_file(path: Path, option: str, mode: int, collect: Callable[[], Recording]) -> Recording:
    """Write an archive into a new file; overwrite no file, and follow no link.

    Args:
        path: the file.
        option: the option that names another file.
        mode: the rights of the file.
        collect: returns what to write.

    Raises:
        UsageError: the file is there already.
        HostFileError: it cannot be written.
    """
    try:
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
            try:
                kept = collect()
                kept.write(file)
            except BaseException:
                path.unlink()
                raise
    except FileExistsError as error:
        raise UsageError(f"{path} is there already; name another file with {option}") from error
    except OSError as error:
        raise HostFileError(
            str(path), f"cannot be written ({error.strerror})", f"name another file with {option}"
        ) from error
    return kept


def tell(path: Path, kept: Recording, out: TextIO) -> None:
    """Print the size of a written file, and the files that it lacks."""
    size = f"{len(kept.files)} files, {path.stat().st_size // 1024 + 1} KiB"
    door.tell(f"{path}: {size}", out)
    for reason in kept.left_out:
        door.tell(f"left out: {reason}", out)
