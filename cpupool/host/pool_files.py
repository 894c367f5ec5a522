"""The pool files of a cluster, as a mounted ConfigMap shows them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from cpupool.config import poolconfig
from cpupool.core.errors import HostFileError

if TYPE_CHECKING:
    from pathlib import Path

_SWAPPED: Final = "..data"
"""The link through which the kubelet shows a ConfigMap's files: one rename changes all of them
(kubernetes pkg/volume/util/atomic_writer.go)."""
_LONGEST_FILE_BYTES: Final = 64 * 1024
"""Reading takes long where pools come by the thousand; a node's own are a few lines."""


def read_pool_files(folder: Path) -> dict[str, bytes]:
    """Read every pool file of a folder, as a mounted ConfigMap shows them.

    All are of one edit, also while the kubelet puts the next one in its place.

    Returns:
        The texts by file name, in the order of the names.

    Raises:
        HostFileError: the folder or a file in it cannot be read, or a file is too long.
    """
    swapped = folder / _SWAPPED
    try:
        while True:
            edit = swapped.resolve()
            try:
                texts = _texts(edit if edit.is_dir() else folder)
            except FileNotFoundError:
                if swapped.resolve() == edit:
                    raise
                continue
            # An earlier edit is removed as soon as the next one is in its place.
            if swapped.resolve() == edit:
                return texts
    except OSError as error:
        raise HostFileError(
            str(error.filename or folder),
            str(error.strerror),
            "name the folder where the pool ConfigMap is mounted with --config",
        ) from error


def _texts(folder: Path) -> dict[str, bytes]:
    names = sorted(path.name for path in folder.iterdir())
    return {name: _text(folder / name) for name in names if poolconfig.is_pool_file(name)}


def _text(path: Path) -> bytes:
    with path.open("rb") as file:
        text = file.read(_LONGEST_FILE_BYTES + 1)
    if len(text) > _LONGEST_FILE_BYTES:
        raise HostFileError(
            str(path),
            f"a pool file has at most {_LONGEST_FILE_BYTES} bytes, this one more",
            "keep in it the pools of one kind of node",
        )
    return text
