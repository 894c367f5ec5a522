"""CPUs that another cgroup has taken, on the real kernel of a guest with cgroup version 2.

`test_node.py` runs this there; the machine is that of `guest_node.py`.
"""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from cpupool.agent.setup import SWEEP_INTERVAL_S
from cpupool.host.cgroupfs import hierarchy
from cpupool.host.root import HostRoot
from cpupool.local.cgroups import RealCgroups
from tests.scenarios.test_embedded_node import living, manifest
from tests.vm.guest_node import POOLS, run
from tests.vm.inside import runs_on, start
from tests.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cpupool.core.workloads import Pod
    from cpupool.enforce.sweep import SweepReport
    from tests.scenarios.test_embedded_node import World

BASE = Path("/sys/fs/cgroup")


class Told:
    """The Events, and what the sweeps could not repair."""

    def __init__(self) -> None:
        self.events: list[tuple[str, str, str]] = []
        self.refused: list[str] = []

    def pod(self, pod: Pod, reason: str, message: str, *, warning: bool = True) -> None:
        self.events.append((pod.name, reason, message))

    def node(self, reason: str, message: str, *, warning: bool = True) -> None:
        self.events.append(("", reason, message))

    def swept(self, report: SweepReport) -> None:
        self.refused += [repair.error for repair in report.repairs if repair.error]

    def about(self, reason: str) -> list[tuple[str, str]]:
        return [(pod, message) for pod, event, message in self.events if event == reason]


@pytest.fixture
def told() -> Told:
    return Told()


@pytest.fixture
def world(folder: Path, told: Told) -> Iterator[World]:
    """A node whose agent sweeps as seldom as by default: it does nothing else meanwhile."""
    home = RealCgroups(*hierarchy(HostRoot().cgroup), home="")
    sysfs, seldom_s = HostRoot().sysfs, SWEEP_INTERVAL_S
    with living(
        folder, home, POOLS, sysfs, interval_s=seldom_s, events=told, observe=told.swept
    ) as made:
        yield made


@contextmanager
def partition(cpus: str) -> Iterator[str]:
    """Take CPUs as systemd does for a unit with `CPUSetPartition=isolated`."""
    unit = BASE / "dpdk.service"
    unit.mkdir()
    try:
        (unit / "cpuset.cpus").write_text(cpus)
        (unit / "cpuset.cpus.partition").write_text("isolated")
        assert (unit / "cpuset.cpus.partition").read_text() == "isolated\n"
        yield "/dpdk.service"
    finally:
        unit.rmdir()


@contextmanager
def limit(cpus: str) -> Iterator[str]:
    """Limit kubepods as systemd does for a slice with `AllowedCPUs=`."""
    file = BASE / "kubepods/cpuset.cpus"
    file.write_text(cpus)
    try:
        yield "/kubepods"
    finally:
        file.write_text("0-15")  # the kernel takes no empty set of a cgroup with processes


def test_an_owner_leaves_a_cpu_that_is_taken_and_returns(world: World, told: Told) -> None:
    world.settled(exclusive_single=2)
    start(world, manifest("neighbour", {"other": {"exclusive_single": 1}}))
    run(world, one={"exclusive_single": 1}, shared={"shared_x": 100})
    for taking in (partition("2"), limit("0-1,3-15")):
        runs_on(world, other="2", one="4", shared="6-7,12-13")
        world.settled(exclusive_single=2)
        told.events.clear()
        with taking as cgroup:
            runs_on(world, other="0-1", one="4", shared="6-7,12-13")
            world.settled(exclusive_single=1)
            eventually(lambda: told.about("CPUOffline"), "an Event")
        runs_on(world, other="2", one="4", shared="6-7,12-13")
        ((pod, message),) = told.about("CPUOffline")
        assert (pod, cgroup in message) == ("neighbour", True)
    # The sweep may look before the machine watcher does.
    assert len(told.refused) <= 1
