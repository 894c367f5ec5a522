"""The shared sets; koordlet's recorded answers are in tests/conformance."""

from __future__ import annotations

from cpupool.core.cpuset import CPUSet
from cpupool.core.grants import Sharing
from cpupool.policies.koordinator.shared_sets import SharedPool, shared_pools
from tests.machines import MACHINES

TELCO = MACHINES["telco_2s_2n_16c32t"].topology()


def test_best_effort_pods_run_on_cpus_that_their_owner_lends() -> None:
    owned = [
        (CPUSet.parse("1,17"), Sharing.BEST_EFFORT),
        (CPUSet.parse("2,18"), Sharing.NONE),
    ]

    found = shared_pools(TELCO, CPUSet.parse("0-2,16-18"), owned, CPUSet())

    assert found.shared == (SharedPool(0, 0, CPUSet.parse("0,16")),)
    assert found.best_effort == (SharedPool(0, 0, CPUSet.parse("0-1,16-17")),)


def test_a_node_with_withheld_cpus_alone_has_an_empty_set() -> None:
    found = shared_pools(TELCO, TELCO.online, [], TELCO.nodes[1])

    assert found.shared == (
        SharedPool(0, 0, TELCO.nodes[0]),
        SharedPool(1, 1, CPUSet()),
    )


def test_a_node_that_spans_sockets_has_the_socket_of_its_lowest_cpu() -> None:
    spanning = MACHINES["sparse_nodes"].topology()

    first = shared_pools(spanning, spanning.online, [], CPUSet())

    assert first == shared_pools(spanning, spanning.online, [], CPUSet())
    for pool in first.shared:
        assert pool.socket == spanning.cpus[pool.cpus.first].socket
