"""Koordinator's classes on the real kernel of a guest with two NUMA nodes, by NRI.

`test_node.py` runs this there. CPUs 0 to 7 are on one NUMA node, 8 to 15 on the other; 2 and 3 are
siblings, 4 and 5, 6 and 7...
"""

from __future__ import annotations

import json
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from cpupool.core.cpuset import CPUSet
from cpupool.host.cgroupfs import CgroupFS, CgroupVersion, hierarchy
from cpupool.host.root import HostRoot
from cpupool.local.cgroups import RealCgroups
from cpupool.policies.koordinator.pod_annotations import QOS_CLASS, RESOURCE_SPEC, RESOURCE_STATUS
from tests.scenarios.test_embedded_node import living
from tests.throttling import spinning
from tests.vm.guest_node import directory, nested, version
from tests.vm.inside import runs_on, start
from tests.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from cpupool.core.workloads import PodUID
    from tests.scenarios.test_embedded_node import World

POOLS = """
pools:
  default: {{cpus: "0-15"}}
cpuManager: {{policy: koordinator, reserved: "0,8", {more}}}
"""
ALL = "0-15"
_RETRY_S = 1.0
SUPPRESSED = "resourceUsedThresholdWithBE: {enable: true, cpuSuppressThresholdPercent: 50}"
BUSY = (4, 5, 6, 7, 9)
"""With the two reserved CPUs they leave one of the eight that the threshold allows."""


@contextmanager
def governed(folder: Path, more: str = "topologyPolicy: none") -> Iterator[World]:
    """Run a node with one reserved CPU on each NUMA node, whose runtime asks the agent."""
    home = RealCgroups(*hierarchy(HostRoot().cgroup), home="")
    pools = POOLS.format(more=more)
    with living(folder, home, pools, HostRoot().sysfs, nri=True) as made:
        eventually(lambda: made.node.plugged, "the runtime asks the agent")
        yield made


def run(
    world: World, name: str, qos: str, cpu: int = 0, *, cpuset: str = "", binds: str = ""
) -> PodUID:
    """Start a pod of a class with a container of its name; return the pod's UID."""
    container: dict[str, Any] = {"name": name}
    if cpu:
        container["resources"] = {"limits": {"cpu": str(cpu), "memory": "1Gi"}}
    annotations = {}
    if cpuset:
        annotations[RESOURCE_STATUS] = json.dumps({"cpuset": cpuset})
    if binds:
        annotations[RESOURCE_SPEC] = json.dumps({"preferredCPUBindPolicy": binds})
    metadata = {"name": name, "labels": {QOS_CLASS: qos}, "annotations": annotations}
    start(world, {"metadata": metadata, "spec": {"containers": [container]}})
    (uid,) = (pod.uid for pod in world.node.pods() if pod.name == name)
    return uid


def served(world: World) -> None:
    """Start what the agent holds."""
    _tried(world, lambda held: not held)


def refused(world: World, uid: PodUID, why: str) -> None:
    """Wait until the agent holds a pod for a reason, not for what it has not read yet."""
    _tried(world, lambda held: why in held.get(uid, ""))


def _tried(world: World, settled: Callable[[dict[PodUID, str]], bool]) -> None:
    """Start what the agent holds, as the kubelet tries again and again, with a pause."""

    def tried() -> bool:
        world.node.try_again()
        if settled(world.node.held()):
            return True
        # The agent needs the CPU to get the kubelet's word.
        threading.Event().wait(_RETRY_S)
        return False

    eventually(tried, lambda: str(world.node.held()))


def allowed(world: World) -> dict[str, str]:
    """Return container → the CPUs that the kernel lets its process run on."""
    return {
        one.container: str(one.cpus_allowed()) for one in world.node.processes() if one.container
    }


def test_owners_lie_in_whole_cores_of_one_numa_node_and_lsr_lends(folder: Path) -> None:
    with governed(folder, "topologyPolicy: single-numa-node") as world:
        run(world, "ls", "LS")
        run(world, "be", "BE")
        served(world)
        runs_on(world, ls=ALL, be=ALL)

        lsr = run(world, "lsr", "LSR", 4)
        served(world)
        assert allowed(world) == {"ls": "0-1,6-15", "be": ALL, "lsr": "2-5"}
        run(world, "lse", "LSE", 6)
        served(world)
        assert allowed(world) == {"ls": "0-1,6-9", "be": "0-9", "lsr": "2-5", "lse": "10-15"}

        # Three CPUs are free on one NUMA node, one on the other.
        late = run(world, "late", "LSR", 4)
        refused(world, late, "Topology")
        world.node.delete_pod(lsr)
        served(world)
        runs_on(world, ls="0-1,6-9", be="0-9", lse="10-15", late="2-5")


def test_the_shared_set_follows_each_owner_down_to_the_reserved_cpus(folder: Path) -> None:
    arrivals = {"one": (6, "0-1,8-15"), "two": (6, "0-1,8-9"), "three": (2, "0,8")}
    with governed(folder) as world:
        run(world, "main", "LS")
        served(world)
        runs_on(world, main=ALL)
        # A cgroup is narrowed after the one in it, and widened before: version 1 refuses the other
        # order.
        with watched(*nested(world, "main")) as seen:
            owners = []
            for name, (cpu, rest) in arrivals.items():
                owners.append(run(world, name, "LSE", cpu))
                served(world)
                assert allowed(world)["main"] == rest
            over = run(world, "over", "LSE", 1)
            refused(world, over, "not enough cpus")
            for uid in (over, *owners):
                world.node.delete_pod(uid)
            runs_on(world, main=ALL)
        assert {CPUSet.parse(cpus) for cpus in (ALL, "0,8")} <= seen
        assert CPUSet() not in seen


def test_a_bursting_pod_stays_on_a_numa_node_until_that_has_fewer_cpus_than_its_limit(
    folder: Path,
) -> None:
    with governed(folder) as world:
        run(world, "ls", "LS")
        run(world, "burst", "LS", 4, binds="ConstrainedBurst")
        served(world)
        runs_on(world, ls=ALL, burst="0-7")
        with watched(*nested(world, "burst")) as seen:
            run(world, "near", "LSE", 3, cpuset="2-4")
            served(world)
            runs_on(world, near="2-4", ls="0-1,5-15", burst="0-1,5-7")
            last = run(world, "last", "LSE", 2, cpuset="5-6")
            served(world)
            runs_on(world, last="5-6", ls="0-1,7-15", burst="8-15")
            world.node.delete_pod(last)
            runs_on(world, ls="0-1,5-15", burst="8-15")
        assert CPUSet() not in seen


def test_best_effort_containers_leave_cpus_to_a_load_and_return_after_it(folder: Path) -> None:
    idle, narrow = "0,2-3,8,10-11", "0,8"
    with governed(folder, SUPPRESSED) as world:
        run(world, "ls", "LS")
        run(world, "be", "BE")
        served(world)
        runs_on(world, ls=ALL, be=idle)
        with cgroups_of(world, "ls") as cgroups, spinning(BUSY, *cgroups):
            runs_on(world, ls=ALL, be=narrow)
            run(world, "late", "BE")
            served(world)
            # An emulated CPU's load is no even one: a CPU more may be free for a moment.
            runs_on(world, ls=ALL, be=narrow, late=narrow)
            tree, container = CgroupFS(world.node.root.cgroup), directory(world, "late")
            above = [
                str(one.relative_to(hierarchy(world.node.root.cgroup)[0]))
                for one in (container.parent, container.parent.parent)
            ]
            assert [str(tree.effective(one)) for one in above] == [ALL, ALL]
        runs_on(world, ls=ALL, be=idle, late=idle)


@contextmanager
def cgroups_of(world: World, name: str) -> Iterator[list[Path]]:
    """Give the cgroups of a container, with that of its CPU time."""
    cpusets = directory(world, name)
    if version(world) is CgroupVersion.V2:
        yield [cpusets]
        return
    base = hierarchy(world.node.root.cgroup)[0]
    below = cpusets.relative_to(base)
    accounts = world.node.root.cgroup / "cpu,cpuacct"
    (accounts / below).mkdir(parents=True)
    try:
        yield [cpusets, accounts / below]
    finally:
        for made in (below, *below.parents[:-1]):
            (accounts / made).rmdir()


@contextmanager
def watched(*cgroups: Path) -> Iterator[set[CPUSet]]:
    """Collect the sets that cgroups have until the block ends."""
    seen: set[CPUSet] = set()
    stop = threading.Event()

    def watch() -> None:
        while not stop.wait(0.02):
            seen.update(CPUSet.parse((one / "cpuset.cpus").read_text()) for one in cgroups)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield seen
    finally:
        stop.set()
        thread.join()
