"""Folders of tests, in memory where that can be: some tests write a node of thousands of files."""

from __future__ import annotations

import os
import shutil
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_MEMORY = "/dev/shm"
_DISK = "/tmp"
_ROOM = 2 << 30
"""Bytes; a container runtime's images are the largest of what is written."""


def place() -> str:
    """Return where folders of tests lie; the path is short, for the names of sockets below it.

    A container engine may mount little memory, without the right to run programs.
    """
    if not os.access(_MEMORY, os.W_OK):
        return _DISK
    memory = os.statvfs(_MEMORY)
    fits = memory.f_bavail * memory.f_frsize >= _ROOM
    return _MEMORY if fits and not memory.f_flag & os.ST_NOEXEC else _DISK


@contextmanager
def folder() -> Iterator[Path]:
    """Make a folder, and remove it at the end of the block."""
    made = Path(tempfile.mkdtemp(prefix="cpl-", dir=place()))
    try:
        yield made
    finally:
        shutil.rmtree(made)
