from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from cpupool.core.cpuset import CPUSet
from cpupool.core.errors import NotEnoughCPUs
from cpupool.plugins.accumulator import take, take_in_turn
from cpupool.policies.layout import Layout
from tests.machines import MACHINES

if TYPE_CHECKING:
    from collections.abc import Callable

# Two sockets, a NUMA node each: CPUs 0-7 with siblings 16-23, and 8-15 with 24-31.
TELCO = Layout.of_topology(MACHINES["telco_2s_2n_16c32t"].topology())
ALL = TELCO.cpus
EPYC = Layout.of_topology(MACHINES["epyc_like"].topology())


def test_whole_sockets_come_before_whole_cores() -> None:
    assert take(TELCO, ALL, 18) == CPUSet.parse("0-8,16-24")
    assert take(TELCO, ALL, 18, by_cache=True) == CPUSet.parse("0-8,16-24")


def test_what_no_cache_has_begins_with_the_largest_and_ends_where_it_fits_best() -> None:
    # A cache has four cores: CPUs 0-3 with 32-35, 4-7 with 36-39, and 8-11 with 40-43.
    available = CPUSet.parse("0-3,32,4-6,8-9")

    assert take(EPYC, available, 7, by_cache=True) == CPUSet.parse("0-3,8-9,32")
    assert take(EPYC, available, 8, by_cache=True) == CPUSet.parse("0-6,32")
    assert take(EPYC, available, 9, by_cache=True) == CPUSet.parse("0-6,8,32")


def test_cores_and_threads_come_from_each_node_in_turn() -> None:
    assert take_in_turn(TELCO, ALL, 5) == CPUSet.parse("0-1,8,16,24")
    assert take_in_turn(TELCO, ALL, 4, from_top=True) == CPUSet.parse("7,15,23,31")
    assert take_in_turn(TELCO, ALL, 3, whole_cores=False) == CPUSet.parse("0-1,8")


@pytest.mark.parametrize("choose", [take, take_in_turn])
def test_no_cpus_are_taken_that_are_not_there(choose: Callable[..., CPUSet]) -> None:
    with pytest.raises(NotEnoughCPUs):
        choose(TELCO, CPUSet.of(0), 2)
