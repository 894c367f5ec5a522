from __future__ import annotations

import logging
import math
import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cpupool.core.cpuset import CPUSet
from cpupool.core.devices import AllocatedDevices
from cpupool.core.errors import ContainerNotFound
from cpupool.core.names import ENABLE_SHARED_CPUS, KUBELET_CPUS
from cpupool.core.pools import MixedCPUs, NodePools, Pool
from cpupool.core.quota import Bandwidth
from cpupool.core.workloads import ContainerID, ContainerRef
from cpupool.enforce.quotas import QuotaGoal
from cpupool.enforce.repair import Keeper
from cpupool.enforce.ways import Ways
from cpupool.host.cgroupfs import CgroupVersion
from cpupool.manager.manager import Manager
from cpupool.manager.ports import POD_ITSELF, FoundContainer
from cpupool.telemetry.metrics import Metrics
from tests import builders
from tests.machines import MACHINES
from tests.quotas import QuotaModel
from tests.runtimes import ModelRuntime, told

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from cpupool.core.requests import Resource
    from cpupool.core.workloads import Container, Pod
    from cpupool.enforce.notices import Notice

MACHINE = MACHINES["laptop_4c8t"]
POOLS = NodePools.of(
    Pool.named("exclusive_a", "2,4,6"), Pool.named("shared_a", "0"), Pool.named("default", "1")
)
MIXED = NodePools.of(Pool.named("shared_a", "0-1"), mixed=MixedCPUs("shared_a"))
POD = "kubepods/podweb-uid"
IDS = {"exclusive_a": "2", "shared_a": "0,1,2,3,4", ENABLE_SHARED_CPUS: "0"}


@dataclass
class Node:
    """A keeper over a model of the kernel, and the pod `web`.

    Its containers are limited as the kubelet does it: 1000 milli-CPUs each.
    """

    containers: tuple[Container, ...]
    pools: NodePools = POOLS
    static_cpus: str = ""
    nri: ModelRuntime = field(default_factory=ModelRuntime)
    cri: ModelRuntime = field(default_factory=ModelRuntime)
    manager: Manager = field(default_factory=Manager)
    metrics: Metrics = field(default_factory=Metrics)
    now_s: float = 0.0

    def __post_init__(self) -> None:
        milli = 1_000 * len(self.containers)
        of_pod = (milli * 100, 100_000)
        self.kernel = QuotaModel({POD: of_pod, f"{POD}/sandbox": (-1, 100_000)})
        for container in self.containers:
            self.kernel.given[self.path(container.name)] = Bandwidth(100_000)
        self.keeper = Keeper(QuotaGoal(self.kernel, Ways(None, self.nri, self.cri), self.metrics))
        self.manager.reconfigure(self.pools, MACHINE.topology())
        self.manager.observe(static_cpus=CPUSet.parse(self.static_cpus))
        self.learn(
            replace(
                builders.pod("web", *(replace(one, limit_milli=1_000) for one in self.containers)),
                limit_milli=milli,
            )
        )

    def learn(self, pod: Pod) -> None:
        self.manager.observe(pods=[pod])
        self.manager.accept(
            {ContainerRef(pod.uid, one.name): dict(self._given(one)) for one in pod.containers}
        )

    def _given(self, container: Container) -> Iterable[tuple[Resource, AllocatedDevices]]:
        for pool in container.requests:
            yield pool, AllocatedDevices(frozenset(IDS[pool].split(",")))
        if ENABLE_SHARED_CPUS in container.requests and self.static_cpus:
            yield KUBELET_CPUS, AllocatedDevices(frozenset({"4"}), CPUSet.of(4))

    def path(self, name: str) -> str:
        return f"{POD}/{name}-id"

    def keep(self) -> list[Notice]:
        found = [
            FoundContainer("web-uid", path.rpartition("/")[2], path, "0")
            for path in self.kernel.given
            if path != POD and not self.nri.starting(path.rpartition("/")[2])  # type: ignore[arg-type]
        ]
        kept = self.keeper.keep(found, self.manager.snapshot().resolution, self.now_s)
        return list(kept.values())

    def has(self) -> Mapping[str, str]:
        return {
            path.removeprefix(POD).removeprefix("/").removesuffix("-id") or "pod": str(one)
            for path, one in self.kernel.given.items()
            if not path.endswith("sandbox")
        }

    def write(self, name: str, quota_us: int) -> None:
        """Let somebody write a quota, a while after the last look."""
        self.now_s += 2
        path = POD if name == "pod" else self.path(name)
        self.kernel.given[path] = Bandwidth(quota_us)

    def happen(self, event: str, name: str, quota_us: int) -> None:
        """Let one of `EVENTS` happen, if the kernel takes it."""
        before = dict(self.kernel.given)
        path = POD if name == "pod" else self.path(name)
        match event:
            case "start" if name != "pod":
                self.kernel.given.setdefault(path, Bandwidth(100_000))
            case "end" if name != "pod":
                self.kernel.given.pop(path, None)
            case "overwrite" if path in self.kernel.given:
                self.kernel.given[path] = Bandwidth(quota_us)
            case "another agent":
                ways = Ways(None, self.nri, self.cri)
                self.keeper = Keeper(QuotaGoal(self.kernel, ways, self.metrics))
            case "cpu gone" | "cpu back":
                lost = CPUSet.of(2) if event == "cpu gone" else CPUSet()
                self.manager.reconfigure(self.pools, MACHINE.having_lost(lost))
        if self.kernel.version is CgroupVersion.V1 and not self.kernel.lawful():
            self.kernel.given = before

    def repairs(self, reason: str) -> int:
        line = f'^cpupool_quota_repairs_total{{reason="{reason}"}} (\\S+)$'
        found = re.search(line, self.metrics.render()[1].decode(), re.MULTILINE)
        return int(float(found[1])) if found else 0


def exclusive(name: str = "main") -> Container:
    return builders.container(name, exclusive_a=1)


def shared(name: str = "light") -> Container:
    return builders.container(name, shared_a=500)


def alias(name: str = "main") -> Container:
    asked = replace(builders.container(name), whole_cpus=1)
    return replace(asked, requests={ENABLE_SHARED_CPUS: 1})


def kubelets(*others: Container, shared_cpus: str = "0-1") -> Node:
    """Give a node whose kubelet gives out exclusive CPUs; `main` has one, and shared ones."""
    pools = NodePools.of(Pool.named("shared_a", shared_cpus), mixed=MixedCPUs("shared_a"))
    return Node((alias(), *others), pools, static_cpus="2-7", nri=ModelRuntime(here=True))


def test_exclusive_cpus_are_not_limited_and_neither_is_the_pod() -> None:
    node = Node((exclusive(), shared()))
    assert node.keep() == []
    assert node.has() == {"pod": "max 100000", "main": "max 100000", "light": "50000 100000"}
    assert node.kernel.writes == [node.path("light"), POD, node.path("main")]


def test_what_is_right_is_left_alone() -> None:
    node = Node((exclusive(), shared()))
    node.keep()
    node.kernel.writes.clear()
    assert node.keep() == []
    assert node.kernel.writes == []
    assert (node.repairs("new"), node.keeper.due_s) == (3, math.inf)


def test_a_pod_without_pools_is_not_even_read() -> None:
    node = Node((builders.container(),))
    node.keep()
    assert node.kernel.reads == 0


def test_a_container_is_given_shared_cpus_beside_those_of_the_kubelet() -> None:
    node = kubelets()
    node.keep()
    assert node.has() == {"pod": "300000 100000", "main": "300000 100000"}
    assert node.kernel.writes == [POD, node.path("main")]


def test_what_the_kubelet_has_lifted_stays_lifted() -> None:
    node = kubelets()
    node.write("pod", -1)
    node.write("main", -1)
    node.keep()
    assert node.kernel.writes == []


def test_shared_cpus_that_are_switched_off_are_taken_off_the_quota() -> None:
    node = kubelets()
    node.keep()
    node.manager.reconfigure(NodePools.of(Pool.named("shared_a", "0-1")), MACHINE.topology())
    node.keep()
    assert node.has() == {"pod": "100000 100000", "main": "100000 100000"}
    assert node.kernel.writes[-2:] == [node.path("main"), POD]


@pytest.mark.parametrize("made", ["lifted", "raised"])
def test_a_pod_gets_its_own_limit_back_when_the_container_ends(made: str) -> None:
    node = Node((exclusive(), shared())) if made == "lifted" else kubelets(shared())
    node.keep()
    del node.kernel.given[node.path("main")]
    node.keep()
    assert node.has() == {"pod": "200000 100000", "light": "50000 100000"}


def test_a_pod_that_no_kubelet_limits_is_not_limited_before_its_containers_come() -> None:
    node = Node((exclusive(), shared()))
    pod = node.manager.snapshot().resolution.pods["web-uid"]
    node.manager.observe(pods=[])
    node.keep()
    node.learn(pod)
    main = node.kernel.given.pop(node.path("main"))
    node.write("pod", -1)
    node.keep()
    assert node.has() == {"pod": "max 100000", "light": "50000 100000"}

    node.kernel.given[node.path("main")] = main
    node.keep()
    del node.kernel.given[node.path("main")]
    node.keep()
    assert node.has() == {"pod": "200000 100000", "light": "50000 100000"}


def test_a_pod_is_not_limited_while_it_is_not_known_where_its_container_belongs() -> None:
    node = Node((exclusive(), shared()))
    node.keep()
    node.manager.reconfigure(POOLS, MACHINE.having_lost(CPUSet.of(2)))
    node.keep()
    assert node.has() == {"pod": "max 100000", "main": "max 100000", "light": "50000 100000"}
    assert node.repairs("moved") == 0


def test_a_pod_keeps_what_was_added_while_the_kubelet_names_no_cpus() -> None:
    node = kubelets()
    node.kernel.version = CgroupVersion.V2
    node.keep()
    pod = node.manager.snapshot().resolution.pods["web-uid"]
    node.manager.observe(pods=[])
    node.manager.observe(pods=[pod])
    node.keep()
    assert node.has() == {"pod": "300000 100000", "main": "300000 100000"}


def test_a_restarted_agent_gives_the_limit_back_as_well() -> None:
    before = Node((exclusive(), shared()))
    before.keep()
    del before.kernel.given[before.path("main")]
    node = Node((exclusive(), shared()))
    node.kernel.given = before.kernel.given
    node.keep()
    assert node.has()["pod"] == "200000 100000"


def test_a_foreign_write_and_a_resize_are_repaired() -> None:
    node = Node((exclusive(), shared()))
    node.keep()
    node.write("pod", 300_000)
    node.write("main", 200_000)
    node.write("light", 100_000)
    assert node.keep() == []
    assert node.has() == {"pod": "max 100000", "main": "max 100000", "light": "50000 100000"}
    assert (node.repairs("new"), node.repairs("unknown")) == (3, 3)


def test_another_limit_of_the_pod_is_followed() -> None:
    node = kubelets()
    node.keep()
    pod = node.manager.snapshot().resolution.pods["web-uid"]
    resized = replace(pod.containers[0], limit_milli=2_000)
    node.now_s += 2
    node.learn(replace(pod, containers=(resized,), limit_milli=2_000))
    node.keep()
    assert node.has() == {"pod": "400000 100000", "main": "400000 100000"}
    assert node.repairs("moved") == 2


@pytest.mark.parametrize("way", ["nri", "cri"])
def test_a_container_whose_cpus_the_runtime_sets_is_limited_through_it(way: str) -> None:
    node = Node((exclusive(),))
    runtime = node.nri if way == "nri" else node.cri
    runtime.here = True
    runtime.lists["main-id"] = "2"
    runtime.limited = lambda container, wanted: node.kernel.limit(f"{POD}/{container}", wanted)
    before = len(node.kernel.writes)
    node.keep()
    assert node.has() == {"pod": "max 100000", "main": "max 100000"}
    assert node.kernel.writes[before:] == [POD, node.path("main")]


def test_a_runtime_that_is_busy_is_asked_again_soon() -> None:
    node = Node((exclusive(),))
    node.nri.here = node.nri.busy = True
    node.nri.lists["main-id"] = "2"
    node.nri.limited = lambda container, wanted: node.kernel.limit(f"{POD}/{container}", wanted)
    for _ in range(30):
        assert node.keep() == []
        assert node.keeper.due_s - node.now_s < 1
        node.now_s = node.keeper.due_s
    node.nri.busy = False
    node.keep()
    assert node.has()["main"] == "max 100000"


def test_the_pod_has_room_before_a_container_runs() -> None:
    node = Node((exclusive(),))
    node.nri.begun.add("main-id")
    node.keep()
    assert node.has() == {"pod": "max 100000", "main": "100000 100000"}


def test_what_the_runtime_writes_into_a_new_cgroup_blames_nobody() -> None:
    node = Node((exclusive(),))
    node.now_s += 10
    node.kernel.given[POD] = Bandwidth(-1)
    itself = FoundContainer("web-uid", "main-id", node.path("main"), "0")
    for quota in (None, Bandwidth(), Bandwidth(100_000)):
        if quota is None:
            node.kernel.given.pop(node.path("main"))
        else:
            node.kernel.given[node.path("main")] = quota
        node.keeper.keep([itself], node.manager.snapshot().resolution, node.now_s)
        node.now_s += 0.1
        assert node.has()["pod"] == "max 100000"
    assert (node.has()["main"], node.repairs("new"), node.repairs("unknown")) == (
        "max 100000",
        1,
        0,
    )


def test_a_pod_that_is_lowered_while_its_container_is_raised_is_raised_again_at_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    node = kubelets()
    node.kernel.given[POD] = Bandwidth(300_000)
    lowered = [Bandwidth(100_000)]

    def lower() -> None:
        if lowered:
            node.kernel.given[POD] = lowered.pop()

    node.kernel.before_write = lower
    with caplog.at_level(logging.WARNING):
        assert node.keep() == []
    assert node.has() == {"pod": "300000 100000", "main": "300000 100000"}
    assert (node.keeper.due_s, caplog.records) == (math.inf, [])


def test_a_container_that_comes_while_another_is_refused_is_new() -> None:
    node = Node((exclusive(), shared()))
    late = node.kernel.given.pop(node.path("light"))
    found = [
        FoundContainer("web-uid", f"{one}-id", node.path(one), "0") for one in ("main", "light")
    ]
    node.kernel.refusing.add(node.path("main"))
    node.kernel.before_write = lambda: node.kernel.given.update({node.path("light"): late})
    node.keeper.keep(found, node.manager.snapshot().resolution, node.now_s)
    assert node.has() == {"pod": "max 100000", "main": "100000 100000", "light": "50000 100000"}


def test_a_cgroup_that_stays_after_its_end_is_tried_ever_more_patiently() -> None:
    node = Node((exclusive(),))
    node.cri.here = True
    node.cri.lists["main-id"] = "2"

    def gone(container: ContainerID, _: Bandwidth) -> None:
        raise ContainerNotFound(container)

    node.cri.limited = gone
    for _ in range(20):
        assert node.keep() == []
        node.now_s = node.keeper.due_s
    node.keep()
    assert node.keeper.due_s - node.now_s > 1
    assert node.has()["pod"] == "max 100000"


@pytest.mark.parametrize("gone", ["main", "pod"])
def test_what_has_ended_meanwhile_is_nobodys_trouble(gone: str) -> None:
    node = Node((exclusive(), shared()))

    def end() -> None:
        node.kernel.given.pop(POD if gone == "pod" else node.path(gone), None)

    node.kernel.before_write = end
    assert node.keep() == []
    node.kernel.before_write = lambda: None
    assert node.keep() == []
    assert node.has().get("light", "50000 100000") == "50000 100000"


def test_a_node_without_the_controller_is_left_alone() -> None:
    node = Node((exclusive(),))
    node.kernel.given[f"{POD}/other"] = Bandwidth()
    del node.kernel.given[POD]
    assert node.keep() == []
    assert node.kernel.writes == []


@pytest.mark.parametrize("how", ["refused", "ignored"])
def test_what_is_refused_again_and_again_is_told(
    how: str, caplog: pytest.LogCaptureFixture
) -> None:
    node = Node((exclusive(),))
    (node.kernel.refusing if how == "refused" else node.kernel.ignoring).add(POD)
    notices: list[Notice] = []
    with caplog.at_level(logging.WARNING):
        for _ in range(20):
            notices = node.keep()
            node.now_s = node.keeper.due_s
    (notice,) = notices
    assert (notice.event, notice.pod.name) == ("CPUQuotaFailed", "web")
    assert POD in notice.why
    assert len(caplog.records) == 1
    assert node.keeper.due_s > node.now_s - 1

    node.kernel.refusing.clear()
    node.kernel.ignoring.clear()
    node.now_s += 60
    assert node.keep() == []
    assert node.has()["pod"] == "max 100000"


def test_what_is_refused_holds_up_nothing_else() -> None:
    node = Node((exclusive(), shared()))
    node.kernel.refusing.add(node.path("light"))
    node.keep()
    assert node.has() == {"pod": "max 100000", "main": "max 100000", "light": "100000 100000"}


def test_a_fight_is_told_and_fought_with_patience() -> None:
    node = Node((exclusive(),))
    node.keep()
    told_first = 0
    node.now_s += 2
    for round_ in range(1, 60):
        node.kernel.given[POD] = Bandwidth(100_000)
        node.now_s += 0.1
        if node.keep() and not told_first:
            told_first = round_
    assert told_first > 5
    assert node.repairs("unknown") < 30
    (notice,) = node.keep()
    assert (notice.event, notice.container) == ("CPUQuotaContested", "")
    assert node.keeper.due_s > node.now_s


def test_processes_in_the_pods_own_cgroup_are_no_container() -> None:
    node = Node((exclusive(),))
    itself = FoundContainer("web-uid", POD_ITSELF, POD, "0")
    node.keeper.keep([itself], node.manager.snapshot().resolution, 0.0)
    assert node.kernel.writes == []


def test_a_pod_that_only_the_runtime_knows_is_lifted() -> None:
    node = Node((exclusive(),))
    node.manager.observe(pods=[])
    node.manager.allocate("exclusive_a", ["2"])
    node.manager.sight([told("web-uid", "main", exclusive_a="2")])
    node.keep()
    assert node.has() == {"pod": "max 100000", "main": "max 100000"}


EVENTS = st.tuples(
    st.sampled_from(["start", "end", "overwrite", "another agent", "cpu gone", "cpu back"]),
    st.sampled_from(["pod", "main", "light"]),
    st.sampled_from([-1, 1_000, 50_000, 200_000, 400_000]),
    st.sampled_from([0.01, 0.5, 3.0, 30.0]),
)


@given(
    version=st.sampled_from(CgroupVersion),
    of_kubelet=st.booleans(),
    events=st.lists(EVENTS, max_size=15),
)
def test_whatever_happens_a_look_puts_it_right(
    version: CgroupVersion, of_kubelet: bool, events: list[tuple[str, str, int, float]]
) -> None:
    node = kubelets(shared()) if of_kubelet else Node((exclusive(), shared()))
    node.kernel.version = version
    for event, name, quota_us, later_s in events:
        node.now_s += later_s
        node.happen(event, name, quota_us)
        told = node.keep()
        while node.keeper.due_s < math.inf:
            node.now_s = node.keeper.due_s
            told = node.keep()

        assert {notice.event for notice in told} <= {"CPUQuotaContested"}
        for one in ("main", "light"):
            assignment = node.manager.snapshot().resolution.assignment(
                ("web-uid", ContainerID(f"{one}-id"))
            )
            has = node.kernel.given.get(node.path(one))
            if has is not None and assignment.limit is not None:
                assert has == assignment.limit.settle(has)
                assert node.kernel.given[POD].holds(has) or assignment.limit.or_unlimited
