from __future__ import annotations

import logging
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

from cpupool.core.cpuset import CPUSet
from cpupool.core.errors import CPUPoolError, HostFileError, RemoteProtocolError
from cpupool.core.names import Names
from cpupool.core.pools import NodePools, Pool
from cpupool.core.workloads import ContainerKind
from cpupool.host.cgroupfs import CgroupVersion
from cpupool.manager.manager import Manager
from cpupool.roles.cpusetter import CPUSetter, SweepReport
from tests import builders
from tests.cgroups import KernelModel
from tests.machines import MACHINES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cpupool.core.workloads import Container, Pod
    from cpupool.manager.ports import FoundContainer

MACHINE = MACHINES["laptop_4c8t"]
POOLS = NodePools.of(
    Pool.named("exclusive_a", "2,4"), Pool.named("shared_a", "0"), Pool.named("default", "1")
)
EVERYTHING = "0-7"


@dataclass
class Source:
    """Pods, podresources and checkpoint in one; each can fail and counts how often it is asked."""

    listed: list[Pod] | None = field(default_factory=list)
    live: dict[str, dict[str, frozenset[str]]] = field(default_factory=dict)
    saved: dict[str, dict[str, frozenset[str]]] = field(default_factory=dict)
    failing: dict[str, CPUPoolError] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)

    def pods(self) -> tuple[Pod, ...] | None:
        self._ask("pods")
        return None if self.listed is None else tuple(self.listed)

    def by_pod_name(self) -> dict[tuple[str, str], dict[str, dict[str, frozenset[str]]]]:
        self._ask("podresources")
        return {("default", pod): self._resources(ids) for pod, ids in self.live.items()}

    def by_pod_uid(self) -> dict[str, dict[str, dict[str, frozenset[str]]]]:
        self._ask("checkpoint")
        return {f"{pod}-uid": self._resources(ids) for pod, ids in self.saved.items()}

    def _ask(self, source: str) -> None:
        self.asked.append(source)
        if source in self.failing:
            raise self.failing[source]

    @staticmethod
    def _resources(ids: dict[str, frozenset[str]]) -> dict[str, dict[str, frozenset[str]]]:
        names = Names()
        return {"main": {names.resource(pool): held for pool, held in ids.items()}}


@dataclass
class Node:
    """A cpusetter on a model of the kernel."""

    source: Source = field(default_factory=Source)
    kernel: KernelModel = field(
        default_factory=lambda: KernelModel(CgroupVersion.V1, {"kubepods": EVERYTHING}, EVERYTHING)
    )
    manager: Manager = field(default_factory=lambda: Manager(Names()))
    now_s: float = 0.0
    swept: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))

    def __post_init__(self) -> None:
        self.manager.reconfigure(POOLS, MACHINE.topology())
        self.setter = CPUSetter(
            manager=self.manager,
            tree=self.kernel,
            pods=self.source,
            devices=self.source,
            checkpoint=self.source,
            interval_s=60.0,
            swept=lambda _report: self.swept.release(),
            now_s=lambda: self.now_s,
        )

    def run(self, name: str, *containers: Container, listed: bool = True) -> None:
        pod = builders.pod(name, *containers)
        self.kernel.make(f"kubepods/pod{pod.uid}", EVERYTHING)
        for container in pod.containers:
            self.kernel.make(self.path(name, container.name), EVERYTHING)
        if listed and self.source.listed is not None:
            self.source.listed.append(pod)

    def path(self, pod: str, container: str = "main") -> str:
        return f"kubepods/pod{pod}-uid/{container}-id"

    def cpus(self, pod: str, container: str = "main") -> str:
        return str(self.kernel.effective(self.path(pod, container)))


def ids(*given: str) -> frozenset[str]:
    return frozenset(given)


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


def test_an_init_container_is_known_from_the_checkpoint() -> None:
    node = Node()
    node.run("owner", builders.container("main", ContainerKind.INIT, exclusive_a=1))
    node.source.saved = {"owner": {"exclusive_a": ids("4")}}

    node.setter.sweep()

    assert node.cpus("owner") == "4"
    assert node.source.asked == ["pods", "podresources", "checkpoint"]


def test_the_checkpoint_serves_while_the_kubelet_is_away() -> None:
    node = Node()
    node.run("owner", builders.container(exclusive_a=1))
    node.source.saved = {"owner": {"exclusive_a": ids("4")}}
    node.source.failing["podresources"] = RemoteProtocolError("the kubelet does not answer")

    node.setter.sweep()

    assert node.cpus("owner") == "4"


@pytest.mark.parametrize(
    "blind",
    [
        pytest.param({"pods": HostFileError("pods.json", "gone", "write it")}, id="no pods"),
        pytest.param(
            {
                "podresources": RemoteProtocolError("the kubelet does not answer"),
                "checkpoint": HostFileError("checkpoint", "gone", "wait"),
            },
            id="no word on devices",
        ),
    ],
)
def test_nothing_is_touched_before_the_facts_have_been_heard_of_once(
    blind: dict[str, CPUPoolError], caplog: pytest.LogCaptureFixture
) -> None:
    node = Node()
    node.run("owner", builders.container(exclusive_a=1))
    node.run("plain")
    node.source.live = {"owner": {"exclusive_a": ids("2")}}
    node.source.failing = dict(blind)

    with caplog.at_level(logging.WARNING):
        node.setter.sweep()
        node.setter.sweep()

    assert (node.cpus("owner"), node.cpus("plain")) == (EVERYTHING, EVERYTHING)
    assert len(caplog.records) == len(blind), "each source is complained about once"

    node.source.failing.clear()
    node.now_s += 1
    node.setter.sweep()
    assert (node.cpus("owner"), node.cpus("plain")) == ("2", "1")


def test_nothing_is_touched_before_the_first_complete_list_of_pods() -> None:
    node = Node(Source(listed=None))
    node.run("stranger", listed=False)

    node.setter.sweep()

    assert node.cpus("stranger") == EVERYTHING


def test_nothing_is_touched_on_a_node_without_pools() -> None:
    node = Node()
    node.manager.reconfigure(NodePools(), MACHINE.topology())
    node.run("plain")

    assert node.setter.sweep() == SweepReport(waiting_for="a pool file for this node")
    assert node.cpus("plain") == EVERYTHING


def test_a_container_whose_devices_come_late_is_confined_told_and_then_moved(
    caplog: pytest.LogCaptureFixture,
) -> None:
    node = Node()
    node.run("owner", builders.container(exclusive_a=1))

    with caplog.at_level(logging.WARNING):
        node.setter.sweep()
        node.setter.sweep()
    assert node.cpus("owner") == "1"
    assert caplog.text.count("container confined to the default pool pod=default/owner") == 1

    node.source.live = {"owner": {"exclusive_a": ids("2")}}
    node.now_s += 0.1
    node.setter.sweep()
    assert node.cpus("owner") == "2"


def test_the_kubelet_is_asked_ever_more_seldom_about_the_same_devices() -> None:
    node = Node()
    node.run("owner", builders.container(exclusive_a=1))
    for _ in range(6000):
        node.setter.sweep()
        node.now_s += 0.02

    # 120 s in steps of 20 ms: eight times in the first 18.8 s, then 30, 60 and 90 s later.
    assert node.source.asked.count("podresources") == 11

    node.run("second", builders.container(exclusive_a=1))
    node.source.asked.clear()
    node.setter.sweep()
    assert "podresources" in node.source.asked, "something new is asked about at once"


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


def test_with_the_default_pool_offline_its_containers_go_where_no_pool_is() -> None:
    node = Node()
    node.run("owner", builders.container(exclusive_a=1))
    node.run("plain")
    node.source.live = {"owner": {"exclusive_a": ids("2")}}
    node.kernel.online -= CPUSet.of(1)
    node.manager.update_topology(MACHINE.without("1").topology())

    node.setter.sweep()

    assert (node.cpus("owner"), node.cpus("plain")) == ("2", "6-7")


def test_a_container_without_any_cpu_to_go_to_stays_where_it_is(
    caplog: pytest.LogCaptureFixture,
) -> None:
    node = Node()
    node.manager.reconfigure(
        NodePools.of(Pool.named("exclusive_a", "2,4,6"), Pool.named("default", "0-1")),
        MACHINE.topology(),
    )
    node.run("owner", builders.container(exclusive_a=3))
    node.run("plain")
    node.source.live = {"owner": {"exclusive_a": ids("2", "4", "6")}}
    node.manager.update_topology(MACHINE.without("0-1").topology())

    with caplog.at_level(logging.WARNING):
        node.setter.sweep()
        node.setter.sweep()

    assert (node.cpus("owner"), node.cpus("plain")) == ("2,4,6", EVERYTHING)
    assert caplog.text.count("no CPU of its pool is online and free") == 1


def test_a_pod_that_is_listed_no_longer_keeps_its_cpus_while_its_cgroup_is_there() -> None:
    node = Node()
    node.run("owner", builders.container(exclusive_a=1))
    node.source.live = {"owner": {"exclusive_a": ids("2")}}
    node.setter.sweep()

    node.source.listed = []
    node.setter.sweep()
    assert node.cpus("owner") == "2"

    node.kernel.remove("kubepods/podowner-uid")
    node.setter.sweep()
    assert node.manager.state()[1].owned == {}


def test_a_kubelet_that_names_nobody_has_not_spoken_yet() -> None:
    node = Node()
    node.run("owner", builders.container(exclusive_a=1))
    node.source.failing["checkpoint"] = HostFileError("checkpoint", "gone", "wait")

    assert node.setter.sweep().waiting_for == "the kubelet's word on its devices"
    assert node.cpus("owner") == EVERYTHING
    assert not node.setter.ready


def test_an_unreadable_tree_is_told_and_does_not_end_the_role(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Unreadable(KernelModel):
        def containers(self) -> Iterator[FoundContainer]:
            raise HostFileError("kubepods", "Permission denied", "run as root")

    node = Node(kernel=Unreadable(CgroupVersion.V1, {"kubepods": EVERYTHING}, EVERYTHING))
    with caplog.at_level(logging.WARNING):
        assert node.setter.sweep() == SweepReport(waiting_for="the cgroups")
    assert "run as root" in caplog.text


def test_the_loop_sweeps_when_woken_and_ends_when_stopped() -> None:
    node = Node()
    stop = threading.Event()
    thread = threading.Thread(target=node.setter.run, args=(stop,), daemon=True)
    thread.start()
    assert node.swept.acquire(timeout=10), "it looks at once when it starts"

    node.run("plain")
    node.setter.wake()
    assert node.swept.acquire(timeout=10)
    stop.set()
    node.setter.wake()
    thread.join(10)

    assert not thread.is_alive()
    assert node.cpus("plain") == "1"


def test_a_repair_that_widens_an_ancestor_leaves_nobody_else_wider() -> None:
    node = Node(
        kernel=KernelModel(CgroupVersion.V2, {"kubepods": EVERYTHING}, EVERYTHING),
    )
    node.run("sharer", builders.container(shared_a=1))
    node.run("owner", builders.container(exclusive_a=1))
    node.source.live = {"sharer": {"shared_a": ids("0")}, "owner": {"exclusive_a": ids("2")}}
    node.kernel.write("kubepods", CPUSet.of(0))

    node.setter.sweep()

    assert (node.cpus("sharer"), node.cpus("owner")) == ("0", "2")


def test_pods_without_any_cgroup_are_wondered_about_once(caplog: pytest.LogCaptureFixture) -> None:
    node = Node()
    node.source.listed = [builders.pod("plain")]

    with caplog.at_level(logging.WARNING):
        node.setter.sweep()
        node.setter.sweep()

    assert caplog.text.count("--cgroup-root") == 1
