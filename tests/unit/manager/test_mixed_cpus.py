"""Shared CPUs beside exclusive ones, asked for by OpenShift's resource or by pools."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cpupool.core import environment
from cpupool.core.assignments import Cause, CPUAssignment, Placement
from cpupool.core.bandwidth import Limit
from cpupool.core.cpuset import CPUSet
from cpupool.core.devices import AllocatedDevices
from cpupool.core.names import ENABLE_SHARED_CPUS, KUBELET_CPUS, Names
from cpupool.core.pools import MixedCPUs, NodePools, Pool
from cpupool.core.workloads import (
    Container,
    ContainerID,
    ContainerKind,
    ContainerRef,
    Pod,
    RuntimeContainer,
)
from cpupool.manager import served_requests
from cpupool.manager.manager import Manager
from tests import builders
from tests.machines import MACHINES

MACHINE = MACHINES["laptop_4c8t"]  # cores 0-1, 2-3, 4-5, 6-7
MIXED = MixedCPUs("shared_m", 2)
POOLS = NodePools.of(
    Pool.named("exclusive_a", "2,4"),
    Pool.named("shared_m", "6-7"),
    Pool.named("default", "0-1"),
    mixed=MIXED,
)
KUBELETS = NodePools.of(Pool.named("shared_m", "6-7"), mixed=MIXED)
STATIC = CPUSet.parse("1-5")


def node(pools: NodePools, *pods: Pod, static: CPUSet | None = None) -> Manager:
    manager = Manager(Names())
    manager.observe(static_cpus=static or CPUSet())
    manager.reconfigure(pools, MACHINE.topology())
    manager.observe(pods=pods)
    return manager


def give(manager: Manager, pod: Pod, container: str = "main", /, **grants: str) -> None:
    named = {
        builders.resource(
            {"kubelet": KUBELET_CPUS, "openshift": ENABLE_SHARED_CPUS}.get(pool, pool)
        ): AllocatedDevices(
            frozenset(ids.split(",")), CPUSet.parse(ids) if pool == "kubelet" else CPUSet()
        )
        for pool, ids in grants.items()
    }
    manager.accept({ContainerRef(pod.uid, container): named})


def placed(manager: Manager, pod: Pod, container: str = "main") -> CPUAssignment:
    return manager.snapshot().resolution.assignment(
        (pod.cgroup_uid, ContainerID(f"{container}-id"))
    )


ALIAS = builders.pod("alias", builders.container(shared_cpus=True, exclusive_a=2))
OWN = builders.pod("own", builders.container(cpu=2000, shared_cpus=True), cpu=2000)


class TestBesideAnExclusivePool:
    def test_a_container_gets_the_union_and_every_variable(self) -> None:
        manager = node(POOLS, ALIAS)
        give(manager, ALIAS, exclusive_a="2,4", openshift="0")
        found = placed(manager, ALIAS)
        assert str(found.cpus) == "2,4,6-7"
        assert environment.of_container(found) == {
            "EXCLUSIVE_CPUS": "2,4",
            "SHARED_CPUS": "6-7",
            "OPENSHIFT_ISOLATED_CPUS": "2,4",
            "OPENSHIFT_SHARED_CPUS": "6-7",
            "CPUPOOL_CPUS_EXCLUSIVE_A": "2,4",
        }
        assert found.limit == Limit(None)

    def test_allocate_tells_the_same_where_the_runtime_does_not_ask(self) -> None:
        manager = node(POOLS)
        shared = manager.allocate(ENABLE_SHARED_CPUS, ["1"])
        assert shared.environment == {"SHARED_CPUS": "6-7", "OPENSHIFT_SHARED_CPUS": "6-7"}
        assert shared.annotations == {"nokia.k8s.io/allocated.enable-shared-cpus": "1"}
        exclusive = manager.allocate("exclusive_a", ["4"]).environment
        assert exclusive["OPENSHIFT_ISOLATED_CPUS"] == exclusive["EXCLUSIVE_CPUS"] == "4"

        plain = node(replace(POOLS, mixed=None)).allocate("exclusive_a", ["4"]).environment
        assert "OPENSHIFT_ISOLATED_CPUS" not in plain

    def test_switched_off_it_keeps_its_own_cpus_and_gets_the_shared_ones_back_with_it(self) -> None:
        manager = node(POOLS, ALIAS)
        give(manager, ALIAS, exclusive_a="2,4", openshift="0")

        manager.reconfigure(replace(POOLS, mixed=None), MACHINE.topology())
        assert str(placed(manager, ALIAS).cpus) == "2,4"
        assert ENABLE_SHARED_CPUS in {pool.name for pool in manager.advertised()}, "it drains"

        manager.reconfigure(POOLS, MACHINE.topology())
        assert str(placed(manager, ALIAS).cpus) == "2,4,6-7"

    def test_asked_for_while_it_is_off_it_means_nothing(self) -> None:
        manager = node(replace(POOLS, mixed=None), ALIAS)
        give(manager, ALIAS, exclusive_a="2,4")
        found = placed(manager, ALIAS)
        assert (found.placement, str(found.cpus)) == (Placement.POOLS, "2,4")
        assert manager.snapshot().resolution.missing == ()
        assert "OPENSHIFT_ISOLATED_CPUS" not in environment.of_container(found)

    def test_without_cpus_of_its_own_a_container_stays_in_the_default_pool(self) -> None:
        alone = builders.pod("alone", builders.container(shared_cpus=True))
        manager = node(POOLS, alone)
        give(manager, alone, openshift="0")
        found = placed(manager, alone)
        assert (found.placement, str(found.cpus)) == (Placement.DEFAULT, "0-1")

    def test_whole_native_cpus_are_without_an_owner_where_the_kubelet_gives_none(self) -> None:
        manager = node(POOLS, OWN)
        give(manager, OWN, openshift="0")
        found = placed(manager, OWN)
        assert (found.cause, str(found.cpus)) == (Cause.NO_POOL, "0-1")
        assert "has none of an exclusive pool" in found.reason
        assert manager.snapshot().resolution.missing == (), (
            "nobody is asked for what does not exist"
        )


class TestBesideTheKubeletsOwn:
    def test_the_shared_cpus_are_added_to_the_kubelets(self) -> None:
        manager = node(KUBELETS, OWN, static=STATIC)
        give(manager, OWN, openshift="0", kubelet="4,5")
        found = placed(manager, OWN)
        assert str(found.cpus) == "4-7"
        assert environment.of_container(found) == {
            "EXCLUSIVE_CPUS": "4-5",
            "SHARED_CPUS": "6-7",
            "OPENSHIFT_ISOLATED_CPUS": "4-5",
            "OPENSHIFT_SHARED_CPUS": "6-7",
        }
        assert found.limit == Limit(4000, or_unlimited=True, own_milli=2000)

    def test_two_pods_may_have_the_threads_of_one_core_and_the_shared_pool_a_sibling(self) -> None:
        pools = NodePools.of(Pool.named("shared_m", "0,5"), mixed=MIXED)
        other = builders.pod("other", builders.container(cpu=1000, shared_cpus=True))
        manager = node(pools, OWN, other, static=STATIC)
        give(manager, OWN, openshift="0", kubelet="2,4")
        give(manager, other, openshift="1", kubelet="3")
        assert str(placed(manager, OWN).cpus) == "0,2,4-5"
        assert str(placed(manager, other).cpus) == "0,3,5"

    def test_everybody_else_is_left_to_the_kubelet(self) -> None:
        plain = builders.pod("plain", builders.container(cpu=1000))
        manager = node(KUBELETS, plain, static=STATIC)
        found = placed(manager, plain)
        assert (found.placement, found.cpus, found.limit) == (Placement.KUBELET, CPUSet(), None)
        _, resolution = manager.snapshot()
        for key in ((plain.uid, ""), (plain.uid, "sandbox"), ("nobody", "x")):
            assert resolution.assignment((key[0], ContainerID(key[1]))).cpus == CPUSet()

    def test_until_the_kubelet_has_named_its_cpus_the_container_waits(self) -> None:
        manager = node(KUBELETS, OWN, static=STATIC)
        give(manager, OWN, openshift="0")
        found = placed(manager, OWN)
        assert (found.placement, found.cause) == (Placement.KUBELET, Cause.NO_DEVICES)
        assert found.cpus == CPUSet()
        assert manager.snapshot().resolution.missing == (ContainerRef(OWN.uid, "main"),)

    def test_of_a_pod_that_is_not_listed_yet_the_kubelet_is_asked_too(self) -> None:
        manager = node(KUBELETS, static=STATIC)
        sighted = RuntimeContainer(
            ContainerID("main-id"),
            "late-uid",
            "default",
            "late",
            "main",
            {ENABLE_SHARED_CPUS: frozenset({"1"})},
        )
        manager.promise(ENABLE_SHARED_CPUS, ["1"])
        manager.observe_containers([sighted])
        (missing,) = manager.snapshot().resolution.missing
        assert missing == ContainerRef(builders.pod("late").uid, "main")
        give(manager, builders.pod("late"), openshift="1", kubelet="4,5")
        assert str(placed(manager, builders.pod("late")).cpus) == "4-7"

    @pytest.mark.parametrize("kind", [ContainerKind.INIT, ContainerKind.SIDECAR])
    def test_an_init_container_waits_for_nothing_that_the_kubelet_never_tells(
        self, kind: ContainerKind
    ) -> None:
        first = builders.container("first", kind, cpu=1000, shared_cpus=True)
        pod = builders.pod("inits", first, *OWN.containers)
        manager = node(KUBELETS, pod, static=STATIC)
        give(manager, pod, openshift="0", kubelet="4,5")
        give(manager, pod, "first", openshift="0")
        asked = manager.snapshot().resolution.missing
        assert asked == ((ContainerRef(pod.uid, "first"),) if kind is ContainerKind.SIDECAR else ())
        assert placed(manager, pod, "first").placement is Placement.KUBELET
        assert str(placed(manager, pod).cpus) == "4-7"

    def test_of_two_containers_each_has_its_own(self) -> None:
        twins = (
            replace(OWN.containers[0], name=name, id=ContainerID(f"{name}-id")) for name in "ab"
        )
        pod = builders.pod("twins", *twins, cpu=4000)
        manager = node(KUBELETS, pod, static=STATIC)
        give(manager, pod, "a", openshift="0", kubelet="2,3")
        give(manager, pod, "b", openshift="1", kubelet="4,5")
        assert [str(placed(manager, pod, name).cpus) for name in "ab"] == ["2-3,6-7", "4-7"]

    def test_the_kubelets_cpus_stay_with_a_container_that_requests_the_shared_pool_by_name(
        self,
    ) -> None:
        by_name = builders.pod("named", builders.container(cpu=2000, shared_m=250), cpu=2000)
        manager = node(KUBELETS, by_name, static=STATIC)
        give(manager, by_name, shared_m="0")
        assert placed(manager, by_name).cause is Cause.NO_DEVICES

        give(manager, by_name, kubelet="4,5")
        assert str(placed(manager, by_name).cpus) == "4-7"
        assert placed(manager, by_name).limit == Limit(4000, or_unlimited=True, own_milli=2000)

        # A kubelet without a static CPU manager gives no CPUs, and has taken these back.
        manager.observe(static_cpus=CPUSet())
        assert str(placed(manager, by_name).cpus) == "6-7"
        assert builders.owned(manager) == {}

    def test_who_has_no_cpus_of_the_kubelets_runs_on_the_shared_pool_alone(self) -> None:
        sharer = builders.pod("sharer", builders.container(shared_m=250))
        manager = node(KUBELETS, sharer, static=STATIC)
        give(manager, sharer, shared_m="0")
        assert str(placed(manager, sharer).cpus) == "6-7"

    def test_another_kubelet_gives_other_cpus(self) -> None:
        other = builders.pod("other", builders.container(cpu=2000, shared_cpus=True))
        manager = node(KUBELETS, OWN, other, static=STATIC)
        give(manager, OWN, openshift="0", kubelet="2,3")
        give(manager, other, openshift="1", kubelet="4,5")

        give(manager, OWN, kubelet="4,5")
        contested = placed(manager, OWN)
        assert (contested.placement, contested.cpus) == (Placement.KUBELET, CPUSet())
        give(manager, other, kubelet="2,3")
        assert str(placed(manager, OWN).cpus) == "4-7"
        assert str(placed(manager, other).cpus) == "2-3,6-7"

    def test_switched_off_the_kubelets_cpus_and_limit_come_back(self) -> None:
        manager = node(KUBELETS, OWN, static=STATIC)
        give(manager, OWN, openshift="0", kubelet="4,5")
        manager.reconfigure(replace(KUBELETS, mixed=None), MACHINE.topology())
        found = placed(manager, OWN)
        assert str(found.cpus) == "4-5"
        assert found.limit == Limit(2000, or_unlimited=True, own_milli=2000)

        manager.observe(pods=[])
        assert not served_requests.kubelet_owns(manager.snapshot().facts), (
            "nobody has anything left of it"
        )

    def test_a_container_without_a_limit_keeps_none(self) -> None:
        late = builders.pod("late", replace(OWN.containers[0], limit_milli=None))
        manager = node(KUBELETS, late, static=STATIC)
        give(manager, late, openshift="0", kubelet="4,5")
        assert placed(manager, late).limit is None


@pytest.mark.parametrize(
    ("own_milli", "pod_milli", "limit_milli"),
    [
        pytest.param(None, None, 1500, id="its milli-CPUs"),
        pytest.param(700, None, 700, id="a lower limit of its own"),
        pytest.param(1500, 900, 900, id="a lower limit of its pod"),
        pytest.param(4000, 4000, 1500, id="higher limits"),
    ],
)
def test_a_container_with_shared_cpus_only_is_limited(
    own_milli: int | None, pod_milli: int | None, limit_milli: int
) -> None:
    sharer = builders.pod("sharer", builders.container(shared_m=1500, cpu=own_milli), cpu=pod_milli)
    manager = node(POOLS, sharer)
    manager.accept(builders.given(sharer, shared_m="0,1"))
    assert placed(manager, sharer).limit == Limit(limit_milli, own_milli=own_milli)


@pytest.mark.parametrize(
    "asking",
    [
        pytest.param(builders.container(exclusive_a=1, cpu=1100), id="alone"),
        pytest.param(
            builders.container(exclusive_a=1, shared_m=1, cpu=3000), id="with shared ones"
        ),
    ],
)
def test_a_container_with_exclusive_cpus_is_not_limited(asking: Container) -> None:
    owner = builders.pod("owner", asking, cpu=asking.limit_milli)
    manager = node(POOLS, owner)
    manager.accept(builders.given(owner, exclusive_a="2", shared_m="0"))
    assert placed(manager, owner).limit == Limit(None)


def test_a_container_in_the_default_pool_keeps_the_limit_that_it_has() -> None:
    plain = builders.pod("plain", builders.container(cpu=500), cpu=500)
    assert placed(node(POOLS, plain), plain).limit is None


def test_switching_is_told_as_a_pool_that_comes_and_goes() -> None:
    manager = node(replace(POOLS, mixed=None))
    topology = MACHINE.topology()
    assert manager.reconfigure(POOLS, topology).added == (ENABLE_SHARED_CPUS,)
    more = replace(POOLS, mixed=MixedCPUs("shared_m", 3))
    assert manager.reconfigure(more, topology).resized == (ENABLE_SHARED_CPUS,)
    assert manager.reconfigure(replace(POOLS, mixed=None), topology).removed == (
        ENABLE_SHARED_CPUS,
    )
