from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from cpupool.core.bandwidth import Bandwidth
from cpupool.core.properties import (
    NO_PROPERTIES,
    BadProperty,
    OCIProperty,
    Properties,
    property_named,
)


def test_texts_become_values() -> None:
    assert Properties.of(
        {
            "CpusetCpus": "0-1",
            "CpuShares": "512",
            "CpuQuota": "25000",
            "CpuPeriod": "50000",
            "MemoryLimitInBytes": "1073741824",
            "MemorySwapLimitInBytes": "-1",
            "OomScoreAdj": "-997",
            "Unified": "io.weight=default 50,memory.high=1073741824,memory.low=0,memory.min=max",
        }
    ) == Properties(
        512,
        Bandwidth(25_000, 50_000),
        1 << 30,
        -1,
        -997,
        {
            "io.weight": "default 50",
            "memory.high": "1073741824",
            "memory.low": "0",
            "memory.min": "max",
        },
    )
    assert Properties.of({"CpuQuota": "-1"}).bandwidth == Bandwidth()


def test_cpus_and_nodes_alone_are_no_properties() -> None:
    assert Properties.of({"CpusetCpus": "0-1", "CpusetMems": "0"}) == NO_PROPERTIES
    assert not NO_PROPERTIES
    assert Properties(shares=2)


@pytest.mark.parametrize(
    ("name", "least", "most"),
    [
        ("CpuShares", 2, 262_144),
        ("CpuQuota", 1_000, 2**44 - 1),
        ("CpuPeriod", 1_000, 1_000_000),
        ("MemoryLimitInBytes", 6 << 20, 2**63 - 1),
        ("MemorySwapLimitInBytes", 6 << 20, 2**63 - 1),
        ("OomScoreAdj", -997, 1_000),
    ],
)
def test_a_number_is_in_the_kernels_range(name: str, least: int, most: int) -> None:
    for number in (least, most):
        Properties.of({name: str(number)})
    for number in (least - 1, most + 1):
        with pytest.raises(BadProperty, match=f"it can be {least} to {most}"):
            Properties.of({name: str(number)})


@pytest.mark.parametrize("text", ["", "1.5", "0x10", "1 000", "\u0663", "9" * 5000, "max"])
def test_a_number_is_written_with_digits(text: str) -> None:
    with pytest.raises(BadProperty, match="sets MemoryLimitInBytes to"):
        Properties.of({"MemoryLimitInBytes": text})


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "is none of io.weight, memory.high, memory.low, memory.min"),
        ("memory.swappiness=1", "is none of"),
        ("memory.oom_control=1", "cgroup version 1"),
        ("cpu.weight=100", "which is CpuShares"),
        ("memory.max=max", "which is MemoryLimitInBytes"),
        ("io.weight=0", "it can be 1 to 10000"),
        ("io.weight=10001", "it can be 1 to 10000"),
        ("io.weight=8:0 100", "it can be 1 to 10000"),
        ("io.weight", "it can be 1 to 10000"),
        ("io.weight=1,io.weight=2", "once"),
        ("memory.high=4096", "it can be at least"),
        ("memory.high=", "it can be at least"),
        ("memory.low=-1", "it can be bytes"),
        ("memory.min=1G", "it can be bytes"),
    ],
)
def test_a_file_is_on_the_list_and_its_content_is_the_kernels(text: str, why: str) -> None:
    with pytest.raises(BadProperty, match=why):
        Properties.of({"Unified": text})


def test_names_are_those_of_the_cri() -> None:
    assert property_named("Unified") is OCIProperty.UNIFIED
    assert property_named("HugepageLimits") is None


def test_the_text_names_what_is_set() -> None:
    assert str(Properties(bandwidth=Bandwidth())) == "the CPU quota max 100000"
    shown = str(Properties(2, None, 5, 6, 0, {"io.weight": "1"}))
    assert shown == "CPU shares 2, memory 5, memory and swap 6, the OOM score 0, io.weight 1"


GIB = 1 << 30
ALL = Properties(512, Bandwidth(25_000), GIB, 2 * GIB, 500, {"memory.low": "0", "io.weight": "50"})


def test_what_a_kernel_lacks_is_lacking_and_does_not_differ() -> None:
    lacks = replace(ALL, oom_score_adj=None)
    assert ALL.lacking(NO_PROPERTIES) == lacks
    assert ALL.lacking(ALL) == NO_PROPERTIES
    assert ALL.differing(NO_PROPERTIES) == NO_PROPERTIES
    without_swap = replace(ALL, memory_bytes=4 * GIB, swap_bytes=None)
    assert ALL.lacking(without_swap) == Properties(swap_bytes=2 * GIB)
    assert ALL.differing(without_swap) == Properties(memory_bytes=GIB)


@pytest.mark.parametrize(
    ("has", "differs"),
    [
        ({}, {}),
        ({"oom_score_adj": 0}, {}),
        ({"shares": 1024}, {"shares": 512}),
        ({"bandwidth": Bandwidth()}, {"bandwidth": Bandwidth(25_000)}),
        ({"memory_bytes": 3 * GIB}, {"memory_bytes": GIB, "swap_bytes": 2 * GIB}),
        ({"swap_bytes": -1}, {"memory_bytes": GIB, "swap_bytes": 2 * GIB}),
        ({"unified": {"memory.low": "9", "io.weight": "50"}}, {"unified": {"memory.low": "0"}}),
    ],
)
def test_only_what_differs_is_named_and_memory_with_its_swap(
    has: dict[str, Any], differs: dict[str, Any]
) -> None:
    assert ALL.differing(replace(ALL, **has)) == Properties(**differs)


@pytest.mark.parametrize(
    ("limit", "has", "has_swap", "kept"),
    [
        (2 * GIB, GIB, 3 * GIB, 4 * GIB),
        (2 * GIB, GIB, GIB, 2 * GIB),
        (GIB, -1, GIB, 2 * GIB),
        (GIB, 2 * GIB, -1, -1),
        (-1, GIB, GIB, -1),
        (GIB, None, GIB, None),
        (GIB, GIB, None, None),
        (None, GIB, GIB, None),
    ],
)
def test_another_limit_of_memory_keeps_the_swap(
    limit: int | None, has: int | None, has_swap: int | None, kept: int | None
) -> None:
    there = Properties(memory_bytes=has, swap_bytes=has_swap)
    wanted = Properties(shares=2, memory_bytes=limit)
    assert wanted.keeping_swap(there) == replace(wanted, swap_bytes=kept)
    assert ALL.keeping_swap(there) == ALL
