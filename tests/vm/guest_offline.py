"""How long a container strays when its only CPU goes offline, on the real kernel of a guest.

`test_node.py` runs this there; the machine is that of `guest_node.py`.
"""

from __future__ import annotations

import statistics
import time
from typing import TYPE_CHECKING

import pytest

from cpupool.agent.setup import SWEEP_INTERVAL_S
from cpupool.host.cgroupfs import CgroupVersion, hierarchy
from cpupool.host.root import HostRoot
from cpupool.local.cgroups import RealCgroups
from tests.scenarios.test_embedded_node import living, manifest
from tests.vm.guest_node import POOLS, offline, run, version
from tests.vm.inside import figure, runs_on, start
from tests.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.scenarios.test_embedded_node import World

_ROUNDS = 3


@pytest.fixture
def world(folder: Path) -> Iterator[World]:
    """A node whose agent sweeps as seldom as by default: it does nothing else meanwhile."""
    home = RealCgroups(*hierarchy(HostRoot().cgroup), home="")
    with living(folder, home, POOLS, HostRoot().sysfs, interval_s=SWEEP_INTERVAL_S) as made:
        yield made


def test_a_container_leaves_the_cpus_of_others_when_its_only_one_goes_offline(world: World) -> None:
    start(world, manifest("neighbour", {"other": {"exclusive_single": 1}}))
    run(world, one={"exclusive_single": 1})
    runs_on(world, other="2", one="4")
    (pod,) = (pod for pod in world.node.pods() if pod.name == "web")
    whole_ms, strayed_ms = [], []
    for _ in range(_ROUNDS):
        (process,) = (found for found in world.node.processes() if found.container == "one")
        begun_s = time.monotonic()
        with offline(4):
            offline_s = time.monotonic()
            eventually(
                lambda process=process: str(process.cpus_allowed()) == "0-1",  # type: ignore[misc]
                lambda process=process: f"on the default pool: {process.cpus_allowed()}",  # type: ignore[misc]
            )
            right_s = time.monotonic()
        whole_ms.append((right_s - begun_s) * 1000)
        strayed_ms.append((right_s - offline_s) * 1000)
        if version(world) is CgroupVersion.V1:
            # The kernel has moved its processes into the pod's cgroup, and never moves them back.
            runs_on(world, other="2", one="0-1,4")
            world.node.restart_container(pod.uid, "one")
        runs_on(world, other="2", one="4")
    figure(f"switched off to right {_told(whole_ms)}; since the CPU is off {_told(strayed_ms)}")


def _told(found_ms: list[float]) -> str:
    return f"{statistics.median(found_ms):.0f} ms ({min(found_ms):.0f}-{max(found_ms):.0f})"
