"""Isolated partitions on the real kernel of a guest, cgroup version 2; `test_node.py` runs this.

The machine has 16 CPUs; 2 and 3 are siblings, 4 and 5, 6 and 7...
"""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from cpupool.core.cpuset import CPUSet
from cpupool.core.errors import CgroupWriteRejected
from cpupool.core.names import Names
from cpupool.core.pools import NodePools, Pool
from cpupool.core.workloads import ContainerID
from cpupool.enforce.apply import bring
from cpupool.enforce.load_balancing import LoadBalancingGoal
from cpupool.enforce.ports import Partition
from cpupool.enforce.repair import Keeper
from cpupool.host import kernel
from cpupool.host.cgroupfs import CgroupFS, hierarchy
from cpupool.host.isolated_partitions import Partitions
from cpupool.host.root import HostRoot
from cpupool.host.sysfs import Sysfs
from cpupool.local.cgroups import RealCgroups
from cpupool.manager.manager import Manager
from tests import builders
from tests.scenarios.test_embedded_node import living, manifest
from tests.vm.inside import runs_on, start
from tests.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from cpupool.core.workloads import Container, Pod

BASE = Path("/sys/fs/cgroup")
RELEASE = os.uname().release
UNBOUND = HostRoot().sysfs / "devices/virtual/workqueue/cpumask"
POOLS = NodePools.of(
    Pool.named("exclusive_a", "2,4,8"), Pool.named("shared_a", "6-7"), Pool.named("default", "0-1")
)
ISOLATE = """
import sys
from cpupool.core.cpuset import CPUSet
from cpupool.host.isolated_partitions import Partitions
from cpupool.host.root import HostRoot
Partitions(HostRoot(), sys.argv[2]).isolate(sys.argv[1], CPUSet.of(2, 4))
"""
able = pytest.mark.skipif(not kernel.isolates_remotely(RELEASE), reason=f"{RELEASE} cannot")


def asking(name: str = "main", **requests: int) -> Container:
    return replace(builders.container(name), requests=builders.asking(requests), balanced=False)


WEB = builders.pod("web", asking(exclusive_a=2), builders.container("plain"))


class Node:
    """A node with one process in each container, and the agent's sweeps by hand."""

    def __init__(self, home: RealCgroups) -> None:
        self.tree = CgroupFS(BASE, home.cgroup_root)
        self.partitions = Partitions(HostRoot(), RELEASE, home.cgroup_root)
        self.keeper = Keeper(LoadBalancingGoal(self.partitions))
        self._home = home
        self._manager = Manager(Names())
        self._pods: dict[str, Pod] = {}
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._now_s = 0.0

    def run(self, pod: Pod, /, **ids: str) -> str:
        """Let a pod run, give its container main these devices, and give main's path."""
        self._pods[pod.uid] = pod
        self._manager.reconfigure(POOLS, Sysfs.at(HostRoot().sysfs).topology())
        self._manager.observe(pods=list(self._pods.values()))
        self._manager.accept(builders.given(pod, **ids))
        for container in pod.containers:
            place = f"kubepods/pod{pod.uid}/{container.id}"
            self._home.make(place)
            self._processes[place] = process = subprocess.Popen(["sleep", "infinity"])
            self._home.enter(place, process.pid)
        return self.path(pod, "main")

    def path(self, pod: Pod, container: str) -> str:
        return f"{self._home.cgroup_root[1:]}/kubepods/pod{pod.uid}/{container}-id"

    def end(self, pod: Pod) -> None:
        """End a pod's processes, and remove its cgroups."""
        del self._pods[pod.uid]
        self._home.remove(f"kubepods/pod{pod.uid}")
        for place in [place for place in self._processes if f"pod{pod.uid}/" in place]:
            self._processes.pop(place).wait()

    def close(self) -> None:
        """End every pod."""
        for pod in tuple(self._pods.values()):
            self.end(pod)

    def sweep(self) -> Sequence[str]:
        """Do what a sweep does, and give what pods are told."""
        self._now_s += 1.0
        self._manager.update_topology(Sysfs.at(HostRoot().sysfs).topology())
        _, resolution = self._manager.snapshot()
        for found in self.tree.containers():
            cpus = resolution.assignment((found.pod, ContainerID(found.id))).cpus
            if found.cpus != str(cpus):
                bring(self.tree, found.path, cpus)
        told = self.keeper.keep(tuple(self.tree.containers()), resolution, self._now_s)
        return [notice.why for notice in told.values()]

    def allowed(self, pod: Pod, container: str) -> str:
        """Give the CPUs that the kernel lets a container's process run on."""
        place = f"kubepods/pod{pod.uid}/{container}-id"
        return str(CPUSet(os.sched_getaffinity(self._processes[place].pid)))


@pytest.fixture
def node() -> Iterator[Node]:
    with RealCgroups.open("vm", CPUSet.of(0, 1)) as home:
        made = Node(home)
        yield made
        made.close()


def isolated() -> str:
    """Give the CPUs that are in isolated partitions, as the kernel tells."""
    return (BASE / "cpuset.cpus.isolated").read_text().strip()


def balanced() -> CPUSet:
    """Give the CPUs that are in a scheduling domain."""
    found: set[int] = set()
    cpu = -1
    for line in Path("/proc/schedstat").read_text().splitlines():
        word = line.split()[0]
        if word.startswith("cpu"):
            cpu = int(word.removeprefix("cpu"))
        elif word.startswith("domain"):
            found.add(cpu)
    return CPUSet(found)


@contextmanager
def offline(cpu: int) -> Iterator[None]:
    """Switch a CPU off, and on again."""
    file = HostRoot().sysfs / f"devices/system/cpu/cpu{cpu}/online"
    file.write_text("0")
    try:
        yield
    finally:
        file.write_text("1")


def write(path: str, name: str, text: str) -> None:
    """Write a file past cpupool."""
    (BASE / path / name).write_text(f"{text}\n")


def undisturbed(node: Node, path: str) -> None:
    """The container alone has CPUs 2 and 4, isolated, and a sweep changes nothing."""
    assert node.sweep() == []
    assert node.partitions.partition(path) == Partition("isolated", CPUSet.of(2, 4))
    assert bring(node.tree, path, CPUSet.of(2, 4)) == ()
    assert isolated() == "2,4"
    assert set(balanced()) == set(range(16)) - {2, 4}
    assert node.allowed(WEB, "main") == "2,4"
    assert node.allowed(WEB, "plain") == "0-1"


@pytest.mark.skipif(kernel.isolates_remotely(RELEASE), reason=f"{RELEASE} isolates")
def test_an_old_kernel_is_refused_and_left_alone(node: Node) -> None:
    path = node.run(WEB, exclusive_a="2,4")
    (why,) = node.sweep()
    assert f"kernel {RELEASE} is older than 6.7" in why
    assert (BASE / path / "cpuset.cpus.partition").read_text() == "member\n"
    assert node.allowed(WEB, "main") == "2,4"


@able
def test_the_cpus_leave_the_schedulers_domains_until_the_container_ends(node: Node) -> None:
    path = node.run(WEB, exclusive_a="2,4")
    undisturbed(node, path)
    # Another agent finds it so.
    node.keeper = Keeper(LoadBalancingGoal(node.partitions))
    undisturbed(node, path)

    node.end(WEB)
    assert node.sweep() == []

    assert isolated() == ""
    assert len(balanced()) == 16
    assert list(node.partitions.reserved()) == []


@able
def test_it_stays_beside_its_siblings_and_what_is_nested_in_it(node: Node) -> None:
    main = node.run(WEB, exclusive_a="2,4")
    undisturbed(node, main)
    # As crun has it, and systemd in a container.
    (BASE / main / "container").mkdir()
    for pid in (BASE / main / "cgroup.procs").read_text().split():
        write(f"{main}/container", "cgroup.procs", pid)
    write(main, "cgroup.subtree_control", "+cpuset")
    undisturbed(node, main)
    other = builders.pod("other", asking(exclusive_a=1), builders.container("plain"))
    path = node.run(other, exclusive_a="8")
    assert node.sweep() == []
    assert isolated() == "2,4,8"
    assert node.allowed(other, "main") == "8"
    node.end(other)
    assert not (BASE / path).exists()
    undisturbed(node, main)
    write(str(Path(main).parent), "cpuset.cpus", "2,4")  # leaves the pod nothing of its own
    undisturbed(node, main)


@able
def test_a_container_with_shared_cpus_is_refused(node: Node) -> None:
    mixed = builders.pod("mixed", asking(exclusive_a=1, shared_a=10))
    node.run(mixed, exclusive_a="8", shared_a="0")
    (why,) = node.sweep()
    assert "it shares CPUs 6-7 with others" in why
    assert isolated() == ""
    assert node.allowed(mixed, "main") == "6-8"


@able
def test_cpus_of_unbound_workqueues_wait(node: Node) -> None:
    path = node.run(WEB, exclusive_a="2,4")
    before = UNBOUND.read_text()
    UNBOUND.write_text("0015")
    try:
        (why,) = node.sweep()
        assert "unbound workqueues may run on its CPUs 2,4" in why
        assert node.partitions.partition(path) == Partition("member", CPUSet())
        assert isolated() == ""
    finally:
        UNBOUND.write_text(before)
    undisturbed(node, path)
    # The kernel excludes what is isolated by itself; what the admin wants counts.
    UNBOUND.write_text("0015")
    try:
        undisturbed(node, path)
        write(path, "cpuset.cpus.partition", "member")
        (why,) = node.sweep()
        assert "unbound workqueues" in why
    finally:
        UNBOUND.write_text(before)


@able
def test_a_sibling_on_its_cpus_is_an_obstacle_until_it_goes(node: Node) -> None:
    path = node.run(WEB, exclusive_a="2,4")
    write(path, "cpuset.cpus", "2,4")
    for cpus, why in (("2", "Invalid argument"), ("0-2", "isolated invalid")):
        write(node.path(WEB, "plain"), "cpuset.cpus", cpus)
        with pytest.raises(CgroupWriteRejected, match=why):
            node.partitions.isolate(path, CPUSet.of(2, 4))
        assert node.partitions.partition(path) == Partition("member", CPUSet())
        assert list(node.partitions.reserved()) == []
    undisturbed(node, path)


@able
def test_the_kernel_asks_for_a_capability(node: Node) -> None:
    path = node.run(WEB, exclusive_a="2,4")
    write(path, "cpuset.cpus", "2,4")
    without = ["setpriv", "--bounding-set=-sys_admin", "--inh-caps=-sys_admin"]
    done = subprocess.run(
        [*without, sys.executable, "-c", ISOLATE, path, RELEASE],
        capture_output=True,
        text=True,
        check=False,
    )
    assert "give the agent the capability SYS_ADMIN" in done.stderr
    assert node.partitions.partition(path) == Partition("member", CPUSet())
    assert list(node.partitions.reserved()) == []


@able
def test_it_loses_cpus_and_gets_them_back(node: Node) -> None:
    path = node.run(WEB, exclusive_a="2,4")
    undisturbed(node, path)
    with offline(4):
        assert node.sweep() == []
        assert node.allowed(WEB, "main") == "2"
        assert node.partitions.partition(path) == Partition("isolated", CPUSet.of(2, 4))
        with offline(2):
            assert node.sweep() == []
            assert node.allowed(WEB, "main") == "0-1"
            assert isolated() == ""
    undisturbed(node, path)


@able
def test_what_others_write_is_put_right(node: Node) -> None:
    path = node.run(WEB, exclusive_a="2,4")
    undisturbed(node, path)
    # Its cpuset counts no more, so it needs no repair, and cannot be repaired.
    write(path, "cpuset.cpus", "0-15")
    assert node.tree.effective(path) == CPUSet.of(2, 4)
    with pytest.raises(CgroupWriteRejected, match="it runs on 2,4"):
        bring(node.tree, path, CPUSet.of(8))
    write(path, "cpuset.cpus", "2,4")

    for above in (path, str(Path(path).parent)):
        write(above, "cpuset.cpus.exclusive", "")
        undisturbed(node, path)
    write(path, "cpuset.cpus.partition", "member")
    undisturbed(node, path)
    write(node.path(WEB, "plain"), "cpuset.cpus", "0-15")
    assert node.partitions.partition(path).state.startswith("isolated invalid")
    undisturbed(node, path)


@able
def test_the_agent_isolates_what_a_pod_asks_for(folder: Path) -> None:
    pools = """
pools:
  exclusive_a: {cpus: "2,4,8"}
  default: {cpus: "0-1"}
"""
    home = RealCgroups(*hierarchy(HostRoot().cgroup), home="")
    with living(folder, home, pools, HostRoot().sysfs) as world:
        body = manifest("web", {"main": {"exclusive_a": 2}, "plain": {}})
        body["metadata"]["annotations"] = {"cpu-load-balancing.crio.io/main": "disable"}
        start(world, body)
        runs_on(world, plain="0-1")
        eventually(lambda: len(isolated()) > 2, "isolated")
        cpus = isolated()
        runs_on(world, main=cpus, plain="0-1")

        (main,) = (one for one in world.node.processes() if one.container == "main")
        write(world.node.path_of(main), "cpuset.cpus.partition", "member")
        eventually(lambda: isolated() == cpus, "isolated again")
        runs_on(world, main=cpus)

        (pod,) = world.node.pods()
        world.node.delete_pod(pod.uid)
        listed = BASE / "kubepods/cpuset.cpus.exclusive"
        eventually(lambda: not listed.read_text().strip(), "no CPU is handed down any more")
        assert isolated() == ""
