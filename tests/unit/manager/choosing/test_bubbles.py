"""Bubbles: where they lie, how a refused one is named, and what lies outside of them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from cpupool.core.assignments import Placement
from cpupool.core.bandwidth import Limit
from cpupool.core.cpu_manager import CPUManager, Scope, StaticOptions, SystemPods, TopologyPolicy
from cpupool.core.cpuset import CPUSet
from cpupool.core.errors import (
    EmptyPodSharedPoolError,
    NotEnoughCPUs,
    SMTAlignmentError,
    TopologyAffinityError,
)
from cpupool.core.pools import NodePools, Pool
from cpupool.core.workloads import ContainerID, ContainerKind, QoSClass
from cpupool.manager.manager import Manager
from tests import builders
from tests.machines import MACHINES

if TYPE_CHECKING:
    from cpupool.core.errors import PlacementError
    from cpupool.core.workloads import Container, Pod

MACHINE = MACHINES["telco_2s_2n_16c32t"]
"""Two NUMA nodes of eight cores: 0-7,16-23 and 8-15,24-31."""
BUBBLES = CPUManager("static", CPUSet.of(0, 16), topology_scope=Scope.POD, pod_level=True)
ALIGNED = replace(BUBBLES, topology_policy=TopologyPolicy.RESTRICTED)
WHOLE_CORES = replace(BUBBLES, options=StaticOptions(full_pcpus_only=True))


def owning(name: str, cpus: int, kind: ContainerKind = ContainerKind.APP) -> Container:
    return replace(builders.container(name, kind), level_cpus=cpus)


def web(cpus: int, *containers: Container, name: str = "web") -> Pod:
    pod = builders.pod(name, *containers)
    return replace(pod, qos=QoSClass.GUARANTEED, level_milli=1000 * cpus, level_cpus=cpus)


def node(manager: CPUManager, *pods: Pod, near: int | None = None) -> Manager:
    """Make a node with pods; the first container of each has a device on a NUMA node."""
    made = Manager()
    pools = (Pool.named("exclusive_a", "15"), Pool.named("default", "0-14,16-30"))
    made.reconfigure(NodePools.of(*pools, cpu_manager=manager), MACHINE.topology())
    made.adopt(())
    device = frozenset() if near is None else frozenset({frozenset({frozenset({near})})})
    nodes = {pod.cgroup_uid: {pod.containers[0].name: device} for pod in pods}
    made.observe(pods=pods, device_nodes=nodes)
    return made


def cpus_of(made: Manager, pod: Pod) -> dict[str, str]:
    now = made.snapshot()
    return {
        each.name: str(now.assignment((pod.cgroup_uid, each.id)).cpus)
        for each in pod.containers
        if each.id
    }


def refusal(made: Manager, pod: Pod) -> PlacementError | None:
    refused = made.snapshot().resolution.view.refused.get(pod.cgroup_uid)
    return refused.error if refused else None


@pytest.mark.parametrize(("near", "bubble"), [(0, "1-3,17-19"), (1, "8-10,24-26")])
def test_the_bubble_lies_on_the_nodes_of_the_devices_of_the_whole_pod(
    near: int, bubble: str
) -> None:
    pod = web(6, builders.container("nic"), owning("db", 2), owning("net", 2))
    made = node(ALIGNED, pod, near=near)
    assert str(made.snapshot().resolution.view.chosen["web-uid"].cpus) == bubble
    parts = {cpu for text in cpus_of(made, pod).values() for cpu in CPUSet.parse(text)}
    assert CPUSet(parts) == CPUSet.parse(bubble)


@pytest.mark.parametrize(
    ("manager", "pod", "error"),
    [
        pytest.param(ALIGNED, web(15, builders.container()), TopologyAffinityError, id="nodes"),
        pytest.param(BUBBLES, web(29, builders.container()), NotEnoughCPUs, id="too many"),
        pytest.param(WHOLE_CORES, web(3, builders.container()), SMTAlignmentError, id="cores"),
        pytest.param(
            ALIGNED,
            web(2, owning("db", 2), builders.container()),
            EmptyPodSharedPoolError,
            id="nothing is left",
        ),
    ],
)
def test_a_pod_whose_bubble_cannot_be_waits_with_the_kubelets_reason(
    manager: CPUManager, pod: Pod, error: type[PlacementError]
) -> None:
    made = node(manager, pod, near=0)
    found = refusal(made, pod)
    assert isinstance(found, error)
    if error is not NotEnoughCPUs:
        assert found.reason == error.__name__
    assert made.snapshot().resolution.view.refused["web-uid"].holds
    assert not made.snapshot().resolution.view.chosen


def test_two_pods_of_one_size_are_refused_for_their_containers_alone() -> None:
    full = web(2, owning("db", 2), builders.container(), name="full")
    fits = replace(web(2, owning("db", 1), builders.container(), name="next"), created="2026")
    made = node(BUBBLES, full, fits)
    assert isinstance(refusal(made, full), EmptyPodSharedPoolError)
    assert cpus_of(made, fits) == {"db": "1", "main": "17"}


def test_options_hold_for_the_bubble_and_not_for_its_parts() -> None:
    pod = web(4, owning("a", 1), owning("b", 1), builders.container("rest"))
    made = node(WHOLE_CORES, pod)
    assert cpus_of(made, pod) == {"a": "1", "b": "17", "rest": "2,18"}


def test_what_shares_the_rest_keeps_its_quota_and_its_sandbox_runs_there_too() -> None:
    pod = web(3, owning("db", 2), builders.container("rest"))
    now = node(BUBBLES, pod).snapshot()
    limits = {
        each.name: now.assignment((pod.cgroup_uid, each.id)).limit
        for each in pod.containers
        if each.id
    }
    assert limits == {"db": Limit(None), "rest": None}
    sandbox = now.assignment((pod.cgroup_uid, ContainerID("sandbox")))
    assert (sandbox.placement, str(sandbox.cpus)) == (Placement.POLICY, "2")


def test_a_bubble_of_whole_containers_leaves_a_debugger_and_the_sandbox_to_the_shared_cpus() -> (
    None
):
    debugger = builders.container("debug", ContainerKind.EPHEMERAL)
    pod = web(2, owning("a", 1), owning("b", 1), debugger)
    made = node(BUBBLES, pod)
    shared = "0,2-14,16,18-30"
    assert cpus_of(made, pod) == {"a": "1", "b": "17", "debug": shared}
    now = made.snapshot()
    assert str(now.assignment((pod.cgroup_uid, ContainerID("sandbox"))).cpus) == shared


@pytest.mark.parametrize(
    "pod",
    [
        pytest.param(web(2, owning("db", 1), builders.container(exclusive_a=1)), id="a pool"),
        pytest.param(replace(web(2, owning("db", 1)), namespace="kube-system"), id="a system pod"),
        pytest.param(replace(web(2, owning("db", 1)), level_cpus=0), id="no whole CPUs"),
    ],
)
def test_other_pods_have_no_bubble(pod: Pod) -> None:
    manager = replace(BUBBLES, system_pods=SystemPods(("kube-system",), CPUSet.of(7, 23)))
    made = node(manager, pod)
    assert not made.snapshot().resolution.view.chosen
    assert refusal(made, pod) is None


@pytest.mark.parametrize(
    ("asked", "by_pod", "by_container"),
    [
        pytest.param((3, 1, 1), ["a3", "b1", "c1"], ["a3", "b1", "c1"], id="all own"),
        pytest.param((3, 0, 0), ["a3", "bc2"], ["a3", "bc"], id="one owns"),
        pytest.param((0, 0, 0), ["abc5"], ["abc"], id="none owns"),
        pytest.param((3, 2, 0), None, ["a3", "b2", "c"], id="nothing is left"),
        pytest.param((1, 1, 0), ["a1", "b1", "c3"], ["a1", "b1", "c"], id="more than they request"),
        pytest.param((2, 1, 1), ["a2", "b1", "c1"], ["a2", "b1", "c1"], id="one stays idle"),
    ],
)
def test_the_examples_of_the_kubelets_proposal(
    asked: tuple[int, ...], by_pod: list[str] | None, by_container: list[str]
) -> None:
    """The tables of KEP-5526: a pod of five CPUs; a group of containers has so many CPUs."""
    pod = web(5, *(owning(name, cpus) for name, cpus in zip("abc", asked, strict=True)))
    for scope, groups in ((Scope.POD, by_pod), (Scope.CONTAINER, by_container)):
        made = node(replace(BUBBLES, topology_scope=scope), pod)
        view, has = made.snapshot().resolution.view, cpus_of(made, pod)
        if groups is None:
            assert isinstance(refusal(made, pod), EmptyPodSharedPoolError)
            continue
        sets = [{has[name] for name in group if name.isalpha()} for group in groups]
        found = [CPUSet.parse(one) for (one,) in sets]
        assert sum(map(len, found)) == len(CPUSet.union(found))
        for group, cpus in zip(groups, found, strict=True):
            count = group.lstrip("abc")
            assert (str(len(cpus)) == count) if count else cpus == view.default.cpus
        owned = 5 if scope is Scope.POD else sum(asked)
        assert len(view.grants.cpus) == owned
