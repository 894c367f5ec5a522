from __future__ import annotations

import pytest

from cpupool.core.cpuset import CPUSet
from cpupool.policies.pools.fragmentation import score

NODES = [CPUSet.parse("0-3"), CPUSet.parse("4-7")]


@pytest.mark.parametrize(
    ("free", "expected"),
    [
        pytest.param("0-7", 0.0, id="everything is free"),
        pytest.param("4-7", 0.0, id="a whole node is free"),
        pytest.param("1,4-7", 0.0, id="a whole node and a rest"),
        pytest.param("", 0.0, id="nothing is free"),
        pytest.param("0-1,4-5", 0.5, id="half of each node, where a whole one could be"),
        pytest.param("0-2,4", 1 - 10 / 16, id="three and one"),
        pytest.param("0,4", 0.5, id="two apart that could be together"),
    ],
)
def test_free_cpus_that_lie_apart_count(free: str, expected: float) -> None:
    assert score(CPUSet.parse(free), NODES) == pytest.approx(expected)


def test_a_large_group_is_the_one_to_fill() -> None:
    groups = [CPUSet.of(0), CPUSet.parse("1-4")]

    assert score(CPUSet.parse("0-1"), groups) == pytest.approx(0.5)
    assert score(CPUSet.parse("1-2"), groups) == 0.0


def test_without_groups_nothing_is_scattered() -> None:
    assert score(CPUSet.parse("0-3"), []) == 0.0
