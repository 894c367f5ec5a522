"""The agent on the real kernel of a guest, cgroup version 1 or 2; `test_node.py` runs this there.

The machine has 2 sockets of 4 cores of 2 threads: 2 and 3 are siblings, 4 and 5, 6 and 7...
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from cpupool.host.cgroupfs import CgroupVersion, hierarchy
from cpupool.host.root import HostRoot
from cpupool.local.cgroups import RealCgroups
from tests.scenarios.test_embedded_node import World, living, manifest
from tests.throttling import QUIET_S, spinning, throttled
from tests.vm.inside import reads, runs_on, start
from tests.vm.test_node import TOPOLOGY
from tests.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

POOLS = """
pools:
  exclusive_single: {cpus: "2,4", hyperThreadingPolicy: singleThreaded}
  exclusive_multi: {cpus: "8,10,14", hyperThreadingPolicy: multiThreaded}
  shared_x: {cpus: "6-7,12-13"}
  default: {cpus: "0-1"}
"""


@pytest.fixture
def world(folder: Path) -> Iterator[World]:
    # At the root of the hierarchy, as on most nodes: with a CPU that comes back, version 1 gives it
    # to no other cgroup.
    home = RealCgroups(*hierarchy(HostRoot().cgroup), home="")
    with living(folder, home, POOLS, HostRoot().sysfs) as made:
        yield made


def run(world: World, **containers: Mapping[str, int]) -> None:
    """Start a pod: container → pool → amount."""
    start(world, manifest("web", containers))


@contextmanager
def offline(cpu: int) -> Iterator[None]:
    """Switch a CPU off, and on again."""
    file = HostRoot().sysfs / f"devices/system/cpu/cpu{cpu}/online"
    file.write_text("0")
    try:
        yield
    finally:
        file.write_text("1")


def version(world: World) -> CgroupVersion:
    return hierarchy(world.node.root.cgroup)[1]


def test_the_topology_read_is_the_one_asked_of_qemu() -> None:
    reads(TOPOLOGY)


def test_containers_run_on_the_threads_that_their_pools_policy_says(world: World) -> None:
    run(
        world,
        one={"exclusive_single": 1},
        core={"exclusive_multi": 1},
        cores={"exclusive_multi": 2},
        shared={"shared_x": 100},
        both={"exclusive_single": 1, "shared_x": 100},
        plain={},
    )
    runs_on(
        world,
        one="2",
        core="8-9",
        cores="10-11,14-15",
        shared="6-7,12-13",
        both="4,6-7,12-13",
        plain="0-1",
    )


def test_what_a_cpu_takes_with_it_offline_comes_back_with_it(world: World) -> None:
    run(world, one={"exclusive_single": 1}, shared={"shared_x": 100}, plain={})
    runs_on(world, one="2", shared="6-7,12-13", plain="0-1")
    with offline(13):
        runs_on(world, one="2", shared="6-7,12", plain="0-1")
    runs_on(world, one="2", shared="6-7,12-13", plain="0-1")


def test_nested_cgroups_follow_their_container(world: World) -> None:
    run(world, main={"exclusive_multi": 2})
    runs_on(world, main="8-11")
    container, inner = nested(world, "main")

    def both_written() -> bool:
        try:
            for directory, cpus in ((container, "0-15"), (inner, "12-13")):
                (directory / "cpuset.cpus").write_text(cpus)
        except PermissionError:
            return False  # version 1, and the container is repaired already
        return True

    eventually(both_written, "somebody has moved the container and what is nested in it")
    runs_on(world, main="8-11")


def test_no_thread_of_a_mixed_container_is_throttled(world: World) -> None:
    if version(world) is CgroupVersion.V1:
        pytest.skip("the embedded node lives in the cpuset hierarchy alone")
    run(world, main={"exclusive_multi": 1, "shared_x": 1000}, light={"shared_x": 500})
    runs_on(world, main="6-9,12-13", light="6-7,12-13")
    base, _ = hierarchy(world.node.root.cgroup)
    main, light = directory(world, "main"), directory(world, "light")
    # What the kubelet and the runtime have made of it.
    for above in reversed(main.parents):
        if above.is_relative_to(base):
            (above / "cgroup.subtree_control").write_text("+cpu")
    two_cpus, busy = "200000 100000\n", [8, 9, 6]
    without = base / "without"
    without.mkdir()
    try:
        (without / "cpu.max").write_text(two_cpus)
        with spinning(busy, without):
            eventually(lambda: throttled(without), "two CPUs are too little for three threads")
    finally:
        without.rmdir()

    settled = {main.parent: "max 100000\n", main: "max 100000\n", light: "50000 100000\n"}

    def quotas() -> dict[Path, str]:
        return {cgroup: (cgroup / "cpu.max").read_text() for cgroup in settled}

    def throttles() -> int:
        return throttled(main) + throttled(main.parent)

    eventually(lambda: quotas() == settled, lambda: f"{settled}: {quotas()}")
    with spinning(busy, main):
        threading.Event().wait(QUIET_S)
        assert throttles() == 0

        for cgroup in settled:
            (cgroup / "cpu.max").write_text(two_cpus)
        eventually(lambda: quotas() == settled, lambda: f"{settled}: {quotas()}")
        before = throttles()
        threading.Event().wait(1)
        assert throttles() == before


def directory(world: World, name: str) -> Path:
    """Give the cgroup of a container."""
    (process,) = (one for one in world.node.processes() if one.container == name)
    return hierarchy(world.node.root.cgroup)[0] / world.node.path_of(process)


def nested(world: World, name: str) -> tuple[Path, Path]:
    """Make a cgroup below a container's and move its process there, as systemd in one does."""
    (process,) = (one for one in world.node.processes() if one.container == name)
    base, _ = hierarchy(world.node.root.cgroup)
    container = directory(world, name)
    inner = container / "init"
    inner.mkdir()
    if version(world) is CgroupVersion.V1:
        for file in ("cpuset.mems", "cpuset.cpus"):
            (inner / file).write_text((container / file).read_text())
    (inner / "cgroup.procs").write_text(str(process.instance.pid))
    if version(world) is CgroupVersion.V2:
        # From the top down, and in cgroups without processes: "Controlling Controllers".
        for above in reversed((container, *container.parents)):
            if above.is_relative_to(base):
                (above / "cgroup.subtree_control").write_text("+cpuset")
        (inner / "cpuset.cpus").write_text((container / "cpuset.cpus").read_text())
    return container, inner
