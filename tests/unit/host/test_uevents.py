from __future__ import annotations

import errno
import os
import socket
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cpupool.core.errors import HostError
from cpupool.host.uevents import CPUEvents, concerns_cpus
from tests.waiting import DEADLINE_S

if TYPE_CHECKING:
    from collections.abc import Iterator

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


@pytest.fixture
def kernel() -> Iterator[Kernel]:
    with closing(Kernel()) as made:
        yield made


def test_an_event_of_a_cpu_says_look_now(kernel: Kernel) -> None:
    kernel.send(OFFLINE)
    assert kernel.events.wait(DEADLINE_S)
    assert not kernel.events.wait(0)


def test_other_events_are_passed_over(kernel: Kernel) -> None:
    kernel.send(NETWORK)
    assert not kernel.events.wait(0)
    kernel.send(NETWORK)
    kernel.send(OFFLINE)
    assert kernel.events.wait(DEADLINE_S)


def test_what_a_program_sends_is_dropped(kernel: Kernel) -> None:
    for port in (1, os.getpid(), 2**32 - 1):
        kernel.send(OFFLINE, port)
        assert not kernel.events.wait(0)


def test_events_without_end_do_not_keep_the_listener(kernel: Kernel) -> None:
    kernel.netlink.endless = True
    kernel.send(NETWORK)
    assert not kernel.events.wait(0.05)


def test_events_that_the_kernel_has_thrown_away_say_look_now(kernel: Kernel) -> None:
    kernel.netlink.failures = [errno.ENOBUFS]
    kernel.send(NETWORK)
    assert kernel.events.wait(DEADLINE_S)
    assert kernel.events.silence == ""
    assert not kernel.events.wait(0)
    kernel.send(OFFLINE)
    assert kernel.events.wait(DEADLINE_S)


def test_a_message_that_is_gone_when_it_is_read_says_nothing(kernel: Kernel) -> None:
    kernel.netlink.failures = [errno.EAGAIN]
    kernel.send(OFFLINE)
    assert not kernel.events.wait(0)
    assert kernel.events.wait(DEADLINE_S)


def test_a_broken_socket_is_closed_and_says_why(kernel: Kernel) -> None:
    kernel.netlink.failures = [errno.EIO]
    kernel.send(NETWORK)
    assert kernel.events.wait(DEADLINE_S)
    assert "Input/output error" in kernel.events.silence
    assert kernel.netlink.fileno() == -1
    assert not kernel.events.wait(0)


def test_without_a_socket_the_listener_waits_for_its_time_or_is_woken() -> None:
    def refused() -> socket.socket:
        raise HostError("no netlink socket; allow it")

    with closing(CPUEvents(refused)) as events:
        assert events.silence == "no netlink socket; allow it"
        assert not events.wait(0.01)
        events.wake()
        assert not events.wait(DEADLINE_S)


def test_a_listener_that_is_woken_returns_and_what_has_come_is_not_lost(kernel: Kernel) -> None:
    kernel.events.wake()
    kernel.send(OFFLINE)
    assert not kernel.events.wait(DEADLINE_S)
    assert kernel.events.wait(DEADLINE_S)


def test_a_listener_that_is_closed_can_be_woken_in_vain() -> None:
    kernel = Kernel()
    kernel.close()
    kernel.events.wake()


names = st.binary(max_size=20).filter(lambda text: b"\0" not in text)
fields = st.lists(names.filter(lambda text: not text.startswith(b"SUBSYSTEM=")))


@given(st.binary(max_size=20_000))
@example(b"")
@example(b"\0" * 20_000)
@example(b"SUBSYSTEM=cpu")
@example(b"A" * 20_000)
def test_any_bytes_are_an_event(message: bytes) -> None:
    # What names no subsystem was not understood: the machine is looked at.
    assert concerns_cpus(message) or b"SUBSYSTEM=" in message
    with closing(Kernel()) as kernel:
        kernel.send(message, port=7)
        assert not kernel.events.wait(0)
        kernel.send(message)
        assert kernel.events.wait(0) == concerns_cpus(message[: 8 * 1024])


@given(fields, names, fields)
def test_the_subsystem_decides_wherever_it_stands(
    before: list[bytes], subsystem: bytes, after: list[bytes]
) -> None:
    message = b"\0".join([*before, b"SUBSYSTEM=" + subsystem, *after])
    assert concerns_cpus(message) == (subsystem == b"cpu")
