"""The kernel's events about CPUs, which a netlink socket receives in any network namespace.

An event only says *look now*: nothing reads its other content. Sources: lib/kobject_uevent.c of the
kernel, netlink(7).
"""

from __future__ import annotations

import errno
import math
import os
import select
import socket
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from cpupool.core.errors import HostError

if TYPE_CHECKING:
    from collections.abc import Callable

_NETLINK_KOBJECT_UEVENT: Final = 15
_FROM_THE_KERNEL: Final = 1
"""The kernel's multicast group; udev has another."""
_KERNEL_PORT: Final = 0
_LONGEST_BYTES: Final = 8 * 1024
"""The kernel's events are 2 KiB at most; a longer event is cut, but its subsystem comes first."""
_INITIAL_USER_NAMESPACE: Final = 0xEFFFFFFD
"""The namespace's inode: PROC_USER_INIT_INO in include/linux/proc_ns.h."""


def connected() -> socket.socket:
    """Open a socket that receives the kernel's events; it needs no capability.

    Raises:
        HostError: this process cannot receive them.
    """
    try:
        # The kernel serves network namespaces of the initial user namespace only (uevent_net_init).
        if Path("/proc/self/ns/user").stat().st_ino != _INITIAL_USER_NAMESPACE:
            raise HostError("this process has a user namespace of its own; set hostUsers: true")
        opened = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_KOBJECT_UEVENT)
        try:
            opened.bind((0, _FROM_THE_KERNEL))
        except OSError:
            opened.close()
            raise
    except OSError as error:
        raise HostError(
            f"no netlink socket ({error}); let the seccomp profile allow AF_NETLINK"
        ) from error
    return opened


class CPUEvents:
    """A wait for CPUs that go online or offline; one thread waits, any thread may wake it.

    Args:
        connect: as `connected`.

    Attributes:
        silence: why the kernel's events do not arrive; empty while they do.
    """

    def __init__(self, connect: Callable[[], socket.socket] = connected) -> None:
        self.silence = ""
        self._woken = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._closing = threading.Lock()
        self._closed = False
        self._arrival = select.poll()
        self._arrival.register(self._woken, select.POLLIN)
        self._socket: socket.socket | None = None
        try:
            self._socket = connect()
        except HostError as error:
            self.silence = str(error)
        else:
            self._socket.settimeout(0)
            self._arrival.register(self._socket, select.POLLIN)

    def wait(self, timeout_s: float) -> bool:
        """Wait until CPUs may have gone online or offline, until `wake`, or until the time is over.

        Returns:
            Whether CPUs may have gone online or offline.
        """
        until_s = time.monotonic() + timeout_s
        left_s = timeout_s
        while self._arrival.poll(math.ceil(left_s * 1000)):
            with suppress(BlockingIOError):
                os.eventfd_read(self._woken)
                return False
            if self._socket is not None and self._concerns_cpus(self._socket):
                return True
            # Events about other devices may come without a pause.
            left_s = until_s - time.monotonic()
            if left_s <= 0:
                break
        return False

    def wake(self) -> None:
        """Make the present or the next `wait` return at once."""
        with self._closing:
            if not self._closed:
                os.eventfd_write(self._woken, 1)

    def close(self) -> None:
        """Close the socket; only the waiting thread may call this."""
        with self._closing:
            self._closed = True
            os.close(self._woken)
        self._hang_up()

    def _concerns_cpus(self, source: socket.socket) -> bool:
        try:
            event, (port, _) = source.recvfrom(_LONGEST_BYTES)
        except BlockingIOError:
            return False
        except OSError as error:
            # ENOBUFS: the kernel has dropped events because there were too many.
            if error.errno != errno.ENOBUFS:
                self.silence = f"the netlink socket has failed ({error}); restart cpupool"
                self._hang_up()
            return True
        return port == _KERNEL_PORT and concerns_cpus(event)

    def _hang_up(self) -> None:
        if self._socket is not None:
            self._arrival.unregister(self._socket)
            self._socket.close()
            self._socket = None


def concerns_cpus(event: bytes) -> bool:
    """Return whether an event may be about a CPU; an event without a subsystem may be."""
    named = [field for field in event.split(b"\0") if field.startswith(b"SUBSYSTEM=")]
    return not named or b"SUBSYSTEM=cpu" in named
