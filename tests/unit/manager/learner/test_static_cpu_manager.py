from __future__ import annotations

import math
from dataclasses import replace

import pytest

from cpupool.core.cpu_manager import CPUManager
from cpupool.core.cpuset import CPUSet
from cpupool.core.devices import NATIVE_CPU, AllocatedDevices
from cpupool.core.names import ENABLE_SHARED_CPUS, Names
from cpupool.core.pools import MixedCPUs, NodePools, Pool
from cpupool.core.workloads import ContainerID, QoSClass
from cpupool.manager import offers
from cpupool.manager.readiness import NRI, POOL_FILE
from tests import builders
from tests.machines import MACHINES
from tests.unit.manager.learner.outside import OWNER, Outside, alive, granted, learning


def test_the_cpu_manager_is_asked_about_until_it_is_harmless_and_again_of_another_kubelet() -> None:
    outside = Outside(static_cpus=None)
    _, learner = learning(outside)
    learner.learn((), 100.0)
    assert learner.due_s == 100.1
    outside.static_cpus = CPUSet.of(2)
    learner.learn((), 100.1)
    assert "gives out CPUs 2" in learner.conflict
    assert learner.due_s == 100.1 + 0.2
    outside.static_cpus = CPUSet()
    learner.learn((), 101.0)
    assert (learner.conflict, learner.due_s) == ("", math.inf)
    learner.learn((), 102.0)
    assert outside.asked.count("cpu manager") == 3

    learner.kubelet_changed()
    learner.learn((), 103.0)
    assert outside.asked.count("cpu manager") == 4


MIXED = NodePools.of(Pool.named("shared_m", "6-7"), mixed=MixedCPUs("shared_m"))
STATIC = CPUSet.parse("1-5")


def test_beside_a_static_cpu_manager_shared_cpus_are_added_where_nri_asks() -> None:
    connected = False
    _, learner = learning(Outside(static_cpus=STATIC), pools=MIXED, nri=lambda: connected)
    learner.learn((), 100.0)
    assert (learner.conflict, learner.waiting_for(100.0)) == ("", NRI)

    connected = True
    assert learner.waiting_for(100.0) == ""


@pytest.mark.parametrize(
    "pools",
    [
        pytest.param(NodePools(MIXED.pools), id="switched off"),
        pytest.param(
            NodePools.of(*MIXED, Pool.named("exclusive_a", "2"), mixed=MIXED.mixed),
            id="with an exclusive pool",
        ),
        pytest.param(
            NodePools.of(*MIXED, Pool.named("default", "0"), mixed=MIXED.mixed),
            id="with a default pool",
        ),
    ],
)
def test_a_static_cpu_manager_is_welcome_beside_nothing_else(pools: NodePools) -> None:
    _, learner = learning(Outside(static_cpus=STATIC), pools=pools, nri=lambda: True)
    learner.learn((), 100.0)
    assert "which gives out CPUs 1-5: set cpuManagerPolicy to none" in learner.conflict
    assert "mixedCPUs and shared pools alone" in learner.conflict
    assert learner.waiting_for(100.0) == learner.conflict


@pytest.mark.parametrize("pools", [(), MIXED.pools], ids=["without pools", "with a shared pool"])
def test_a_static_cpu_manager_is_not_welcome_beside_a_policy_of_the_pool_file(
    pools: tuple[Pool, ...],
) -> None:
    manager = CPUManager("static", reserved=1)
    mixed = builders.pod("mixed", builders.container(cpu=2000, shared_cpus=True))
    given = {Names().resource(ENABLE_SHARED_CPUS): AllocatedDevices(frozenset({"0"}))}
    _, learner = learning(
        Outside((mixed,), static_cpus=STATIC, saved={mixed.uid: {"main": given}}),
        pools=NodePools.of(*pools, cpu_manager=manager),
        nri=lambda: True,
    )
    learner.learn(alive(mixed.uid), 100.0)
    waiting_for = learner.waiting_for(100.0)
    assert "which gives out CPUs 1-5: set cpuManagerPolicy to none" in waiting_for
    assert "the policy static of cpuManager in the pool file gives out the same" in waiting_for
    assert "mixedCPUs" not in waiting_for


def test_a_pool_file_with_a_cpu_manager_policy_needs_no_pools() -> None:
    alone = NodePools(cpu_manager=CPUManager("static", reserved=1))
    manager, learner = learning(Outside(), pools=alone)
    learner.learn((), 100.0)
    assert learner.waiting_for(100.0) == ""

    manager.reconfigure(NodePools(), MACHINES["laptop_4c8t"].topology())
    assert learner.waiting_for(100.0) == POOL_FILE


def test_shared_cpus_that_the_kubelet_gives_out_too_are_refused() -> None:
    _, learner = learning(Outside(static_cpus=CPUSet.parse("1-6")), pools=MIXED, nri=lambda: True)
    learner.learn((), 100.0)
    assert "keep CPUs 6 of the shared pools" in learner.waiting_for(100.0)
    assert "add them to its reservedSystemCPUs" in learner.waiting_for(100.0)


def test_a_static_cpu_manager_is_not_welcome_while_pods_have_cpus_of_pools_that_are_gone() -> None:
    outside = Outside((OWNER,), saved={OWNER.uid: granted("4")})
    manager, learner = learning(outside, nri=lambda: True)
    learner.learn(alive(OWNER.uid), 100.0)
    manager.reconfigure(MIXED, MACHINES["laptop_4c8t"].topology())
    outside.static_cpus = STATIC
    learner.kubelet_changed()
    learner.learn(alive(OWNER.uid), 101.0)
    assert "the end of pods that have CPUs 4 of exclusive pools" in learner.waiting_for(101.0)

    outside.listed = ()
    learner.learn((), 102.0)
    assert learner.waiting_for(102.0) == ""


def test_the_kubelets_own_cpus_are_asked_for_where_shared_ones_are_added() -> None:
    mixed = builders.pod("mixed", builders.container(cpu=2000, shared_cpus=True))
    plain = builders.pod("plain", builders.container(cpu=1000))
    given = {Names().resource(ENABLE_SHARED_CPUS): AllocatedDevices(frozenset({"0"}))}
    native = {
        name: {NATIVE_CPU: AllocatedDevices(cpus, CPUSet.parse(",".join(cpus)))}
        for name, cpus in (("mixed", frozenset({"4", "5"})), ("plain", frozenset({"2"})))
    }
    outside = Outside(
        (mixed, plain),
        static_cpus=STATIC,
        saved={mixed.uid: {"main": given}},
        live={("default", name): {"main": grants} for name, grants in native.items()},
    )
    manager, learner = learning(outside, pools=MIXED, nri=lambda: True)
    learner.learn((), 100.0)
    _, resolution = manager.snapshot()
    assert resolution.missing == ()
    key = (mixed.uid, ContainerID("main-id"))
    placed = resolution.assignment(key)
    assert (str(placed.exclusive), str(placed.shared)) == ("4-5", "6-7")
    assert "podresources" in outside.asked
    assert set(offers.held_ids(manager.snapshot().facts)) == {"enable-shared-cpus", "kubelet/cpu"}

    learner.learn((), 100.01)
    # Another kubelet, without the old one's state, gives out its CPUs anew.
    outside.live = {
        ("default", "mixed"): {
            "main": {NATIVE_CPU: AllocatedDevices(frozenset({"2", "3"}), CPUSet.of(2, 3))}
        }
    }
    assert str(manager.snapshot().resolution.assignment(key).exclusive) == "4-5"
    learner.kubelet_changed()
    learner.learn((), 101.0)
    assert str(manager.snapshot().resolution.assignment(key).exclusive) == "2-3"
    assert learner.due_s == 101.1, "the new kubelet may not know all at once"


def test_beside_koordinators_classes_the_kubelet_is_asked_for_the_cpus_of_its_pods() -> None:
    own = replace(builders.pod("own", builders.container(cpu=2000)), qos=QoSClass.GUARANTEED)
    cpus = AllocatedDevices(frozenset({"2", "3"}), CPUSet.of(2, 3))
    outside = Outside((own,), static_cpus=STATIC, live={("default", "own"): {"main": {}}})
    connected = False
    manager, learner = learning(
        outside,
        pools=NodePools(cpu_manager=CPUManager("koordinator", reserved=CPUSet.of(0))),
        nri=lambda: connected,
    )
    learner.learn((), 100.0)
    assert manager.snapshot().resolution.missing
    assert (learner.conflict, learner.waiting_for(100.0)) == ("", NRI)

    connected = True
    outside.live = {("default", "own"): {"main": {NATIVE_CPU: cpus}}}
    learner.learn((), 101.0)
    _, resolution = manager.snapshot()
    assert (learner.waiting_for(101.0), resolution.missing) == ("", ())
    placed = resolution.assignment((own.uid, ContainerID("main-id")))
    assert str(placed.exclusive) == "2-3"
