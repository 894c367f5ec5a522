from __future__ import annotations

import pytest

from cpupool.core.cpuset import CPUSet
from cpupool.core.errors import NotEnoughCPUs
from cpupool.core.pool_policy import ExclusivePolicy, NUMAPolicy
from cpupool.policies.accumulators.koordinator import OccupiedCPUs, take
from cpupool.policies.layout import Layout
from tests.machines import MACHINES, Machine

# Two sockets, a NUMA node each: CPUs 0-7 with siblings 16-23, and 8-15 with 24-31.
TELCO = Layout.of_topology(MACHINES["telco_2s_2n_16c32t"].topology())
NO_SMT = Layout.of_topology(MACHINES["arm_no_smt"].topology())
MOST = NUMAPolicy.MOST_ALLOCATED
LEAST = NUMAPolicy.LEAST_ALLOCATED


def taken(
    free: str,
    count: int,
    *,
    full_cores: bool = True,
    strategy: NUMAPolicy = MOST,
    exclusive: ExclusivePolicy = ExclusivePolicy.NONE,
    held: tuple[OccupiedCPUs, ...] = (),
    preferred: str = "",
    layout: Layout = TELCO,
) -> str:
    answer = take(
        layout,
        CPUSet.parse(free),
        count,
        full_cores=full_cores,
        strategy=strategy,
        exclusive=exclusive,
        held=held,
        preferred=CPUSet.parse(preferred),
    )
    assert answer.proven
    return str(answer.cpus)


@pytest.mark.parametrize(
    ("free", "count", "strategy", "cpus"),
    [
        pytest.param("0-31", 4, MOST, "0-1,16-17", id="both threads of the first cores"),
        pytest.param("0-31", 3, MOST, "0-1,16", id="a core is split only at the end"),
        pytest.param("0-4,8-12,16-20,24-28", 4, MOST, "0-1,16-17", id="the first of equal nodes"),
        pytest.param("0-4,8-11,16-20,24-27", 4, MOST, "8-9,24-25", id="the fullest node first"),
        pytest.param("0-3,8-12,16-19,24-28", 4, LEAST, "8-9,24-25", id="the emptiest node first"),
        pytest.param("0-3,8-12,16-19,24-28", 4, NUMAPolicy.DISTRIBUTED, "8-9,24-25", id="evenly"),
        pytest.param("0-3,8-15,16-19,25-31", 8, MOST, "0-3,16-19", id="split cores do not count"),
        pytest.param("0-3,8,16-19,24", 10, MOST, "0-3,8,16-19,24", id="all nodes where needed"),
        pytest.param("0,2,9", 2, MOST, "0,9", id="the fullest nodes where no core is whole"),
        pytest.param("0-31", 0, MOST, "", id="nothing where nothing is asked"),
    ],
)
def test_full_cores(free: str, count: int, strategy: NUMAPolicy, cpus: str) -> None:
    assert taken(free, count, strategy=strategy) == cpus


def test_what_fits_on_no_socket_fills_the_largest_and_ends_with_a_single_thread() -> None:
    free = "0-6,8-12,16-22,24-28"

    assert taken(free, 17) == "0-6,8-9,16-22,24"


def test_a_single_thread_at_the_end_never_brings_its_sibling_along() -> None:
    # Koordinator takes eight: a core of the second socket, and then one of the third for the last.
    sockets = Layout.of_topology(Machine(sockets=3, cores=2, threads=2, adjacent=True).topology())

    assert taken("0-11", 7, layout=sockets) == "0-6"


@pytest.mark.parametrize(
    ("free", "count", "cpus"),
    [
        pytest.param("0-31", 4, "0-3", id="one thread of each core"),
        pytest.param("0-1,16-23", 8, "0-1,18-23", id="the lowest thread of each"),
        pytest.param("0-1,16-17", 3, "0-1,16", id="siblings where no core is left"),
        pytest.param("0-1,8-11,16-17", 4, "8-11", id="a node with a core for each"),
        pytest.param("0-1,8-10,16-17", 4, "0-1,16-17", id="siblings before another node"),
    ],
)
def test_spread_over_cores(free: str, count: int, cpus: str) -> None:
    assert taken(free, count, full_cores=False) == cpus


def test_without_smt_spreading_takes_cores_as_they_are() -> None:
    assert taken("0-2,8-15", 4, full_cores=False, layout=NO_SMT) == "8-11"


@pytest.mark.parametrize("full_cores", [True, False])
def test_a_numa_node_is_shared_only_where_it_must_be(full_cores: bool) -> None:
    held = (OccupiedCPUs(CPUSet.of(0, 16), exclusive=ExclusivePolicy.NUMA_NODE),)
    preference = ExclusivePolicy.NUMA_NODE

    def on(free: str) -> str:
        return taken(free, 2, full_cores=full_cores, exclusive=preference, held=held)

    assert CPUSet.parse(on("1-7,8-15,17-23,24-31")) <= CPUSet.parse("8-15,24-31")
    assert CPUSet.parse(on("1-7,17-23")) <= CPUSet.parse("1-7,17-23")


def test_a_core_is_shared_only_where_it_must_be() -> None:
    held = (OccupiedCPUs(CPUSet.of(0, 1), exclusive=ExclusivePolicy.PHYSICAL_CORE),)
    preference = ExclusivePolicy.PHYSICAL_CORE

    def on(free: str) -> str:
        return taken(free, 2, full_cores=False, exclusive=preference, held=held)

    assert on("2-7,16-23") == "2-3"
    assert on("16-17") == "16-17"


def test_on_several_sockets_cores_of_others_come_last() -> None:
    held = (OccupiedCPUs(CPUSet.of(16, 17), exclusive=ExclusivePolicy.PHYSICAL_CORE),)
    preference = ExclusivePolicy.PHYSICAL_CORE

    def on(count: int) -> str:
        return taken("0-1,8-9,24-25", count, full_cores=False, exclusive=preference, held=held)

    assert on(5) == "0,8-9,24-25"
    assert on(6) == "0-1,8-9,24-25"


def test_pods_of_another_wish_do_not_matter() -> None:
    held = (OccupiedCPUs(CPUSet.of(0, 16), exclusive=ExclusivePolicy.PHYSICAL_CORE),)

    answer = taken("1-7,8-15,17-31", 2, exclusive=ExclusivePolicy.NUMA_NODE, held=held)

    assert answer == "1,17"


@pytest.mark.parametrize(("full_cores", "cpus"), [(True, "2-3,18-19"), (False, "2-3,20-21")])
def test_the_least_shared_cpus_are_taken_first(full_cores: bool, cpus: str) -> None:
    held = (
        OccupiedCPUs(CPUSet.parse("0-1,4-7,16-17,22-23"), 2),
        OccupiedCPUs(CPUSet.parse("18-19"), 1),
    )

    assert taken("0-7,16-23", 4, full_cores=full_cores, held=held) == cpus


def test_references_of_several_pods_add_up() -> None:
    held = (
        OccupiedCPUs(CPUSet.of(0), 1),
        OccupiedCPUs(CPUSet.of(0), 1),
        OccupiedCPUs(CPUSet.of(1), 1),
    )

    assert taken("0-1", 1, full_cores=False, held=held) == "1"


@pytest.mark.parametrize(
    ("preferred", "count", "cpus"),
    [
        pytest.param("10,26", 2, "10,26", id="they suffice"),
        pytest.param("10,26", 4, "8,10,24,26", id="and the rest from the fullest"),
        pytest.param("10,26", 1, "10", id="some of them"),
        pytest.param("99", 2, "0,16", id="not one that is not available"),
    ],
)
def test_preferred_cpus_come_first(preferred: str, count: int, cpus: str) -> None:
    assert taken("0-31", count, preferred=preferred) == cpus


def test_more_than_there_are_is_refused_with_the_numbers() -> None:
    with pytest.raises(NotEnoughCPUs, match="3 CPUs requested, 2 free") as caught:
        taken("0-1", 3)

    assert (caught.value.requested, caught.value.available) == (3, 2)
