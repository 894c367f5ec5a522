from __future__ import annotations

import pytest

from cpupool.core.cpu_manager import TopologyHint
from cpupool.plugins.binding_hints import (
    Binding,
    NoBinding,
    NodeMemory,
    cpu_hints,
    memory_hints,
)
from cpupool.policies.layout import Layout, Level
from tests.machines import MACHINES

# Two sockets, a NUMA node each: CPUs 0-7 with siblings 16-23, and 8-15 with 24-31.
TELCO = Layout.of_topology(MACHINES["telco_2s_2n_16c32t"].topology())
FREE = dict(TELCO.groups[Level.NODE])
OWN = Binding(exclusive=True)
GIB = 2**30


def hint(*nodes: int, preferred: bool = True) -> TopologyHint:
    return TopologyHint(frozenset(nodes), preferred)


def test_a_container_that_shares_its_node_has_one_node() -> None:
    assert cpu_hints(TELCO, Binding(), 4, FREE) == (hint(0), hint(1))
    with pytest.raises(NoBinding, match="do not fit on one NUMA node"):
        cpu_hints(TELCO, Binding(), 20, FREE)


def test_a_container_with_nodes_of_its_own_may_have_several() -> None:
    both = hint(0, 1, preferred=False)
    assert cpu_hints(TELCO, OWN, 4, FREE) == (hint(0), hint(1), both)
    assert cpu_hints(TELCO, OWN, 20, FREE) == (hint(0, 1),)
    with pytest.raises(NoBinding, match="the machine has less"):
        cpu_hints(TELCO, OWN, 33, FREE)


@pytest.mark.parametrize(
    ("binding", "hints"),
    [
        (Binding(nodes=frozenset({1})), (hint(1),)),
        (Binding(count=2), (hint(0, 1),)),
        (Binding(exclusive=True, by_socket=True), (hint(0), hint(1))),
        (Binding(count=2, evenly=True), (hint(0, 1),)),
        (Binding(count=2, evenly=True, whole_cores=True), (hint(0, 1),)),
        (Binding(whole_cores=True), (hint(0), hint(1))),
    ],
)
def test_wishes_leave_fewer_nodes(binding: Binding, hints: tuple[TopologyHint, ...]) -> None:
    assert cpu_hints(TELCO, binding, 4, FREE) == hints


@pytest.mark.parametrize(
    ("binding", "request_cpus"),
    [
        (Binding(exclusive=True, evenly=True), 4),
        (Binding(count=2, evenly=True), 5),
        (Binding(nodes=frozenset({2})), 4),
    ],
)
def test_some_wishes_cannot_be_met(binding: Binding, request_cpus: float) -> None:
    with pytest.raises(NoBinding):
        cpu_hints(TELCO, binding, request_cpus, FREE)


def test_memory_of_a_used_node_is_not_for_a_container_of_its_own() -> None:
    memory = {0: NodeMemory(8 * GIB, 6 * GIB), 1: NodeMemory(8 * GIB, 8 * GIB)}
    assert memory_hints(TELCO, 4 * GIB, memory) == (hint(0), hint(1))
    assert memory_hints(TELCO, 4 * GIB, memory, highest_first=True) == (hint(1), hint(0))
    assert memory_hints(TELCO, 4 * GIB, memory, exclusive=True) == (
        hint(1),
        hint(0, 1, preferred=False),
    )
    with pytest.raises(NoBinding, match="no NUMA nodes have"):
        memory_hints(TELCO, 9 * GIB, memory, exclusive=True)
    with pytest.raises(NoBinding, match="do not fit on one NUMA node"):
        memory_hints(TELCO, 9 * GIB, memory)
