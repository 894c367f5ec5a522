"""Events of this machine's own kernel: it repeats one for a writer of a `uevent` file."""

from __future__ import annotations

import errno
import logging
import os
import socket
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from cpupool.core.cpuset import CPUSet
from cpupool.core.errors import HostError
from cpupool.host import uevents
from cpupool.host.uevents import CPUEvents
from cpupool.local.cgroups import EmulatedCgroups
from tests.machines import MACHINES
from tests.scenarios.test_embedded_node import POOLS, living
from tests.waiting import DEADLINE_S

if TYPE_CHECKING:
    from collections.abc import Sequence

log = logging.getLogger(__name__)

CPU = Path("/sys/devices/system/cpu/cpu0/uevent")
LISTEN = """
from cpupool.host.uevents import CPUEvents
events = CPUEvents()
print(events.silence or "listening", flush=True)
print(events.wait(float(input())), flush=True)
"""
ALONE = ("unshare", "--net")
POWERLESS = ("setpriv", "--bounding-set=-all", "--inh-caps=-all", "--no-new-privs")


def _why_not() -> str:
    if not os.access(CPU, os.W_OK):
        return f"{CPU} is not writable: run the tests as root"
    try:
        uevents.connected().close()
    except HostError as error:
        return str(error)
    return ""


WHY_NOT = _why_not()
pytestmark = pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)


def send() -> None:
    """Let the kernel send an event of a CPU that changes nothing."""
    CPU.write_text("change")


def started(*command: str) -> subprocess.Popen[str]:
    if subprocess.run(
        [*command, "true"], capture_output=True, timeout=DEADLINE_S, check=False
    ).returncode:
        pytest.skip(f"{command[0]} is not permitted here, or not there")
    return subprocess.Popen(
        [*command, sys.executable, "-c", LISTEN],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize(
    "command",
    [pytest.param((), id="as the tests"), pytest.param((*ALONE, *POWERLESS), id="as in a pod")],
)
def test_a_process_hears_of_cpus_in_a_network_of_its_own_and_without_capabilities(
    command: Sequence[str],
) -> None:
    with started(*command) as process:
        assert process.stdin
        assert process.stdout
        assert process.stdout.readline() == "listening\n"
        send()
        process.stdin.write(f"{DEADLINE_S}\n")
        process.stdin.flush()
        assert process.stdout.readline() == "True\n"


def test_a_process_in_a_user_namespace_of_its_own_knows_that_it_hears_nothing() -> None:
    with started("unshare", "--user", "--map-root-user", "--net") as process:
        said, _ = process.communicate("0\n", DEADLINE_S)
    assert said.splitlines()[0].endswith("set hostUsers: true")


def test_an_event_that_a_program_sends_has_its_port() -> None:
    """So it is told from the kernel's."""
    message = b"offline@/devices/system/cpu/cpu1\0SUBSYSTEM=cpu\0FORGED=%d\0" % os.getpid()
    with (
        uevents.connected() as hearing,
        socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, hearing.proto) as forging,
    ):
        forging.bind((0, 0))
        try:
            forging.sendto(message, (0, 1))
        except PermissionError:
            pytest.skip("not permitted to send events: the kernel keeps them apart itself")
        hearing.settimeout(DEADLINE_S)
        heard, port = b"", 0
        while heard != message:
            heard, (port, _) = hearing.recvfrom(8192)
        assert port == forging.getsockname()[0] != 0


class Small(socket.socket):
    """A socket with the least room for events, which remembers how reading failed."""

    failures: frozenset[str] = frozenset()

    def recvfrom(self, bufsize: int, flags: int = 0) -> tuple[bytes, tuple[int, int]]:
        try:
            return super().recvfrom(bufsize, flags)
        except OSError as error:
            self.failures |= {errno.errorcode[error.errno or 0]}
            raise


def test_more_events_than_there_is_room_for_say_look_now() -> None:
    small = Small(fileno=uevents.connected().detach())
    small.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
    with closing(CPUEvents(lambda: small)) as events:
        for _ in range(100):
            send()
        assert events.wait(DEADLINE_S)
        assert "ENOBUFS" in small.failures
        while events.wait(0):
            pass
        send()
        assert events.wait(DEADLINE_S)
        assert events.silence == ""


def test_a_container_leaves_a_cpu_as_soon_as_the_kernel_says_that_it_is_offline(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cpupool.agent.machine_watcher._LOOK_S", 3600.0)
    machine = MACHINES["arm_no_smt"].write(folder)
    with (
        EmulatedCgroups(folder, machine.topology().online, "a test") as home,
        living(folder, home, POOLS, machine.sys) as world,
    ):
        world.settled(exclusive_a=4)
        world.run("owner", main={"exclusive_a": 1})
        world.eventually("owner", main="2")
        for _ in range(5):
            machine.switch_off(CPUSet.of(2))
            begun_s = time.monotonic()
            send()
            world.eventually("owner", main="0-1")
            log.info("offline to right: %.1f ms", (time.monotonic() - begun_s) * 1000)
            machine.switch_on(CPUSet.of(2))
            send()
            world.eventually("owner", main="2")
