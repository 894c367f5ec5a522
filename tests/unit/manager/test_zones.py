"""What each NUMA node can give, by who gives it. `tests/properties/test_zones.py` has the laws."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from cpupool.config.kubelet_settings import KubeletConfig
from cpupool.core.cpu_manager import CPUManager, Scope, StaticOptions, TopologyPolicy
from cpupool.core.cpuset import CPUSet
from cpupool.core.node_topology import (
    Amounts,
    KubeletAmounts,
    NodeMemory,
    TopologyManager,
    huge_page_resource,
)
from cpupool.core.orchestration import NodeRules
from cpupool.core.plugin_facts import PluginFacts
from cpupool.core.pool_policy import CPUBindPolicy, PoolPolicy
from cpupool.core.pools import NodePools, Pool
from cpupool.manager import zones
from tests import builders
from tests.machines import MACHINES, Machine
from tests.topology_nodes import NAMES, ModelNode, pod_body

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cpupool.core.node_topology import NodeMemories
    from cpupool.manager.manager import Manager

    Rows = dict[int, tuple[int, int, int]]

TELCO = MACHINES["telco_2s_2n_16c32t"]  # node 0: CPUs 0-7 and 16-23; node 1: the others
SPARSE = MACHINES["sparse_nodes"]  # two CPUs on each of 0, 8, 33 and 45; none on 250
EMPTY = KubeletAmounts()
POOL = NAMES.resource("exclusive_a")
FULL = PoolPolicy(CPUBindPolicy.FULL_PHYSICAL_CORES)
GIB = 2**30
MEMORY: NodeMemories = {
    0: NodeMemory(16 * GIB, {2 * 2**20: 512, GIB: 2}),
    1: NodeMemory(8 * GIB),
    7: NodeMemory(GIB),
}


def node(*pools: Pool, machine: Machine = TELCO, manager: CPUManager | None = None) -> ModelNode:
    return ModelNode(machine.topology(), NodePools.of(*pools, cpu_manager=manager))


def seen(
    manager: Manager,
    memory: NodeMemories | None = None,
    kubelet: KubeletAmounts = EMPTY,
    *,
    every_cpu: bool = False,
) -> dict[int, Mapping[str, Amounts]]:
    facts, resolution = manager.snapshot()
    found = zones.zones(facts, resolution, NAMES, memory or {}, kubelet, every_cpu=every_cpu)
    return {zone.node: zone.resources for zone in found}


def of(found: Mapping[int, Mapping[str, Amounts]], resource: str = POOL) -> Rows:
    """Return NUMA node → capacity, allocatable, available."""
    every = ((number, resources[resource]) for number, resources in found.items())
    return {number: (one.capacity, one.allocatable, one.available) for number, one in every}


class TestPools:
    """Pools list CPUs 2-5 of node 0 and 8-9 of node 1."""

    PACKED = Pool.named("exclusive_a", "2-5,8-9")
    WHOLE = replace(Pool.named("exclusive_a", "2-5,8-9,18-21,24-25"), policy=FULL)
    OTHER = Pool.named("exclusive_b", "6-7")

    def test_an_idle_pool_gives_all(self) -> None:
        assert of(seen(node(self.PACKED).manager)) == {0: (4, 4, 4), 1: (2, 2, 2)}

    def test_what_pods_have_is_not_available(self) -> None:
        it = node(self.PACKED)
        assert not it.run(pod_body("p", {"exclusive_a": "2"}))
        assert of(seen(it.manager)) == {0: (4, 4, 4), 1: (2, 2, 0)}

        it.end("p")
        assert of(seen(it.manager)) == {0: (4, 4, 4), 1: (2, 2, 2)}

    def test_an_answer_without_a_pod_counts_until_it_is_forgotten(self) -> None:
        manager = node(self.PACKED).manager
        manager.allocate("exclusive_a", ["2", "8"])
        assert of(seen(manager)) == {0: (4, 4, 3), 1: (2, 2, 1)}

        manager.release(manager.promised_until())
        assert of(seen(manager)) == {0: (4, 4, 4), 1: (2, 2, 2)}

    def test_an_offline_cpu_is_in_no_zone(self) -> None:
        manager = node(self.PACKED).manager
        manager.update_topology(TELCO.having_lost(CPUSet.of(3)))
        assert of(seen(manager)) == {0: (3, 3, 3), 1: (2, 2, 2)}

    def test_a_draining_device_is_in_no_zone(self) -> None:
        it = node(self.PACKED)
        it.run(pod_body("p", {"exclusive_a": "2"}))
        it.manager.reconfigure(NodePools.of(Pool.named("exclusive_a", "2-5,9")), it.topology)
        # CPU 8 has left the pool, and its pod still has it.
        assert of(seen(it.manager)) == {0: (4, 4, 4), 1: (1, 1, 0)}

    def test_a_device_that_another_pools_pod_has_is_not_allocatable(self) -> None:
        it = node(self.PACKED)
        it.run(pod_body("p", {"exclusive_a": "2"}))
        moved = NodePools.of(Pool.named("exclusive_a", "2-5"), Pool.named("exclusive_b", "8-11"))
        it.manager.reconfigure(moved, it.topology)
        assert of(seen(it.manager), NAMES.resource("exclusive_b")) == {0: (0, 0, 0), 1: (4, 2, 2)}

    def test_reserved_cpus_are_not_offered(self) -> None:
        pool = replace(self.PACKED, policy=PoolPolicy(reserved=CPUSet.of(2, 8)))
        assert of(seen(node(pool).manager)) == {0: (3, 3, 3), 1: (1, 1, 1)}

    def test_a_part_of_a_core_is_not_available_from_a_pool_of_whole_cores(self) -> None:
        manager = node(self.WHOLE).manager
        manager.update_topology(TELCO.having_lost(CPUSet.of(18)))
        assert of(seen(manager)) == {0: (7, 6, 6), 1: (4, 4, 4)}

    def test_siblings_count_one_by_one_where_the_pool_gives_single_cpus(self) -> None:
        spread = replace(self.WHOLE, policy=PoolPolicy(CPUBindPolicy.SPREAD_ACROSS_CORES))
        manager = node(spread).manager
        manager.update_topology(TELCO.having_lost(CPUSet.of(18)))
        assert of(seen(manager)) == {0: (7, 7, 7), 1: (4, 4, 4)}

    def test_a_core_that_a_pod_has_of_another_pool_is_barred_as_a_whole(self) -> None:
        it = node(self.PACKED)
        it.run(pod_body("p", {"exclusive_a": "2"}))
        threads = Pool.named("exclusive_b", "24-27")
        it.manager.reconfigure(NodePools.of(threads), it.topology)
        # The pod has 8 and 9, the siblings of 24 and 25.
        assert of(seen(it.manager), NAMES.resource("exclusive_b"))[1] == (4, 2, 2)

    def test_every_zone_has_every_pool_and_none_a_shared_one(self) -> None:
        found = seen(node(self.PACKED, self.OTHER, Pool.named("shared_a", "10")).manager)
        names = {"cpu", POOL, NAMES.resource("exclusive_b")}
        assert {number: set(resources) for number, resources in found.items()} == dict.fromkeys(
            (0, 1), names
        )
        assert of(found, NAMES.resource("exclusive_b"))[1] == (0, 0, 0)


class TestNativeCPU:
    POOLS = (Pool.named("exclusive_a", "1-7"), Pool.named("default", "0,8-15,24-31"))

    def test_without_a_cpu_manager_every_online_cpu_counts(self) -> None:
        """A pod with devices of node 0 finds cpu there, although the default pool is elsewhere."""
        it = node(*self.POOLS)
        it.run(pod_body("p", {"exclusive_a": "3"}))
        assert of(seen(it.manager), "cpu") == {0: (16, 16, 16), 1: (16, 16, 16)}

    def static(self, **options: bool) -> ModelNode:
        policy = CPUManager("static", CPUSet.of(0, 8), StaticOptions(**options))
        return node(*self.POOLS, manager=policy)

    def test_the_policy_gives_the_default_pool_but_reserved_cpus(self) -> None:
        it = self.static()
        assert of(seen(it.manager), "cpu") == {0: (16, 0, 0), 1: (16, 15, 15)}

        assert not it.run(pod_body("p", {"cpu": "3", "memory": "1Gi"}))
        assert of(seen(it.manager), "cpu") == {0: (16, 0, 0), 1: (16, 15, 12)}

    def test_with_whole_cores_a_torn_core_does_not_count(self) -> None:
        policy = CPUManager("static", CPUSet.of(8), StaticOptions(full_pcpus_only=True))
        manager = node(Pool.named("default", "8-11,24-27"), manager=policy).manager
        assert of(seen(manager), "cpu")[1] == (16, 6, 6)

    def test_the_last_shared_cpu_is_never_given(self) -> None:
        policy = CPUManager("static", CPUSet.of(8), StaticOptions(strict_cpu_reservation=True))
        it = node(Pool.named("default", "8-11"), manager=policy)
        assert of(seen(it.manager), "cpu")[1] == (16, 2, 2)
        assert it.refusal(pod_body("p", {"cpu": "3", "memory": "1Gi"}))
        assert not it.refusal(pod_body("p", {"cpu": "2", "memory": "1Gi"}))

    def test_the_kubelets_own_cpu_manager_has_its_books(self) -> None:
        manager = node(Pool.named("shared_a", "0-1")).manager
        manager.observe(static_cpus=CPUSet.parse("2-15"))
        given = KubeletAmounts(own_cpus=CPUSet.parse("2-3,8"))
        assert of(seen(manager, kubelet=given), "cpu") == {0: (16, 6, 4), 1: (16, 8, 7)}

    def test_a_scheduler_that_subtracts_itself_sees_every_cpu_as_allocatable(self) -> None:
        found = seen(self.static().manager, every_cpu=True)
        assert of(found, "cpu") == {0: (16, 16, 0), 1: (16, 16, 15)}


class TestMemory:
    def test_huge_pages_are_apart(self) -> None:
        found = seen(node().manager, MEMORY)
        assert of(found, "memory") == {0: (13 * GIB,) * 3, 1: (8 * GIB,) * 3}
        assert of(found, "hugepages-2Mi") == {0: (GIB,) * 3, 1: (0, 0, 0)}
        assert of(found, "hugepages-1Gi") == {0: (2 * GIB,) * 3, 1: (0, 0, 0)}

    def test_the_kubelets_memory_manager_knows_better(self) -> None:
        pinned = KubeletAmounts(
            {"memory": {0: Amounts(12 * GIB, 12 * GIB, 5 * GIB), 1: Amounts(7, 7, 7)}}
        )
        found = seen(node().manager, MEMORY, pinned)
        assert of(found, "memory") == {0: (12 * GIB, 12 * GIB, 5 * GIB), 1: (7, 7, 7)}
        assert of(found, "hugepages-1Gi")[0] == (2 * GIB,) * 3

    @pytest.mark.parametrize(
        ("size", "name"),
        [(2 * 2**20, "2Mi"), (GIB, "1Gi"), (64 * 1024, "64Ki"), (2**40, "1Ti"), (2**50, "1024Ti")],
    )
    def test_pages_are_named_as_kubernetes_names_them(self, size: int, name: str) -> None:
        assert huge_page_resource(size) == f"hugepages-{name}"


def test_other_plugins_devices_are_the_kubelets_books() -> None:
    nic = {0: Amounts(2, 2, 1), 1: Amounts(1, 1, 1)}
    stale = {0: Amounts(9, 9, 9)}
    gone = NAMES.resource("exclusive_gone")
    books = KubeletAmounts({"vendor.example/nic": nic, POOL: stale, gone: stale})
    found = seen(node(Pool.named("exclusive_a", "2")).manager, kubelet=books)
    assert of(found, "vendor.example/nic") == {0: (2, 2, 1), 1: (1, 1, 1)}
    assert of(found) == {0: (1, 1, 1), 1: (0, 0, 0)}
    assert gone not in found[0]


def test_sparse_nodes_and_a_node_without_cpus_are_zones_with_their_distances() -> None:
    it = node(Pool.named("exclusive_a", "2-3"), machine=SPARSE)
    facts, resolution = it.manager.snapshot()
    memory = {250: NodeMemory(GIB)}
    found = zones.zones(facts, resolution, NAMES, memory, EMPTY)

    assert [zone.node for zone in found] == [0, 8, 33, 45, 250]
    assert found[-1].resources["cpu"] == Amounts(0, 0, 0)
    assert found[-1].resources["memory"].available == GIB
    assert found[1].distances == {0: 21, 8: 10, 33: 21, 45: 21, 250: 21}
    assert of(seen(it.manager))[8] == (2, 2, 2)


def test_a_machine_without_numa_nodes_has_no_zones_and_nothing_refuses() -> None:
    topology = MACHINES["laptop_4c8t"].topology()
    flat = replace(
        topology,
        nodes={},
        distances={},
        cpus={cpu: replace(info, node=None) for cpu, info in topology.cpus.items()},
    )
    it = ModelNode(flat, NodePools.of(Pool.named("exclusive_a", "2,4")))
    assert seen(it.manager) == {}
    strict = TopologyManager(TopologyPolicy.SINGLE_NUMA_NODE)
    assert zones.refusing(it.manager.snapshot().facts, strict) == TopologyManager()


class TestRefusing:
    STRICT = TopologyManager(TopologyPolicy.RESTRICTED, Scope.POD)
    IDLE = TopologyManager(scope=Scope.POD)
    OURS = CPUManager("static", CPUSet.of(0), topology_policy=TopologyPolicy.SINGLE_NUMA_NODE)

    @pytest.mark.parametrize(
        ("own", "kubelet", "published"),
        [
            (None, STRICT, STRICT),
            (None, IDLE, IDLE),
            (None, None, None),
            (OURS, STRICT, STRICT),
            (OURS, IDLE, TopologyManager(TopologyPolicy.SINGLE_NUMA_NODE)),
            (OURS, None, TopologyManager(TopologyPolicy.SINGLE_NUMA_NODE)),
        ],
    )
    def test_the_kubelets_manager_is_published_or_else_the_policys(
        self,
        own: CPUManager | None,
        kubelet: TopologyManager | None,
        published: TopologyManager | None,
    ) -> None:
        facts = node(manager=own).manager.snapshot().facts
        assert zones.refusing(facts, kubelet) == published


class TestFingerprinted:
    @pytest.mark.parametrize(
        ("holds", "counts"),
        [
            pytest.param({POOL}, True, id="a resource of the zones"),
            pytest.param({"vendor.example/gpu"}, False, id="a resource of no zone"),
            pytest.param({"memory"}, True, id="Guaranteed memory, also if no zone has it"),
            pytest.param({"hugepages-2Mi"}, True, id="huge pages"),
            pytest.param(set(), False, id="nothing"),
        ],
    )
    def test_a_pod_counts_by_what_it_holds(self, holds: set[str], *, counts: bool) -> None:
        container = replace(builders.container(), lasting=frozenset(holds))
        pod = replace(builders.pod("web", builders.container("other"), container), running=True)
        found = list(zones.fingerprinted((pod,), frozenset({"cpu", POOL})))
        assert found == ([("default", "web")] if counts else [])

    def test_a_pod_that_does_not_run_does_not_count(self) -> None:
        container = replace(builders.container(), lasting=frozenset({POOL}))
        assert not list(zones.fingerprinted((builders.pod("web", container),), frozenset({POOL})))


class TestWhatNobodyAligns:
    """A scheduler refuses by zone for `single-numa-node`: a limit must be kept by somebody."""

    SINGLE = TopologyManager(TopologyPolicy.SINGLE_NUMA_NODE)
    OF_POD = TopologyManager(TopologyPolicy.SINGLE_NUMA_NODE, Scope.POD)
    STATIC = KubeletConfig("static", topology_manager_policy="single-numa-node")
    PINNED = KubeletConfig(
        memory_manager_policy="Static", topology_manager_policy="single-numa-node"
    )
    IDLE = KubeletConfig(topology_manager_policy="single-numa-node")
    BOOKS = KubeletAmounts({"memory": {0: Amounts(GIB, GIB, GIB), 1: Amounts(GIB, GIB, GIB)}})
    OURS = CPUManager("static", CPUSet.of(0), topology_policy=TopologyPolicy.SINGLE_NUMA_NODE)
    OURS_OF_POD = replace(OURS, topology_scope=Scope.POD)
    PLAIN = CPUManager("static", CPUSet.of(0))

    @pytest.mark.parametrize(
        ("own", "kubelet", "books", "published", "loose"),
        [
            pytest.param(None, IDLE, EMPTY, SINGLE, "cpu memory", id="neither manager"),
            pytest.param(None, STATIC, EMPTY, SINGLE, "memory", id="CPU manager alone"),
            pytest.param(None, PINNED, EMPTY, SINGLE, "cpu", id="Memory Manager alone"),
            pytest.param(None, IDLE, BOOKS, SINGLE, "cpu", id="the kubelet's books name memory"),
            pytest.param(None, IDLE, EMPTY, None, "", id="no policy is named"),
            pytest.param(
                None, IDLE, EMPTY, TopologyManager(TopologyPolicy.RESTRICTED), "", id="no filter"
            ),
            pytest.param(PLAIN, IDLE, EMPTY, SINGLE, "cpu memory", id="ours aligns nothing"),
            pytest.param(OURS, IDLE, EMPTY, SINGLE, "memory", id="ours aligns cpu"),
            pytest.param(OURS, None, EMPTY, SINGLE, "memory", id="ours, the kubelet not known"),
            pytest.param(OURS, KubeletConfig(), BOOKS, SINGLE, "", id="ours aligns with memory"),
            pytest.param(OURS, IDLE, EMPTY, OF_POD, "cpu memory", id="ours by container, not pod"),
            pytest.param(OURS_OF_POD, IDLE, EMPTY, OF_POD, "memory", id="ours by pod"),
            pytest.param(OURS_OF_POD, IDLE, EMPTY, SINGLE, "memory", id="by pod is stricter"),
        ],
    )
    def test_loose_is_what_nobody_keeps(
        self,
        own: CPUManager | None,
        kubelet: KubeletConfig | None,
        books: KubeletAmounts,
        published: TopologyManager | None,
        loose: str,
    ) -> None:
        facts = node(manager=own).manager.snapshot().facts
        assert zones.loose(facts, published, kubelet, books) == frozenset(loose.split())

    def test_the_running_cpu_manager_counts_and_not_its_file_alone(self) -> None:
        it = node()
        it.manager.observe(static_cpus=CPUSet.parse("1-31"))
        facts = it.manager.snapshot().facts
        assert zones.loose(facts, self.SINGLE, self.IDLE, EMPTY) == {"memory"}

    def test_memory_that_a_plugin_places_is_kept_by_our_policy(self) -> None:
        facts = node(manager=self.OURS).manager.snapshot().facts
        served = replace(facts, plugins=PluginFacts(served=frozenset({"memory"})))
        assert zones.loose(served, self.SINGLE, None, EMPTY) == frozenset()

    def test_every_zone_has_the_nodes_amounts(self) -> None:
        facts, resolution = node(manager=self.PLAIN).manager.snapshot()
        loose = frozenset({"cpu", "memory"})
        found = zones.zones(facts, resolution, NAMES, MEMORY, EMPTY, loose=loose)
        for zone in found:
            assert zone.resources["cpu"] == Amounts(32, 31, 31)
            assert zone.resources["memory"].available == 25 * GIB - 3 * GIB
            assert zone.resources["hugepages-1Gi"].available == 2 * GIB

    def test_a_label_of_koordinator_is_the_policy_in_force(self) -> None:
        facts = node(manager=replace(self.PLAIN, policy="koordinator")).manager.snapshot().facts
        labelled = replace(facts, rules=NodeRules(topology=TopologyPolicy.SINGLE_NUMA_NODE))
        assert zones.refusing(labelled, None) == self.SINGLE
        assert zones.loose(labelled, self.SINGLE, None, EMPTY) == {"memory"}

    def test_our_policy_none_is_no_fact_about_the_kubelet(self) -> None:
        assert zones.refusing(node(manager=self.PLAIN).manager.snapshot().facts, None) is None
