from __future__ import annotations

from dataclasses import replace

import pytest

from cpupool.core.cpu_manager import CPUManager, StaticOptions, TopologyPolicy
from cpupool.core.cpuset import CPUSet
from cpupool.core.orchestration import Orchestration, QoS
from cpupool.core.pool_policy import PoolPolicy
from cpupool.core.pools import MixedCPUs, NodePools, Pool, PoolKind
from cpupool.manager.manager import Manager
from cpupool.manager.usage import (
    Boundary,
    ChoiceCounts,
    PolicyUsage,
    PoolUsage,
    choice_counts,
    fragmentation,
    policy_usage,
    usage,
)
from tests import builders
from tests.builders import container, given, pod
from tests.machines import MACHINES, Machine

MACHINE = MACHINES["arm_no_smt"]
POOLS = NodePools.of(
    Pool.named("default", "0-1"), Pool.named("exclusive_a", "2-5"), Pool.named("shared_b", "6-7")
)


def test_devices_are_counted_by_pool() -> None:
    manager = Manager()
    manager.reconfigure(POOLS, MACHINE.having_lost(CPUSet.parse("5,6")))
    owner = pod("owner", container(exclusive_a=2, shared_b=3))
    manager.observe(pods=[owner])
    manager.accept(given(owner, exclusive_a="2,3", shared_b="0,1,2"))

    assert usage(manager.snapshot().facts) == (
        PoolUsage("exclusive_a", PoolKind.EXCLUSIVE, 4, 2, offline=1, draining=0),
        PoolUsage("shared_b", PoolKind.SHARED, 2000, 3, offline=1000, draining=0),
    )


def test_what_pods_hold_of_pools_that_shrank_or_went_is_draining() -> None:
    manager = Manager()
    manager.reconfigure(POOLS, MACHINE.topology())
    owner = pod("owner", container(exclusive_a=2, shared_b=3))
    manager.observe(pods=[owner])
    manager.accept(given(owner, exclusive_a="2,3", shared_b="0,1,2"))
    manager.reconfigure(NodePools.of(Pool.named("exclusive_a", "3-4")), MACHINE.topology())

    assert usage(manager.snapshot().facts) == (
        PoolUsage("exclusive_a", PoolKind.EXCLUSIVE, 2, 2, offline=0, draining=1),
        PoolUsage("shared_b", PoolKind.SHARED, 0, 3, offline=0, draining=3),
    )

    assert fragmentation(manager.snapshot().facts) == {
        "exclusive_a": {"numa_node": 0, "uncore_cache": 0}
    }

    manager.observe(pods=[])
    assert [pool.name for pool in usage(manager.snapshot().facts)] == ["exclusive_a"]


def test_units_are_counted_whole_and_drain_when_the_feature_is_switched_off() -> None:
    manager = Manager()
    on = replace(POOLS, mixed=MixedCPUs("shared_b", 4))
    manager.reconfigure(on, MACHINE.having_lost(CPUSet.of(6)))
    asked = {"exclusive_a": 1, "enable-shared-cpus": 1}
    owner = pod("owner", replace(container(), requests=builders.asking(asked)))
    manager.observe(pods=[owner])
    manager.accept(given(owner, **{"exclusive_a": "2", "enable-shared-cpus": "3"}))
    assert usage(manager.snapshot().facts)[-1] == PoolUsage(
        "enable-shared-cpus", PoolKind.SHARED, 4, 1, offline=0, draining=0
    )

    manager.update_topology(MACHINE.having_lost(CPUSet.parse("6-7")))
    assert usage(manager.snapshot().facts)[-1].offline == 4

    manager.reconfigure(POOLS, MACHINE.topology())
    assert usage(manager.snapshot().facts)[-1] == PoolUsage(
        "enable-shared-cpus", PoolKind.SHARED, 0, 1, offline=0, draining=1
    )


def test_reserved_cpus_are_no_capacity() -> None:
    pool = replace(Pool.named("exclusive_a", "2-5"), policy=PoolPolicy(reserved=CPUSet.of(4, 5)))
    manager = Manager()
    manager.reconfigure(NodePools.of(pool), MACHINE.having_lost(CPUSet.parse("3,5")))

    (counted,) = usage(manager.snapshot().facts)
    assert (counted.capacity, counted.offline, counted.draining) == (2, 1, 0)

    owner = pod("owner", container(exclusive_a=1))
    manager.observe(pods=[owner])
    manager.accept(given(owner, exclusive_a="4"))
    (counted,) = usage(manager.snapshot().facts)
    assert (counted.capacity, counted.allocated, counted.draining) == (2, 1, 1)


@pytest.mark.parametrize(
    ("held", "scores"),
    [
        pytest.param("0,1,2,3,8,9,10,11", (1 / 2, 0), id="half of each node is left"),
        pytest.param("0,2,4,6,8,10,12,14", (1 / 2, 1 / 2), id="half of each cache is left"),
        pytest.param("0,1,2,3,4,5,6,7", (0, 0), id="a whole node is left"),
        pytest.param("0,1,2,3,4,5,6,8", (1 - 50 / 64, 1 - 14 / 16), id="and one elsewhere"),
    ],
)
def test_free_cpus_that_lie_apart_are_scored_by_node_and_cache(
    held: str, scores: tuple[float, float]
) -> None:
    manager = Manager()
    # Two nodes of four L3 groups, each of two cores: 0-7 and 8-15 with siblings from 16 on.
    machine = Machine(sockets=2, l3=4, cores=2, threads=2)
    manager.reconfigure(NodePools.of(Pool.named("exclusive_a", "0-15")), machine.topology())
    owner = pod("owner", container(exclusive_a=8))
    manager.observe(pods=[owner])
    manager.accept(given(owner, exclusive_a=held))

    assert fragmentation(manager.snapshot().facts) == {
        "exclusive_a": {
            "numa_node": pytest.approx(scores[0]),
            "uncore_cache": pytest.approx(scores[1]),
        }
    }


TWO_NODES = MACHINES["telco_2s_2n_16c32t"]
"""Two nodes, each of eight cores behind one L3 cache: 0-7 and 8-15 with siblings from 16 on."""


def _static(
    options: StaticOptions, topology_policy: TopologyPolicy = TopologyPolicy.NONE
) -> Manager:
    cpu_manager = CPUManager("static", CPUSet.of(0, 16), options, topology_policy)
    manager = Manager()
    manager.reconfigure(NodePools.of(cpu_manager=cpu_manager), TWO_NODES.topology())
    manager.adopt(())
    return manager


def test_the_cpus_of_the_cpu_manager_policy_are_counted() -> None:
    manager = _static(StaticOptions())
    small, large = pod("small", container(cpu=2000)), pod("large", container(cpu=20_000))
    manager.observe(pods=[small, large])

    facts, resolution = manager.snapshot()
    assert policy_usage(facts, resolution.view) == PolicyUsage(
        8, 22, {0: 6, 1: 16}, {0: 10, 1: 0}, {}, {"none": (2, 22)}
    )

    manager.observe(pods=[small], idle=frozenset({large.cgroup_uid}))
    facts, resolution = manager.snapshot()
    assert policy_usage(facts, resolution.view) == PolicyUsage(
        28, 2, {0: 2, 1: 0}, {0: 14, 1: 16}, {}, {"none": (1, 2)}
    )


def test_the_sets_and_owners_of_koordinator_s_classes_are_counted() -> None:
    manager = Manager()
    cpu_manager = CPUManager("koordinator", CPUSet.of(0, 16))
    manager.reconfigure(NodePools.of(cpu_manager=cpu_manager), TWO_NODES.topology())
    manager.adopt(())
    whole = replace(container(cpu=2000), request_milli=2000)
    lsr = replace(pod("lsr", whole), orchestration=Orchestration(QoS.LSR, prod=True))
    manager.observe(pods=[lsr])

    facts, resolution = manager.snapshot()
    used = policy_usage(facts, resolution.view)
    assert used.owners == {"LSE": (0, 0), "LSR": (1, 2)}
    assert sum(used.shared.values()) == 30
    assert used.best_effort == {0: 16, 1: 16}


def test_a_decision_counts_once_and_only_large_containers_cross_a_cache() -> None:
    manager = _static(StaticOptions())
    small = pod("small", container("first", cpu=2000), container("second", cpu=1000))
    manager.observe(pods=[small])
    before = manager.snapshot().resolution.view
    unpromised = {Boundary.PHYSICAL_CPU: 0, Boundary.NUMA_NODE: 0}
    assert choice_counts(None, before) == ChoiceCounts(
        2, 0, {**unpromised, Boundary.UNCORE_CACHE: 2}, unpromised
    )

    large, huge = pod("large", container(cpu=20_000)), pod("huge", container(cpu=31_000))
    manager.observe(pods=[small, large, huge])
    after = manager.snapshot().resolution.view
    assert choice_counts(before, after) == ChoiceCounts(
        1, 1, {**unpromised, Boundary.UNCORE_CACHE: 0}, unpromised
    )
    assert choice_counts(after, after).given == choice_counts(after, after).refused == 0


def test_a_promised_boundary_counts_for_what_fits_and_for_what_does_not() -> None:
    manager = _static(StaticOptions(full_pcpus_only=True), TopologyPolicy.SINGLE_NUMA_NODE)
    pods = [pod(name, container(cpu=cpus)) for name, cpus in (("fits", 2000), ("odd", 1000))]
    manager.observe(pods=pods, device_nodes={each.cgroup_uid: {} for each in pods})
    wide = pod("wide", container(cpu=20_000))
    manager.observe(pods=[*pods, wide], device_nodes={wide.cgroup_uid: {}})

    assert choice_counts(None, manager.snapshot().resolution.view) == ChoiceCounts(
        1,
        2,
        {Boundary.PHYSICAL_CPU: 1, Boundary.UNCORE_CACHE: 1, Boundary.NUMA_NODE: 1},
        {Boundary.PHYSICAL_CPU: 1, Boundary.NUMA_NODE: 1},
    )
