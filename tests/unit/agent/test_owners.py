"""The containers with CPUs of their own, as the node's manager and its last sweep have them."""

from __future__ import annotations

import os
import threading
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from cpupool.agent.owners import NodeOwners
from cpupool.core.cgroups import FoundContainer
from cpupool.core.cpu_manager import CPUManager
from cpupool.core.cpuset import CPUSet
from cpupool.core.pools import NodePools, Pool
from cpupool.core.workloads import ContainerRef
from cpupool.enforce.mover import Repair
from cpupool.enforce.sweep import SweepReport
from cpupool.host.cgroupfs import CgroupFS
from cpupool.manager.manager import Manager
from tests import builders
from tests.machines import MACHINES
from tests.waiting import DEADLINE_S

if TYPE_CHECKING:
    from collections.abc import Iterator

POD = builders.pod("own", builders.container(cpu=2000))
REF = ContainerRef(POD.cgroup_uid, "main")
MACHINE = MACHINES["laptop_4c8t"]  # cores 0-1, 2-3, 4-5, 6-7


class Node:
    """A node with one owner, on CPUs 2 and 3.

    Attributes:
        looks: how often a sweep was asked for.
        informed: whether the owners are known.
    """

    def __init__(self, folder: Path, policy: str = "dynamic") -> None:
        self.looks, self.informed = 0, True
        self.cgroup = folder / "own"
        self.cgroup.mkdir()
        (folder / "cgroup.controllers").write_text("cpuset\n")
        self.manager = Manager()
        settings = CPUManager(policy, reserved=CPUSet.of(0))
        pools = NodePools.of(Pool.named("default", "0-7"), cpu_manager=settings)
        self.manager.reconfigure(pools, MACHINE.topology())
        self.manager.observe(pods=[POD])
        self.manager.adopt(())
        self.owners = NodeOwners(
            self.manager,
            CgroupFS(folder),
            Path("/proc"),
            look=self.look,
            informed=lambda: self.informed,
        )

    def look(self) -> None:
        self.looks += 1

    def report(self, cpus: str, *repairs: Repair, waiting_for: str = "") -> SweepReport:
        found = FoundContainer(POD.cgroup_uid, "main-id", "own", cpus)
        return SweepReport(repairs, (found,), waiting_for)

    def swept(self, cpus: str, *repairs: Repair) -> list[ContainerRef] | None:
        told = self.owners.swept(self.report(cpus, *repairs))
        return None if told is None else list(told)


@pytest.fixture
def node(folder: Path) -> Node:
    return Node(folder)


@pytest.fixture
def pinned(node: Node) -> Iterator[int]:
    """Give the container a thread for CPU 0, whose id is returned, and one for all CPUs."""
    ready, ends = threading.Barrier(3), threading.Event()

    def run(cpus: set[int]) -> None:
        os.sched_setaffinity(0, cpus)
        ready.wait(DEADLINE_S)
        ends.wait(DEADLINE_S)

    everywhere = os.sched_getaffinity(0)
    threads = [threading.Thread(target=run, args=(cpus,)) for cpus in ({0}, everywhere)]
    for thread in threads:
        thread.start()
    ready.wait(DEADLINE_S)
    listed = "".join(f"{thread.native_id}\n" for thread in threads)
    (node.cgroup / "cgroup.threads").write_text(listed)
    assert threads[0].native_id
    yield threads[0].native_id
    ends.set()
    for thread in threads:
        thread.join()


def test_nothing_is_complete_before_a_sweep_has_read_the_cgroups(node: Node) -> None:
    assert not node.owners.own_cpus()[REF].settled
    assert node.owners.swept(node.report("2-3", waiting_for="pods")) is None
    assert not node.owners.own_cpus()[REF].settled
    assert node.swept("2-3") == []
    assert node.owners.own_cpus()[REF].settled


def test_a_sweep_without_news_says_so(node: Node) -> None:
    right = Repair(POD.cgroup_uid, "own", "0-7", CPUSet.parse("2-3"), foreign=True)
    assert [node.swept("2-3"), node.swept("2-3")] == [[], None]
    assert [node.swept("0-7"), node.swept("0-7")] == [[], None]
    assert node.swept("2-3", right) == [REF]
    assert node.swept("2-3", Repair(right.pod, "own", "", right.wanted, "busy")) is None


def test_an_uncertain_sweep_tells_whose_cpus_another_program_had_written(node: Node) -> None:
    assert node.swept("2-3") == []
    right = Repair(POD.cgroup_uid, "own", "0-7", CPUSet.parse("2-3"), foreign=True)
    unsure = replace(node.report("4-5", right), uncertain=True)
    assert list(node.owners.swept(unsure) or ()) == [REF]
    assert node.owners.own_cpus()[REF].settled, "what the sweep has found does not count"
    assert node.owners.swept(replace(unsure, repairs=())) is None


def test_where_no_cpus_change_there_is_no_news(folder: Path) -> None:
    node = Node(folder, "static")
    assert (node.swept("2-3"), node.owners.own_cpus()) == (None, {})
    assert node.owners.remaining() == {POD.cgroup_uid}


def test_the_end_of_a_notice_asks_for_a_sweep(node: Node) -> None:
    node.manager.resize(REF, 4)
    node.manager.resize(REF, 2)
    assert not node.owners.narrow(REF, CPUSet.parse("2-5"), CPUSet())
    assert node.looks == 0
    assert node.owners.narrow(REF, CPUSet.parse("2-3"), CPUSet.parse("4-5"))
    assert node.looks == 1


def test_pods_that_have_only_a_cgroup_remain(node: Node) -> None:
    node.manager.observe(pods=[])
    assert (node.owners.remaining(), node.owners.pod(POD.cgroup_uid)) == (set(), None)
    node.swept("2-3")
    assert node.owners.remaining() == {POD.cgroup_uid}
    node.informed = False
    assert node.owners.remaining() is None


@pytest.mark.skipif(len(os.sched_getaffinity(0) | {0}) < 2, reason="two CPUs are needed")
def test_a_thread_that_is_pinned_to_what_leaves_needs_it(node: Node, pinned: int) -> None:
    assert node.owners.needs(REF, CPUSet.of(0)) is None, "no cgroup is known"
    node.swept("2-3")
    assert node.owners.needs(REF, CPUSet.of(0, 5))
    os.sched_setaffinity(pinned, os.sched_getaffinity(0))
    assert not node.owners.needs(REF, CPUSet.of(0, 5))
    # One that the agent does not see may need it, and one that has ended may have started another.
    listed = (node.cgroup / "cgroup.threads").read_text()
    for unseen in ("0\n", f"{2**22 + 1}\n"):
        (node.cgroup / "cgroup.threads").write_text(listed + unseen)
        assert node.owners.needs(REF, CPUSet.of(0, 5))


@pytest.mark.parametrize("listed", ["", "0\n0\n"])
def test_threads_that_are_not_in_sight_say_nothing(node: Node, listed: str) -> None:
    node.swept("2-3")
    (node.cgroup / "cgroup.threads").write_text(listed)
    assert node.owners.needs(REF, CPUSet.of(0)) is None
