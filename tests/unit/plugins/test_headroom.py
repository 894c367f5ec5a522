from __future__ import annotations

import pytest

from cpupool.plugins.headroom import estimated


@pytest.mark.parametrize(
    ("supply", "used", "before", "machine", "cpus"),
    [
        # It begins with the supply, and is not more without a measurement.
        (10, None, None, 80, 10),
        (10, None, 11.5, 80, 11.5),
        # 60 % of the supply less what is used, once in each period.
        (10, 5.0, 10.0, 80, 11),
        (10, 5.5, 11.0, 80, 11.5),
        # A fifth more at most.
        (10, 0.0, 10.0, 80, 12),
        (10, 5.0, 12.0, 80, 12),
        # Pods that use more do not make it smaller.
        (10, 6.0, 11.0, 80, 11),
        (10, 10.0, 11.0, 80, 11),
        # The pool does: it follows at once, either way.
        (6, 6.0, 12.0, 80, 7.2),
        (20, 20.0, 12.0, 80, 20),
        # Not more than the machine has, nor without a pool.
        (78, 0.0, 78.0, 80, 80),
        (0, 0.0, 4.0, 80, 0),
    ],
)
def test_headroom(
    supply: int, used: float | None, before: float | None, machine: int, cpus: float
) -> None:
    found = estimated(supply, used, before, machine)
    assert found.cpus == pytest.approx(cpus)
    assert found.before == (supply if before is None else before)


def test_it_says_what_it_follows_from() -> None:
    grows = estimated(10, 5.0, 10.0, 80)
    assert str(grows) == "5.0 in use of 10: from 10 to 11 CPUs for reclaimed pods"
    keeps = estimated(10, None, 11.5, 80)
    assert str(keeps) == "not measured of 10: 11.5 CPUs for reclaimed pods"
