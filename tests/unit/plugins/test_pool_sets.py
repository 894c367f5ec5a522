from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cpupool.core.cpuset import CPUSet
from cpupool.plugins.config import PoolSize
from cpupool.plugins.pool_sets import placed, sized
from cpupool.policies.layout import Layout, Level
from tests.machines import Machine

if TYPE_CHECKING:
    from collections.abc import Mapping

LAYOUT = Layout.of_topology(Machine(sockets=2, cores=20, threads=2, adjacent=True).topology())


def sets(sizes: dict[str, int], had: Mapping[str, str] | None = None) -> dict[str, str]:
    parsed = {name: CPUSet.parse(cpus) for name, cpus in (had or {}).items()}
    return {
        name: str(cpus) for name, cpus in placed(LAYOUT, LAYOUT.cpus, sizes, parsed, {}).items()
    }


def test_pools_have_the_same_part_of_each_node_at_every_size() -> None:
    small = {"online": "0-13,40-53", "offline": "14-39,54-79"}
    large = {"online": "0-37,40-77", "offline": "38-39,78-79"}
    assert sets({"online": 76, "offline": 4}) == large
    assert sets({"online": 28, "offline": 52}, large) == small
    assert sets({"online": 76, "offline": 4}, small) == large


def test_with_fewer_cpus_than_needed_every_pool_has_all() -> None:
    assert sets({"a": 80, "b": 1}) == {"a": "0-79", "b": "0-79"}


SIZES = st.lists(st.integers(1, 26), min_size=1, max_size=3)


@given(SIZES, SIZES, st.integers(0, 2**80 - 1))
def test_a_pool_keeps_the_cpus_that_it_has(first: list[int], second: list[int], mask: int) -> None:
    had = placed(LAYOUT, LAYOUT.cpus, dict(zip("abc", first, strict=False)), {}, {})
    available = CPUSet(cpu for cpu in LAYOUT.cpus if mask >> cpu & 1)
    sizes = dict(zip("abc", second, strict=False))
    now = placed(LAYOUT, available, sizes, had, {})
    if sum(sizes.values()) > len(available):
        assert set(now.values()) == {available}
        return
    assert {name: len(cpus) for name, cpus in now.items()} == sizes
    assert len(CPUSet.union(now.values())) == sum(sizes.values())
    for name, cpus in now.items():
        has = had.get(name, CPUSet()) & available
        assert len(cpus & has) == min(len(has), sizes[name])
    assert CPUSet.union(now.values()) <= available
    assert len(LAYOUT.groups[Level.NODE]) == 2


@pytest.mark.parametrize(
    ("pools", "total", "sizes"),
    [
        ({}, 8, {}),
        ({"a": PoolSize(3), "b": PoolSize(2)}, 8, {"a": 3, "b": 2}),
        ({"a": PoolSize(3), "b": PoolSize()}, 8, {"a": 3, "b": 5}),
        ({"w": PoolSize(None, 1), "x": PoolSize(None, 3)}, 8, {"w": 2, "x": 6}),
        # They do not fit: a part in proportion, and one CPU where there is only a weight.
        ({"a": PoolSize(12), "b": PoolSize(4)}, 8, {"a": 6, "b": 2}),
        ({"b": PoolSize(None, 9), "a": PoolSize(8)}, 8, {"b": 1, "a": 7}),
        ({"a": PoolSize(9), "b": PoolSize(1)}, 1, {"a": 1, "b": 1}),
    ],
)
def test_sizes(pools: dict[str, PoolSize], total: int, sizes: dict[str, int]) -> None:
    found = sized(pools, total, {})
    assert found == sizes
    assert list(found) == list(pools)


@pytest.mark.parametrize(
    ("pools", "total", "now", "sizes"),
    [
        # A size that follows the load is not below its floor, and the others have the rest.
        ({"a": PoolSize(at_least=4), "b": PoolSize()}, 20, {}, {"a": 4, "b": 16}),
        ({"a": PoolSize(at_least=4), "b": PoolSize()}, 20, {"a": 9}, {"a": 9, "b": 11}),
        ({"a": PoolSize(at_least=4), "b": PoolSize()}, 20, {"a": 2}, {"a": 4, "b": 16}),
        ({"a": PoolSize(at_least=4)}, 20, {"a": 9}, {"a": 9}),
        # Where they do not fit, no floor breaks.
        (
            {"a": PoolSize(at_least=4), "b": PoolSize(at_least=6), "c": PoolSize()},
            12,
            {"a": 30, "b": 6},
            {"a": 5, "b": 6, "c": 1},
        ),
        (
            {"a": PoolSize(at_least=9), "b": PoolSize(at_least=6), "c": PoolSize()},
            12,
            {},
            {"a": 6, "b": 5, "c": 1},
        ),
    ],
)
def test_sizes_that_follow_the_load(
    pools: dict[str, PoolSize], total: int, now: dict[str, int], sizes: dict[str, int]
) -> None:
    assert sized(pools, total, now) == sizes


NODE = LAYOUT.groups[Level.NODE][1]


def with_node(sizes: list[int], of_node: int, had: Mapping[str, CPUSet]) -> Mapping[str, CPUSet]:
    """Return the CPUs of pools, and of one on NUMA node 1 if it has any."""
    pools = dict(zip("abc", sizes, strict=False))
    if not of_node:
        return placed(LAYOUT, LAYOUT.cpus, pools, had, {})
    return placed(LAYOUT, LAYOUT.cpus, {"n": of_node, **pools}, had, {"n": 1})


@given(SIZES, SIZES, st.integers(0, 40), st.integers(1, 40))
def test_a_pool_on_a_node_takes_no_more_from_others_than_it_needs(
    first: list[int], second: list[int], before: int, after: int
) -> None:
    fits = sum(first) + before <= len(LAYOUT.cpus)
    had = with_node(first, before, {}) if fits else {}
    now = with_node(second, after, had)
    if after + sum(second) > len(LAYOUT.cpus):
        assert now == {**dict.fromkeys(now, LAYOUT.cpus), "n": NODE}
        return
    assert [len(cpus) for cpus in now.values()] == [after, *second]
    assert len(CPUSet.union(now.values())) == after + sum(second)
    assert now["n"] <= NODE
    assert len(now["n"] & had.get("n", CPUSet())) == min(after, len(had.get("n", ())))
    for name, size in zip("abc", second, strict=False):
        kept = had.get(name, CPUSet()) - now["n"]
        assert len(now[name] & kept) == min(len(kept), size)


def test_a_pool_on_a_node_takes_first_what_others_lose() -> None:
    had = {"a": CPUSet.parse("0-4,40-44"), "b": CPUSet.parse("5-39,45-79")}
    now = placed(LAYOUT, LAYOUT.cpus, {"n": 6, "a": 10, "b": 64}, had, {"n": 0})
    assert now["a"] == had["a"]
    assert now["b"] == had["b"] - now["n"]
    # Where it needs the whole node, they have the other one.
    now = placed(LAYOUT, LAYOUT.cpus, {"n": 40, "a": 10, "b": 30}, now, {"n": 0})
    assert {name: str(cpus) for name, cpus in now.items()} == {
        "n": "0-39",
        "a": "40-49",
        "b": "50-79",
    }
