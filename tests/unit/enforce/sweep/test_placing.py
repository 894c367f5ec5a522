from __future__ import annotations

import logging

import pytest

from cpupool.core.cpuset import CPUSet
from cpupool.host.cgroupfs import CgroupVersion
from tests import builders
from tests.cgroups import KernelModel
from tests.setters import EVERYTHING, Node, ids


def test_every_container_gets_its_cpus_in_one_sweep() -> None:
    node = Node()
    node.run("owner", builders.container(exclusive_a=1))
    node.run("sharer", builders.container(shared_a=100))
    node.run("plain")
    node.run("stranger", listed=False)
    node.source.live = {
        "owner": {"exclusive_a": ids("2")},
        "sharer": {"shared_a": ids("7", "8")},
    }

    report = node.setter.sweep()

    placed = {name: node.cpus(name) for name in ("owner", "sharer", "plain", "stranger")}
    assert placed == {"owner": "2", "sharer": "0", "plain": "1", "stranger": "1"}
    assert (len(report.found), len(report.repairs)) == (4, 4)


def test_a_sweep_over_what_is_right_writes_nothing_and_asks_the_kubelet_nothing() -> None:
    node = Node()
    node.run("owner", builders.container(exclusive_a=1))
    node.source.live = {"owner": {"exclusive_a": ids("2")}}
    node.setter.sweep()
    node.source.asked.clear()
    written = len(node.kernel.writes)

    report = node.setter.sweep()

    assert report.repairs == ()
    assert len(node.kernel.writes) == written
    assert node.source.asked == ["pods"]


@pytest.mark.parametrize("wrong", [EVERYTHING, "4", "0-1"])
def test_any_difference_is_repaired(wrong: str) -> None:
    node = Node()
    node.run("owner", builders.container(exclusive_a=1))
    node.source.live = {"owner": {"exclusive_a": ids("2")}}
    node.setter.sweep()

    node.kernel.write(node.path("owner"), CPUSet.parse(wrong))
    (repair,) = node.setter.sweep().repairs

    assert node.cpus("owner") == "2"
    assert (repair.path, repair.found, str(repair.wanted), repair.error) == (
        node.path("owner"),
        wrong,
        "2",
        "",
    )


def test_a_container_that_vanishes_in_the_middle_is_no_error() -> None:
    node = Node()
    node.run("plain")
    path = node.path("plain")
    node.kernel.before_write[1] = lambda: node.kernel.remove(path)

    assert node.setter.sweep().repairs == ()


def test_a_cgroup_that_cannot_be_written_is_reported_and_the_others_are_served(
    caplog: pytest.LogCaptureFixture,
) -> None:
    node = Node()
    node.run("stuck")
    node.run("plain")
    node.kernel.refusing.add(node.path("stuck"))

    with caplog.at_level(logging.WARNING):
        repairs = {repair.path: repair.error for repair in node.setter.sweep().repairs}
        node.setter.sweep()

    assert node.cpus("plain") == "1"
    assert "EIO" in repairs[node.path("stuck")]
    stuck = [record for record in caplog.records if "wrong CPUs" in record.message]
    assert len(stuck) == 1, "the same trouble is told once"

    for again in (False, True):
        node.kernel.refusing = {node.path("stuck")} if again else set()
        if again:
            node.kernel.sets[node.path("stuck")] = CPUSet.of(5)
        with caplog.at_level(logging.WARNING):
            node.setter.sweep()
    stuck = [record for record in caplog.records if "wrong CPUs" in record.message]
    assert len(stuck) == 2, "and again when it comes back"


def test_a_repair_that_widens_an_ancestor_leaves_no_other_wider() -> None:
    node = Node(
        kernel=KernelModel(CgroupVersion.V2, {"kubepods": EVERYTHING}, EVERYTHING),
    )
    node.run("sharer", builders.container(shared_a=1))
    node.run("owner", builders.container(exclusive_a=1))
    node.source.live = {"sharer": {"shared_a": ids("0")}, "owner": {"exclusive_a": ids("2")}}
    node.kernel.write("kubepods", CPUSet.of(0))

    node.setter.sweep()

    assert (node.cpus("sharer"), node.cpus("owner")) == ("0", "2")


def test_a_repair_of_a_pod_that_has_changed_leaves_no_other_wider() -> None:
    node = Node(
        kernel=KernelModel(CgroupVersion.V2, {"kubepods": EVERYTHING}, EVERYTHING),
    )
    node.run("sharer", builders.container(shared_a=1))
    node.source.live = {"sharer": {"shared_a": ids("0")}}
    node.kernel.write("kubepods", CPUSet.of(0))
    node.setter.sweep()

    node.run("owner", builders.container(exclusive_a=1))
    node.source.live["owner"] = {"exclusive_a": ids("2")}
    node.setter.sweep({"owner-uid"})
    assert (node.cpus("sharer"), node.cpus("owner")) == ("0", "2")


def test_a_sweep_reads_the_pods_that_have_changed() -> None:
    node = Node()
    node.run("web")
    node.run("db")
    node.setter.sweep()
    node.kernel.write(node.path("db"), CPUSet.parse(EVERYTHING))
    assert node.setter.sweep({"web-uid"}).repairs == ()
    (repair,) = node.setter.sweep({"db-uid"}).repairs
    assert repair.path == node.path("db")


def test_a_sweep_reads_everything_after_one_that_could_not_move_a_container() -> None:
    node = Node()
    node.run("web")
    node.run("db")
    node.setter.sweep()
    for name in ("web", "db"):
        node.kernel.write(node.path(name), CPUSet.parse(EVERYTHING))
    node.kernel.refusing.add(node.path("web"))
    node.setter.sweep({"web-uid"})
    assert node.cpus("db") == EVERYTHING
    node.setter.sweep(frozenset())
    assert node.cpus("db") == "1"
