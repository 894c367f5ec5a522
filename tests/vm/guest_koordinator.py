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
from cpupool.host.cgroupfs import hierarchy
from cpupool.host.root import HostRoot
from cpupool.local.cgroups import RealCgroups
from cpupool.wire.orchestration import QOS_CLASS, RESOURCE_STATUS
from tests.scenarios.test_embedded_node import living
from tests.vm.guest_node import nested
from tests.vm.inside import runs_on, start
from tests.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from cpupool.core.workloads import PodUID
    from tests.scenarios.test_embedded_node import World

POOLS = """
pools:
  default: {{cpus: "0-15"}}
cpuManager: {{policy: koordinator, reserved: "0,8", topologyPolicy: {topology}}}
"""
ALL = "0-15"


@contextmanager
def governed(folder: Path, topology: str = "none") -> Iterator[World]:
    """Run a node with one reserved CPU on each NUMA node, whose runtime asks the agent."""
    home = RealCgroups(*hierarchy(HostRoot().cgroup), home="")
    pools = POOLS.format(topology=topology)
    with living(folder, home, pools, HostRoot().sysfs, nri=True) as made:
        eventually(lambda: made.node.plugged, "the runtime asks the agent")
        yield made


def run(world: World, name: str, qos: str, cpu: int = 0, cpuset: str = "") -> PodUID:
    """Start a pod of a class with a container of its name; return the pod's UID."""
    container: dict[str, Any] = {"name": name}
    if cpu:
        container["resources"] = {"limits": {"cpu": str(cpu), "memory": "1Gi"}}
    annotations = {RESOURCE_STATUS: json.dumps({"cpuset": cpuset})} if cpuset else {}
    metadata = {"name": name, "labels": {QOS_CLASS: qos}, "annotations": annotations}
    start(world, {"metadata": metadata, "spec": {"containers": [container]}})
    (uid,) = (pod.uid for pod in world.node.pods() if pod.name == name)
    return uid


def served(world: World) -> None:
    """Start what the agent holds, as the kubelet tries again and again."""

    def nothing_held() -> bool:
        world.node.try_again()
        return not world.node.held()

    eventually(nothing_held, lambda: str(world.node.held()))


def allowed(world: World) -> dict[str, str]:
    """Return container → the CPUs that the kernel lets its process run on."""
    return {
        one.container: str(one.cpus_allowed()) for one in world.node.processes() if one.container
    }


def test_owners_lie_in_whole_cores_of_one_numa_node_and_lsr_lends(folder: Path) -> None:
    with governed(folder, "single-numa-node") as world:
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
        eventually(lambda: "Topology" in world.node.held()[late], lambda: str(world.node.held()))
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
            assert "not enough cpus" in world.node.held()[over]
            for uid in (over, *owners):
                world.node.delete_pod(uid)
            runs_on(world, main=ALL)
        assert {CPUSet.parse(cpus) for cpus in (ALL, "0,8")} <= seen
        assert CPUSet() not in seen


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
