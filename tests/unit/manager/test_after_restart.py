"""The CPUs that an earlier agent chose, which the Manager believes or not."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from cpupool.core.cgroups import FoundContainer
from cpupool.core.cpu_manager import Scope
from cpupool.core.cpuset import CPUSet
from cpupool.core.grants import WHOLE_POD, RecordedChange
from cpupool.core.pools import MixedCPUs, NodePools, Pool
from cpupool.core.workloads import ContainerKind, QoSClass
from cpupool.manager.manager import Manager
from cpupool.wire.cpu_manager_state import State
from tests import builders
from tests.machines import MACHINES
from tests.runtimes import reported
from tests.unit.manager.choosing.nodes import (
    LINES,
    MACHINE,
    POOLS,
    STATIC,
    cpus_of,
    manager,
    on,
    owned,
    web,
)

if TYPE_CHECKING:
    from cpupool.core.workloads import Pod, RuntimeContainer


def annotated(pod: Pod, cpus: str) -> RuntimeContainer:
    """Give what the runtime tells of a pod's only container, with an agent's annotation."""
    (container,) = pod.containers
    known = reported(pod.cgroup_uid, container.name)
    return replace(known, chosen=CPUSet.parse(cpus))


def test_the_best_source_of_an_earlier_choice_counts() -> None:
    first, second, third, fourth = map(web, ("first", "second", "third", "fourth"))
    node = manager(
        *(first, second, third, fourth),
        living=(annotated(first, "7"),),
        recorded={"first-uid": {"first-main": "6"}, "second-uid": {"second-main": "6"}},
        found=tuple(on(pod, "5") for pod in (first, second, third)),
    )
    assert owned(node) == {
        "first-uid": "7",
        "second-uid": "6",
        "third-uid": "5",
        "fourth-uid": "1",
    }


@pytest.mark.parametrize(
    "cpus",
    [
        pytest.param("", id="none"),
        pytest.param("99", id="a CPU that the machine does not have"),
        pytest.param("8", id="a CPU of another pod's devices"),
    ],
)
@pytest.mark.parametrize("source", ["annotation", "record"])
def test_a_forged_choice_is_not_believed(source: str, cpus: str) -> None:
    owner = builders.pod("owner", builders.container(exclusive_a=1))
    pod = web("web")
    node = Manager()
    node.reconfigure(POOLS, MACHINE.topology())
    node.observe(pods=[owner, pod])
    node.accept(builders.given(owner, exclusive_a="8"))
    if source == "annotation":
        node.observe_containers([annotated(pod, cpus)])
        node.adopt(())
    else:
        node.adopt((), State("static", entries={"web-uid": {"web-main": CPUSet.parse(cpus)}}))
    assert owned(node) == {"web-uid": "1"}


RESIZED = [
    pytest.param(4000, id="more"),
    pytest.param(1000, id="fewer"),
    pytest.param(1500, id="no whole number"),
    pytest.param(3000, id="no whole cores"),
    pytest.param(None, id="none"),
]


@pytest.mark.parametrize("cpu", RESIZED)
@pytest.mark.parametrize("pools", [POOLS, NodePools.of(*LINES)], ids=["static", "none"])
@pytest.mark.parametrize("sources", ["annotation", "record", "both", "record, cgroup elsewhere"])
def test_a_choice_outlives_what_its_pod_requests_today(
    sources: str, pools: NodePools, cpu: int | None
) -> None:
    pod = builders.pod("web", builders.container("web-main", cpu=cpu))
    node = manager(
        *(pod, replace(web("other"), created="2026")),
        pools=pools,
        living=(annotated(pod, "2-3"),) if sources in {"annotation", "both"} else (),
        recorded=None if sources == "annotation" else {"web-uid": {"web-main": "2-3"}},
        found=(on(pod, "5"),) if "cgroup" in sources else (),
    )
    assert cpus_of(node, pod, "web-main") == "2-3"
    assert owned(node)["web-uid"] == "2-3"


def test_where_sources_differ_the_annotation_comes_before_the_record() -> None:
    first, second = web("first", 2000), web("second", 2000)
    node = manager(
        *(first, second),
        living=(annotated(second, "2-3"),),
        recorded={"first-uid": {"first-main": "2-3"}, "second-uid": {"second-main": "4-5"}},
        found=(on(first, "6-7"),),
    )
    # Of the first pod's sources only the cgroup has CPUs that no other owner has.
    assert owned(node) == {"first-uid": "6-7", "second-uid": "2-3"}


def test_a_pod_that_has_ended_keeps_its_recorded_cpus_until_its_cgroup_is_gone() -> None:
    new = web("new", 7000)
    left = FoundContainer("gone-uid", "main-id", "kubepods/gone/main", "1-2")
    recorded = {"gone-uid": {"main": "1-2"}, "long-gone-uid": {"main": "3"}}
    node = manager(new, recorded=recorded, found=(left,))
    assert owned(node) == {"gone-uid": "1-2"}

    node.observe(idle=frozenset({"gone-uid"}))
    assert owned(node) == {"new-uid": "1-7"}


def test_an_old_record_gives_no_cpus_to_a_pod_that_is_over() -> None:
    """A full disk keeps the record as it was; meanwhile the CPUs have another owner."""
    job, web_ = replace(web("job", 2000), finished=True), replace(web("web", 2000), created="2026")
    node = manager(job, web_, recorded={"job-uid": {"job-main": "2-3"}}, found=(on(web_, "2-3"),))
    assert owned(node) == {"web-uid": "2-3"}


def test_containers_with_one_annotated_set_own_it_together() -> None:
    both = builders.pod("web", builders.container("one"), builders.container("two"))
    living = (
        replace(reported(both.cgroup_uid, name), chosen=CPUSet.parse("2-3"))
        for name in ("one", "two")
    )
    node = manager(both, living=tuple(living))
    assert [cpus_of(node, both, name) for name in ("one", "two")] == ["2-3", "2-3"]
    assert owned(node) == {"web-uid": "2-3"}


def test_of_two_pods_with_the_same_recorded_cpu_the_older_has_it() -> None:
    old, new = replace(web("b"), created="2026-01-01"), replace(web("a"), created="2026-01-02")
    same = {"a-uid": {"a-main": "5"}, "b-uid": {"b-main": "5"}}
    assert owned(manager(new, old, recorded=same)) == {"b-uid": "5", "a-uid": "1"}


def test_entries_of_pods_and_containers_that_are_not_there_count_for_nothing() -> None:
    pooled = builders.pod("pooled", builders.container(exclusive_a=1, cpu=1000))
    node = manager(
        *(web("web"), pooled),
        recorded={
            "gone-uid": {"main": "1"},
            "web-uid": {"other": "2"},
            "pooled-uid": {"main": "3"},
        },
    )
    assert owned(node) == {"web-uid": "1"}


def test_only_an_init_container_shares_recorded_cpus_with_a_later_one() -> None:
    pod = builders.pod(
        "web",
        builders.container("init", ContainerKind.INIT, cpu=2000),
        builders.container("side", ContainerKind.SIDECAR, cpu=1000),
        builders.container("main", cpu=1000),
        builders.container("other", cpu=1000),
    )
    lawful = {"init": "4-5", "side": "4", "main": "5", "other": "6"}
    node = manager(pod, recorded={"web-uid": lawful})
    assert {name: cpus_of(node, pod, name) for name in lawful} == lawful

    forged = {**lawful, "main": "4", "other": "5"}
    node = manager(pod, recorded={"web-uid": forged})
    assert {name: cpus_of(node, pod, name) for name in forged} == {**forged, "main": "1"}


def test_a_restart_gives_an_init_container_its_recorded_cpus() -> None:
    pod = builders.pod(
        "web",
        builders.container("init", ContainerKind.INIT, cpu=3000),
        builders.container("main", running=False, cpu=2000),
    )
    recorded = {"web-uid": {"init": "4-6", "main": "4-5"}}
    node = manager(pod, web("other", 2000), recorded=recorded)
    assert cpus_of(node, pod, "init") == "4-6"
    assert owned(node) == {"web-uid": "4-6", "other-uid": "1-2"}


@pytest.mark.parametrize("source", ["annotation", "record"])
def test_a_container_keeps_a_cpu_that_is_offline_at_the_restart(source: str) -> None:
    pod, other = web("web", 2000), web("other")
    if source == "annotation":
        node = manager(pod, other, living=(annotated(pod, "1-2"),), offline="2")
    else:
        node = manager(pod, other, recorded={"web-uid": {"web-main": "1-2"}}, offline="2")
    assert cpus_of(node, pod, "web-main") == "1"
    node.update_topology(MACHINE.topology())
    assert cpus_of(node, pod, "web-main") == "1-2"
    assert owned(node) == {"web-uid": "1-2", "other-uid": "3"}


def test_no_recorded_cpu_is_a_sibling_of_a_core_that_another_pod_has_as_a_whole() -> None:
    machine = MACHINES["laptop_4c8t"]
    pools = NodePools.of(
        Pool.named("exclusive_a", "1"),
        Pool.named("default", "4-7"),
        cpu_manager=replace(STATIC, reserved=CPUSet.of(4)),
    )
    owner, pod = builders.pod("owner", builders.container(exclusive_a=1)), web("web")
    node = Manager()
    node.reconfigure(pools, machine.topology())
    node.observe(pods=[owner, pod])
    node.accept(builders.given(owner, exclusive_a="1"))
    (sibling,) = machine.topology().with_siblings(CPUSet.of(1)) - CPUSet.of(1)
    node.adopt((), State("static", entries={"web-uid": {"web-main": CPUSet.of(sibling)}}))
    assert owned(node) == {"web-uid": "5"}


def test_under_the_policy_none_a_pod_keeps_what_is_recorded() -> None:
    pod = web("web")
    node = manager(pod, pools=NodePools.of(*LINES), recorded={"web-uid": {"web-main": "3"}})
    assert cpus_of(node, pod, "web-main") == "3"
    # The CPUs of its cgroup do not prove that a policy chose them.
    assert owned(manager(pod, pools=NodePools.of(*LINES), found=(on(pod, "3"),))) == {}


def test_nothing_is_recovered_where_the_kubelet_gives_out_cpus() -> None:
    shared = NodePools.of(Pool.named("shared_a", "8-9"), mixed=MixedCPUs("shared_a"))
    node = Manager()
    node.observe(static_cpus=CPUSet.parse("0-7"), pods=[web("web")])
    node.reconfigure(shared, MACHINE.topology())
    node.adopt((), State("static", entries={"web-uid": {"web-main": CPUSet.of(3)}}))
    assert owned(node) == {}


BUBBLES = NodePools.of(
    *LINES, cpu_manager=replace(STATIC, topology_scope=Scope.POD, pod_level=True)
)


def leveled(*owners: str) -> Pod:
    """Make a pod that requests four CPUs as a whole, and whose owners request two each."""
    names = ("init", "db", "logs")
    kinds = {"init": ContainerKind.INIT}
    containers = (
        replace(
            builders.container(name, kinds.get(name, ContainerKind.APP)),
            level_cpus=2 if name in owners else 0,
        )
        for name in names
    )
    pod = builders.pod("web", *containers)
    return replace(pod, qos=QoSClass.GUARANTEED, level_milli=4000, level_cpus=4)


def has(node: Manager, pod: Pod) -> dict[str, str]:
    return {each.name: cpus_of(node, pod, each.name) for each in pod.containers}


RECORDED = {"init": "4-7", "db": "4-5", WHOLE_POD: "6-7"}


@pytest.mark.parametrize("pools", [BUBBLES, POOLS], ids=["bubbles", "another setting"])
@pytest.mark.parametrize("owners", [("db",), ()], ids=["as before", "resized since"])
def test_a_recorded_bubble_comes_back_as_it_was(owners: tuple[str, ...], pools: NodePools) -> None:
    entries = {"web-uid": {name: CPUSet.parse(cpus) for name, cpus in RECORDED.items()}}
    node, pod = Manager(), leveled(*owners)
    node.reconfigure(pools, MACHINE.topology())
    node.observe(pods=[pod])
    node.adopt((), State("static", entries=entries, pods={"web-uid": CPUSet.parse("4-7")}))
    assert has(node, pod) == {"init": "4-7", "db": "4-5", "logs": "6-7"}
    assert owned(node) == {"web-uid": "4-7"}
    assert node.snapshot().resolution.view.chosen["web-uid"].bubble


@pytest.mark.parametrize("cpus", ["8", "99", "", "5-7", "6,32-33"])
def test_a_recorded_bubble_that_cannot_be_is_another_one(cpus: str) -> None:
    owner = builders.pod("owner", builders.container(exclusive_a=1))
    node, pod = Manager(), leveled("db")
    node.reconfigure(BUBBLES, MACHINE.topology())
    node.observe(pods=[owner, pod])
    node.accept(builders.given(owner, exclusive_a="8"))
    entries = {"web-uid": {"db": CPUSet.parse("4-5"), WHOLE_POD: CPUSet.parse(cpus)}}
    if not cpus:
        entries = {"web-uid": {}}
    node.adopt((), State("static", entries=entries, pods={"web-uid": CPUSet.parse("4-5")}))
    assert has(node, pod) == {"init": "1-4", "db": "1-2", "logs": "3-4"}


def test_a_container_leaves_no_recorded_cpu_that_it_keeps() -> None:
    node, pod = Manager(), web("web")
    node.reconfigure(POOLS, MACHINE.topology())
    node.observe(pods=[pod])
    change = RecordedChange(CPUSet.of(2), CPUSet.parse("2-4"))
    entries = {"web-uid": {"web-main": CPUSet.parse("2-3")}}
    there = on(pod, "2-4")
    changes = {"web-uid": {"web-main": change}}
    node.adopt((there,), State("static", entries=entries, changes=changes))
    grant = node.snapshot().resolution.view.chosen["web-uid"]
    assert str(grant.leaving["web-main"].cpus) == "4"


def test_a_recorded_bubble_has_no_part_without_a_cpu() -> None:
    node, pod = Manager(), leveled("db")
    node.reconfigure(BUBBLES, MACHINE.topology())
    node.observe(pods=[pod])
    entries = {"web-uid": {"db": CPUSet(), WHOLE_POD: CPUSet.parse("4-7")}}
    node.adopt((), State("static", entries=entries, pods={"web-uid": CPUSet.parse("4-7")}))
    assert has(node, pod) == {"init": "1-4", "db": "1-2", "logs": "3-4"}


def test_without_a_record_the_annotations_of_its_containers_tell_of_a_bubble() -> None:
    pod = leveled("db")
    told = {"db": "4-5", "logs": "6-7"}
    living = tuple(
        replace(reported(pod.cgroup_uid, name), chosen=CPUSet.parse(cpus))
        for name, cpus in told.items()
    )
    # The init container has ended; without an annotation it shares the rest, and no part.
    node = manager(pod, pools=BUBBLES, living=living)
    assert has(node, pod) == {"init": "6-7", **told}
    assert node.snapshot().resolution.view.chosen["web-uid"].bubble


@pytest.mark.parametrize(
    ("owners", "found"),
    [pytest.param((), "4-7", id="all share"), pytest.param(("db",), "1-4", id="one owns")],
)
def test_cgroups_tell_of_a_bubble_only_if_all_share_it(owners: tuple[str, ...], found: str) -> None:
    pod = leveled(*owners)
    there = FoundContainer("web-uid", "logs-id", "kubepods/web/logs", "4-7")
    assert owned(manager(pod, pools=BUBBLES, found=(there,))) == {"web-uid": found}
