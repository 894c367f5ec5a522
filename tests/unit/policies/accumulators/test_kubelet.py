"""CPUs taken of machines small enough to follow by eye."""

from __future__ import annotations

import pytest

from cpupool.core.cpuset import CPUSet
from cpupool.core.errors import NotEnoughCPUs
from cpupool.policies.accumulators.balance import share_out, share_out_beside
from cpupool.policies.accumulators.kubelet import Taken, take_distributed, take_evenly, take_packed
from cpupool.policies.layout import Layout, Level, Place


def machine(*, sockets: int, nodes: int, cores: int, threads: int = 2, cache: int = 2) -> Layout:
    """Lay out so many of each in one of the next larger; siblings are half the machine apart."""
    total = sockets * nodes * cores
    return Layout.of(
        {
            thread * total + core: Place(
                core, core // (nodes * cores), core // cores, core // cache
            )
            for core in range(total)
            for thread in range(threads)
        }
    )


# Cores 0-3 with CPUs 8-11 on node 0, cores 4-7 with 12-15 on node 1, caches of two cores.
TWO_SOCKETS = machine(sockets=2, nodes=1, cores=4)
# Cores 0-1 are large, with siblings 2-3; CPUs 4-5 are small ones.
HYBRID = Layout.of(
    {cpu: Place(core, 0, 0, 0) for cpu, core in {0: 0, 2: 0, 1: 1, 3: 1, 4: 4, 5: 5}.items()}
)


def cpus(text: str) -> CPUSet:
    return CPUSet.parse(text)


@pytest.mark.parametrize(
    ("available", "count", "taken"),
    [
        pytest.param("0-15", 8, "0-3,8-11", id="a whole socket"),
        pytest.param("1-15", 8, "4-7,12-15", id="the only whole socket"),
        pytest.param("0-15", 2, "0,8", id="a whole core"),
        pytest.param("1-6,9-14", 2, "1,9", id="of equally free nodes the first"),
        pytest.param("0-5,8-13", 2, "4,12", id="on the node with less left"),
        pytest.param("0-15", 10, "0-4,8-12", id="a socket and a core"),
        pytest.param("0-15", 3, "0-1,8", id="a core and a thread"),
        pytest.param("0-11", 1, "4", id="a thread where the least is free"),
        pytest.param("0-3,9-11", 1, "0", id="a thread whose sibling is busy"),
        pytest.param("0-3,9-11", 2, "1,9", id="a whole core before two halves"),
        pytest.param("0-7", 3, "0-2", id="threads where no core is whole"),
        pytest.param("0-15", 0, "", id="nothing"),
        pytest.param("0-99", 16, "0-15", id="all that the machine has"),
    ],
)
def test_packs_what_fits_as_a_whole(available: str, count: int, taken: str) -> None:
    assert take_packed(TWO_SOCKETS, cpus(available), count) == Taken(cpus(taken))


@pytest.mark.parametrize(
    ("available", "count", "plain", "by_uncore"),
    [
        pytest.param("0-15", 4, "0-1,8-9", "0-1,8-9", id="a whole cache either way"),
        pytest.param("0,2-3,8,10-11", 4, "0,2,8,10", "2-3,10-11", id="the whole cache"),
        pytest.param("0,2-3,8,10", 3, "0,3,8", "2-3,10", id="a cache that has what is missing"),
        pytest.param("0,2-3,8,10-11", 3, "0,2,8", "2-3,10", id="one thread of its last core"),
        pytest.param("0,2,4,6,8,10,12,14", 4, "0,2,8,10", "0,2,8,10", id="no cache that has it"),
    ],
)
def test_keeps_to_few_caches_if_asked(
    available: str, count: int, plain: str, by_uncore: str
) -> None:
    assert take_packed(TWO_SOCKETS, cpus(available), count).cpus == cpus(plain)
    assert take_packed(TWO_SOCKETS, cpus(available), count, by_uncore=True).cpus == cpus(by_uncore)


def test_spread_goes_by_the_ids_in_a_socket() -> None:
    assert take_packed(TWO_SOCKETS, TWO_SOCKETS.cpus, 4, spread=True).cpus == cpus("0-3")


def test_sockets_are_in_nodes_where_there_are_more_of_them() -> None:
    # Sockets 0-3 of two CPUs; node 0 has the first three, node 1 the last.
    layout = Layout.of({cpu: Place(cpu, cpu // 2, cpu // 6, 0) for cpu in range(8)})

    assert take_packed(layout, cpus("0-7"), 2).cpus == cpus("6-7")
    assert take_packed(layout, cpus("0-4,6-7"), 3).cpus == cpus("4,6-7")


def test_of_as_many_sockets_as_nodes_whole_nodes_go_first() -> None:
    # Node 0 has CPUs 0-1 of socket 0, node 1 the rest of it and socket 1.
    layout = Layout.of({cpu: Place(cpu, cpu // 4, min(cpu // 2, 1), 0) for cpu in range(8)})

    assert take_packed(layout, cpus("0-7"), 6).cpus == cpus("0-1,4-7")


def test_cpus_that_are_not_available_are_never_taken() -> None:
    # Six CPUs on four cores: one on average, as many as each of the large cores has free.
    assert take_packed(HYBRID, cpus("0-1,4"), 2).cpus == cpus("0,4")
    assert take_packed(HYBRID, cpus("0-1"), 2).cpus == cpus("0-1")


@pytest.mark.parametrize(
    ("available", "count", "group", "taken"),
    [
        pytest.param("0-15", 4, 1, "0-1,8-9", id="one node that has it all"),
        pytest.param("0-15", 12, 2, "0-2,4-6,8-10,12-14", id="both nodes alike"),
        pytest.param("0-15", 10, 2, "0-2,4-5,8-10,12-13", id="the rest where it is even"),
        pytest.param("0-3,8-10,4-7,12-15", 9, 1, "0-1,4-6,8-9,12-13", id="and on the larger node"),
        pytest.param("0-15", 9, 2, "0-4,8-11", id="packed for a part of a group"),
        pytest.param("0-3,8-11,4", 9, 1, "0-4,8-11", id="packed where no even share is free"),
    ],
)
def test_distributes_evenly(available: str, count: int, group: int, taken: str) -> None:
    assert take_distributed(TWO_SOCKETS, cpus(available), count, group=group).cpus == cpus(taken)


@pytest.mark.parametrize(
    ("free", "groups", "group", "even", "extra"),
    [
        pytest.param(
            [29, 28, 28, 5, 3, 31, 32],
            115,
            1,
            28,
            {0: 0, 1: 0, 5: 2, 6: 1},
            id="nodes with nothing left take no turn in giving the rest",
        ),
        pytest.param(
            [2, 6, 2, 7, 3],
            7,
            2,
            2,
            {0: 0, 1: 2, 3: 1, 4: 0},
            id="of nodes that leave equally much the first, not 1, 2, 3 and 4",
        ),
        pytest.param([5, 2, 3], 8, 1, 2, {0: 2, 1: 0, 2: 0}, id="one node gives the whole rest"),
        pytest.param(
            [4, 9, 5, 4],
            15,
            1,
            3,
            {0: 0, 1: 3, 2: 0, 3: 0},
            id="one node gives a rest of three groups",
        ),
    ],
)
def test_shares_are_those_that_trying_everything_finds(
    free: list[int], groups: int, group: int, even: int, extra: dict[int, int]
) -> None:
    shares = share_out(free, groups, group, fewest=1)

    assert shares is not None
    assert (shares.even, shares.extra) == (even, extra)


def test_the_kubelet_takes_several_nodes_where_one_has_it_all() -> None:
    # Six CPUs on node 0 and two on node 1: four on average.
    layout = Layout.of({cpu: Place(cpu, 0, cpu // 6, 0) for cpu in range(8)})

    assert take_distributed(layout, cpus("0-7"), 5).cpus == cpus("0-2,6-7")
    assert take_evenly(layout, cpus("0-7"), 5) == Taken(cpus("0-4"))


def test_nothing_is_taken_evenly_where_no_nodes_can_share() -> None:
    assert take_evenly(TWO_SOCKETS, cpus("0-3,8-11,4"), 9) is None
    assert take_evenly(TWO_SOCKETS, cpus("0-15"), 3, group=2) is None
    with pytest.raises(NotEnoughCPUs):
        take_evenly(TWO_SOCKETS, cpus("0-3"), 5)


@pytest.mark.parametrize(
    ("given", "free", "groups", "group", "shares"),
    [
        pytest.param([0, 1], [8, 8], 4, 1, [0, 4], id="the node that gives in any case"),
        pytest.param([1, 0, 0], [4, 3, 4], 6, 1, [3, 0, 3], id="and the one with most free"),
        pytest.param([4, 0], [8, 8], 7, 1, [7, 0], id="all on one"),
        pytest.param([0, 5], [8, 8], 9, 1, [4, 5], id="one more where it is given"),
        pytest.param([1, 1], [8, 8], 6, 2, [6, 6], id="groups"),
        pytest.param([5, 0], [5, 8], 6, 1, None, id="more than an even share is given"),
        pytest.param([1, 0], [3, 2], 5, 1, [3, 2], id="the rest where there is room"),
        pytest.param([0, 1], [1, 2], 4, 1, None, id="too few"),
    ],
)
def test_shares_are_even_with_what_nodes_give_in_any_case(
    given: list[int], free: list[int], groups: int, group: int, shares: list[int] | None
) -> None:
    assert share_out_beside(given, free, groups, group) == shares


def test_the_kubelets_endless_loop_ends() -> None:
    """Seven CPUs left on each of four nodes; 22 are 3 cores each less one, of which one stays."""
    layout = machine(sockets=2, nodes=2, cores=4)
    available = layout.cpus - cpus("0,4,8,12")

    taken = take_distributed(layout, available, 22, group=2)

    assert taken.proven
    assert len(taken.cpus) == 22
    assert taken.cpus <= available


def test_a_large_scattered_machine_is_answered_with_what_was_found_in_time() -> None:
    layout = machine(sockets=8, nodes=8, cores=16)
    free = CPUSet.union(
        CPUSet(list(node)[: 13 * number % 31 + 1])
        for number, node in layout.groups[Level.NODE].items()
    )

    taken = take_distributed(layout, free, 507)

    assert not taken.proven
    assert len(taken.cpus) == 507
    assert taken.cpus <= free


@pytest.mark.parametrize("take", [take_packed, take_distributed])
def test_more_than_is_available_is_refused(take: type) -> None:
    with pytest.raises(NotEnoughCPUs) as refused:
        take(TWO_SOCKETS, cpus("0-3,99"), 5)

    assert (refused.value.requested, refused.value.available) == (5, 4)
