"""Which pods only share CPUs, so that what becomes of them can wait."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from cpupool.core.cpu_manager import CPUManager, Eligible, Scope
from cpupool.core.cpuset import CPUSet
from cpupool.core.grants import PodOwner
from cpupool.core.pools import NodePools, Pool
from cpupool.core.workloads import Container, ContainerID, Pod, QoSClass
from cpupool.manager import deferrable, resolve, sightings
from cpupool.manager.choosing import Choices
from cpupool.manager.manager import Manager
from tests import builders
from tests.machines import MACHINES
from tests.runtimes import reported

if TYPE_CHECKING:
    from cpupool.core.workloads import RuntimeContainer
    from cpupool.manager.resolve import Resolution, Snapshot

POOLS = NodePools.of(
    Pool.named("exclusive_a", "2,4"), Pool.named("shared_a", "0"), Pool.named("default", "1")
)
STATIC = NodePools.of(
    Pool.named("shared_a", "0"),
    Pool.named("default", "1-7"),
    cpu_manager=CPUManager("static", CPUSet.of(1)),
)
MACHINE = MACHINES["laptop_4c8t"].topology()
PLAIN = builders.pod("plain")
SHARED = builders.pod("shared", builders.container(shared_a=100))


def node(*pods: Pod, pools: NodePools = POOLS, named: bool = True) -> Manager:
    """Make a node whose agent knows these pods, and by NRI their containers."""
    manager = Manager()
    manager.reconfigure(pools, MACHINE)
    manager.observe(pods=pods)
    if named:
        manager.observe_containers(
            reported(pod.cgroup_uid, identifier=f"{pod.name}-main") for pod in pods
        )
    manager.adopt(())
    return manager


def states(pod: Pod, **fields: object) -> Pod:
    """Give a pod whose container the runtime has named."""
    (container,) = pod.containers
    found = replace(container, id=ContainerID(f"{pod.name}-main"))
    return replace(pod, containers=(found,), **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize("pools", [POOLS, STATIC])
@pytest.mark.parametrize("pod", [PLAIN, SHARED])
def test_a_pod_without_cpus_of_its_own_only_shares(pod: Pod, pools: NodePools) -> None:
    assert deferrable.shares(node(pod, pools=pools).snapshot(), pod)


@pytest.mark.parametrize(
    "pod",
    [
        builders.pod("owner", builders.container(exclusive_a=1)),
        builders.pod("whole", builders.container(cpu=2000)),
        builders.pod("static", cgroup_uid="0123456789abcdef0123456789abcdef"),
        replace(PLAIN, qos=None),
    ],
)
def test_one_that_owns_or_may_own_is_looked_at_at_once(pod: Pod) -> None:
    now = node(pod).snapshot()
    assert not deferrable.shares(now, pod)
    assert not deferrable.moves_nothing(node().snapshot(), [pod])


@pytest.mark.parametrize("eligible", Eligible)
def test_a_container_with_an_equal_limit_owns_where_it_is_eligible_alone(
    eligible: Eligible,
) -> None:
    manager = CPUManager("static", CPUSet.of(1), eligible=eligible)
    pools = NodePools.of(Pool.named("default", "1-7"), cpu_manager=manager)
    pod = builders.pod("db", replace(builders.container(), equal_cpus=2))
    now = node(pools=pools).snapshot()
    assert deferrable.shares(now, pod) == (eligible is Eligible.POD)


def test_one_that_owns_what_it_requests_no_longer_is_looked_at_at_once() -> None:
    owner = builders.pod("owner", builders.container(exclusive_a=1))
    manager = node(owner)
    manager.accept(builders.given(owner, exclusive_a="2"))
    edited = replace(owner, containers=(builders.container(),))
    assert builders.owned(manager)
    assert not deferrable.shares(manager.snapshot(), edited)


def test_under_other_policies_any_pod_may_move_others() -> None:
    koordinator = NodePools.of(
        Pool.named("default", "0-7"), cpu_manager=CPUManager("koordinator", CPUSet.of(0))
    )
    assert not deferrable.shares(node(PLAIN, pools=koordinator).snapshot(), PLAIN)
    manager = node(PLAIN)
    manager.observe(static_cpus=CPUSet.of(1, 2))
    assert not deferrable.shares(manager.snapshot(), PLAIN), "the kubelet gives CPUs"


def test_nothing_waits_before_an_earlier_agents_choices_are_known() -> None:
    manager = Manager()
    manager.reconfigure(POOLS, MACHINE)
    assert not deferrable.moves_nothing(manager.snapshot(), [PLAIN])
    manager.observe(pods=[pod_before(PLAIN)])
    assert not deferrable.shares(manager.snapshot(), PLAIN)


@pytest.mark.parametrize("pod", [PLAIN, SHARED])
def test_a_life_of_a_pod_that_shares_moves_nothing(pod: Pod) -> None:
    assert deferrable.moves_nothing(node().snapshot(), [pod_before(pod)]), "it is listed"
    now = node(pod).snapshot()
    for become in (
        states(pod, running=True),
        states(pod, running=True, ending=True, ends_s=1.0),
        states(pod, finished=True),
    ):
        assert deferrable.moves_nothing(now, [become])
    assert deferrable.moves_nothing(now, []), "it is listed no more"


def pod_before(pod: Pod) -> Pod:
    """Give a pod none of whose containers runs."""
    return replace(pod, containers=tuple(replace(each, id=None) for each in pod.containers))


def test_a_container_that_the_runtime_has_not_named_is_looked_at_at_once() -> None:
    assert not deferrable.moves_nothing(node(named=False).snapshot(), [PLAIN])


def test_a_pod_that_the_runtime_named_first_has_waited_for_its_listing() -> None:
    manager = node()
    manager.observe_containers([reported(SHARED.uid, identifier="shared-main")])
    assert not deferrable.moves_nothing(manager.snapshot(), [states(SHARED)])


def test_another_request_is_looked_at_at_once() -> None:
    now = node(SHARED).snapshot()
    resized = replace(SHARED.containers[0], limit_milli=500, id=ContainerID("shared-main"))
    assert not deferrable.moves_nothing(now, [replace(SHARED, containers=(resized,))])
    assert not deferrable.moves_nothing(now, [states(SHARED, qos=QoSClass.BEST_EFFORT)])
    more = Container("more")
    assert not deferrable.moves_nothing(
        now, [replace(SHARED, containers=(*SHARED.containers, more))]
    )


def sandbox(pod: Pod) -> RuntimeContainer:
    """Give what the runtime reports of a pod's sandbox."""
    return reported(pod.cgroup_uid, "", identifier=f"{pod.name}-sandbox")


@pytest.mark.parametrize("pod", [PLAIN, SHARED])
def test_sandboxes_and_ends_of_pods_that_share_leave_the_decisions(pod: Pod) -> None:
    manager = node(pod, builders.pod("other"))
    before = manager.snapshot().resolution
    manager.observe_containers([sandbox(pod)])
    assert manager.snapshot().resolution is before
    assert sandbox(pod).id in manager.snapshot().facts.sighted
    manager.forget_containers([ContainerID(f"{pod.name}-main")])
    now = manager.snapshot()
    assert now.resolution.view is before.view
    assert now.resolution.containers == decided_anew(now).containers
    assert len(now.resolution.containers) == len(before.containers) - 1
    manager.forget_containers([sandbox(pod).id])
    assert manager.snapshot().resolution is now.resolution
    assert sandbox(pod).id not in manager.snapshot().facts.sighted


def test_a_container_stays_as_long_as_its_pod_lists_it() -> None:
    pod = states(PLAIN, running=True)
    manager = node(pod)
    before = manager.snapshot().resolution
    manager.forget_containers([ContainerID("plain-main")])
    now = manager.snapshot()
    assert now.resolution is before
    assert now.resolution.containers == decided_anew(now).containers
    manager.observe(pods=[pod_before(PLAIN)])
    assert not manager.snapshot().resolution.containers


def test_a_sandbox_decides_about_a_pod_that_may_own() -> None:
    owner = pod_before(builders.pod("whole", builders.container(cpu=2000)))
    manager = node(owner, pools=STATIC, named=False)
    before = manager.snapshot().resolution
    assert not before.grants.all
    manager.observe_containers([sandbox(owner)])
    assert manager.snapshot().resolution.grants.of(PodOwner(owner.cgroup_uid))


def test_an_end_of_a_pod_that_is_not_listed_is_decided_anew() -> None:
    manager = node()
    manager.observe_containers([reported(SHARED.uid, identifier="shared-main"), sandbox(SHARED)])
    assert SHARED.uid in manager.snapshot().resolution.pods
    manager.forget_containers([ContainerID("shared-main"), sandbox(SHARED).id])
    assert not manager.snapshot().resolution.pods


def decided_anew(now: Snapshot) -> Resolution:
    """Decide again without earlier decisions."""
    decided = Choices.of(now.resolution.view)
    return resolve.resolve(now.facts, sightings.present(now.facts), decided)


@pytest.mark.parametrize("scope", Scope)
def test_a_pod_that_may_have_a_bubble_is_looked_at_at_once(scope: Scope) -> None:
    web = replace(builders.pod("web"), qos=QoSClass.GUARANTEED, level_milli=2000, level_cpus=2)
    manager = replace(STATIC.cpu_manager, pod_level=True, topology_scope=scope)
    now = node(web, pools=replace(STATIC, cpu_manager=manager)).snapshot()
    assert deferrable.shares(now, web) == (scope is Scope.CONTAINER)
