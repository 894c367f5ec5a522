from __future__ import annotations

import shutil
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from cpupool.core import withheld
from cpupool.core.cpuset import CPUSet
from cpupool.core.withheld import Withheld
from cpupool.host.usable_cpus import UsableCPUs
from tests.machines import MACHINES
from tests.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from cpupool.core.topology import CPUTopology

MACHINE = MACHINES["laptop_4c8t"]
CONTAINER = f"kubepods/burstable/pod11/{'ab' * 32}"


class Node:
    """A machine of CPUs 0-7 and the files of its cgroups."""

    def __init__(self, folder: Path, *, v1: bool = False, cgroup_root: str = "") -> None:
        self.off = CPUSet()
        self._base = folder / "cpuset" if v1 else folder
        self._name = "cpuset.cpus" if v1 else "cpuset.cpus.effective"
        self._base.mkdir(exist_ok=True)
        if not v1:
            (self._base / "cgroup.controllers").write_text("cpuset\n")
        self.has("", "0-7")
        self.usable = UsableCPUs(self, folder, cgroup_root)

    def online(self) -> CPUSet:
        return MACHINE.topology().online - self.off

    def topology(self) -> CPUTopology:
        return MACHINE.without(str(self.off)).topology()

    def folder(self, path: str) -> Path:
        return self._base / path

    def has(self, path: str, cpus: str, *, state: str = "", exclusive: str = "") -> None:
        """Let a cgroup have these CPUs, as a partition if a state is given."""
        folder = self._base / path
        folder.mkdir(parents=True, exist_ok=True)
        (folder / self._name).write_text(f"{cpus}\n")
        if path:
            (folder / "cpuset.cpus.exclusive").write_text(f"{exclusive}\n")
            (folder / "cpuset.cpus.partition").write_text(f"{state or 'member'}\n")

    def writes(self, path: str, cpus: str) -> None:
        """Write a cgroup's `cpuset.cpus`."""
        (self._base / path / "cpuset.cpus").write_text(f"{cpus}\n")

    def takes(self, cgroup: str, cpus: str, *, state: str = "isolated") -> None:
        """Let a cgroup take CPUs from all others."""
        left = str(CPUSet.parse("0-7") - CPUSet.parse(cpus))
        for path in ("", "kubepods", "kubepods/burstable"):
            self.has(path, left, exclusive=cpus if path and cgroup.startswith(path) else "")
        for above in [*map(str, (self._base / cgroup).relative_to(self._base).parents)][:-1]:
            self.has(above, left, exclusive=cpus)
        self.has(cgroup, cpus, state=state, exclusive=cpus)

    @property
    def told(self) -> list[tuple[str, str, str]]:
        self.usable.online()
        return [(str(one.cpus), one.cgroup, one.partition) for one in self.usable.withheld()]


@pytest.fixture
def node(tmp_path: Path) -> Node:
    made = Node(tmp_path)
    made.has("kubepods", "0-7")
    return made


def test_a_machine_whose_cgroups_keep_nothing_is_as_it_is(node: Node) -> None:
    assert (node.usable.online(), node.told) == (node.online(), [])
    assert node.usable.topology() == node.topology()


@pytest.mark.parametrize(
    ("cgroup", "state"),
    [
        ("dpdk.service", "isolated"),
        ("dpdk.service", "root"),
        ("system.slice/rt.service", "isolated"),
        ("kubepods/burstable/admins", "isolated"),
        (CONTAINER, "isolated"),
        (f"{CONTAINER}/nested", "isolated"),
    ],
)
def test_a_partition_has_its_cpus_alone(node: Node, cgroup: str, state: str) -> None:
    node.takes(cgroup, "2,5", state=state)
    assert node.told == [("2,5", f"/{cgroup}", state)]
    assert node.usable.online() == CPUSet.parse("0-1,3-4,6-7")
    lost = node.usable.topology()
    assert (lost.online, lost.present) == (node.usable.online(), CPUSet(range(8)))
    assert withheld.all_of(lost.withheld) == CPUSet.of(2, 5)


@pytest.mark.parametrize("cgroup", [CONTAINER, f"{CONTAINER}/nested"])
def test_a_container_that_is_isolated_on_its_own_cpus_takes_nothing(
    node: Node, cgroup: str
) -> None:
    node.takes(cgroup, "2,5")
    node.writes(CONTAINER, "2,5")
    assert (node.told, node.usable.online()) == ([], node.online())
    node.writes(CONTAINER, "2-3")
    assert node.told == [("5", f"/{cgroup}", "isolated")]


def test_an_invalid_partition_may_keep_what_it_lists(node: Node) -> None:
    node.takes(
        "dpdk.service", "2", state="isolated invalid (Cpu list in cpuset.cpus not exclusive)"
    )
    node.has("dpdk.service", "0-1,3-7", state="isolated invalid (x)", exclusive="2")
    assert node.told == [("2", "/dpdk.service", "isolated invalid (x)")]


def test_a_smaller_set_limits_and_the_outermost_is_named(tmp_path: Path) -> None:
    node = Node(tmp_path, cgroup_root="/lab/x")
    for path, cpus in (("lab", "0-5"), ("lab/x", "0-4"), ("lab/x/kubepods", "0-3")):
        node.has(path, cpus)
    assert node.told == [("6-7", "/lab", ""), ("5", "/lab/x", ""), ("4", "/lab/x/kubepods", "")]
    assert str(node.usable.online()) == "0-3"


def test_an_offline_cpu_is_not_withheld(node: Node) -> None:
    node.off = CPUSet.of(7)
    node.has("", "0-6")
    node.has("kubepods", "0-5")
    assert node.told == [("6", "/kubepods", "")]


@pytest.mark.parametrize("cpus", ["", "8-9"])
def test_cgroups_that_leave_nothing_say_something_else(node: Node, cpus: str) -> None:
    node.has("kubepods", cpus)
    assert (node.told, node.usable.online()) == ([], node.online())


def test_a_node_without_a_cgroup_of_pods_has_no_limit_yet(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.has("system.slice", "0-1")
    assert node.told == []


def test_on_version_1_a_cgroup_above_kubepods_limits(tmp_path: Path) -> None:
    node = Node(tmp_path, v1=True, cgroup_root="/lab")
    node.has("lab", "0-5")
    node.has("lab/kubepods", "0-3")
    assert node.told == [("6-7", "/lab", "")]
    # The kubelet's own is widened by the agent.
    assert str(node.usable.online()) == "0-5"


def test_on_version_1_what_the_kernel_has_taken_with_a_cpu_is_no_limit(tmp_path: Path) -> None:
    node = Node(tmp_path, v1=True, cgroup_root="/lab")
    node.has("lab", "0-5")
    node.has("lab/kubepods", "0-5")
    assert str(node.usable.online()) == "0-5"
    node.off = CPUSet.of(5, 6)
    node.has("lab", "0-4")
    assert str(node.usable.online()) == "0-4"
    node.off = CPUSet()
    # 5 is for the agent to give back; 6 was never there.
    assert str(node.usable.online()) == "0-5"
    assert str(node.usable.online()) == "0-5"
    node.has("lab", "0-5")
    assert str(node.usable.online()) == "0-5"
    node.has("lab", "0-3")
    assert str(node.usable.online()) == "0-3"


def test_the_words_name_each_cause() -> None:
    parts = (
        Withheld(CPUSet.of(2, 3), "/dpdk.service", "isolated"),
        Withheld(CPUSet.of(4), "/kubepods"),
    )
    assert withheld.why(CPUSet.of(5), parts) == "CPUs 5 are offline"
    assert withheld.remedy(CPUSet.of(5), parts) == "bring them online"
    why = withheld.why(CPUSet.of(2, 4, 5), parts)
    assert why == (
        "CPUs 2 are for cgroup /dpdk.service alone (cpuset.cpus.partition: isolated), and CPUs 4"
        " are not in cgroup /kubepods, which has all pods (cpuset.cpus), and CPUs 5 are offline"
    )
    assert withheld.remedy(CPUSet.of(2, 4, 5), parts) == (
        "write member into cpuset.cpus.partition of /dpdk.service (systemd: remove"
        " CPUSetPartition=), and add CPUs 4 to cpuset.cpus of /kubepods (systemd: AllowedCPUs=),"
        " and bring CPUs 5 online"
    )


def test_cpus_go_offline_also_while_cgroups_cannot_be_read(node: Node) -> None:
    node.takes("dpdk.service", "2")
    assert node.usable.online() == CPUSet.parse("0-1,3-7")

    node.has("kubepods", "no CPUs")
    node.off = CPUSet.of(5)
    assert node.usable.online() == CPUSet.parse("0-1,3-4,6-7")
    assert node.usable.topology().online == CPUSet.parse("0-1,3-4,6-7")

    node.has("dpdk.service", "2", state="member")
    for path in ("", "kubepods", "kubepods/burstable"):
        node.has(path, "0-4,6-7")
    assert node.usable.online() == CPUSet.parse("0-4,6-7")


class Watched:
    """A watch of a node's cgroups, and what it has reported."""

    def __init__(self, node: Node) -> None:
        self.usable = node.usable
        self.changes = 0
        self.watch = node.usable.watch(self._changed)

    def _changed(self) -> None:
        self.changes += 1

    @contextmanager
    def reports(self) -> Iterator[None]:
        """Wait until what happens within is reported."""
        before = self.changes
        yield
        eventually(lambda: self.changes > before, "a report")


@contextmanager
def watching(node: Node) -> Iterator[Watched]:
    made = Watched(node)
    made.watch.ensure()
    yield made
    made.watch.stop()


@pytest.fixture
def watched(node: Node) -> Iterator[Watched]:
    with watching(node) as made:
        yield made


def test_each_way_to_take_cpus_is_reported(node: Node, watched: Watched) -> None:
    assert not watched.usable.unwatched
    with watched.reports():
        node.writes("kubepods", "0-5")
    with watched.reports():
        node.has("dpdk.service", "0-7")
    with watched.reports():
        node.takes("dpdk.service", "2")
    with watched.reports():
        shutil.rmtree(node.folder("dpdk.service"))


@pytest.mark.parametrize("v1", [False, True])
def test_the_cgroups_down_to_kubepods_are_watched(tmp_path: Path, *, v1: bool) -> None:
    node = Node(tmp_path, v1=v1, cgroup_root="/lab/x")
    with watching(node) as watched:
        node.has("lab/other", "0-7")
        with watched.reports():
            node.has("lab/x/kubepods", "0-7")
        for path in ("lab", "lab/x", "lab/x/kubepods"):
            with watched.reports():
                node.writes(path, "0-5")
        assert not watched.usable.unwatched


def test_a_cgroup_on_the_way_to_kubepods_that_has_its_cpus_at_once_is_reported(
    tmp_path: Path,
) -> None:
    node = Node(tmp_path, cgroup_root="/lab/x")
    node.has("lab", "0-7")
    with watching(node) as watched:
        node.has("made/kubepods", "0-5")
        eventually(lambda: watched.changes, "the new cgroup of the first level")
        with watched.reports():
            node.folder("made/kubepods").rename(node.folder("lab/x"))
        with watched.reports():
            shutil.rmtree(node.folder("lab/x"))


def test_pods_and_services_that_come_and_go_are_not_reported(node: Node) -> None:
    for above in ("system.slice", "kubepods/burstable"):
        node.folder(above).mkdir()
    end = node.folder("end.slice")
    reports: list[bool] = []
    watch = node.usable.watch(lambda: reports.append(end.exists()))
    watch.ensure()
    for path in ("system.slice/rt.service", "kubepods/pod11", CONTAINER):
        node.folder(path).mkdir(parents=True)
    node.folder("kubepods/cgroup.procs").write_text("1\n")
    end.mkdir()
    eventually(lambda: reports, "a report")
    end.rmdir()
    eventually(lambda: not reports[-1], "the last report")
    watch.stop()
    assert reports == [True, False]


@pytest.mark.parametrize(
    ("taken", "unwatched"),
    [
        ("", False),
        ("kubelet/rt", True),
        ("system.slice/rt.service", True),
        ("dpdk.service", True),
    ],
)
def test_a_cgroup_that_hands_cpus_down_is_not_watched_below(
    node: Node, watched: Watched, taken: str, *, unwatched: bool
) -> None:
    if taken:
        node.takes(taken, "2")
    assert watched.usable.unwatched == unwatched


def test_without_a_watch_nothing_is_watched(node: Node) -> None:
    assert node.usable.unwatched
    watch = node.usable.watch(lambda: None)
    assert node.usable.unwatched
    watch.ensure()
    assert [node.usable.unwatched] == [False]
    watch.stop()
    assert node.usable.unwatched
