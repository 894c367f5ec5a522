from __future__ import annotations

import pytest

from cpupool.core.errors import NotEnoughCPUs
from cpupool.plugins.pool_sizes import Fitted, fitted, normalized, overlapping, proportional


def test_sizes_are_in_proportion_to_the_wishes() -> None:
    assert normalized({"online": 20, "offline": 10}, 12) == {"offline": 4, "online": 8}
    assert normalized({"a": 1, "b": 30}, 11) == {"a": 1, "b": 10}
    assert normalized({"a": 3, "b": 3}, 6) == {"a": 3, "b": 3}


def test_there_are_none_without_a_cpu_for_each_pool() -> None:
    assert normalized({"a": 3, "b": 3}, 1) is None
    assert normalized({"a": 0}, 4) is None
    assert fitted({"a": 3, "b": 3}, {}, 1, expands=False) == Fitted(
        {"a": 1, "b": 1}, throttled=True
    )
    assert proportional({"a": 3, "b": 3}, 1) == {"a": 1, "b": 1}


def test_the_largest_pools_give_first() -> None:
    assert proportional({"a": 10, "b": 10, "c": 1}, 8) == {"a": 3, "b": 4, "c": 1}


def test_pools_use_what_is_left_if_they_expand_but_for_fixed_ones() -> None:
    needs, fixed = {"a": 4, "b": 4}, {"isolated": 2}
    assert fitted(needs, fixed, 20, expands=False) == Fitted({**needs, **fixed}, throttled=False)
    assert fitted(needs, fixed, 20, expands=True).sizes == {"a": 9, "b": 9, "isolated": 2}
    assert fitted(needs, fixed, 5, expands=True) == Fitted(
        {"a": 2, "b": 2, "isolated": 1}, throttled=True
    )


def test_the_largest_pools_overlap_first() -> None:
    assert overlapping({"a": 4, "b": 2}, 4) == {"a": 3, "b": 1}
    assert overlapping({"a": 14, "b": 27}, 1) == {"b": 1}
    with pytest.raises(NotEnoughCPUs):
        overlapping({"a": 2}, 3)
