from __future__ import annotations

import errno
import os
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from cpupool.core.errors import HostError
from cpupool.host.uevents import CPUEvents
from tests.netlink import NETWORK, OFFLINE, Kernel
from tests.waiting import DEADLINE_S

if TYPE_CHECKING:
    import socket
    from collections.abc import Iterator


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
