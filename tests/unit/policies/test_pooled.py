from __future__ import annotations

import pytest

from cpupool.core.cpuset import CPUSet
from cpupool.policies import pooled
from tests.machines import MACHINES

# Two sockets, a NUMA node each: CPUs 0-7 with siblings 16-23, and 8-15 with 24-31.
TELCO = MACHINES["telco_2s_2n_16c32t"].topology()
EPYC = MACHINES["epyc_like"].topology()


@pytest.mark.parametrize(
    ("free", "required", "count", "chosen"),
    [
        pytest.param("2-5,8-11", "", 2, "2-3", id="one node where it fits"),
        pytest.param("2-7,8-9", "", 2, "8-9", id="the fullest node that takes it"),
        pytest.param("2-4,8-11", "", 4, "8-11", id="a node that takes it whole before two"),
        pytest.param("2-4,8-11", "", 5, "2,8-11", id="the larger node first when none takes it"),
        pytest.param("2-5,8-11", "9", 2, "8-9", id="beside a CPU that must be included"),
        pytest.param("2-3,8-11", "2", 4, "2-3,8-9", id="beyond a node that is used up"),
        pytest.param("2-3", "3", 1, "3", id="only what must be included"),
        pytest.param("2-3", "", 5, "2-3", id="all there are when there are too few"),
        pytest.param("2-3", "", 0, "", id="nothing when nothing is asked"),
    ],
)
def test_whole_nodes_are_taken_before_one_is_split(
    free: str, required: str, count: int, chosen: str
) -> None:
    answer = pooled.prefer(CPUSet.parse(free), CPUSet.parse(required), count, TELCO)

    assert answer == CPUSet.parse(chosen)


def test_a_cpu_of_no_node_counts_as_a_node_of_its_own() -> None:
    known = CPUSet.parse("0-3")

    assert pooled.prefer(known | CPUSet.of(99), CPUSet(), 1, TELCO) == CPUSet.of(99)
    assert pooled.prefer(known | CPUSet.of(99), CPUSet(), 4, TELCO) == known


@pytest.mark.parametrize("count", range(1, 9))
def test_a_request_that_a_node_can_take_touches_one_node_only(count: int) -> None:
    chosen = pooled.prefer(EPYC.online, CPUSet(), count, EPYC)

    assert len(chosen) == count
    assert len({EPYC.node_of(cpu) for cpu in chosen}) == 1
