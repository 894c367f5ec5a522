"""A kernel that sends events about CPUs to a listener."""

from __future__ import annotations

import os
import socket
from typing import Any

from cpupool.host.uevents import CPUEvents

KERNEL = 0
OFFLINE = (
    b"offline@/devices/system/cpu/cpu1\0ACTION=offline\0DEVPATH=/devices/system/cpu/cpu1\0"
    b"SUBSYSTEM=cpu\0MODALIAS=cpu:type:x86,ven0000fam0006mod009E:feature:\0SEQNUM=4242\0"
)
NETWORK = (
    b"add@/devices/virtual/net/veth0\0ACTION=add\0DEVPATH=/devices/virtual/net/veth0\0"
    b"SUBSYSTEM=net\0INTERFACE=veth0\0SEQNUM=4243\0"
)


class Netlink(socket.socket):
    """A datagram socket whose messages begin with their sender's port, as netlink tells it apart.

    Attributes:
        failures: errno of each read that fails before the next message.
        endless: whether the same message comes again and again.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.failures: list[int] = []
        self.endless = False

    def recvfrom(self, bufsize: int, flags: int = 0) -> tuple[bytes, tuple[int, int]]:
        if self.failures:
            number = self.failures.pop()
            raise OSError(number, os.strerror(number))
        message = super().recv(4 + bufsize, socket.MSG_PEEK if self.endless else 0)
        return message[4:], (int.from_bytes(message[:4], "big"), 1)


class Kernel:
    """What sends events, and who listens.

    Attributes:
        netlink: the listener's socket.
        events: the listener.
    """

    def __init__(self) -> None:
        hearing, self._sending = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.netlink = Netlink(fileno=hearing.detach())
        self.events = CPUEvents(lambda: self.netlink)

    def send(self, message: bytes, port: int = KERNEL) -> None:
        self._sending.send(port.to_bytes(4, "big") + message)

    def close(self) -> None:
        self.events.close()
        self._sending.close()
