"""In-place resizes on the real kernel of a guest with siblings and two NUMA nodes, by NRI.

`test_node.py` runs this there. CPUs 0 to 7 are on one NUMA node; 2 and 3 are siblings, 4 and 5...
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from cpupool.core.cpuset import CPUSet
from cpupool.host.cgroupfs import hierarchy
from cpupool.host.root import HostRoot
from cpupool.local.cgroups import RealCgroups
from tests.scenarios.test_embedded_node import living
from tests.scenarios.test_examples import compiled
from tests.scenarios.test_own_cpus import await_line, following
from tests.vm.guest_koordinator import served
from tests.vm.guest_node import directory
from tests.vm.inside import figure, runs_on, start
from tests.waiting import DEADLINE_S, eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cpupool.core.workloads import PodUID
    from tests.scenarios.test_embedded_node import World

POOLS = """
pools:
  default: {cpus: "0-15"}
cpuManager: {policy: dynamic, reserved: "0-1", maxNoticeSeconds: 3600}
"""
MOVING = """
pools:
  default: {cpus: "0-15"}
cpuManager:
  policy: dynamic
  reserved: "0-1"
  topologyPolicy: single-numa-node
  maxNoticeSeconds: 3600
  compaction: {movesPerHour: 2, minimumAgeSeconds: 0}
"""
HERE = Path(__file__).parent
INSIDE, OUTSIDE = "192.0.2.1", "192.0.2.2"
RATE = 200
"""Packets a second for each queue."""


@contextmanager
def resizing(folder: Path, pools: str = POOLS) -> Iterator[World]:
    """Run a node whose runtime asks the agent for each resize."""
    home = RealCgroups(*hierarchy(HostRoot().cgroup), home="")
    with living(folder, home, pools, HostRoot().sysfs, nri=True) as made:
        eventually(lambda: made.node.plugged, "the runtime asks the agent")
        yield made


def run(
    world: World, name: str, cpu: str, notice_s: int, *, moves: str = "never", waits: bool = False
) -> PodUID:
    """Start a pod with a container of its name, unless it waits; return the pod's UID."""
    limits = {"cpu": cpu, "memory": "1Gi"}
    container = {"name": name, "resources": {"limits": limits, "requests": limits}}
    words = {"nokia.k8s.io/cpu-notice-seconds": str(notice_s), "nokia.k8s.io/cpu-moves": moves}
    metadata = {"name": name, "annotations": words, "creationTimestamp": "2026-01-01T00:00:00Z"}
    start(world, {"metadata": metadata, "spec": {"containers": [container]}})
    if not waits:
        served(world)
    (uid,) = (pod.uid for pod in world.node.pods() if pod.name == name)
    return uid


def pid_of(world: World, container: str) -> int:
    (pid,) = (one.instance.pid for one in world.node.processes() if one.container == container)
    return pid


def own_folder(world: World, container: str) -> Path:
    """Give the folder that a container has at `/run/cpupool/self`."""
    (mount,) = (
        one.instance.mounts["/run/cpupool/self"]
        for one in world.node.processes()
        if one.container == container
    )
    return mount


def test_a_container_grows_and_shrinks_on_the_real_kernel(folder: Path) -> None:
    with resizing(folder) as world:
        uid = run(world, "own", "2", notice_s=0)
        run(world, "plain", "500m", notice_s=0)
        runs_on(world, own="2-3", plain="0-1,4-15")

        begun_s = time.monotonic()
        world.node.resize(uid, {"own": "4"})
        grown_s = time.monotonic() - begun_s
        # The answer moves the neighbour, and the container, before the kubelet knows.
        runs_on(world, own="2-5", plain="0-1,6-15")

        pid = pid_of(world, "own")
        os.sched_setaffinity(pid, {5})
        begun_s = time.monotonic()
        world.node.resize(uid, {"own": "3"})
        eventually(lambda: 5 not in os.sched_getaffinity(pid), "the kernel moves it")
        taken_s = time.monotonic() - begun_s
        runs_on(world, plain="0-1,5-15")
        assert CPUSet(os.sched_getaffinity(pid)) <= CPUSet.parse("2-4")
        figure(f"resize 2 to 4: {grown_s * 1000:.0f} ms; 4 to 3: {taken_s * 1000:.0f} ms")


def test_a_thread_that_follows_the_notice_keeps_its_cpu_and_ends_the_notice(folder: Path) -> None:
    with resizing(folder) as world:
        uid = run(world, "own", "2", notice_s=3600)
        runs_on(world, own="2-3")
        world.node.resize(uid, {"own": "4"})
        file = own_folder(world, "own") / "cpus.json"

        def told(**expected: str) -> None:
            eventually(
                lambda: expected.items() <= json.loads(file.read_text()).items(), file.read_text
            )

        pid = pid_of(world, "own")
        os.sched_setaffinity(pid, {5})
        world.node.resize(uid, {"own": "3"})
        told(cpus="2-5", assigned="2-4")
        # The CPUs are in force while the notice lasts.
        runs_on(world, own="5")
        world.node.resize(uid, {"own": "4"})
        told(cpus="2-5", assigned="2-5")
        assert os.sched_getaffinity(pid) == {5}

        world.node.resize(uid, {"own": "3"})
        told(cpus="2-5", assigned="2-4")
        os.sched_setaffinity(pid, {4})
        begun_s = time.monotonic()
        told(cpus="2-4", assigned="2-4")
        assert os.sched_getaffinity(pid) == {4}
        figure(f"a notice that a thread has followed: {time.monotonic() - begun_s:.1f} s more")


def test_a_pod_that_waits_starts_after_a_container_has_moved_to_another_node(folder: Path) -> None:
    with resizing(folder, MOVING) as world:
        run(world, "first", "2", notice_s=0)
        second = run(world, "second", "4", notice_s=0)
        run(world, "movable", "4", notice_s=3600, moves="any")
        runs_on(world, first="2-3", second="4-7", movable="8-11")
        file, pid = own_folder(world, "movable") / "cpus.json", pid_of(world, "movable")
        os.sched_setaffinity(pid, {9})
        world.node.delete_pod(second)

        begun_s = time.monotonic()
        run(world, "late", "8", notice_s=0, waits=True)
        eventually(lambda: json.loads(file.read_text())["assigned"] == "4-7", file.read_text)
        told_s = time.monotonic() - begun_s
        # The old CPUs are in force while the notice lasts, and the thread follows to a new one.
        assert os.sched_getaffinity(pid) == {9}
        os.sched_setaffinity(pid, {5})
        served(world)
        runs_on(world, first="2-3", movable="5", late="8-15")
        assert json.loads(file.read_text())["cpus"] == "4-7"
        figure(
            f"compaction: told after {told_s * 1000:.0f} ms; the pod that waits runs after"
            f" {time.monotonic() - begun_s:.1f} s"
        )


@contextmanager
def wire() -> Iterator[None]:
    """Join two network namespaces, `inside` and `outside`, by a veth pair."""
    if shutil.which("ip") is None:
        pytest.skip("ip is not here: apt install iproute2")
    made = {"inside": INSIDE, "outside": OUTSIDE}
    try:
        for name in made:
            _ip("netns", "add", name)
        ends = [("netns", name, "name", "wire") for name in made]
        _ip("link", "add", *ends[0], "type", "veth", "peer", *ends[1])
        for name, address in made.items():
            _ip("-netns", name, "address", "add", f"{address}/24", "dev", "wire")
            _ip("-netns", name, "link", "set", "wire", "up")
        yield
    finally:
        for name in made:
            _ip("netns", "delete", name)


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)


def within(namespace: str, *command: str | Path) -> list[str | Path]:
    """Give a command that runs in a network namespace."""
    return ["nsenter", f"--net=/run/netns/{namespace}", *command]


class Sender:
    """Sends packets to each queue at a steady rate, from outside and on a CPU of its own."""

    def __init__(self, program: Path, phase: int, count: int = 2**31) -> None:
        words = (INSIDE, str(phase), str(RATE), str(count))
        self._process = subprocess.Popen(
            within("outside", program, *words), stdout=subprocess.PIPE, text=True
        )
        os.sched_setaffinity(self._process.pid, {0})

    def sent(self, *, ends: bool = False) -> int:
        """Wait for the end, or bring it about, and say how many packets each queue has got."""
        if ends:
            self._process.terminate()
        told, _ = self._process.communicate(timeout=DEADLINE_S)
        return int(told.split()[0])


def test_a_poller_loses_no_packet_while_its_cpus_come_and_leave(folder: Path) -> None:
    poller, sender = (
        compiled(HERE / f"{name}.c", ("-O2",), folder) for name in ("poller", "sender")
    )
    with resizing(folder) as world, wire():
        uid = run(world, "own", "2", notice_s=3600)
        run(world, "plain", "500m", notice_s=0)
        runs_on(world, own="2-3", plain="0-1,4-15")
        # In the container's cgroup before its first instruction.
        enters = ("sh", "-c", 'echo $$ > "$0/cgroup.procs" && exec "$@"')
        polls = within("inside", poller, own_folder(world, "own"))
        command: list[str | Path] = [*enters, directory(world, "own"), *polls]
        with following(command, folder / "told") as app:
            await_line(app, r"generation \d+: cpus 2-3, assigned 2-3, pinned")
            traffic = Sender(sender, phase=1)

            begun_s = time.monotonic()
            world.node.resize(uid, {"own": "4"})
            eventually(lambda: app.threads()[1] == {"2", "3", "4", "5"}, lambda: str(app.told))
            grown_s = time.monotonic() - begun_s

            begun_s = time.monotonic()
            world.node.resize(uid, {"own": "2"})
            await_line(app, r"generation \d+: cpus 2-5, assigned 2-3, pinned, left .* s early")
            left_s = time.monotonic() - begun_s
            runs_on(world, plain="0-1,4-15")
            given_back_s = time.monotonic() - begun_s
            await_line(app, r"generation \d+: cpus 2-3, assigned 2-3, pinned")
            assert app.threads()[1] == {"2", "3"}

            resized = traffic.sent(ends=True)
            control = Sender(sender, phase=0, count=resized).sent()
        assert app.process.returncode == 0, app.told
    told = "\n".join(app.told)
    lost = {
        phase: sum(sent - int(got) for got in re.findall(rf"phase {phase}, .*: (\d+)", told))
        for phase, sent in ((0, control), (1, resized))
    }
    figure(
        f"poller, {RATE} packets/s for each queue: {resized} sent to each in both phases, lost"
        f" {lost[1]}, without a resize {lost[0]}"
    )
    figure(
        f"poller: its threads have new CPUs after {grown_s * 1000:.0f} ms, leave after"
        f" {left_s * 1000:.0f} ms; they are others' after {given_back_s * 1000:.0f} ms"
    )
    assert "0 rounds on another CPU" in app.told
    assert lost[1] <= lost[0], told
