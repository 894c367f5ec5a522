"""What the tests that run inside a guest share: `guest_*.py`, which pytest is given by name there.

Outside nobody collects them. Each has its counterpart `test_*.py`, which boots the guest.
"""

from __future__ import annotations

import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from cpupool.core.errors import PodRefused
from cpupool.host.root import HostRoot
from cpupool.host.sysfs import Sysfs
from tests.vm.machine import FIGURE
from tests.vm.test_topology import expected
from tests.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.scenarios.test_embedded_node import World
    from tests.vm.machine import Topology


HOG_MIB: Final = 16
_HOG: Final = """
import sys
sys.stdin.readline()
kept = bytearray(b"x") * (int(sys.argv[1]) << 20)
print("filled", flush=True)
sys.stdin.readline()
"""


def figure(text: str) -> None:
    """Log something that was measured."""
    print(f"\n{FIGURE}{text}")  # noqa: T201  # the guest has no other way to the host's log


def reads(asked: Topology) -> None:
    """Fail unless the topology that cpupool reads is the one that QEMU was asked for."""
    read = Sysfs.at(HostRoot().sysfs).topology()
    placed = {
        cpu: (info.core, info.socket, info.node, str(read.core_of(cpu)))
        for cpu, info in read.cpus.items()
    }
    assert placed == {cpu: expected(asked, cpu) for cpu in range(asked.cpus)}


def start(world: World, body: dict[str, Any]) -> None:
    """Start a pod as a controller does, which makes another where the kubelet refuses one.

    The kubelet does until it knows the pools, and where a plugin is slow, as all is in a guest.
    """
    refusals: list[str] = []

    def admitted() -> bool:
        try:
            world.node.run_pod(body)
        except PodRefused as error:
            refusals.append(str(error))
            return False
        return True

    eventually(admitted, lambda: f"admitted: {refusals[-1]}")


def runs_on(world: World, **expected: str) -> None:
    """Wait until the kernel lets the containers' processes run on these CPUs, by container."""

    def now() -> dict[str, str]:
        return {one.container: str(one.cpus_allowed()) for one in world.node.processes()}

    eventually(lambda: expected.items() <= now().items(), lambda: f"{expected}: {now()}")


@contextmanager
def hog(cgroup: Path) -> Iterator[subprocess.Popen[str]]:
    """Let a process in a cgroup fill `HOG_MIB` of memory."""
    command = [sys.executable, "-c", _HOG, str(HOG_MIB)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:
        try:
            (cgroup / "cgroup.procs").write_text(str(process.pid))
            assert process.stdin
            assert process.stdout
            process.stdin.write("\n")
            process.stdin.flush()
            assert process.stdout.readline() == "filled\n"
            yield process
        finally:
            process.kill()
