"""In-place resizes on the real kernel of a guest with siblings and two NUMA nodes, by NRI.

`test_node.py` runs this there. CPUs 0 to 7 are on one NUMA node; 2 and 3 are siblings, 4 and 5...
"""

from __future__ import annotations

import json
import os
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from cpupool.core.cpuset import CPUSet
from cpupool.host.cgroupfs import hierarchy
from cpupool.host.root import HostRoot
from cpupool.local.cgroups import RealCgroups
from tests.scenarios.test_embedded_node import living
from tests.vm.guest_koordinator import served
from tests.vm.inside import figure, runs_on, start
from tests.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from cpupool.core.workloads import PodUID
    from tests.scenarios.test_embedded_node import World

POOLS = """
pools:
  default: {cpus: "0-15"}
cpuManager: {policy: dynamic, reserved: "0-1", maxNoticeSeconds: 3600}
"""


@contextmanager
def resizing(folder: Path) -> Iterator[World]:
    """Run a node whose runtime asks the agent for each resize."""
    home = RealCgroups(*hierarchy(HostRoot().cgroup), home="")
    with living(folder, home, POOLS, HostRoot().sysfs, nri=True) as made:
        eventually(lambda: made.node.plugged, "the runtime asks the agent")
        yield made


def run(world: World, name: str, cpu: str, notice_s: int) -> PodUID:
    """Start a pod with a container of its name; return the pod's UID."""
    limits = {"cpu": cpu, "memory": "1Gi"}
    container = {"name": name, "resources": {"limits": limits, "requests": limits}}
    metadata = {"name": name, "annotations": {"nokia.k8s.io/cpu-notice-seconds": str(notice_s)}}
    start(world, {"metadata": metadata, "spec": {"containers": [container]}})
    served(world)
    (uid,) = (pod.uid for pod in world.node.pods() if pod.name == name)
    return uid


def pid_of(world: World, container: str) -> int:
    (pid,) = (one.instance.pid for one in world.node.processes() if one.container == container)
    return pid


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
        (mount,) = (
            one.instance.mounts["/run/cpupool/self"]
            for one in world.node.processes()
            if one.container == "own"
        )
        file = mount / "cpus.json"

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
