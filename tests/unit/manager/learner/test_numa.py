"""The NUMA nodes of a pod's devices and memory, and the CPUs that lie near them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from cpupool.core.assignments import Cause
from cpupool.core.cpu_manager import Compaction, CPUManager, StaticOptions, TopologyPolicy
from cpupool.core.cpuset import CPUSet
from cpupool.core.devices import AllocatedDevices
from cpupool.core.errors import DevicesUnnamed
from cpupool.core.names import POLICY_CPUS
from cpupool.core.pools import NodePools, Pool
from cpupool.core.workloads import ContainerID, ContainerKind, CPUMoves, PodUID
from tests import builders
from tests.unit.manager.learner.outside import Outside, here, learning

if TYPE_CHECKING:
    from cpupool.core.cgroups import FoundContainer
    from cpupool.core.devices import PodDevices
    from cpupool.core.workloads import Pod
    from cpupool.manager.learner import Learner
    from cpupool.manager.manager import Manager

NONE = TopologyPolicy.NONE
BEST_EFFORT = TopologyPolicy.BEST_EFFORT
RESTRICTED = TopologyPolicy.RESTRICTED
SINGLE = TopologyPolicy.SINGLE_NUMA_NODE
STRICT = (RESTRICTED, SINGLE)
TWO_NODES = "arm_no_smt"
"""CPUs 0-7 and 8-15."""
TWO_SOCKETS_OF_TWO_NODES = "epyc_like"
"""CPUs 0-7,32-39, 8-15,40-47 of the first socket; 16-23,48-55 and 24-31,56-63 of the second."""


def pools(policy: TopologyPolicy, cpus: str = "0-15", **options: bool) -> NodePools:
    manager = CPUManager("static", CPUSet.of(0), StaticOptions(**options), policy)
    return NodePools.of(Pool.named("default", cpus), cpu_manager=manager)


def on(*devices: int | tuple[int, ...]) -> AllocatedDevices:
    """Return devices, each on its node or its nodes."""
    nodes = [{device} if isinstance(device, int) else set(device) for device in devices]
    ids = frozenset(map(str, range(len(nodes))))
    return AllocatedDevices(ids, nodes=frozenset(map(frozenset, nodes)))


def near(**resources: AllocatedDevices) -> PodDevices:
    return {"main": resources}


def web(name: str, cpus: int = 2, created: str = "") -> Pod:
    pod = builders.pod(
        name, replace(builders.container(cpu=1000 * cpus), id=ContainerID(f"{name}-id"))
    )
    return replace(pod, created=created)


def running(*pods: Pod) -> tuple[FoundContainer, ...]:
    return tuple(found for pod in pods for found in here(pod.uid, f"{pod.name}-id"))


def node(
    outside: Outside, policy: TopologyPolicy, machine: str = TWO_NODES, **options: bool
) -> tuple[Manager, Learner]:
    cpus = "0-15" if machine == TWO_NODES else "0-63"
    manager, learner = learning(outside, pools=pools(policy, cpus, **options), machine=machine)
    manager.adopt(())
    return manager, learner


def given(manager: Manager, pod: Pod) -> str:
    """Return the CPUs of a pod, or the kubelet's word for its refusal."""
    if refusal := manager.snapshot().resolution.view.refused.get(pod.cgroup_uid):
        return refusal.error.reason
    return str(builders.owned(manager)[pod.uid][POLICY_CPUS])


def placed(policy: TopologyPolicy, devices: PodDevices, cpus: int = 2) -> str:
    """Return the CPUs of a container with these devices on an idle machine of two nodes."""
    pod = web("web", cpus)
    manager, learner = node(Outside((pod,), live={("default", "web"): devices}), policy)
    learner.learn(running(pod), 100.0)
    return given(manager, pod)


@pytest.mark.parametrize("policy", [BEST_EFFORT, *STRICT])
@pytest.mark.parametrize(
    ("devices", "cpus"),
    [
        pytest.param(near(nic=on(1)), "8-9", id="a device"),
        pytest.param(near(nic=on(1, 1)), "8-9", id="two devices"),
        pytest.param(near(nic=on(1), gpu=on((0, 1))), "8-9", id="another near both nodes"),
        pytest.param(near(memory=AllocatedDevices(frozenset(), nodes=on(1).nodes)), "8-9"),
        pytest.param(near(gpu=on((0, 1))), "1-2", id="one that is near both nodes"),
        pytest.param(near(nic=AllocatedDevices(frozenset({"a"}))), "1-2", id="one without a node"),
        pytest.param({"main": {}}, "1-2", id="none"),
        pytest.param({"other": {"nic": on(1)}}, "1-2", id="another container's"),
    ],
)
def test_cpus_lie_on_the_node_of_the_devices(
    policy: TopologyPolicy, devices: PodDevices, cpus: str
) -> None:
    assert placed(policy, devices) == cpus


@pytest.mark.parametrize("devices", [near(nic=on(0, 1)), near(nic=on(0), gpu=on(1))])
def test_devices_on_two_nodes_are_no_home_for_cpus_that_need_one(devices: PodDevices) -> None:
    assert placed(BEST_EFFORT, devices) == "1-2"
    assert {placed(policy, devices) for policy in STRICT} == {"TopologyAffinityError"}


def test_cpus_of_two_nodes_suit_devices_on_two_nodes() -> None:
    devices = near(nic=on(0, 1))
    assert placed(BEST_EFFORT, devices, 9) == placed(RESTRICTED, devices, 9) == "1,8-15"
    assert placed(SINGLE, devices, 9) == "TopologyAffinityError"


@pytest.mark.parametrize("policy", [BEST_EFFORT, *STRICT])
def test_a_full_node_has_no_cpus_near_the_devices(policy: TopologyPolicy) -> None:
    first, second = web("first", 8, created="1"), web("second", created="2")
    live = {("default", name): near(nic=on(1)) for name in ("first", "second")}
    outside = Outside((first, second), live=live)
    manager, learner = node(outside, policy)
    learner.learn(running(first, second), 100.0)
    assert given(manager, first) == "8-15"
    if policy is BEST_EFFORT:
        assert given(manager, second) == "1-2"
        return
    (refusal,) = manager.snapshot().resolution.view.refused.values()
    assert refusal.error.reason == "TopologyAffinityError"
    assert refusal.error.as_kubelet == "Resources cannot be allocated with Topology locality"
    assert (refusal.holds, refusal.error.passes) == (True, False)

    outside.listed = (second,)
    learner.learn(running(second), 101.0)
    learner.learn(running(second), 102.0)
    assert given(manager, second) == "8-9"


@pytest.mark.parametrize("policy", [BEST_EFFORT, RESTRICTED])
def test_with_align_by_socket_the_nodes_of_a_socket_are_as_good(policy: TopologyPolicy) -> None:
    large, small, late = (
        web("large", 14, "1"),
        web("small", 4, "2"),
        web("late", 2, "3"),
    )
    live = {("default", pod.name): near(nic=on(3)) for pod in (large, small, late)}
    manager, learner = node(
        Outside((large, small, late), live=live),
        policy,
        TWO_SOCKETS_OF_TWO_NODES,
        align_by_socket=True,
    )
    learner.learn(running(large, small, late), 100.0)
    socket = CPUSet.parse("16-31,48-63")
    for pod in (large, small, late):
        assert CPUSet.parse(given(manager, pod)) <= socket


class TestAPodThatTheKubeletHasNotNamed:
    def test_has_no_cpus_until_the_kubelet_names_it(self) -> None:
        pod = web("web")
        outside = Outside((pod,))
        manager, learner = node(outside, RESTRICTED)
        learner.learn(running(pod), 100.0)
        (refusal,) = manager.snapshot().resolution.view.refused.values()
        assert isinstance(refusal.error, DevicesUnnamed)
        assert (refusal.holds, refusal.error.passes) == (True, True)
        placed = manager.snapshot().assignment((pod.uid, ContainerID("web-id")))
        assert placed.cause is Cause.MISFIT
        assert learner.due_s == 100.1

        outside.live = {("default", "web"): near(nic=on(1))}
        learner.learn(running(pod), 100.05)
        assert given(manager, pod) == "UnexpectedAdmissionError"
        learner.learn(running(pod), 100.1)
        assert given(manager, pod) == "8-9"

        outside.asked.clear()
        learner.learn(running(pod), 200.0)
        assert outside.asked == []

    def test_does_not_lose_its_cpus_to_a_younger_pod(self) -> None:
        old, young = web("old", 15, "1"), web("young", created="2")
        outside = Outside((old, young), live={("default", "young"): near()})
        manager, learner = node(outside, BEST_EFFORT)
        learner.learn(running(old, young), 100.0)
        assert builders.owned(manager) == {}

        outside.live = {("default", name): near() for name in ("old", "young")}
        learner.learn(running(old, young), 101.0)
        assert given(manager, old) == "1-15"

    def test_is_not_its_namesake_that_ends(self) -> None:
        old = replace(web("old", created="1"), name="web")
        new = replace(web("new", created="2"), name="web")
        outside = Outside((old, new), live={("default", "web"): near(nic=on(1))})
        manager, learner = node(outside, RESTRICTED)
        both = (*here("old-uid", "old-id"), *here("new-uid", "new-id"))
        learner.learn(both, 100.0)
        assert builders.owned(manager) == {}
        outside.listed = (new,)
        learner.learn(here("new-uid", "new-id"), 101.0)
        assert given(manager, new) == "8-9"

    def test_is_not_what_the_kubelet_says_before_it_has_started(self) -> None:
        bound, other = builders.pod("web", builders.container(cpu=2000, running=False)), web("x")
        live = {("default", "web"): near(), ("default", "x"): near()}
        outside = Outside((bound, other), live=live)
        manager, learner = node(outside, RESTRICTED)
        learner.learn(running(other), 100.0)
        assert manager.snapshot().facts.device_nodes.keys() == {other.uid}
        outside.listed = (web("web"), other)
        outside.live = {("default", "web"): near(nic=on(1))}
        learner.learn(running(*outside.listed), 101.0)
        assert given(manager, outside.listed[0]) == "8-9"

    def test_starts_where_no_topology_policy_needs_the_devices(self) -> None:
        pod = web("web")
        outside = Outside((pod,), live=None, saved=None)
        manager, learner = node(outside, NONE)
        learner.learn(running(pod), 100.0)
        assert given(manager, pod) == "1-2"
        assert "podresources" not in outside.asked

    def test_is_a_pod_of_the_policy(self) -> None:
        plain = builders.pod("web", builders.container(cpu=1500))
        outside = Outside((plain,))
        _, learner = node(outside, RESTRICTED)
        learner.learn(here(plain.uid, "main-id"), 100.0)
        assert "podresources" not in outside.asked


def test_the_checkpoint_has_the_devices_of_init_containers() -> None:
    pod = builders.pod(
        "web",
        builders.container("init", ContainerKind.INIT, cpu=2000),
        builders.container("main", cpu=2000, running=False),
    )
    live = {("default", "web"): {"main": {"nic": on(1)}}}
    saved = {"web-uid": {name: {"nic": on(1)} for name in ("init", "main")}}
    manager, learner = node(Outside((pod,), live=live, saved=saved), RESTRICTED)
    learner.learn(here(pod.uid, "init-id"), 100.0)
    assert given(manager, pod) == "8-9"


@pytest.mark.parametrize(
    ("compaction", "word", "asked"),
    [
        (Compaction(), CPUMoves.ANY, True),
        (Compaction(), CPUMoves.SAME_NUMA, False),
        (None, CPUMoves.ANY, False),
    ],
)
def test_the_devices_of_an_owner_are_asked_for_if_it_may_leave_its_nodes(
    compaction: Compaction | None, word: CPUMoves, *, asked: bool
) -> None:
    owner = replace(web("web"), cpu_moves=word)
    outside = Outside((owner,), live={("default", "web"): near(nic=on(1))})
    dynamic = CPUManager("dynamic", CPUSet.of(0), compaction=compaction)
    pools = NodePools.of(Pool.named("default", "0-15"), cpu_manager=dynamic)
    manager, learner = learning(outside, pools=pools, machine=TWO_NODES)
    manager.adopt(())
    for at_s in (100.0, 101.0, 102.0):
        learner.learn(running(owner), at_s)
    assert given(manager, owner) == "1-2"
    assert (manager.snapshot().facts.device_nodes.keys() == {owner.uid}) is asked
    assert outside.asked.count("podresources") == asked


def test_a_pod_that_has_ended_leaves_no_record_of_its_nodes() -> None:
    first, second = web("first"), web("second")
    live = {("default", name): near(nic=on(1)) for name in ("first", "second")}
    outside = Outside((first, second), live=live)
    manager, learner = node(outside, RESTRICTED)
    learner.learn(running(first, second), 100.0)
    assert manager.snapshot().facts.device_nodes.keys() == {first.uid, second.uid}
    outside.listed = (first,)
    learner.learn(running(first), 101.0)
    assert manager.snapshot().facts.device_nodes.keys() == {PodUID(first.uid)}
