from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cpupool.core.quota import PERIOD_US, UNLIMITED_US, quota_us, stricter_us

LEAST_US = 1_000
"""min_cfs_quota_period of the kernel (kernel/sched/core.c)."""


@pytest.mark.parametrize(
    ("milli", "per_period_us"),
    [(1000, 100_000), (1500, 150_000), (333, 33_300), (10, LEAST_US), (9, LEAST_US), (0, LEAST_US)],
)
def test_a_quota_is_the_same_share_of_the_period(milli: int, per_period_us: int) -> None:
    assert quota_us(milli) == per_period_us


@pytest.mark.parametrize(
    ("wanted_us", "asked_us", "period_us", "then_us"),
    [
        pytest.param(None, 50_000, 100_000, None, id="no opinion"),
        pytest.param(UNLIMITED_US, 200_000, 100_000, UNLIMITED_US, id="a limit is lifted"),
        pytest.param(UNLIMITED_US, None, None, None, id="none to lift"),
        pytest.param(UNLIMITED_US, -1, 100_000, None, id="lifted already"),
        pytest.param(UNLIMITED_US, 0, 0, None, id="none to lift, in zeros"),
        pytest.param(50_000, None, None, 50_000, id="no limit was asked for"),
        pytest.param(50_000, -1, 100_000, 50_000, id="unlimited was asked for"),
        pytest.param(50_000, 0, 100_000, 50_000, id="a zero is no limit"),
        pytest.param(50_000, 50_001, 100_000, 50_000, id="a little too much"),
        pytest.param(50_000, 50_000, 100_000, None, id="just as much"),
        pytest.param(50_000, 40_000, None, None, id="less, in the usual period"),
        pytest.param(50_000, 60_000, 0, 50_000, id="more, in the usual period"),
        pytest.param(50_000, 5_000, 10_000, None, id="just as much of a shorter period"),
        pytest.param(50_000, 6_000, 10_000, 50_000, id="more of a shorter period"),
        pytest.param(50_000, 400_000, 1_000_000, None, id="less of a longer period"),
    ],
)
def test_a_quota_is_made_smaller_or_lifted_or_left(
    wanted_us: int | None, asked_us: int | None, period_us: int | None, then_us: int | None
) -> None:
    assert stricter_us(wanted_us, asked_us, period_us) == then_us


def share(per_period_us: int | None, period_us: int | None) -> float:
    """Give how many CPUs a quota comes to."""
    if per_period_us is None or per_period_us <= 0:
        return math.inf
    return per_period_us / (period_us or PERIOD_US)


@given(
    wanted_us=st.just(UNLIMITED_US) | st.integers(0, 512_000).map(quota_us),
    asked_us=st.none() | st.integers(-1, 0) | st.integers(LEAST_US, 100_000_000),
    period_us=st.none() | st.just(0) | st.integers(LEAST_US, 1_000_000),
)
def test_what_comes_out_is_within_both_and_needs_no_second_look(
    wanted_us: int, asked_us: int | None, period_us: int | None
) -> None:
    changed_us = stricter_us(wanted_us, asked_us, period_us)
    then = (asked_us, period_us) if changed_us is None else (changed_us, PERIOD_US)

    assert share(*then) <= share(wanted_us, PERIOD_US)
    if wanted_us != UNLIMITED_US:
        assert share(*then) <= share(asked_us, period_us)
        assert changed_us is None or changed_us >= LEAST_US
    assert stricter_us(wanted_us, *then) is None
