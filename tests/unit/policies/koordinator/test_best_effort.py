"""How many CPUs the load leaves to best-effort pods, and which; the oracle has Koordinator's."""

from __future__ import annotations

import pytest

from cpupool.core.cpu_manager import Suppression
from cpupool.core.cpu_time import CPUUse
from cpupool.core.cpuset import CPUSet
from cpupool.policies.koordinator import best_effort
from cpupool.policies.koordinator.best_effort import Load
from tests.machines import MACHINES

MACHINE = MACHINES["telco_2s_2n_16c32t"].topology()  # cores 0,16 to 7,23 and 8,24 to 15,31


def count(others: int, before: int = 32, *, least: int = 0, whole: int = 32, **load: int) -> int:
    """Return how many of 32 CPUs are left while the other pods use this many milli-CPUs."""
    pods = load.get("pods", others)
    found = best_effort.size(
        Load(load.get("node", pods), pods, others),
        Suppression(65, least),
        cpus=32,
        reserved=load.get("reserved", 0),
        whole=whole,
        before=before,
    )
    return found.count


def test_the_load_of_some_cpus_leaves_out_the_pods_of_others() -> None:
    use = CPUUse({0: 900, 1: 300, 2: 1000}, {"be": 200, "ls": 400, "dpdk": 1000, "new": 50})

    found = Load.of(use, CPUSet.of(0, 1), best_effort={"be"}, outside={"dpdk"})

    assert found == Load(node_milli=1200, pods_milli=650, others_milli=450)


@pytest.mark.parametrize(
    ("others", "cpus"),
    [
        pytest.param(0, 21, id="65 % of 32 are 20.8"),
        pytest.param(10_000, 11, id="without those of the others"),
        pytest.param(20_000, 2, id="at least two"),
        pytest.param(99_000, 2, id="also if the others use too much"),
    ],
)
def test_the_set_shrinks_at_once(others: int, cpus: int) -> None:
    assert count(others) == cpus


def test_the_set_grows_by_a_tenth_of_the_cpus() -> None:
    assert count(0, before=4) == 8
    assert count(0, before=20) == 21


def test_the_system_counts_with_what_is_reserved_for_it() -> None:
    assert count(10_000, pods=12_000, node=15_000) == 8
    assert count(10_000, pods=12_000, node=15_000, reserved=5) == 6


def test_a_minimum_holds_under_any_load() -> None:
    assert count(99_000, least=25) == 8
    assert count(10_000, least=25) == 11


def test_less_than_half_a_cpu_more_moves_no_container() -> None:
    assert count(10_400, before=10) == 10
    assert count(10_300, before=10) == 10
    assert count(10_299, before=10) == 11
    assert count(10_801, before=11) == 10


def test_a_set_of_one_cpu_is_whole() -> None:
    size = best_effort.size(Load(0, 0, 0), Suppression(), cpus=32, reserved=0, whole=1, before=1)

    assert not size.reduced


def test_the_size_is_explained() -> None:
    size = best_effort.size(
        Load(15_000, 12_000, 10_500), Suppression(65, 30), cpus=32, reserved=2, whole=30, before=9
    )

    assert str(size) == (
        "10 of 30 CPUs: the other pods use 10.5 CPUs and the system 3.0 of 65 % of 32 CPUs, which"
        " leaves 7.3; 30 % are best-effort pods' in any case"
    )
    assert size.reduced


def selected(number: int, lent: str, shared: str, first: str) -> str:
    sets = (CPUSet.parse(cpus) for cpus in (lent, shared, first))
    return str(best_effort.selected(MACHINE, number, *sets))


def test_the_first_cpus_come_before_equal_parts_of_lent_and_shared_cpus() -> None:
    # Two of the four that are left beside 0 and 16 are of owners, as 4 of 8 candidates are.
    assert selected(6, "4,20,12,28", "0,16,1,17,8,24", "0,16") == "0-1,4,16-17,20"
    assert selected(6, "4,20,12,28", "0,16,1,17,8,24", "") == "0,4,8,16,20,24"
    assert selected(2, "4,20,12,28", "0,16,1,17,8,24", "1,17") == "1,17"
    assert selected(3, "", "0,16,1,17,8,24", "17,1,0,16") == "0-1,16"


@pytest.mark.parametrize(
    ("among", "number", "order"),
    [
        pytest.param("0-1,8,16-17,24", 5, (0, 16, 8, 24, 1), id="pairs, and one CPU at the end"),
        pytest.param("0-1,8-9", 3, (0, 8, 1), id="without siblings"),
        pytest.param("0-1", 3, (), id="too few"),
    ],
)
def test_pairs_of_siblings_come_in_turn_of_the_numa_nodes(
    among: str, number: int, order: tuple[int, ...]
) -> None:
    assert best_effort.spread_pairs(MACHINE, CPUSet.parse(among), number) == order


@pytest.mark.parametrize(
    ("allowed_milli", "before_us", "quota_us"),
    [
        pytest.param(4000, -1, 400_000, id="the first"),
        pytest.param(4000, 390_000, None, id="less than a hundredth of the node more"),
        pytest.param(9000, 400_000, 720_000, id="a tenth of the node at once"),
        pytest.param(-500, 3000, 2000, id="the least"),
    ],
)
def test_a_quota_is_what_is_left(allowed_milli: int, before_us: int, quota_us: int | None) -> None:
    assert best_effort.quota_us(allowed_milli, before_us, cpus=32) == quota_us
