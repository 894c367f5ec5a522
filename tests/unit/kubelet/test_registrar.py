from __future__ import annotations

import pytest

from cpupool.kubelet.registrar import retry_s


@pytest.mark.parametrize(
    ("failures", "least", "most"),
    [
        pytest.param(0, 0.025, 0.05, id="the first retry comes at once"),
        pytest.param(4, 0.4, 0.8, id="each next one after twice the time"),
        pytest.param(8, 5.0, 10.0, id="up to ten seconds"),
        pytest.param(1_000_000, 5.0, 10.0, id="and so for months"),
    ],
)
def test_retries_slow_down_to_a_limit(failures: int, least: float, most: float) -> None:
    delays = [retry_s(failures) for _ in range(50)]
    assert least <= min(delays) < max(delays) <= most
