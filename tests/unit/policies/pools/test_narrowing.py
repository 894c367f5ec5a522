from __future__ import annotations

import pytest

from cpupool.policies.pools.narrowing import Narrowed, fewest

FOUR = {0: 4, 1: 4, 2: 4, 3: 4}
# 0 and 2 are on one socket, 1 and 3 on another.
PAIRS = {
    one: {other: 10 if one == other else 12 if (one - other) % 2 == 0 else 32 for other in FOUR}
    for one in FOUR
}


@pytest.mark.parametrize(
    ("sizes", "count", "groups"),
    [
        pytest.param({0: 4, 1: 2, 2: 3}, 2, (1,), id="the fullest that suffices"),
        pytest.param({0: 4, 1: 2, 2: 2}, 2, (1,), id="the lowest of those alike"),
        pytest.param({0: 4, 1: 2, 2: 3}, 5, (1, 2), id="two with nothing left over"),
        pytest.param({0: 4, 1: 2, 2: 3}, 9, (0, 1, 2), id="all"),
        pytest.param({0: 4}, 0, (), id="none for nothing"),
    ],
)
def test_the_fewest_groups_that_suffice_are_found(
    sizes: dict[int, int], count: int, groups: tuple[int, ...]
) -> None:
    assert fewest(sizes, count) == Narrowed(groups, proven=True)


def test_the_emptiest_are_chosen_where_that_is_wanted() -> None:
    assert fewest({0: 4, 1: 2, 2: 5}, 2, emptiest=True).groups == (2,)
    assert fewest({0: 4, 1: 2, 2: 5}, 6, emptiest=True).groups == (0, 2)


def test_groups_near_each_other_come_before_a_better_fit() -> None:
    assert fewest(FOUR, 5, distances=PAIRS).groups == (0, 2)
    assert fewest({**FOUR, 1: 1, 3: 3}, 5, distances=PAIRS).groups == (0, 2)
    assert fewest({**FOUR, 0: 0}, 8, distances=PAIRS).groups == (1, 3)


def test_given_groups_stay_and_draw_near_ones_to_them() -> None:
    assert fewest(FOUR, 3, given=[3], distances=PAIRS).groups == (3,)
    assert fewest(FOUR, 5, given=[3], distances=PAIRS).groups == (1, 3)
    assert fewest(FOUR, 2, given=[0, 1], distances=PAIRS).groups == (0, 1)


def test_of_too_many_sets_good_ones_are_compared() -> None:
    # 64 nodes in a ring: a million pairs of four.
    ring = {
        one: {other: 10 + min((one - other) % 64, (other - one) % 64) for other in range(64)}
        for one in range(64)
    }
    sizes = {**dict.fromkeys(range(64), 2), **dict.fromkeys(range(20, 24), 8)}

    found = fewest(sizes, 30, distances=ring)

    assert found == Narrowed((20, 21, 22, 23), proven=False)
    assert len(fewest(sizes, 60, distances=ring).groups) == 18


def test_of_too_many_sets_without_distances_the_last_one_fits_best() -> None:
    sizes = {**dict.fromkeys(range(64), 8), 40: 3, 50: 2}

    assert fewest(sizes, 26) == Narrowed((0, 1, 2, 50), proven=True)
    assert fewest(sizes, 25) == Narrowed((0, 1, 2, 50), proven=False)
    assert fewest(sizes, 26, emptiest=True) == Narrowed((0, 1, 2, 3), proven=True)
    assert fewest(dict.fromkeys(range(64), 8), 25) == Narrowed((0, 1, 2, 3), proven=True)
