from __future__ import annotations

import errno
import math
from typing import TYPE_CHECKING

import pytest

from cpupool.core.assignments import MemoryNodes
from cpupool.core.cpuset import CPUSet
from cpupool.core.errors import CgroupNotFound, CgroupWriteRejected, MemoryNodesRefused
from cpupool.core.pools import NodePools, Pool
from cpupool.enforce.memory_nodes import MemoryGoal
from cpupool.enforce.repair import Keeper, Postponed
from cpupool.enforce.write_order import Write
from cpupool.host.cgroupfs import CgroupVersion
from cpupool.manager.manager import Manager
from cpupool.telemetry.metrics import Metrics
from tests import builders
from tests.cgroups import rejected
from tests.machines import MACHINES
from tests.memory import MemoryModel, having, on

if TYPE_CHECKING:
    from collections.abc import Callable

    from cpupool.core.workloads import ContainerID, Pod

V1, V2 = CgroupVersion
BOTH = pytest.mark.parametrize("version", CgroupVersion)
WHERE = {"a": MemoryNodes(on("1")), "b": MemoryNodes(on("1"), migrates=True)}


class Node:
    """A node with two NUMA nodes; the keeper looks when a test says so."""

    def __init__(self, version: CgroupVersion, pods: str = "0-1", *, looked: bool = True) -> None:
        self.tree = MemoryModel(version, {"kubepods": pods})
        self.metrics = Metrics()
        self.now_s = 1_000.0
        self.write_s = 0.0
        self.placed: dict[ContainerID, CPUSet] = {}
        self.wanted = dict(WHERE)
        self._pods: list[Pod] = []
        self.manager = Manager()
        self.manager.reconfigure(
            NodePools.of(Pool.named("default", "0")), MACHINES["single_cpu"].topology()
        )
        self.keeper = Keeper(
            MemoryGoal(self.tree, self._carry_out, self.placed, self.metrics, lambda: self.now_s)
        )
        if looked:
            self.keep()

    def _carry_out(self, write: Callable[[], None]) -> None:
        self.now_s += self.write_s
        write()

    def run(self, name: str, nodes: str, pod_nodes: str = "0-1") -> str:
        """Let a pod run; return the path of its container."""
        self._pods.append(builders.pod(name))
        self.manager.observe(pods=self._pods)
        self.tree.make(f"kubepods/pod{name}-uid", pod_nodes)
        self.tree.make(path := f"kubepods/pod{name}-uid/main-id", nodes)
        return path

    def keep(self) -> dict[str, str]:
        """Return what pods' owners must know: pod → why."""
        resolution = having(self.manager.snapshot().resolution, self.wanted)
        kept = self.keeper.keep(tuple(self.tree.containers()), resolution, self.now_s)
        assert {notice.event for notice in kept.values()} <= {"MemoryNodesMissed"}
        return {notice.pod.name: notice.why for notice in kept.values()}

    def nodes(self, path: str) -> str:
        return str(self.tree.effective(path))

    def counted(self, reason: str) -> float:
        _, body = self.metrics.render()
        name = "cpupool_memory_nodes_write_seconds_count"
        series = f'{name}{{reason="{reason}"}} '
        lines = body.decode().splitlines()
        return sum(float(line.removeprefix(series)) for line in lines if line.startswith(series))


@BOTH
def test_a_new_container_gets_its_nodes_and_only_its_migration_is_asked_for(
    version: CgroupVersion,
) -> None:
    node = Node(version)
    paths = [node.run(name, "0-1") for name in "abc"]
    assert node.keep() == {}
    assert [node.nodes(path) for path in paths] == ["1", "1", "0-1"]
    assert node.tree.flags == set()
    # Version 2 moves the pages of every container.
    assert node.tree.migrated == (paths[1:2] if version is V1 else paths[:2])
    assert (node.counted("new"), node.keeper.due_s) == (2, math.inf)
    writes = len(node.tree.writes)
    assert node.keep() == {}
    assert len(node.tree.writes) == writes


@BOTH
def test_a_running_container_is_written_only_if_it_may_be_migrated(version: CgroupVersion) -> None:
    node = Node(version, looked=False)
    stays, moves = node.run("a", "0"), node.run("b", "0")
    told = node.keep()
    assert (node.nodes(stays), node.nodes(moves)) == ("0", "1")
    assert told == {"a": "it is on NUMA node 0, not 1, and the agent may not migrate it"}
    assert node.tree.migrated == [moves]
    assert node.counted("moved") == 1
    assert node.keeper.due_s == math.inf
    node.wanted["a"] = MemoryNodes(on("1"), migrates=True)
    assert node.keep() == {}
    assert node.nodes(stays) == "1"


@BOTH
def test_a_wish_that_comes_later_is_not_one_of_the_creation(version: CgroupVersion) -> None:
    node = Node(version)
    node.wanted = {}
    path = node.run("a", "0")
    node.keep()
    node.wanted = dict(WHERE)
    assert list(node.keep()) == ["a"]
    assert node.nodes(path) == "0"


@BOTH
def test_a_new_container_of_an_unknown_pod_is_still_new_once_its_pod_is_known(
    version: CgroupVersion,
) -> None:
    node = Node(version)
    node.tree.make("kubepods/poda-uid", "0-1")
    node.tree.make("kubepods/poda-uid/main-id", "0-1")
    node.keep()
    node.manager.observe(pods=[builders.pod("a")])
    assert node.keep() == {}
    assert node.nodes("kubepods/poda-uid/main-id") == "1"


def test_cgroups_above_are_widened_from_the_root_and_those_below_are_narrowed_first() -> None:
    node = Node(V1, "0")
    path = node.run("b", "0", "0")
    node.tree.make(f"{path}/init", "0")
    node.keep()
    above = ["kubepods", "kubepods/podb-uid"]
    assert node.tree.writes == [
        *(Write(cgroup, on("0-1")) for cgroup in above),
        Write(path, on("0-1")),
        Write(f"{path}/init", on("1")),
        Write(path, on("1")),
    ]
    node.wanted["b"] = MemoryNodes(on("0"), migrates=True)
    node.tree.writes.clear()
    node.keep()
    assert {write.path for write in node.tree.writes} == {path, f"{path}/init"}
    assert [node.nodes(cgroup) for cgroup in above] == ["0-1", "0-1"], "parents stay wide"


@BOTH
@pytest.mark.parametrize("nodes", ["2", "0,2", ""])
def test_nodes_without_memory_are_refused_and_nothing_is_written(
    version: CgroupVersion, nodes: str
) -> None:
    node = Node(version, "0")
    path = node.run("b", "0", "0")
    node.wanted["b"] = MemoryNodes(CPUSet.parse_or_empty(nodes), migrates=True)
    what = "no memory on NUMA node 2" if nodes else "no NUMA node for its memory"
    for _ in range(3):
        told = node.keep()
    assert told == {"b": f"{what}; this machine has memory on 0-1, choose from these"}
    assert node.tree.writes == []
    assert (node.nodes(path), node.nodes("kubepods")) == ("0", "0")
    assert node.keeper.due_s == node.now_s + 1.0


def test_the_refusal_has_the_nodes_as_fields() -> None:
    with pytest.raises(MemoryNodesRefused) as caught:
        MemoryNodes(on("1,3")).check(on("0-1"))
    assert (caught.value.nodes, caught.value.lacking) == (on("1,3"), on("3"))
    MemoryNodes(on("1")).check(on("0-1"))


@BOTH
def test_a_foreign_write_is_repaired_and_a_fight_is_named(version: CgroupVersion) -> None:
    node = Node(version)
    path = node.run("b", "0-1")
    node.keep()
    told: dict[str, str] = {}
    for _ in range(20):
        node.tree.write(path, on("0"))
        told = node.keep()
    assert told == {"b": "another program overwrites cpuset.mems of its cgroup again and again"}
    assert node.counted("unknown") == 10
    assert node.keeper.due_s > node.now_s
    node.now_s = node.keeper.due_s
    node.keep()
    assert node.nodes(path) == "1"


def test_a_foreign_write_to_a_container_that_may_not_be_migrated_is_told() -> None:
    node = Node(V2)
    path = node.run("a", "0-1")
    node.keep()
    node.tree.write(path, on("0"))
    assert list(node.keep()) == ["a"]
    assert node.nodes(path) == "0"
    node.tree.write(path, on("1"))
    assert node.keep() == {}


def test_a_migration_that_an_ended_agent_has_left_switched_on_is_switched_off() -> None:
    node = Node(V1, looked=False)
    path = node.run("a", "1")
    node.tree.flags = {path}
    assert node.keep() == {}
    assert node.tree.flags == set()
    assert node.tree.writes == []


def test_the_migration_is_switched_off_after_a_write_that_fails() -> None:
    node = Node(V1)
    path = node.run("b", "0")
    node.tree.refusing = {path}
    assert list(node.keep()) == ["b"]
    assert node.tree.flags == set()
    assert node.counted("new") == 0


@pytest.mark.parametrize("number", [errno.EBUSY, errno.ENOSPC])
def test_a_refused_write_is_tried_again_and_keeps_no_other_from_its_nodes(number: int) -> None:
    node = Node(V1)
    first, second = node.run("a", "0-1"), node.run("b", "0-1")

    def refuse() -> None:
        raise rejected(first, number)

    node.tree.before_write = dict.fromkeys(range(1, 4), refuse)
    assert list(node.keep()) == ["a"]
    assert node.nodes(second) == "1"
    node.now_s = node.keeper.due_s
    assert node.keep() == {}
    assert node.nodes(first) == "1", "it is new until it has its nodes"


def test_a_container_that_ends_while_it_is_written_is_no_complaint() -> None:
    node = Node(V2)
    path = node.run("b", "0")

    def end() -> None:
        node.tree.remove(path)
        raise CgroupNotFound(path)

    node.tree.before_write = {1: end}
    assert node.keep() == {}
    assert node.keep() == {}


def test_a_slow_write_ends_the_turn_and_new_containers_come_first() -> None:
    node = Node(V2, looked=False)
    node.wanted |= {"c": WHERE["b"]}
    running = [node.run(name, "0") for name in "bc"]
    node.write_s = 3.0
    node.keep()
    assert [node.nodes(path) for path in running] == ["1", "0"]
    assert node.keeper.due_s < node.now_s
    new = node.run("a", "0")
    node.keep()
    assert [node.nodes(path) for path in (*running, new)] == ["1", "0", "1"]
    node.keep()
    assert node.nodes(running[1]) == "1"


def test_a_write_that_is_not_waited_for_is_looked_at_again() -> None:
    node = Node(V2)
    path = node.run("b", "0")
    waits = True

    def carry_out(write: Callable[[], None]) -> None:
        write()
        if waits:
            raise Postponed

    node.keeper = Keeper(MemoryGoal(node.tree, carry_out, {}, node.metrics, lambda: node.now_s))
    assert node.keep() == {}
    assert node.keeper.due_s == pytest.approx(node.now_s + 0.1)
    assert (node.nodes(path), node.counted("moved")) == ("1", 0)


def test_on_version_2_an_ancestor_without_the_node_undoes_the_write() -> None:
    node = Node(V2)
    path = node.run("b", "0")
    node.tree.online = on("0-1")

    class Cut(MemoryModel):
        """A tree above which the admin allows node 0 only."""

        def effective(self, path: str) -> CPUSet:
            return on("0")

    cut = Cut(V2, {"kubepods": "", f"{path.rpartition('/')[0]}": "", path: "0"})
    node.tree = cut
    node.keeper = Keeper(
        MemoryGoal(cut, lambda write: write(), {}, node.metrics, lambda: node.now_s)
    )
    (why,) = node.keep().values()
    assert why.startswith(f"{path}: the kernel did not take '1': it has 0, and kubepods lacks 1")
    assert cut.sets[path] == on("0")


def test_the_error_of_a_refused_write_reaches_the_notice() -> None:
    node = Node(V1)
    path = node.run("b", "0")
    node.tree.refusing = {path}
    (why,) = node.keep().values()
    assert why == str(CgroupWriteRejected(path, "", errno.EIO, "EIO"))


def test_the_runtime_hears_of_the_nodes_that_containers_have_while_they_are_there() -> None:
    node = Node(V2)
    path = node.run("b", "1")
    node.keep()
    assert node.placed == {"main-id": on("1")}
    node.wanted["b"] = MemoryNodes(on("0"), migrates=True)
    node.tree.refusing = {path}
    node.keep()
    assert node.placed == {"main-id": on("1")}, "it does not have the other node yet"
    node.tree.refusing = set()
    node.now_s = node.keeper.due_s
    node.keep()
    assert node.placed == {"main-id": on("0")}
    node.tree.remove(path)
    node.keep()
    assert node.placed == {}
