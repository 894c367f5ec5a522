"""What reclaimed pods may request, over periods in which they use and have any number of CPUs."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from cpupool.plugins.headroom import Headroom, estimated

MACHINE = 80
USED = st.one_of(st.none(), st.floats(0, 100))
PERIODS = st.lists(st.tuples(st.integers(1, MACHINE), USED), min_size=1, max_size=40)


def lived(periods: list[tuple[int, float | None]]) -> list[Headroom]:
    found: list[Headroom] = []
    for supply, used in periods:
        found.append(estimated(supply, used, found[-1].cpus if found else None, MACHINE))
    return found


@given(periods=PERIODS)
def test_it_is_the_pool_and_a_fifth_more_at_most(
    periods: list[tuple[int, float | None]],
) -> None:
    for each in lived(periods):
        assert each.supply <= each.cpus <= min(each.supply * 1.2 + 0.001, MACHINE)


@given(supply=st.integers(1, MACHINE), used=st.lists(USED, min_size=2, max_size=40))
def test_it_falls_only_with_the_pool(supply: int, used: list[float | None]) -> None:
    for before, after in pairwise(lived([(supply, each) for each in used])):
        assert after.cpus >= before.cpus
        # What pods use up to the aim, or nobody has measured, lets it grow by nothing.
        if after.used_cpus is None or after.used_cpus >= 0.6 * supply:
            assert after.cpus == before.cpus
