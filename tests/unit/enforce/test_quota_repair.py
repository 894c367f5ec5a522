from __future__ import annotations

import logging
import math
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from cpupool.core.bandwidth import Bandwidth, Limit
from cpupool.core.cgroups import POD_ITSELF, FoundContainer
from cpupool.core.cpu_manager import CPUManager
from cpupool.core.cpuset import CPUSet
from cpupool.core.errors import ContainerNotFound
from cpupool.core.pools import NodePools, Pool
from cpupool.enforce.quota_repair import starts_right
from cpupool.host.cgroupfs import CgroupVersion
from tests import builders
from tests.runtimes import reported

if TYPE_CHECKING:
    from cpupool.core.workloads import ContainerID
    from cpupool.enforce.notices import Notice

from tests.quota_nodes import (
    MACHINE,
    POD,
    POOLS,
    Node,
    exclusive,
    kubelets,
    shared,
)


def test_exclusive_cpus_are_not_limited_and_neither_is_the_pod() -> None:
    node = Node((exclusive(), shared()))
    assert node.keep() == []
    assert node.has() == {"pod": "max 100000", "main": "max 100000", "light": "50000 100000"}
    assert node.kernel.writes == [node.path("light"), POD, node.path("main")]


def test_an_owner_by_the_cpu_manager_is_not_limited_and_neither_is_its_pod() -> None:
    settings = CPUManager("static", reserved=CPUSet.of(0))
    pools = NodePools.of(Pool.named("default", "0-7"), cpu_manager=settings)
    node = Node((builders.container("main", cpu=1000), builders.container("side")), pools)
    node.manager.adopt(())
    assert node.keep() == []
    assert node.has() == {"pod": "max 100000", "main": "max 100000", "side": "100000 100000"}
    assert node.kernel.writes == [POD, node.path("main")]
    node.write("pod", 200_000)
    node.keep()
    assert node.has()["pod"] == "max 100000"


def test_what_is_right_is_left_alone() -> None:
    node = Node((exclusive(), shared()))
    node.keep()
    node.kernel.writes.clear()
    assert node.keep() == []
    assert node.kernel.writes == []
    assert (node.repairs("new"), node.keeper.due_s) == (3, math.inf)


@pytest.mark.parametrize(
    ("quota_us", "pod_us", "right"),
    [(50_000, -1, True), (60_000, -1, False), (-1, -1, False), (50_000, 50_000, False)],
)
def test_a_container_starts_right_with_its_cpu_time_in_a_pod_without_a_limit(
    quota_us: int, pod_us: int, *, right: bool
) -> None:
    node = Node((shared(),))
    node.write("light", quota_us)
    node.write("pod", pod_us)
    assert starts_right(node.kernel, node.path("light"), Limit(500)) is right
    assert not starts_right(node.kernel, f"{POD}/gone", Limit(500))


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


def test_what_the_runtime_writes_into_a_new_cgroup_blames_no_program() -> None:
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
def test_what_has_ended_meanwhile_is_no_trouble(gone: str) -> None:
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
def test_what_is_refused_again_and_again_is_reported(
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


def test_a_fight_is_reported_and_fought_with_patience() -> None:
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
    node.manager.observe_containers([reported("web-uid", "main", exclusive_a="2")])
    node.keep()
    assert node.has() == {"pod": "max 100000", "main": "max 100000"}
