"""Pools that are sized by real load, in this machine's own cgroup v1."""

from __future__ import annotations

import os
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from cpupool.enforce.apply import bring
from cpupool.host.cgroupfs import CgroupFS
from cpupool.host.cpu_time import CPUTimes
from cpupool.plugins.config import Aims
from cpupool.plugins.config_file import parse
from cpupool.plugins.cpu import CPUPlugin
from cpupool.plugins.pool_sizer import PoolSizer
from cpupool.policies.layout import Layout
from tests.kernel import test_cpu_time_v1
from tests.kernel.test_cgroup_v1 import affinity
from tests.kernel.test_cpu_time_v1 import CPUACCT
from tests.kernel.v1 import CGROUP, CPUSETS, needed
from tests.machines import Machine
from tests.throttling import spinning
from tests.unit.plugins.asking import Asked, ask
from tests.waiting import eventually

if TYPE_CHECKING:
    from cpupool.core.cpu_time import CPUTime
    from tests.kernel.test_cpu_time_v1 import Node

node = test_cpu_time_v1.node
pytestmark = needed(CPUACCT, CPUSETS)
LAYOUT = Layout.of_topology(Machine(sockets=1, cores=2, threads=1).topology())
CONFIG = "pools: {online: {minCpus: 1}}\nroles: {web: {pool: online}}\n"
POD = "kubepods/burstable/podweb/one"


def test_a_pool_gets_a_cpu_for_real_load_and_gives_it_back(node: Node) -> None:
    """Its floor is one CPU, since this machine may have two."""
    node.make(POD, "0")
    idle = node.start(POD)
    tree = CgroupFS(CGROUP, f"/{node.root}")
    times = CPUTimes(Path("/proc"), CGROUP, f"/{node.root}")
    plugin = CPUPlugin(LAYOUT, parse("f.yaml", CONFIG), "mark")
    asked, sizer = Asked(plugin), PoolSizer()
    assert asked.allocate(ask("web", 1, "web")) == "0"

    def decided(reading: CPUTime, now_s: float) -> str:
        nonlocal sizer
        sizer = sizer.after(plugin, asked.state, reading, now_s)
        asked.state = plugin.resized(asked.state, sizer.sizes)
        bring(tree, f"{node.root}/{POD}", asked.state.pools["online"])
        return affinity(idle)

    with ExitStack() as load:
        pods = [CPUACCT / node.root / POD, CPUSETS / node.root / POD]
        load.enter_context(spinning([0, 0], *pods))
        for process in (CPUACCT / node.root / POD / "cgroup.procs").read_text().split():
            # Other programs of this machine do not make the pod's share smaller.
            os.sched_setscheduler(int(process), os.SCHED_RR, os.sched_param(1))
        began, began_s = times.read(waited=True), time.monotonic()
        assert decided(began, began_s) == "0"
        after = began

        def worked() -> bool:
            nonlocal after
            after = times.read(waited=True)
            return after.by_pod_us["web"] - began.by_pod_us["web"] > 500_000

        eventually(worked, "half a second of work")
        now_s = time.monotonic()
        assert decided(after, now_s) == "0-1"
    # One of two threads waits at any time.
    use = after.since(began, now_s - began_s)
    assert use.waiting["web"] > Aims().waiting
    for _ in range(3):
        now_s += 2 * Aims().pause_s
        last = decided(times.read(waited=True), now_s)
    assert last == "0"
