"""A test whether programs of this node listen on their unix sockets."""

from __future__ import annotations

import socket
from contextlib import contextmanager
from typing import TYPE_CHECKING

from cpupool.core.errors import HostFileError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def listens(path: Path, timeout_s: float) -> bool:
    """Return whether a program takes connections on a socket.

    Raises:
        HostFileError: this process may not look.
    """
    with socket.socket(socket.AF_UNIX) as client, _as_root(path):
        client.settimeout(timeout_s)
        try:
            client.connect(str(path))
        except PermissionError:
            raise
        except OSError:
            return False
        return True


def is_there(path: Path) -> bool:
    """Return whether there is a socket, without a connection to it.

    Raises:
        HostFileError: this process may not look.
    """
    with _as_root(path):
        return path.is_socket()


@contextmanager
def _as_root(path: Path) -> Iterator[None]:
    try:
        yield
    except PermissionError as error:
        raise HostFileError(str(path), str(error.strerror), "run this as root") from error
