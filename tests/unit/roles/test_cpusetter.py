from __future__ import annotations

import logging
import re
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import pytest

from cpupool.core.cpuset import CPUSet
from cpupool.core.devices import AllocatedDevices
from cpupool.core.errors import (
    ContainerNotFound,
    CPUPoolError,
    HostFileError,
    RemoteProtocolError,
    RuntimeSilent,
)
from cpupool.core.names import ENABLE_SHARED_CPUS, Names
from cpupool.core.pools import MixedCPUs, NodePools, Pool
from cpupool.core.workloads import ContainerID, ContainerKind
from cpupool.enforce.notices import Notice
from cpupool.enforce.ways import Ways
from cpupool.host.cgroupfs import CgroupVersion
from cpupool.manager import offers
from cpupool.manager.manager import Manager
from cpupool.manager.ports import Way
from cpupool.roles.cpusetter import CPUSetter, SweepReport
from cpupool.telemetry.health import Health
from cpupool.telemetry.metrics import Metrics
from tests import builders
from tests.cgroups import KernelModel
from tests.events import Heard
from tests.machines import MACHINES
from tests.runtimes import ModelRuntime, told
from tests.waiting import DEADLINE_S, eventually

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from cpupool.core.workloads import Container, Pod
    from cpupool.enforce.keeper import Keeper
    from cpupool.enforce.notices import NoticeKey
    from cpupool.manager.ports import FoundContainer
    from cpupool.manager.resolve import Resolution

MACHINE = MACHINES["laptop_4c8t"]
POOLS = NodePools.of(
    Pool.named("exclusive_a", "2,4"), Pool.named("shared_a", "0"), Pool.named("default", "1")
)
EVERYTHING = "0-7"
OWNER = "kubepods/podowner-uid"
OTHER = "kubepods/podother-uid"


@dataclass
class Source:
    """Pods, podresources and checkpoint in one; each can fail and counts how often it is asked.

    `live` and `saved` hold pod name → pool → ids, `told` pool → the CPUs that containers were told.
    """

    listed: list[Pod] | None = field(default_factory=list)
    live: dict[str, dict[str, frozenset[str]]] = field(default_factory=dict)
    saved: dict[str, dict[str, frozenset[str]]] = field(default_factory=dict)
    failing: dict[str, CPUPoolError] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    static_cpus: CPUSet = field(default_factory=CPUSet)
    told: dict[str, CPUSet] = field(default_factory=dict)

    def pods(self) -> tuple[Pod, ...] | None:
        self._ask("pods")
        return None if self.listed is None else tuple(self.listed)

    def by_pod_name(self) -> dict[tuple[str, str], dict[str, dict[str, AllocatedDevices]]]:
        self._ask("podresources")
        return {("default", pod): self._resources(ids) for pod, ids in self.live.items()}

    def allocatable_cpus(self) -> CPUSet:
        self._ask("cpu manager")
        return self.static_cpus

    def by_pod_uid(self) -> dict[str, dict[str, dict[str, AllocatedDevices]]]:
        self._ask("checkpoint")
        return {f"{pod}-uid": self._resources(ids) for pod, ids in self.saved.items()}

    def _ask(self, source: str) -> None:
        self.asked.append(source)
        if source in self.failing:
            raise self.failing[source]

    def _resources(self, ids: dict[str, frozenset[str]]) -> dict[str, dict[str, AllocatedDevices]]:
        return {
            "main": {
                Names().resource(pool): AllocatedDevices(held, self.told.get(pool, CPUSet()))
                for pool, held in ids.items()
            }
        }


@dataclass
class Node:
    """A cpusetter on a model of the kernel."""

    source: Source = field(default_factory=Source)
    kernel: KernelModel = field(
        default_factory=lambda: KernelModel(CgroupVersion.V1, {"kubepods": EVERYTHING}, EVERYTHING)
    )
    manager: Manager = field(default_factory=lambda: Manager(Names()))
    events: Heard = field(default_factory=Heard)
    metrics: Metrics = field(default_factory=Metrics)
    health: Health = field(default_factory=Health)
    asked: Way | None = None
    nri: ModelRuntime | None = None
    cri: ModelRuntime = field(default_factory=ModelRuntime)
    pools: NodePools | None = POOLS
    keepers: tuple[Keeper, ...] = ()
    clock: Callable[[], float] | None = None
    now_s: float = 0.0
    cpu_s: float = 0.0
    sweep_costs_s: float = 0.0
    swept: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    refusals: int = 0

    def __post_init__(self) -> None:
        if self.pools is not None:
            self.manager.reconfigure(self.pools, MACHINE.topology())
        self.setter = CPUSetter(
            manager=self.manager,
            tree=self.kernel,
            pods=self.source,
            devices=self.source,
            checkpoint=self.source,
            containers=self.cri,
            ways=Ways(self.asked, self.nri, self.cri),
            events=self.events,
            metrics=self.metrics,
            health=self.health,
            keepers=self.keepers,
            interval_s=60.0,
            swept=lambda _report: self.swept.release(),
            refused=self._refused,
            now_s=self.clock or (lambda: self.now_s),
            cpu_s=self.spent_s,
        )

    def spent_s(self) -> float:
        self.cpu_s += self.sweep_costs_s
        return self.cpu_s

    def _refused(self) -> None:
        self.refusals += 1

    def run(self, name: str, *containers: Container, listed: bool = True) -> None:
        pod = builders.pod(name, *containers)
        self.kernel.make(f"kubepods/pod{pod.uid}", EVERYTHING)
        for container in pod.containers:
            self.kernel.make(self.path(name, container.name), EVERYTHING)
        if listed and self.source.listed is not None:
            self.source.listed.append(pod)

    def measured(self, series: str) -> float:
        """Read one series as Prometheus would: `name{label="value"}`."""
        _, body = self.metrics.render()
        found = re.search(rf"^{re.escape(series)} (\S+)$", body.decode(), re.MULTILINE)
        assert found, series
        return float(found[1])

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
    assert "podresources" not in node.source.asked, "the checkpoint said it all"


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


def test_devices_of_pools_that_are_gone_can_be_listed_once_their_holders_are_known() -> None:
    node = Node(Source(listed=None))
    node.manager.reconfigure(NodePools(), MACHINE.topology())
    node.setter.sweep()
    was_ready = node.setter.ready

    node.source.listed = []
    node.run("owner", builders.container(exclusive_a=1))
    node.source.saved = {"owner": {"exclusive_a": ids("2")}}
    node.setter.sweep()
    assert (was_ready, node.setter.ready) == (False, True)
    assert [pool.name for pool in node.manager.advertised()] == ["exclusive_a"]


def test_an_owner_is_left_alone_on_its_core_after_the_last_pool_has_gone() -> None:
    node = owner_on_2()
    node.manager.reconfigure(NodePools(), MACHINE.topology())
    node.run("late")
    node.kernel.write(node.path("owner"), CPUSet.of(5))
    node.setter.sweep()
    assert {name: node.cpus(name) for name in ("owner", "plain", "late")} == {
        "owner": "2",
        "plain": "0-1,4-7",
        "late": "0-1,4-7",
    }

    assert node.source.listed
    del node.source.listed[0]
    node.kernel.remove("kubepods/podowner-uid")
    node.run("last")
    assert node.setter.sweep().waiting_for == "a pool file for this node"
    assert node.cpus("last") == EVERYTHING


def test_nobody_is_moved_before_it_is_known_which_pools_there_are() -> None:
    before = owner_on_2()
    before.run("sharer", builders.container(shared_a=1))
    before.source.saved["sharer"] = {"shared_a": ids("0")}
    before.setter.sweep()
    node = Node(source=before.source, kernel=before.kernel, manager=Manager(Names()), pools=None)
    node.manager.update_topology(MACHINE.topology())

    assert node.setter.sweep().repairs == ()
    assert node.cpus("sharer") == "0"


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

    for again in (False, True):
        node.kernel.refusing = {node.path("stuck")} if again else set()
        if again:
            node.kernel.sets[node.path("stuck")] = CPUSet.of(5)
        with caplog.at_level(logging.WARNING):
            node.setter.sweep()
    stuck = [record for record in caplog.records if "wrong CPUs" in record.message]
    assert len(stuck) == 2, "and again when it comes back"


def test_a_cgroup_that_refuses_again_and_again_is_left_in_peace_for_a_while() -> None:
    node = Node()
    node.run("stuck")
    node.kernel.refusing.add(node.path("stuck"))
    tries = [len(node.setter.sweep().repairs) for _ in range(12)]
    assert tries == [1] * 11 + [0]
    node.now_s += 0.2
    node.kernel.refusing.clear()
    assert len(node.setter.sweep().repairs) == 1
    assert node.events.pods == [], "nobody overwrites it"


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
    assert builders.owned(node.manager) == {}


def test_a_list_that_has_lost_every_pod_moves_nobody() -> None:
    node = owner_on_2()
    node.run("sharer", builders.container(shared_a=1))
    node.source.saved["sharer"] = {"shared_a": ids("0")}
    node.setter.sweep()

    listed, node.source.listed = node.source.listed, []
    assert node.setter.sweep().repairs == ()
    node.source.listed = listed
    assert node.setter.sweep().repairs == ()
    assert node.cpus("sharer") == "0"


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
    assert node.swept.acquire(timeout=DEADLINE_S), "it looks at once when it starts"

    node.run("plain")
    node.setter.wake()
    assert node.swept.acquire(timeout=DEADLINE_S)
    stop.set()
    node.setter.wake()
    thread.join(DEADLINE_S)

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


def owner_on_2() -> Node:
    """A node where `owner` has been put on CPU 2 and `plain` on CPU 1."""
    node = Node()
    node.run("owner", builders.container(exclusive_a=1))
    node.run("plain")
    node.source.saved = {"owner": {"exclusive_a": ids("2")}}
    node.setter.sweep()
    assert (node.cpus("owner"), node.cpus("plain")) == ("2", "1")
    return node


def test_normal_starts_and_ends_are_no_event(caplog: pytest.LogCaptureFixture) -> None:
    node = owner_on_2()
    with caplog.at_level(logging.WARNING):
        node.run("second", builders.container(exclusive_a=1))
        node.source.saved["second"] = {"exclusive_a": ids("4")}
        node.setter.sweep()
        node.source.listed = []
        node.kernel.remove("kubepods/podowner-uid")
        node.kernel.remove("kubepods/podsecond-uid")
        node.now_s += 100
        node.setter.sweep()

    assert (node.events.pods, node.events.nodes, caplog.records) == ([], [], [])


def test_a_container_that_starts_again_is_put_right_at_once() -> None:
    node = owner_on_2()
    node.kernel.remove(node.path("owner"))
    again = "kubepods/podowner-uid/main-2-id"
    node.kernel.make(again, EVERYTHING)
    node.setter.sweep()
    assert str(node.kernel.effective(again)) == "1", "not reported yet: on no exclusive CPU"

    assert node.source.listed
    pod = node.source.listed[0]
    container = replace(pod.containers[0], id=ContainerID("main-2-id"))
    node.source.listed[0] = replace(pod, containers=(container,))
    node.source.asked.clear()
    node.setter.sweep()

    assert str(node.kernel.effective(again)) == "2"
    assert node.source.asked == ["pods"], "its devices are those that it had"


def test_a_finished_pod_owns_nothing_though_its_cgroup_is_there() -> None:
    node = owner_on_2()
    assert node.source.listed
    node.source.listed[0] = replace(node.source.listed[0], finished=True)
    node.setter.sweep()
    assert builders.owned(node.manager) == {}
    assert node.events.pods == []


@pytest.mark.parametrize(
    ("written", "by"),
    [
        pytest.param(EVERYTHING, "runtime", id="as it was created"),
        pytest.param("4-5", "unknown", id="any other set"),
    ],
)
def test_a_repair_names_who_probably_wrote(
    written: str, by: str, caplog: pytest.LogCaptureFixture
) -> None:
    node = owner_on_2()
    assert node.measured('cpupool_repairs_total{reason="new"}') == 2

    node.kernel.write(node.path("owner"), CPUSet.parse(written))
    with caplog.at_level(logging.INFO):
        node.setter.sweep()

    assert node.measured(f'cpupool_repairs_total{{reason="{by}"}}') == 1
    (line,) = [record.getMessage() for record in caplog.records]
    assert f"found={written} cpus=2 by={by}" in line
    assert " op=sweep-" in line


def test_a_scope_that_is_emptied_was_reset_by_systemd() -> None:
    node = Node(kernel=KernelModel(CgroupVersion.V2, {"kubepods": EVERYTHING}, EVERYTHING))
    scope = f"kubepods/podstranger/cri-containerd-{'0' * 64}.scope"
    node.kernel.make("kubepods/podstranger", "")
    node.kernel.make(scope, "")
    node.setter.sweep()

    node.kernel.sets[scope] = CPUSet()
    node.setter.sweep()

    assert str(node.kernel.effective(scope)) == "1"
    assert node.measured('cpupool_repairs_total{reason="systemd"}') == 1


def test_a_move_of_our_own_blames_nobody() -> None:
    node = owner_on_2()
    node.manager.reconfigure(
        NodePools.of(Pool.named("exclusive_a", "2,4"), Pool.named("default", "0")),
        MACHINE.topology(),
    )
    node.setter.sweep()

    assert node.cpus("plain") == "0"
    assert node.measured('cpupool_repairs_total{reason="moved"}') == 1


def test_a_fight_is_slowed_told_once_and_holds_up_nobody_else() -> None:
    node = owner_on_2()

    def disturb(pod: str) -> str:
        node.kernel.write(node.path(pod), CPUSet.parse("5"))
        node.setter.sweep()
        return node.cpus(pod)

    assert [disturb("owner") for _ in range(11)] == ["2"] * 11
    assert disturb("owner") == "5", "the twelfth time in no time, it is not hurried"
    assert disturb("plain") == "1"
    assert node.measured('cpupool_containers{state="failed"}') == 1

    node.now_s += 0.2
    node.setter.sweep()
    assert node.cpus("owner") == "2"
    disturb("owner")
    node.now_s += 0.3
    assert disturb("owner") == "5", "it waits longer and longer"
    node.now_s += 0.2
    node.setter.sweep()
    assert node.cpus("owner") == "2"

    ((pod, reason, message),) = node.events.pods
    assert (pod, reason) == ("owner", "CPUSetContested")
    assert "overwritten again and again, probably by an unknown program; find" in message

    node.now_s += 60
    assert [disturb("owner") for _ in range(10)] == ["2"] * 10, "a minute of quiet forgives"


def test_one_that_trespasses_is_moved_back_however_often() -> None:
    node = owner_on_2()
    for _ in range(50):
        node.kernel.write(node.path("plain"), CPUSet.parse(EVERYTHING))
        assert len(node.setter.sweep().repairs) == 1
    assert (node.cpus("plain"), node.now_s) == ("1", 0.0)
    assert [reason for _, reason, _ in node.events.pods] == ["CPUSetContested"]


def test_moving_trespassers_back_takes_a_quarter_of_a_cpu() -> None:
    node = owner_on_2()
    node.sweep_costs_s = 0.6

    def is_moved_back() -> bool:
        node.kernel.write(node.path("plain"), CPUSet.parse(EVERYTHING))
        node.setter.sweep()
        return node.cpus("plain") == "1"

    # Eleven come before the back-off, and a second of CPU time is saved up.
    assert [is_moved_back() for _ in range(14)] == [True] * 13 + [False]
    node.now_s += 0.7
    assert not is_moved_back()
    node.now_s += 0.2
    assert is_moved_back()


def test_what_is_refused_though_it_trespasses_is_tried_again_after_a_second() -> None:
    node = owner_on_2()
    node.kernel.write(node.path("plain"), CPUSet.parse(EVERYTHING))
    node.kernel.refusing.add(node.path("plain"))
    for _ in range(20):
        node.setter.sweep()
        node.now_s += 0.45
    tries = []
    for _ in range(20):
        tries.append(len(node.setter.sweep().repairs))
        node.now_s += 0.25
    assert sum(tries) == 5


def test_who_began_a_fight_is_named_while_it_lasts() -> None:
    node = owner_on_2()
    for number in range(30):
        node.kernel.write(node.path("owner"), CPUSet.parse(EVERYTHING if number < 11 else "5"))
        node.setter.sweep()
        node.now_s += 0.4

    ((_, _, message),) = node.events.pods
    assert "probably by the container runtime" in message


def test_a_container_that_is_gone_is_forgotten() -> None:
    node = owner_on_2()
    node.kernel.remove(node.path("plain"))
    node.setter.sweep()
    node.kernel.make(node.path("plain"), EVERYTHING)
    node.setter.sweep()

    assert node.measured('cpupool_repairs_total{reason="new"}') == 3


def test_the_loop_ends_a_pause_in_a_fight_by_itself() -> None:
    node = Node(clock=time.monotonic)
    node.run("plain")
    node.setter.sweep()
    for _ in range(12):
        node.kernel.write(node.path("plain"), CPUSet.of(5))
        node.setter.sweep()
    with running(node):
        eventually(lambda: node.cpus("plain") == "1", "it is put right without an event")


def test_a_fought_container_that_belongs_elsewhere_now_moves_at_once() -> None:
    node = owner_on_2()
    for _ in range(12):
        node.kernel.write(node.path("plain"), CPUSet.parse("5"))
        node.setter.sweep()
    assert node.cpus("plain") == "5"

    node.manager.reconfigure(NodePools.of(Pool.named("default", "0")), MACHINE.topology())
    node.setter.sweep()
    assert node.cpus("plain") == "0"


def test_a_pool_that_is_missing_is_told_to_the_pod_at_once() -> None:
    node = Node()
    node.run("lost", builders.container(exclusive_z=1))
    node.setter.sweep()
    node.source.saved = {"lost": {}}
    node.now_s += 1
    node.setter.sweep()

    ((pod, reason, message),) = node.events.pods
    assert (pod, reason) == ("lost", "CPUPoolMissing")
    assert message.startswith("container main: there is no pool exclusive_z; ask for a pool of")
    assert node.measured('cpupool_containers_confined{cause="no_pool"}') == 1
    assert node.measured('cpupool_containers{state="unknown"}') == 1


def test_devices_that_nobody_names_are_told_when_that_lasts() -> None:
    node = Node()
    node.run("owner", builders.container(exclusive_a=1))
    node.setter.sweep()
    node.now_s += 1.9
    node.setter.sweep()
    assert node.events.pods == []

    node.now_s += 0.1
    node.setter.sweep()
    node.now_s += 100
    node.setter.sweep()
    assert [(pod, reason) for pod, reason, _ in node.events.pods] == [
        ("owner", "CPUDevicesUnknown")
    ]


def test_devices_that_are_no_cpu_numbers_are_not_called_offline() -> None:
    node = Node()
    node.run("owner", builders.container(exclusive_a=1))
    node.source.saved = {"owner": {"exclusive_a": ids("core-2")}}

    node.setter.sweep()
    node.now_s += 100
    node.setter.sweep()

    ((_, reason, message),) = node.events.pods
    assert reason == "CPUDevicesUnknown"
    assert "its devices of exclusive_a are no CPUs: another plugin has listed them" in message


def test_a_pod_that_loses_a_cpu_is_told_once_for_each_set() -> None:
    node = Node()
    node.run("owner", builders.container(exclusive_a=2))
    node.source.saved = {"owner": {"exclusive_a": ids("2", "4")}}
    node.setter.sweep()

    def switch_off(cpus: str) -> None:
        node.kernel.online = CPUSet.parse(EVERYTHING) - CPUSet.parse(cpus)
        node.manager.update_topology(MACHINE.without(cpus).topology())
        node.setter.sweep()
        node.setter.sweep()

    switch_off("4")
    assert node.cpus("owner") == "2"
    switch_off("")
    switch_off("2,4")

    assert [(reason, message.split(";")[0]) for _, reason, message in node.events.pods] == [
        ("CPUOffline", "container main: its CPUs 4 are offline"),
        ("CPUOffline", "container main: every CPU of its pools is offline"),
    ]


TWO_CPUS = builders.container(exclusive_a=2, cpu=2000)
BOTH_KINDS = builders.container(exclusive_a=2, shared_a=100, cpu=2100)
SHARED_ALONE = builders.container(shared_a=1000, cpu=1000)


@pytest.mark.parametrize(
    ("container", "limits_milli", "told"),
    [
        pytest.param(TWO_CPUS, [2000, 500], ["500m"], id="a resize"),
        pytest.param(TWO_CPUS, [1999, 1999], ["1999m"], id="as written"),
        pytest.param(TWO_CPUS, [None, 4000], [], id="more"),
        pytest.param(BOTH_KINDS, [2100, 2000], [], id="not its own CPUs"),
        pytest.param(SHARED_ALONE, [1000, 500], [], id="shared CPUs alone"),
    ],
)
def test_a_limit_below_a_containers_own_cpus_is_told_once(
    container: Container, limits_milli: Sequence[int | None], told: Sequence[str]
) -> None:
    node = Node()
    node.source.saved = {"owner": {"exclusive_a": ids("2", "4"), "shared_a": ids("7")}}
    node.run("owner")
    for limit_milli in limits_milli:
        limited = replace(container, limit_milli=limit_milli)
        node.source.listed = [builders.pod("owner", limited)]
        for _ in range(2):
            node.setter.sweep()
            node.now_s += 100

    assert [reason for _, reason, _ in node.events.pods] == ["CPULimitIgnored" for _ in told]
    for (_, _, message), limit in zip(node.events.pods, told, strict=True):
        assert message == (
            f"container main: its cpu limit of {limit} is less than its exclusive CPUs (2), and"
            " throttles nothing: it keeps them all, without a quota; for another number of CPUs"
            " request that number of exclusive_a in a new pod"
        )


def stray() -> Node:
    """Take the only CPU of `owner` offline, so that its processes are in its pod's cgroup."""
    node = owner_on_2()
    node.run("other", builders.container(exclusive_a=1))
    node.source.saved["other"] = {"exclusive_a": ids("4")}
    node.setter.sweep()
    node.kernel.switch_off(CPUSet.of(2))
    node.manager.update_topology(MACHINE.without("2").topology())
    return node


def test_processes_that_the_kernel_moves_into_their_pod_keep_off_the_cpus_of_others() -> None:
    node = stray()
    node.setter.sweep()
    assert (node.cpus("owner"), str(node.kernel.effective(OWNER))) == ("1", "1")
    assert (node.cpus("other"), str(node.kernel.effective(OTHER))) == ("4", "0-1,3-7")
    assert node.measured('cpupool_containers_confined{cause="offline"}') == 2

    node.kernel.online = CPUSet.parse(EVERYTHING)
    node.manager.update_topology(MACHINE.topology())
    node.setter.sweep()
    assert (node.cpus("owner"), str(node.kernel.effective(OWNER))) == ("2", "1-2")
    node.kernel.write(OWNER, CPUSet.parse("0-2"))
    node.setter.sweep()
    assert str(node.kernel.effective(OWNER)) == "1-2"

    (moved,) = (told for _, reason, told in node.events.pods if reason == "CPUProcessesMoved")
    assert moved.endswith("restart that container once its CPUs are online")


def test_processes_that_the_kernel_has_moved_leave_the_cpus_of_others_first() -> None:
    node = stray()
    written = len(node.kernel.writes)
    node.setter.sweep()
    assert [write.path for write in node.kernel.writes[written:]] == [OWNER, node.path("owner")]


def test_a_cpu_that_the_kernel_refuses_may_be_offline_without_anybody_knowing() -> None:
    node = stray()
    node.manager.update_topology(MACHINE.topology())
    node.setter.sweep()
    # Of the container, and of its pod's cgroup.
    assert node.refusals == 2

    node.manager.update_topology(MACHINE.without("2").topology())
    node.setter.sweep()
    assert (node.cpus("owner"), node.refusals) == ("1", 2)


def test_on_v1_a_runtime_can_create_a_container_on_a_cpu_that_came_back() -> None:
    node = owner_on_2()
    node.setter.sweep()
    node.kernel.switch_off(CPUSet.of(2, 6))
    node.manager.update_topology(MACHINE.without("2,6").topology())
    node.setter.sweep()

    node.kernel.online = CPUSet.parse(EVERYTHING)
    node.manager.update_topology(MACHINE.topology())
    node.setter.sweep()

    # Above pods there is room for any of them, and in a pod for what is its own.
    assert str(node.kernel.effective("kubepods")) == EVERYTHING
    node.kernel.make(f"{OWNER}/again", "2")


def test_a_pod_with_moved_processes_has_room_for_each_of_its_containers_to_start() -> None:
    node = Node()
    later = builders.container("later", running=False, shared_a=100)
    node.run("owner", builders.container(exclusive_a=1), later)
    node.source.saved = {"owner": {"exclusive_a": ids("2")}}
    node.setter.sweep()
    node.kernel.switch_off(CPUSet.of(2))
    node.manager.update_topology(MACHINE.without("2").topology())
    node.setter.sweep()
    assert str(node.kernel.effective(OWNER)) == "0-1"

    node.kernel.online = CPUSet.parse(EVERYTHING)
    node.manager.update_topology(MACHINE.topology())
    again = builders.container(running=False, exclusive_a=1)
    node.source.listed = [builders.pod("owner", again, later)]
    node.setter.sweep()
    assert str(node.kernel.effective(OWNER)) == "0-2"


def test_a_pod_with_moved_processes_has_room_for_the_shared_cpus_that_a_container_keeps() -> None:
    node = Node(manager=Manager(Names(), moves_pinned=False))
    node.run(
        "owner", builders.container(exclusive_a=1, shared_a=100), builders.container("sidecar")
    )
    node.source.saved = {"owner": {"exclusive_a": ids("2"), "shared_a": ids("7")}}
    node.setter.sweep()
    after = (("exclusive_a", "2,4"), ("shared_a", "7"), ("shared_b", "0"), ("default", "1"))
    pools = NodePools.of(*(Pool.named(name, cpus) for name, cpus in after))
    node.manager.reconfigure(pools, MACHINE.topology())
    node.kernel.switch_off(CPUSet.of(1))
    node.manager.update_topology(MACHINE.without("1").topology())
    node.setter.sweep()
    assert (node.cpus("owner"), node.cpus("owner", "sidecar")) == ("0,2", "6")
    assert str(node.kernel.effective(OWNER)) == "0,2,6-7"


def test_processes_moved_into_a_pod_that_nobody_knows_stay_in_the_default_pool() -> None:
    node = Node()
    node.run("stranger", listed=False)
    node.setter.sweep()
    node.kernel.switch_off(CPUSet.of(1))
    node.manager.update_topology(MACHINE.without("1").topology())
    node.setter.sweep()
    assert node.cpus("stranger") == str(node.kernel.effective("kubepods/podstranger-uid"))
    assert node.events.pods == []


def test_a_pods_own_cgroup_is_no_business_of_the_runtimes() -> None:
    node = stray()
    node.setter.sweep()
    node.cri.here = node.cri.silent = True
    node.kernel.write(OWNER, CPUSet.parse("0-1"))
    node.setter.sweep()
    assert str(node.kernel.effective(OWNER)) == "1"


def test_two_pods_with_one_cpu_are_told() -> None:
    node = owner_on_2()
    node.run("thief", builders.container(exclusive_a=1))
    node.source.saved["thief"] = {"exclusive_a": ids("2")}
    node.setter.sweep()

    assert (node.cpus("owner"), node.cpus("thief")) == ("2", "1")
    assert not node.events.pods, "the earlier owner may just have ended"

    node.now_s += 2
    node.setter.sweep()
    assert [(pod, reason) for pod, reason, _ in node.events.pods] == [("thief", "CPUContested")]


def test_a_pod_that_falsely_claims_to_mirror_a_static_pod_is_told() -> None:
    node = owner_on_2()
    node.run("hash", builders.container(exclusive_a=1), listed=False)
    claims = [builders.pod(name, cgroup_uid="hash-uid") for name in ("static", "forged")]
    assert node.source.listed is not None
    node.source.listed += claims
    node.setter.sweep()
    assert node.cpus("hash") == "1", "neither is believed"

    node.now_s += 2
    node.setter.sweep()
    assert [(pod, reason) for pod, reason, _ in node.events.pods] == [
        ("static", "StaticPodForged"),
        ("forged", "StaticPodForged"),
    ]


def test_a_container_that_keeps_its_old_shared_cpus_is_told() -> None:
    node = Node(manager=Manager(Names(), moves_pinned=False))
    node.run("both", builders.container(exclusive_a=1, shared_a=100))
    node.source.saved = {"both": {"exclusive_a": ids("2"), "shared_a": ids("7")}}
    node.setter.sweep()
    wider = NodePools.of(
        Pool.named("exclusive_a", "2,4"), Pool.named("shared_a", "0,7"), Pool.named("default", "1")
    )
    node.manager.reconfigure(wider, MACHINE.topology())
    node.setter.sweep()

    assert node.cpus("both") == "0,2"
    ((_, reason, message),) = node.events.pods
    assert reason == "StaleSharedCPUs"
    assert "it stays on the shared CPUs 0 that its pools had before" in message

    node.source.told = {"exclusive_a": CPUSet.of(2), "shared_a": CPUSet.of(0)}
    restarted = Node(
        source=node.source, kernel=node.kernel, manager=Manager(Names(), moves_pinned=False)
    )
    restarted.manager.reconfigure(wider, MACHINE.topology())
    restarted.setter.sweep()
    assert restarted.cpus("both") == "0,2", "the next agent recognises it"


def test_devices_of_pods_that_are_not_listed_are_kept_for_a_minute() -> None:
    node = Node()
    node.run("coming", builders.container(exclusive_a=1), listed=False)
    node.source.saved = {"coming": {"exclusive_a": ids("2")}, "gone": {"exclusive_a": ids("4")}}
    node.setter.sweep()
    assert builders.promised(node.manager) == {"exclusive_a": CPUSet.of(2)}

    node.manager.allocate("exclusive_a", ["4"])
    node.now_s += 59
    node.setter.sweep()
    assert offers.held_ids(node.manager.snapshot().facts) == {"exclusive_a": {"2", "4"}}
    node.now_s += 1
    node.setter.sweep()
    assert offers.held_ids(node.manager.snapshot().facts) == {"exclusive_a": {"4"}}
    node.now_s += 59
    node.setter.sweep()
    assert offers.held_ids(node.manager.snapshot().facts) == {}


def test_a_static_cpu_manager_is_refused_until_it_is_gone() -> None:
    node = Node()
    node.run("owner", builders.container(exclusive_a=1))
    node.source.saved = {"owner": {"exclusive_a": ids("2")}}
    node.source.static_cpus = CPUSet.parse("2-5")

    report = node.setter.sweep()
    node.setter.sweep()

    was_ready = node.setter.ready
    assert node.cpus("owner") == EVERYTHING
    assert (
        "static CPU manager, which gives out CPUs 2-5: set cpuManagerPolicy" in report.waiting_for
    )
    (line,) = node.health.ready().lines
    assert line.startswith(f"cpusetter: failing: waiting for {report.waiting_for}")
    assert node.measured("cpupool_cpu_manager_conflict") == 1
    assert [reason for reason, _ in node.events.nodes] == ["KubeletCPUManagerStatic"]

    node.source.static_cpus = CPUSet()
    node.setter.kubelet_changed()
    node.setter.sweep()

    assert node.cpus("owner") == "2"
    assert (was_ready, node.setter.ready) == (False, True)
    assert node.health.ready().ok
    assert node.measured("cpupool_cpu_manager_conflict") == 0


def test_a_kubelet_that_turns_static_ends_the_writing_and_is_blamed_for_what_it_wrote() -> None:
    node = owner_on_2()
    node.source.failing["cpu manager"] = RemoteProtocolError("the kubelet starts")
    node.setter.kubelet_changed()
    node.kernel.write(node.path("owner"), CPUSet.parse("5"))
    node.setter.sweep()
    assert node.cpus("owner") == "2", "an unanswered question stops nobody"

    del node.source.failing["cpu manager"]
    node.source.static_cpus = CPUSet.parse("2-5")
    node.now_s += 0.1
    node.kernel.write(node.path("owner"), CPUSet.parse("5"))
    node.setter.sweep()
    assert node.cpus("owner") == "5"
    assert not node.setter.ready

    node.source.static_cpus = CPUSet()
    node.setter.kubelet_changed()
    node.setter.sweep()
    assert node.cpus("owner") == "2"
    assert node.measured('cpupool_repairs_total{reason="kubelet-static"}') == 1
    assert len(node.events.nodes) == 1

    node.kernel.write(node.path("owner"), CPUSet.parse("5"))
    node.setter.sweep()
    assert node.measured('cpupool_repairs_total{reason="kubelet-static"}') == 1, "it is gone"
    node.source.static_cpus = CPUSet.parse("2-5")
    node.setter.kubelet_changed()
    node.setter.sweep()
    assert len(node.events.nodes) == 2


def test_pools_that_come_back_to_a_static_cpu_manager_are_not_offered() -> None:
    node = Node()
    node.source.static_cpus = CPUSet.parse("2-5")
    ready = []
    for pools in (POOLS, NodePools(), POOLS):
        node.manager.reconfigure(pools, MACHINE.topology())
        node.setter.sweep()
        ready.append(node.setter.ready)
    assert ready == [False, True, False]


def test_a_kubelet_that_never_tells_of_its_cpu_manager_is_not_waited_for_for_ever() -> None:
    node = Node()
    node.run("plain")
    node.source.failing["cpu manager"] = RemoteProtocolError("unknown method")

    assert node.setter.sweep().waiting_for == "the kubelet's word on its CPU manager"
    assert node.cpus("plain") == EVERYTHING
    node.now_s += 3
    assert node.setter.sweep().waiting_for == ""
    assert node.cpus("plain") == "1"


def test_a_node_without_pools_is_healthy_whatever_its_kubelet_does() -> None:
    node = Node()
    node.manager.reconfigure(NodePools(), MACHINE.topology())
    node.source.static_cpus = CPUSet.parse("2-5")
    node.setter.sweep()

    assert node.health.ready().ok
    assert node.events.nodes == []


def test_states_are_counted_as_they_are_now() -> None:
    node = owner_on_2()

    def states() -> dict[str, float]:
        return {
            state: node.measured(f'cpupool_containers{{state="{state}"}}')
            for state in ("right", "repaired", "unknown", "failed")
        }

    assert states() == {"right": 0, "repaired": 2, "unknown": 0, "failed": 0}
    node.setter.sweep()
    assert states() == {"right": 2, "repaired": 0, "unknown": 0, "failed": 0}
    node.run("stranger", listed=False)
    node.run("stuck")
    node.kernel.refusing.add(node.path("stuck"))
    node.setter.sweep()
    node.setter.sweep()
    assert states() == {"right": 2, "repaired": 0, "unknown": 1, "failed": 1}
    assert node.measured('cpupool_containers_confined{cause="unknown_pod"}') == 1
    node.kernel.refusing.clear()
    node.kernel.write(node.path("stuck"), CPUSet.of(1))
    node.setter.sweep()
    assert states() == {"right": 3, "repaired": 0, "unknown": 1, "failed": 0}


def test_the_time_from_the_first_sight_of_a_container_to_its_own_cpus_is_measured_once() -> None:
    node = owner_on_2()
    assert node.measured("cpupool_container_placement_seconds_count") == 0, "they were there before"

    node.run("late", builders.container(exclusive_a=1))
    node.setter.sweep()
    assert node.cpus("late") == "1"
    node.now_s += 7
    node.source.saved["late"] = {"exclusive_a": ids("4")}
    node.setter.sweep()
    node.now_s += 7
    node.kernel.write(node.path("late"), CPUSet.of(5))
    node.setter.sweep()

    assert node.measured("cpupool_container_placement_seconds_count") == 1
    assert node.measured("cpupool_container_placement_seconds_sum") == 7


def test_the_loop_asks_again_by_itself() -> None:
    node = Node(clock=time.monotonic)
    node.run("plain")
    node.source.static_cpus = CPUSet.parse("2-5")
    with running(node):
        eventually(lambda: node.events.nodes, "the static CPU manager is found")
        node.source.static_cpus = CPUSet()
        eventually(lambda: node.cpus("plain") == "1", "that it is gone is found without an event")


@contextmanager
def running(node: Node) -> Iterator[None]:
    """Let the loop run with nobody to wake it."""
    stop = threading.Event()
    thread = threading.Thread(target=node.setter.run, args=(stop,), daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        node.setter.wake()
        thread.join(DEADLINE_S)
    assert not thread.is_alive()


def test_a_new_container_is_looked_at_once_more_without_an_event() -> None:
    node = Node(clock=time.monotonic)
    with running(node):
        eventually(lambda: node.setter.ready, "the first sweep")
        node.run("plain")
        node.setter.wake()
        eventually(lambda: node.cpus("plain") == "1", "it is put right")
        # Nobody is told of this write: the directory is not watched yet.
        node.kernel.write(node.path("plain"), CPUSet.parse(EVERYTHING))
        eventually(lambda: node.cpus("plain") == "1", "it is found")


def held_by(way: Way) -> tuple[Node, ModelRuntime]:
    """Give a node with `owner`, and the runtime that has the list of it: CPUs 0-7."""
    runtime = ModelRuntime(here=True, lists={"main-id": EVERYTHING})
    node = Node(nri=runtime) if way is Way.NRI else Node(cri=runtime)
    node.run("owner", builders.container(exclusive_a=1))
    node.source.saved = {"owner": {"exclusive_a": ids("2")}}
    runtime.written = lambda _, cpus: node.kernel.sets.update({node.path("owner"): cpus})
    return node, runtime


def written(node: Node) -> set[str]:
    """Give the paths of the containers that were written directly."""
    return {write.path for write in node.kernel.writes if write.path.count("/") > 1}


@pytest.mark.parametrize("way", [Way.NRI, Way.CRI])
def test_a_container_whose_list_the_runtime_has_is_repaired_through_the_runtime(
    way: Way, caplog: pytest.LogCaptureFixture
) -> None:
    node, _ = held_by(way)
    with caplog.at_level(logging.INFO):
        (repair,) = node.setter.sweep().repairs
    assert (node.cpus("owner"), repair.error) == ("2", "")
    assert f"way={way.value} " in caplog.text

    node.kernel.sets[node.path("owner")] = CPUSet.parse("4-5")
    node.setter.sweep()
    assert (node.cpus("owner"), written(node)) == ("2", set())


def test_a_refusal_of_the_runtime_is_tried_again_and_told_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    node, runtime = held_by(Way.CRI)
    runtime.refusing = "it is busy"
    with caplog.at_level(logging.WARNING):
        (repair,) = node.setter.sweep().repairs
        node.setter.sweep()
    assert "it is busy" in repair.error
    assert caplog.text.count("container stays on wrong CPUs") == 1
    assert written(node) == set()

    runtime.refusing = ""
    node.setter.sweep()
    assert (node.cpus("owner"), written(node)) == ("2", set())


def test_the_loop_tries_again_what_the_runtime_refused() -> None:
    runtime = ModelRuntime(here=True, lists={"main-id": EVERYTHING}, refusing="it is busy")
    node = Node(clock=time.monotonic, cri=runtime)
    node.run("plain")
    runtime.written = lambda _, cpus: node.kernel.sets.update({node.path("plain"): cpus})
    node.setter.sweep()
    with running(node):
        assert node.swept.acquire(timeout=DEADLINE_S), "it is refused, and not new any more"
        runtime.refusing = ""
        eventually(lambda: node.cpus("plain") == "1", "it is put right without an event")


def test_a_container_that_only_the_runtime_may_write_waits_for_the_runtime() -> None:
    node, runtime = held_by(Way.NRI)
    runtime.here = False
    (repair,) = node.setter.sweep().repairs
    assert "the container runtime has its CPUs and cannot be reached" in repair.error
    runtime.here = True
    node.setter.sweep()
    assert (node.cpus("owner"), written(node)) == ("2", set())


def silent_runtime() -> tuple[Node, ModelRuntime]:
    """A node with `held`, which a runtime that does not answer has on CPUs 0-7, and `owner`."""
    runtime = ModelRuntime(here=True, lists={"held-id": EVERYTHING}, mute=True)
    node = Node(nri=runtime)
    node.run("first", builders.container("held"))
    node.run("owner", builders.container(exclusive_a=1))
    node.run("plain")
    runtime.written = lambda _, cpus: node.kernel.sets.update({node.path("first", "held"): cpus})
    return node, runtime


def test_what_cpupool_writes_itself_goes_before_what_the_runtime_writes() -> None:
    node, runtime = silent_runtime()
    runtime.mute = False
    placed: list[str] = []
    write = runtime.written

    def written(container: ContainerID, cpus: CPUSet) -> None:
        placed.append(node.cpus("plain"))
        write(container, cpus)

    runtime.written = written
    node.setter.sweep()
    assert placed == ["1"]
    assert node.cpus("first", "held") == "1"


def test_a_silent_runtime_is_asked_again_after_a_second_and_keeps_nobody_else_waiting() -> None:
    node, runtime = silent_runtime()
    for _ in range(30):
        assert node.setter.sweep().repairs
        assert node.cpus("plain") == "1"
        node.kernel.write(node.path("plain"), CPUSet.of(5))
        node.now_s += 1
    node.run("late")
    node.setter.sweep()
    assert node.cpus("late") == "1"
    assert node.cpus("first", "held") == EVERYTHING
    runtime.mute = False
    node.setter.sweep()
    assert node.cpus("first", "held") == "1", "an answer is all that it waited for"


def test_an_owner_gets_its_cpu_once_the_runtime_has_moved_the_others_away() -> None:
    node, runtime = silent_runtime()
    node.setter.sweep()
    assert node.cpus("owner") == "1", "nobody has named its devices"

    node.source.saved = {"owner": {"exclusive_a": ids("2")}}
    for _ in range(3):
        node.now_s += 1
        node.setter.sweep()
    assert node.cpus("owner") == "1"
    ((pod, reason, message),) = node.events.pods
    assert (pod, reason) == ("owner", "CPUOccupied")
    assert message.startswith("container main: other pods still run on its CPUs 2; look at")

    runtime.mute = False
    node.setter.sweep()
    assert (node.cpus("first", "held"), node.cpus("owner")) == ("1", "2")


def test_an_owner_does_not_wait_for_what_has_ended() -> None:
    node, runtime = silent_runtime()
    node.setter.sweep()
    node.source.saved = {"owner": {"exclusive_a": ids("2")}}
    node.now_s += 1
    runtime.mute = False
    del runtime.lists["held-id"]
    node.kernel.remove(node.path("first", "held"))
    node.setter.sweep()
    assert node.cpus("owner") == "2"


def test_the_runtime_writes_several_containers_in_one_call() -> None:
    runtime = ModelRuntime(here=True)
    node = Node(nri=runtime)
    for number in range(10):
        name = f"held{number}"
        node.run("pod", builders.container(name)) if not number else node.kernel.make(
            f"kubepods/podpod-uid/{name}-id", EVERYTHING
        )
        runtime.lists[f"{name}-id"] = EVERYTHING
    runtime.written = lambda container, cpus: node.kernel.sets.update(
        {f"kubepods/podpod-uid/{container}": cpus}
    )
    node.setter.sweep()
    assert [len(call) for call in runtime.calls] == [8, 2]
    assert set(node.kernel.sets.values()) == {CPUSet.parse(EVERYTHING), CPUSet.of(1)}
    assert {str(node.kernel.effective(f"kubepods/podpod-uid/held{n}-id")) for n in range(10)} == {
        "1"
    }


class StuckRuntime(ModelRuntime):
    """A runtime that hangs for as long as it is to update one container.

    Attributes:
        stuck: the container's id; empty for none.
        dialled: it counts as away after a call that has hung, as CRI does.
        now_s: a clock.
    """

    stuck = ""
    dialled = False
    now_s: Callable[[], float]
    _until_s = 0.0

    def connected(self) -> bool:
        return not self.dialled or self.now_s() >= self._until_s

    def update(self, container: ContainerID, cpus: CPUSet) -> None:
        if container == self.stuck and self.now_s() >= self._until_s:
            self._until_s = self.now_s() + 5
        if self.now_s() < self._until_s:
            raise RuntimeSilent(container, f"CPUs {cpus}", "it does not answer")
        super().update(container, cpus)


@pytest.mark.parametrize("way", [Way.NRI, Way.CRI])
def test_a_container_for_which_the_runtime_hangs_keeps_no_other_from_its_cpus(way: Way) -> None:
    runtime = StuckRuntime()
    node = Node(nri=runtime) if way is Way.NRI else Node(cri=runtime)
    runtime.dialled, runtime.now_s = way is Way.CRI, lambda: node.now_s
    paths = {f"held{number}-id": node.path(f"pod{number}", f"held{number}") for number in range(3)}
    for number, identifier in enumerate(paths):
        node.run(f"pod{number}", builders.container(f"held{number}"))
        runtime.lists[identifier] = EVERYTHING
    runtime.written = lambda container, cpus: node.kernel.sets.update({paths[container]: cpus})
    node.setter.sweep()
    assert {str(node.kernel.effective(path)) for path in paths.values()} == {"1"}

    runtime.stuck = "held0-id"
    for path in paths.values():
        node.kernel.sets[path] = CPUSet.parse(EVERYTHING)
    for _ in range(30):
        node.setter.sweep()
        node.now_s += 1
    assert [str(node.kernel.effective(path)) for path in paths.values()] == [EVERYTHING, "1", "1"]

    runtime.stuck = ""
    for _ in range(10):
        node.setter.sweep()
        node.now_s += 1
    assert {str(node.kernel.effective(path)) for path in paths.values()} == {"1"}


def test_a_slow_runtime_is_left_for_pods_and_others_after_half_a_second() -> None:
    runtime = ModelRuntime(here=True)
    node = Node(cri=runtime)
    for number in range(6):
        node.run(f"slow{number}", builders.container(f"held{number}"))
        runtime.lists[f"held{number}-id"] = EVERYTHING

    def written(container: ContainerID, cpus: CPUSet) -> None:
        node.now_s += 0.3
        number = container.removeprefix("held").removesuffix("-id")
        node.kernel.sets[node.path(f"slow{number}", f"held{number}")] = cpus

    runtime.written = written
    moved = []
    for _ in range(4):
        node.source.asked.clear()
        node.setter.sweep()
        assert "pods" in node.source.asked
        moved.append(sum(node.cpus(f"slow{n}", f"held{n}") == "1" for n in range(6)))
    assert moved == [2, 4, 6, 6]


def test_a_container_that_ends_while_the_runtime_is_called_is_no_error() -> None:
    class Ended(ModelRuntime):
        def update(self, container: ContainerID, cpus: CPUSet) -> None:
            raise ContainerNotFound(container)

    node = Node(cri=Ended(here=True, lists={"main-id": EVERYTHING}))
    node.run("plain")
    assert node.setter.sweep().repairs == ()


def test_a_container_that_the_runtime_is_bringing_up_is_not_judged() -> None:
    node, runtime = held_by(Way.NRI)
    runtime.begun = {"main-id"}
    report = node.setter.sweep()
    assert (report.repairs, report.found) == ((), ())
    assert node.measured('cpupool_containers{state="failed"}') == 0
    assert node.cpus("owner") == EVERYTHING

    runtime.begun = set()
    assert len(node.setter.sweep().repairs) == 1
    assert node.cpus("owner") == "2"


def test_another_way_is_for_containers_that_start_from_then_on() -> None:
    node = Node(asked=Way.CRI, cri=ModelRuntime(here=True, lists={"main-id": "", "late-id": ""}))
    node.run("owner", builders.container(exclusive_a=1))
    node.source.saved = {"owner": {"exclusive_a": ids("2")}}
    node.cri.written = lambda _, cpus: node.kernel.sets.update({node.path("new", "late"): cpus})
    node.setter.sweep()
    assert written(node) == {node.path("owner")}

    node.run("new", builders.container("late"))
    node.kernel.make("kubepods/podnew-uid/sandbox", EVERYTHING)
    node.setter.sweep()
    assert (node.cpus("new", "late"), node.cri.lists["late-id"]) == ("1", "1")
    assert written(node) == {node.path("owner"), "kubepods/podnew-uid/sandbox"}, (
        "a sandbox is no container that CRI can update"
    )

    switched = Node(source=node.source, kernel=node.kernel, asked=Way.CGROUP, cri=node.cri)
    node.kernel.writes.clear()
    for path in (node.path("owner"), node.path("new", "late")):
        node.kernel.sets[path] = CPUSet.parse(EVERYTHING)
    switched.setter.sweep()
    assert (node.cpus("owner"), node.cpus("new", "late")) == ("2", "1")
    assert written(node) == {node.path("owner")}, "what the runtime has stays the runtime's"


@dataclass
class RecordingKeeper:
    """Remembers what it was called with, and tells what it is given to tell."""

    due_s: float = 100.0
    notices: dict[NoticeKey, Notice] = field(default_factory=dict)
    calls: list[tuple[list[str], Resolution]] = field(default_factory=list)

    def keep(
        self, found: Sequence[FoundContainer], resolution: Resolution, now_s: float
    ) -> dict[NoticeKey, Notice]:
        assert now_s >= 0
        self.calls.append(([one.cpus for one in found], resolution))
        return self.notices


def test_keepers_come_after_the_cpus_in_every_sweep_and_are_heard() -> None:
    keeper = RecordingKeeper()
    node = Node(keepers=(keeper,))
    node.run("owner", builders.container(exclusive_a=1))
    node.source.failing["checkpoint"] = node.source.failing["podresources"] = RemoteProtocolError(
        "the kubelet does not answer"
    )
    node.setter.sweep()
    assert keeper.calls == [], "nobody writes before the facts are known"

    node.source.failing.clear()
    node.source.saved = {"owner": {"exclusive_a": ids("2")}}
    node.now_s += 1
    node.setter.sweep()
    node.setter.sweep()
    resolution = node.manager.snapshot().resolution
    assert keeper.calls == [(["2"], resolution)] * 2

    pod = node.source.listed[0] if node.source.listed else builders.pod("none")
    key = ("owner-uid", ContainerID("main-id"))
    notice = Notice("QuotaOdd", "quota is odd", pod, "main", "it is odd", "make it even")
    keeper.notices = {(key, notice.event): notice}
    for _ in range(2):
        node.setter.sweep()
    assert node.events.pods == [("owner", "QuotaOdd", "container main: it is odd; make it even")]


def test_pools_that_change_while_a_sweep_ends_are_the_next_sweeps() -> None:
    class Editor(RecordingKeeper):
        def keep(
            self, found: Sequence[FoundContainer], resolution: Resolution, now_s: float
        ) -> dict[NoticeKey, Notice]:
            if self.calls:
                node.manager.reconfigure(edited, MACHINE.topology())
            return super().keep(found, resolution, now_s)

    edited = NodePools.of(Pool.named("exclusive_a", "2,4"), Pool.named("default", "6-7"))
    node = Node(keepers=(Editor(),))
    node.run("plain")
    node.setter.sweep()
    # What comes is right already: the sweep has something to look at, and nothing to repair.
    node.run("late")
    node.kernel.write(node.path("late"), CPUSet.of(1))
    assert node.setter.sweep().repairs == ()
    node.setter.sweep()
    assert (node.cpus("plain"), node.cpus("late")) == ("6-7", "6-7")


def test_a_sweep_comes_when_a_keeper_wants_it() -> None:
    keeper = RecordingKeeper()
    node = Node(keepers=(keeper,), clock=time.monotonic)
    with running(node):
        eventually(lambda: keeper.calls, "the first sweep")
        keeper.due_s = 0.0
        node.setter.wake()
        eventually(lambda: len(keeper.calls) > 5, "it is called again and again")


@pytest.mark.parametrize("older", [False, True], ids=["new", "older than the agent"])
@pytest.mark.parametrize(
    ("asks", "overwritten"),
    [
        ({"exclusive_a": "2", "shared_a": "0"}, {"shared_a"}),
        ({"exclusive_a": "2", ENABLE_SHARED_CPUS: "0"}, {"shared_a"}),
        ({"exclusive_a": "2"}, set()),
    ],
)
def test_a_sweep_names_the_shared_pools_of_what_somebody_else_had_moved(
    asks: dict[str, str], overwritten: set[str], *, older: bool
) -> None:
    node = Node(pools=replace(POOLS, mixed=MixedCPUs("shared_a")))
    node.source.saved = {"owner": {pool: ids(held) for pool, held in asks.items()}}
    if not older:
        node.setter.sweep()
    node.run(
        "owner", replace(builders.container(), requests=builders.asking(dict.fromkeys(asks, 1)))
    )
    assert node.setter.sweep().overwritten == (overwritten if older else set())
    node.kernel.write(node.path("owner"), CPUSet.parse("5"))
    assert node.setter.sweep().overwritten == overwritten
    assert node.setter.sweep().overwritten == set()


def test_a_container_is_placed_as_soon_as_the_runtime_recognises_it() -> None:
    node = owner_on_2()
    node.cri.here = True
    node.cri.containers = (
        told("owner-uid", identifier="again"),
        told("stranger", identifier="other", exclusive_a="4"),
    )
    node.manager.promise(builders.resource("exclusive_a"), ["4"])
    node.kernel.remove(node.path("owner"))
    for path in ("kubepods/podowner-uid/again", "kubepods/podstranger/other"):
        node.kernel.make(path.rpartition("/")[0], EVERYTHING)
        node.kernel.make(path, EVERYTHING)
    node.setter.sweep()
    assert str(node.kernel.effective("kubepods/podowner-uid/again")) == "2"
    assert str(node.kernel.effective("kubepods/podstranger/other")) == "4"
    assert node.measured("cpupool_container_placement_seconds_count") == 2
