"""What schedulers read of a node is what the node gives, on any machine, with any pods."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from cpupool.config.kubelet_settings import KubeletConfig
from cpupool.core.cpu_manager import CPUManager, Scope, StaticOptions, TopologyPolicy
from cpupool.core.cpuset import CPUSet
from cpupool.core.errors import AllocationError, ConfigError
from cpupool.core.node_topology import (
    Amounts,
    KubeletAmounts,
    NodeMemory,
    TopologyManager,
)
from cpupool.core.pool_policy import CPUBindPolicy, NUMAPolicy, PoolPolicy
from cpupool.core.pools import NodePools, Pool
from cpupool.core.workloads import QoSClass
from cpupool.manager.manager import Manager
from cpupool.manager.node_topology import Surroundings, node_topology
from cpupool.wire import node_topology as wire
from tests import builders
from tests.machines import Machine
from tests.searching import examples
from tests.topology_match import unfit
from tests.topology_nodes import NAMES, ModelNode, pod_body

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cpupool.core.topology import CPUTopology

SINGLE = TopologyManager(TopologyPolicy.SINGLE_NUMA_NODE)
MACHINES = (
    Machine(sockets=2, cores=3, threads=2),
    Machine(sockets=2, cores=2, threads=4, adjacent=True),
    Machine(sockets=2, nodes=2, cores=2, node_ids=(0, 8, 33, 45, 250)),
    Machine(nodes=2, cores=4, l3=0),
)
BINDS = (None, *CPUBindPolicy)
EXCLUSIVE = ("exclusive_a", "exclusive_b")


@cache
def whole(machine: Machine) -> CPUTopology:
    return machine.topology()


@st.composite
def machines(draw: st.DrawFn) -> CPUTopology:
    """Draw a machine; some of its CPUs have gone offline."""
    topology = whole(draw(st.sampled_from(MACHINES)))
    off = draw(st.sets(st.sampled_from([*topology.online][1:]), max_size=2))
    return topology.cut_to(topology.online - CPUSet(off)).remembering(topology)


def changed(topology: CPUTopology, off: set[int]) -> CPUTopology:
    return topology.cut_to(topology.online - CPUSet(off)).remembering(topology)


@st.composite
def pools(draw: st.DrawFn, topology: CPUTopology) -> NodePools:
    """Draw two exclusive pools of whole cores, and the rest for everyone."""
    cores = [*{topology.core_of(cpu) for cpu in topology.present}]
    cores.sort(key=lambda core: core.first)
    of_core = [draw(st.sampled_from((*EXCLUSIVE, "default"))) for _ in cores[1:]]
    found = []
    for name in EXCLUSIVE:
        own = [core for core, to in zip(cores[1:], of_core, strict=True) if to == name]
        bind = draw(st.sampled_from(BINDS))
        cpus = CPUSet.union(own) if bind else CPUSet(core.first for core in own)
        if cpus:
            policy = PoolPolicy(bind, NUMAPolicy.PACKED)
            found.append(replace(Pool.named(name, str(cpus)), policy=policy))
    rest = [
        cores[0],
        *(core for core, to in zip(cores[1:], of_core, strict=True) if to == "default"),
    ]
    found.append(Pool.named("default", str(CPUSet.union(rest))))
    return NodePools.of(*found)


@st.composite
def nodes(draw: st.DrawFn) -> ModelNode:
    """Draw a node on which pods have come and gone, CPUs have gone, and answers are open."""
    topology = draw(machines())
    try:
        node = ModelNode(topology, draw(pools(topology)))
    except ConfigError:
        assume(condition=False)
        raise
    for number in range(draw(st.integers(0, 5))):
        asked = draw(st.dictionaries(st.sampled_from(EXCLUSIVE), st.integers(1, 4), min_size=1))
        known = {name: str(n) for name, n in asked.items() if node.pools.by_name(name)}
        name = f"pod-{number}"
        if known and not node.run(pod_body(name, known)) and draw(st.booleans()):
            node.end(name)
    if draw(st.booleans()):
        off = draw(st.sets(st.sampled_from([*topology.online][1:]), max_size=2))
        node.topology = changed(topology, off)
        node.manager.update_topology(node.topology)
    return node


def largest(node: ModelNode, resource: str) -> int:
    """Return how many CPUs of a pool the node gives one more container."""
    return max(
        (size for size in range(1, 17) if not node.refusal(pod_body("p", {resource: str(size)}))),
        default=0,
    )


@examples(200)
@given(nodes())
def test_amounts_are_in_order_in_every_zone(node: ModelNode) -> None:
    zones = node.published().zones

    assert [zone.node for zone in zones] == sorted(node.topology.nodes)
    assert len({tuple(zone.resources) for zone in zones}) <= 1
    for zone in zones:
        for amounts in zone.resources.values():
            assert 0 <= amounts.available <= amounts.allocatable <= amounts.capacity


@examples(200)
@given(nodes())
def test_a_pool_gives_what_its_zones_have_and_no_more(node: ModelNode) -> None:
    zones = node.published().zones
    for pool in EXCLUSIVE:
        if node.pools.by_name(pool):
            name = NAMES.resource(pool)
            assert sum(zone.resources[name].available for zone in zones) == largest(node, pool)


@examples(100)
@given(nodes())
def test_single_numa_node_gives_what_the_best_zone_has(node: ModelNode) -> None:
    node.aligning = SINGLE
    zones = node.published().zones
    for pool in EXCLUSIVE:
        if node.pools.by_name(pool):
            name = NAMES.resource(pool)
            best = max(zone.resources[name].available for zone in zones)
            assert best == largest(node, pool)


@examples(100)
@given(nodes())
def test_an_answer_that_no_pod_has_is_no_longer_available(node: ModelNode) -> None:
    for pool in EXCLUSIVE:
        if node.pools.by_name(pool) is None or not (size := largest(node, pool)):
            continue
        resource = builders.resource(pool)
        before = _available(node, pool)
        ids = node.manager.preferred(resource, sorted(node.free(pool)), [], size)
        node.manager.allocate(resource, ids)
        assert _available(node, pool) == before - size == 0
        with pytest.raises(AllocationError):
            node.manager.preferred(resource, sorted(node.free(pool) - {*ids}), [], 1)


def _available(node: ModelNode, pool: str) -> int:
    name = NAMES.resource(pool)
    return sum(zone.resources[name].available for zone in node.published().zones)


options = st.builds(
    StaticOptions, full_pcpus_only=st.booleans(), strict_cpu_reservation=st.booleans()
)


@examples(150)
@given(st.sampled_from(MACHINES), options, st.lists(st.integers(1, 5), max_size=4))
def test_the_cpu_manager_gives_what_the_best_zone_has(
    machine: Machine, option: StaticOptions, sizes: list[int]
) -> None:
    topology = whole(machine)
    manager = CPUManager("static", CPUSet.of(0), option, SINGLE.policy)
    node = ModelNode(topology, NodePools.of(cpu_manager=manager))
    for number, size in enumerate(sizes):
        node.run(pod_body(f"pod-{number}", {"cpu": str(size), "memory": "1Gi"}))

    best = max(zone.resources["cpu"].available for zone in node.published().zones)

    given_ = [
        size
        for size in range(1, 17)
        if not node.refusal(pod_body("p", {"cpu": str(size), "memory": "1Gi"}))
    ]
    assert best == max(given_, default=0)


TWO_NODES = Machine(sockets=2, cores=4, threads=2)
GIB = 2**30
OF_NODE = {"cpu": 8, "memory": 16}
"""What each of the two NUMA nodes has, in CPUs and GiB."""
# The strict one more often: no other refuses.
policies = st.sampled_from(
    [SINGLE.policy] * 5 + [policy for policy in TopologyPolicy if policy.of_kubelet]
)
scopes = st.sampled_from(Scope)
sizes = st.fixed_dictionaries(
    {"cpu": st.sampled_from([1, 5, 7, 8, 9, 15]), "memory": st.sampled_from([1, 9, 16, 17, 32])}
)


@examples(400)
@given(
    cpus=st.sampled_from(["none", "static", "ours"]),
    pins=st.booleans(),
    kubelet=st.tuples(policies, scopes),
    ours=st.tuples(policies, scopes),
    asked=st.one_of(st.tuples(sizes), st.tuples(sizes, sizes)),
)
@example(
    cpus="ours",
    pins=False,
    kubelet=(SINGLE.policy, Scope.POD),
    ours=(SINGLE.policy, Scope.CONTAINER),
    asked=({"cpu": 7, "memory": 1}, {"cpu": 8, "memory": 1}),
)
def test_a_scheduler_refuses_only_what_the_node_refuses(
    cpus: str,
    pins: bool,
    kubelet: tuple[TopologyPolicy, Scope],
    ours: tuple[TopologyPolicy, Scope],
    asked: tuple[dict[str, int], ...],
) -> None:
    """One Guaranteed pod, and an idle node with any managers of the kubelet, or with ours."""
    topology = whole(TWO_NODES)
    own = CPUManager("static", CPUSet.of(0), topology_policy=ours[0], topology_scope=ours[1])
    manager = Manager(NAMES)
    manager.reconfigure(NodePools.of(cpu_manager=own if cpus == "ours" else None), topology)
    manager.observe(pods=(), static_cpus=topology.online if cpus == "static" else CPUSet())
    amounts = Amounts(16 * GIB, 16 * GIB, 16 * GIB)
    around = Surroundings(
        {node: NodeMemory(16 * GIB) for node in topology.nodes},
        KubeletAmounts({"memory": dict.fromkeys(topology.nodes, amounts)} if pins else {}),
        KubeletConfig(
            topology_manager_policy=kubelet[0].value, topology_manager_scope=kubelet[1].value
        ),
    )
    published = node_topology(manager.snapshot(), NAMES, around, annotated=False)
    body = pod_body(
        "p", *({"cpu": str(one["cpu"]), "memory": f"{one['memory']}Gi"} for one in asked)
    )
    given_ = 15 if cpus == "ours" else 16
    assume(sum(one["cpu"] for one in asked) <= given_)
    assume(sum(one["memory"] for one in asked) <= 32)

    kept_off = unfit(
        body,
        QoSClass.GUARANTEED,
        wire.applied("n", None, wire.V1ALPHA2, wire.values(published, wire.V1ALPHA2)),
        ("cpu", "memory"),
    )

    pinned = {"memory"} if pins else set()
    by_kubelet = pinned | ({"cpu"} if cpus == "static" else set())
    by_us = pinned | {"cpu"} if cpus == "ours" else set()
    refused = any(
        refuses(policy, scope, names, asked, first=7 if cpus == "ours" else 8)
        for (policy, scope), names in ((kubelet, by_kubelet), (ours, by_us))
    )
    assert refused or not kept_off
    if refused and not kept_off:
        # The object has room for one manager: either it shows the other, or no filter reads it.
        shown = published.manager
        assert shown
        assert TopologyManager(*ours) != shown or TopologyManager(*kubelet) != shown


def refuses(
    policy: TopologyPolicy,
    scope: Scope,
    names: set[str],
    asked: tuple[dict[str, int], ...],
    first: int,
) -> bool:
    """Return whether a Topology Manager finds no NUMA node for what its managers give hints for."""
    if policy is not TopologyPolicy.SINGLE_NUMA_NODE or not names:
        return False
    nodes = [{"cpu": first, "memory": 16}, OF_NODE]
    if scope is Scope.POD:
        asked = ({name: sum(one[name] for one in asked) for name in OF_NODE},)

    def fit(left: list[dict[str, int]], rest: Sequence[dict[str, int]]) -> bool:
        if not rest:
            return True
        one, *others = rest
        return any(
            all(node[name] >= one[name] for name in names)
            and fit(
                [
                    {name: each[name] - one[name] * (each is node) for name in OF_NODE}
                    for each in left
                ],
                others,
            )
            for node in left
        )

    return not fit([dict(node) for node in nodes], asked)
