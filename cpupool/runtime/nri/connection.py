"""The socket of an NRI conversation: bytes to and from the container runtime.

One thread receives; any thread may send, or wake the receiving thread.
"""

from __future__ import annotations

import math
import os
import select
import socket
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from cpupool.core.errors import RemoteProtocolError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_CHUNK_BYTES: Final = 64 * 1024
_SEND_TIMEOUT_S: Final = 2.0
"""As long as a runtime waits for a response."""
_SWITCH_ON: Final = (
    "NRI is on by default since containerd 2.0 and CRI-O 1.30; before, set disable = false under"
    ' [plugins."io.containerd.nri.v1.nri"] in /etc/containerd/config.toml, or enable_nri = true'
    " under [crio.nri], and restart the runtime"
)


@dataclass(frozen=True, slots=True)
class Launch:
    """The facts with which a runtime has started this process as a plugin.

    Attributes:
        fd: the connected socket.
        name: the plugin's name.
        index: its place among the plugins, two digits.
    """

    fd: int
    name: str
    index: str


def inherited(environment: Mapping[str, str]) -> Launch | None:
    """Read whether a runtime has started this process; None where it has not.

    Source: github.com/containerd/nri, pkg/api/plugin.go.

    Raises:
        RemoteProtocolError: the variables are not as a runtime sets them.
    """
    fd = environment.get("NRI_PLUGIN_SOCKET")
    if fd is None:
        return None
    name, index = (environment.get(f"NRI_PLUGIN_{key}", "") for key in ("NAME", "IDX"))
    if not (fd.isdecimal() and name and index):
        raise RemoteProtocolError(
            f"NRI_PLUGIN_SOCKET={fd!r}, NRI_PLUGIN_NAME={name!r}, NRI_PLUGIN_IDX={index!r} are not"
            " what a container runtime gives a plugin; unset them to connect to its socket"
        )
    return Launch(int(fd), name, index)


def identity(path: Path) -> tuple[int, ...] | None:
    """Return a value that differs between two starts of a runtime; None without its socket."""
    try:
        found = path.stat()
    except OSError:
        return None
    # The next socket may get the number of the inode.
    return found.st_dev, found.st_ino, found.st_ctime_ns


class Connection:
    """A connected socket, owned and closed by this object.

    Args:
        connected: a stream socket.
    """

    def __init__(self, connected: socket.socket) -> None:
        connected.settimeout(0)
        self._socket = connected
        self._woken = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._arrival = select.poll()
        self._arrival.register(connected, select.POLLIN)
        self._arrival.register(self._woken, select.POLLIN)
        self._sending = threading.Lock()
        self._waking = threading.Lock()
        self._closed = False

    @classmethod
    def to(cls, path: Path, timeout_s: float) -> Connection:
        """Connect to a runtime.

        Args:
            path: its NRI socket.
            timeout_s: how long it may take.

        Raises:
            RemoteProtocolError: it is not there.
        """
        connecting = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connecting.settimeout(timeout_s)
            connecting.connect(str(path))
        except OSError as error:
            connecting.close()
            raise RemoteProtocolError(
                f"connecting to NRI at {path} failed ({error}); check that the container runtime"
                f" runs and that the folder is mounted; {_SWITCH_ON}"
            ) from error
        return cls(connecting)

    @classmethod
    def inherited(cls, fd: int) -> Connection:
        """Take over the socket that a runtime has started this process with.

        Raises:
            RemoteProtocolError: it is no socket.
        """
        try:
            connected = socket.socket(fileno=fd)
        except OSError as error:
            raise RemoteProtocolError(
                f"NRI_PLUGIN_SOCKET={fd} is no socket ({error});"
                " unset it to connect to the runtime's own"
            ) from error
        connected.set_inheritable(False)
        return cls(connected)

    def receive(self, timeout_s: float | None) -> bytes | None:
        """Return the bytes that have come, as soon as there are any.

        Args:
            timeout_s: how long to wait; None for as long as it takes.

        Returns:
            Some bytes; none at the end of the conversation; None after the time, or after `wake`.

        Raises:
            RemoteProtocolError: the connection is broken.
        """
        self._arrival.poll(None if timeout_s is None else math.ceil(timeout_s * 1000))
        with suppress(BlockingIOError):
            os.eventfd_read(self._woken)
            return None
        try:
            return self._socket.recv(_CHUNK_BYTES)
        except BlockingIOError:
            return None
        except OSError as error:
            raise _broken(error) from error

    def send(self, data: bytes) -> None:
        """Send all bytes; an error in the middle ends the conversation.

        Raises:
            RemoteProtocolError: the connection is broken, or the runtime does not read.
        """
        until_s = time.monotonic() + _SEND_TIMEOUT_S
        rest = memoryview(data)
        with self._sending:
            while rest:
                try:
                    rest = rest[self._socket.send(rest) :]
                except BlockingIOError as full:
                    if not self._writable(until_s - time.monotonic()):
                        raise self._cut("it reads nothing") from full
                except OSError as error:
                    raise self._cut(error) from error

    def wake(self) -> None:
        """Make the present or next `receive` return None."""
        with self._waking:
            if not self._closed:
                os.eventfd_write(self._woken, 1)

    def close(self) -> None:
        """End the conversation; the thread that receives does that."""
        with self._sending, self._waking:
            if not self._closed:
                self._closed = True
                self._socket.close()
                os.close(self._woken)

    def _cut(self, why: object) -> RemoteProtocolError:
        # Nothing can follow half a frame, whichever thread would send it.
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        return _broken(why)

    def _writable(self, timeout_s: float) -> bool:
        room = select.poll()
        room.register(self._socket, select.POLLOUT)
        return bool(room.poll(max(0, math.ceil(timeout_s * 1000))))


def _broken(why: object) -> RemoteProtocolError:
    return RemoteProtocolError(
        f"the NRI connection has failed ({why}); look at the container runtime's log"
    )
