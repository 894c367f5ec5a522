from __future__ import annotations

import math
import os
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from cpupool.core.cgroups import FoundContainer
from cpupool.core.cpuset import CPUSet
from cpupool.core.names import Names
from cpupool.core.pools import NodePools, Pool
from cpupool.core.workloads import ContainerID
from cpupool.enforce.load_balancing import LoadBalancingGoal
from cpupool.enforce.repair import Keeper
from cpupool.host.isolated_partitions import Partitions
from cpupool.host.root import HostRoot
from cpupool.manager.manager import Manager
from tests import builders
from tests.machines import MACHINES
from tests.partitions import RELEASE, PartitionFiles

if TYPE_CHECKING:
    from pathlib import Path

    from cpupool.core.workloads import Container, Pod
    from cpupool.enforce.ports import PartitionTree

MACHINE = MACHINES["arm_no_smt"]
POOLS = NodePools.of(
    Pool.named("exclusive_a", "2-5"), Pool.named("shared_a", "6-7"), Pool.named("default", "0-1")
)
QUIET_S = 100.0


def asking(**requests: int) -> Container:
    return replace(builders.container(), requests=builders.asking(requests), balanced=False)


class Node:
    """A node with cgroups in a folder, whose containers are on their CPUs."""

    def __init__(self, folder: Path) -> None:
        self.files = PartitionFiles(folder)
        self.files.make("kubepods")
        self.manager = Manager(Names())
        self.manager.reconfigure(POOLS, MACHINE.topology())
        self.keeper = Keeper(LoadBalancingGoal(self.files.tree()))
        self.runs_on: dict[str, str] = {}
        self._pods: dict[str, Pod] = {}

    def run(self, pod: Pod, /, **ids: str) -> str:
        """Let a pod run, give its container main these devices, and give main's path."""
        self.know(pod)
        self.manager.accept(builders.given(pod, **ids))
        for container in pod.containers:
            self.files.make(self.path(pod, container.name))
        return self.path(pod)

    def know(self, pod: Pod) -> None:
        self._pods[pod.uid] = pod
        self.manager.observe(pods=list(self._pods.values()))

    def path(self, pod: Pod, container: str = "main") -> str:
        return f"kubepods/pod{pod.uid}/{container}-id"

    def found(self) -> list[FoundContainer]:
        _, resolution = self.manager.snapshot()
        found = []
        for directory in sorted(self.files.cgroup.glob("kubepods/pod*/*-id")):
            path = str(directory.relative_to(self.files.cgroup))
            pod, container = directory.parent.name.removeprefix("pod"), directory.name
            one = FoundContainer(pod, container, path, "")
            cpus = resolution.assignment((pod, ContainerID(container))).cpus
            found.append(replace(one, cpus=self.runs_on.get(path, str(cpus))))
        return found

    def keep(self, now_s: float = QUIET_S) -> dict[str, str]:
        """Give what is told: container → reason."""
        told = self.keeper.keep(self.found(), self.manager.snapshot().resolution, now_s)
        assert {notice.event for notice in told.values()} <= {"CPULoadBalancingRefused"}
        return {notice.container: notice.why for notice in told.values()}

    def isolated(self) -> dict[str, str]:
        """Give the list of each cgroup that has one, with isolated ones marked."""
        marks = {"isolated": "!", "member": ""}
        listed = self.files.exclusive().items()
        return {path: cpus + marks[self.files.state(path)] for path, cpus in listed}


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


WEB = builders.pod("web", asking(exclusive_a=2))
ISOLATED = {
    "kubepods": "4-5",
    "kubepods/podweb-uid": "4-5",
    "kubepods/podweb-uid/main-id": "4-5!",
}


def test_a_container_that_asks_is_isolated_with_the_cpus_of_its_own(node: Node) -> None:
    node.run(WEB, exclusive_a="4,5")
    assert node.keep() == {}
    assert node.isolated() == ISOLATED
    assert node.keeper.due_s == math.inf


def test_nothing_is_read_again_while_nothing_asks(node: Node) -> None:
    node.run(builders.pod("web", builders.container(exclusive_a=2)), exclusive_a="4,5")
    assert node.keep() == {}
    node.files.write("kubepods", "cpuset.cpus.exclusive", "7")
    assert node.keep() == {}
    assert node.isolated() == {"kubepods": "7"}


def test_nothing_is_written_that_is_right(node: Node) -> None:
    node.run(WEB, exclusive_a="4,5")
    node.keep()
    files = [file for file in node.files.cgroup.rglob("*") if file.is_file()]
    for file in files:
        os.utime(file, (1, 1))
    node.keep()
    assert {file.stat().st_mtime for file in files} == {1.0}


def test_the_others_in_a_pod_stay_as_they_are(node: Node) -> None:
    node.run(
        builders.pod("web", asking(exclusive_a=2), builders.container("other")), exclusive_a="4,5"
    )
    node.keep()
    assert node.isolated() == ISOLATED


@pytest.mark.parametrize(
    ("container", "devices", "why"),
    [
        (asking(exclusive_a=2, shared_a=10), "4,5", "it shares CPUs 6-7 with others"),
        (asking(shared_a=10), "", "it has no CPUs of its own"),
        (asking(), "", "it has no CPUs of its own"),
    ],
)
def test_a_container_with_other_cpus_is_refused(
    node: Node, container: Container, devices: str, why: str
) -> None:
    shared = {"shared_a": "0"} if "shared_a" in container.requests else {}
    given = {"exclusive_a": devices, **shared} if devices else shared
    node.run(builders.pod("web", container), **given)
    assert node.keep() == {"main": f"the scheduler balances its load: {why}"}
    assert node.isolated() == {}


def test_a_container_without_its_devices_is_not_reported_again(node: Node) -> None:
    node.run(WEB)
    assert node.keep() == {}
    assert node.isolated() == {}


def v1(folder: Path) -> PartitionTree:
    root = HostRoot.under(folder / "v1")
    (root.cgroup / "cpuset").mkdir(parents=True)
    (root.cgroup / "cpuset/cpuset.cpus").touch()
    return Partitions(root, RELEASE)


def test_a_node_that_cannot_refuses(node: Node, tmp_path: Path) -> None:
    node.run(WEB, exclusive_a="4,5")
    for tree, why in (
        (v1(tmp_path), "this node has cgroup version 1"),
        (node.files.tree("5.15.0"), "this node's kernel 5.15.0 is older than 6.7"),
    ):
        node.keeper = Keeper(LoadBalancingGoal(tree))
        assert node.keep() == {"main": f"the scheduler balances its load: {why}"}
        assert node.isolated() == {}


def test_what_the_kernel_refuses_is_reported_and_tried_again(node: Node) -> None:
    file = node.files.cgroup / node.run(WEB, exclusive_a="4,5") / "cpuset.cpus.partition"
    file.unlink()
    file.symlink_to("/dev/null")

    for now_s in range(11):
        (why,) = node.keep(now_s).values()
        assert "cpuset.cpus.partition is '' then" in why
        assert node.files.exclusive() == {}
        assert node.keeper.due_s == now_s + 1.0

    file.unlink()
    file.write_text("member")

    assert node.keep(11.0) == {}
    assert node.isolated() == ISOLATED


def test_what_may_pass_is_no_event_at_once(node: Node) -> None:
    path = node.run(WEB, exclusive_a="4,5")
    file = node.files.cgroup / path / "cpuset.cpus.partition"
    file.unlink()
    file.symlink_to("/dev/null")
    _, resolution = node.manager.snapshot()
    (notice,) = node.keeper.keep(node.found(), resolution, QUIET_S).values()
    assert notice.lasts_s > 0

    file.unlink()
    file.write_text("member")
    node.files.tree().isolate(path, CPUSet.of(4, 5))  # as CRI-O does
    assert node.keep() == {}


def test_what_succeeds_late_is_no_fight(node: Node) -> None:
    file = node.files.cgroup / node.run(WEB, exclusive_a="4,5") / "cpuset.cpus.partition"
    file.unlink()
    file.symlink_to("/dev/null")
    for _ in range(12):
        assert node.keep()
    file.unlink()
    file.write_text("member")
    assert node.keep(node.keeper.due_s) == {}
    assert node.isolated() == ISOLATED


def test_a_container_that_ends_meanwhile_gets_nothing(node: Node) -> None:
    path = node.run(WEB, exclusive_a="4,5")
    found = node.found()
    node.files.remove(path)
    assert node.keeper.keep(found, node.manager.snapshot().resolution, QUIET_S) == {}
    assert node.isolated() == {}


def test_a_container_that_asks_no_more_is_released(node: Node) -> None:
    node.run(WEB, exclusive_a="4,5")
    node.keep()
    node.know(builders.pod("web", builders.container(exclusive_a=2)))
    node.keep()
    assert node.isolated() == {}
    assert node.files.state(node.path(WEB)) == "member"


def test_an_end_gives_back_what_no_other_has(node: Node) -> None:
    node.run(WEB, exclusive_a="4,5")
    ended = builders.pod("ended", asking(exclusive_a=1))
    node.run(ended, exclusive_a="2")
    node.keep()
    assert node.isolated()["kubepods"] == "2,4-5"
    node.files.remove(node.path(ended))
    node.keep()
    assert node.isolated() == ISOLATED


def test_a_container_that_starts_again_is_isolated_again(node: Node) -> None:
    old = node.run(WEB, exclusive_a="4,5")
    node.keep()
    again = replace(WEB.containers[0], id=ContainerID("again-id"))
    node.know(replace(WEB, containers=(again,)))
    node.files.remove(old)
    node.files.make("kubepods/podweb-uid/again-id")
    node.keep()
    assert node.isolated() == {
        "kubepods": "4-5",
        "kubepods/podweb-uid": "4-5",
        "kubepods/podweb-uid/again-id": "4-5!",
    }


def test_another_agent_goes_on_with_what_it_finds(node: Node) -> None:
    node.run(WEB, exclusive_a="4,5")
    ended = builders.pod("ended", asking(exclusive_a=1))
    node.run(ended, exclusive_a="2")
    former = builders.pod("former", builders.container(exclusive_a=1))
    node.run(former, exclusive_a="3")
    node.files.tree().isolate(node.path(former), CPUSet.of(3))
    node.keep()
    node.files.remove("kubepods/podended-uid")
    node.keeper = Keeper(LoadBalancingGoal(node.files.tree()))
    node.keep()
    assert node.isolated() == ISOLATED


def test_containers_of_pods_that_no_api_server_keep_what_they_have(node: Node) -> None:
    stranger = node.files.make("kubepods/podx/stranger-id")
    node.files.tree().isolate(stranger, CPUSet.of(7))
    node.keep()
    assert node.files.state(stranger) == "isolated"
    node.files.remove("kubepods/podx")
    node.keep()
    assert node.isolated() == {}


def test_a_container_follows_its_cpus(node: Node) -> None:
    path = node.run(WEB, exclusive_a="4,5")
    node.files.tree().isolate(path, CPUSet.of(3, 4, 5))
    node.keep()
    assert node.isolated() == ISOLATED

    node.manager.reconfigure(POOLS, MACHINE.having_lost(CPUSet.of(5)))
    node.keep()
    assert node.isolated() == ISOLATED  # it comes back with the CPU

    node.runs_on[path] = "0-1"
    node.keep()
    assert node.isolated() == {}

    node.runs_on[path] = "4"
    node.keep()
    assert node.isolated() == ISOLATED


def test_a_confined_container_is_released_until_its_cpus_are_back(node: Node) -> None:
    node.run(WEB, exclusive_a="4,5")
    node.keep()
    node.manager.reconfigure(POOLS, MACHINE.having_lost(CPUSet.of(4, 5)))
    assert node.keep() == {}
    assert node.isolated() == {}

    node.manager.reconfigure(POOLS, MACHINE.topology())
    assert node.keep() == {}
    assert node.isolated() == ISOLATED


def test_a_cgroup_of_the_same_name_has_nothing_of_the_one_before(node: Node) -> None:
    path = node.run(WEB, exclusive_a="4,5")
    node.keep()
    node.files.remove(path)
    node.files.make(path)
    assert node.keep() == {}
    assert node.isolated() == ISOLATED

    node.files.remove(path)
    node.files.make(path)
    node.know(builders.pod("web", builders.container(exclusive_a=2)))
    assert node.keep() == {}
    assert node.isolated() == {}


def test_what_somebody_undoes_is_done_again_ever_more_patiently(node: Node) -> None:
    path = node.run(WEB, exclusive_a="4,5")
    node.keep()
    for _ in range(11):
        assert node.isolated() == ISOLATED
        node.files.write(path, "cpuset.cpus.partition", "member")
        told = node.keep()

    (why,) = told.values()
    assert "again and again" in why
    assert node.files.state(path) == "member"
    assert QUIET_S < node.keeper.due_s < math.inf

    node.keep(node.keeper.due_s)
    assert node.isolated() == ISOLATED
    assert node.keep(QUIET_S + 1)  # it is told while the fight may go on


def test_a_partition_that_has_become_invalid_is_made_anew(node: Node) -> None:
    path = node.run(WEB, exclusive_a="4,5")
    node.keep()
    node.files.write(path, "cpuset.cpus.partition", "isolated invalid (No cpu available)")
    assert node.keep() == {}
    assert node.isolated() == ISOLATED


def test_what_cannot_be_given_back_is_tried_again(node: Node) -> None:
    path = node.run(WEB, exclusive_a="4,5")
    node.keep()
    node.know(builders.pod("web", builders.container(exclusive_a=2)))
    file = node.files.cgroup / path / "cpuset.cpus.partition"
    file.unlink()
    file.symlink_to("/dev/full")
    # The tries to give back count apart from those to isolate.
    for _ in range(11):
        node.keep()
        assert node.keeper.due_s == QUIET_S + 1
    file.unlink()
    file.write_text("isolated")
    node.keep()
    assert node.isolated() == ISOLATED
    node.keep(node.keeper.due_s)
    assert node.isolated() == {}


def test_a_tree_that_cannot_be_read_does_not_stop_the_agent(node: Node) -> None:
    node.files.write("kubepods", "cpuset.cpus.exclusive", "no list")
    node.run(WEB, exclusive_a="4,5")
    (why,) = node.keep().values()
    assert "no list" in why


def test_what_is_isolated_already_is_read_as_soon_as_it_can_be(node: Node) -> None:
    former = builders.pod("former", builders.container(exclusive_a=1))
    node.run(former, exclusive_a="3")
    node.files.tree().isolate(node.path(former), CPUSet.of(3))
    node.run(WEB, exclusive_a="4,5")
    pod = "kubepods/podformer-uid"
    node.files.write(pod, "cpuset.cpus.exclusive", "no list")
    for _ in range(2):
        assert node.keep() == {}
    assert node.files.state(node.path(former)) == "isolated"
    node.files.write(pod, "cpuset.cpus.exclusive", "3")
    node.keep()
    assert node.isolated() == ISOLATED


def test_a_container_that_alternates_is_isolated_ever_more_patiently(node: Node) -> None:
    path = node.run(WEB, exclusive_a="4,5")
    isolated = 0
    for number in range(40):
        node.runs_on[path] = "0-7" if number % 2 else "4-5"
        before = node.isolated()
        node.keep(QUIET_S + number * 0.05)
        isolated += node.isolated() != before
    assert 0 < isolated < 40, "each change makes the kernel rebuild its scheduling domains"
