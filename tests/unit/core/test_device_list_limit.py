from __future__ import annotations

import pytest

from cpupool.core.device_list_limit import device_list_bytes


@pytest.mark.parametrize("count", [0, 1, 10, 11, 256, 1000, 10_000, 10_001, 100_000, 101_000])
def test_a_device_list_is_sized_to_the_byte(count: int) -> None:
    # Device{ID, "Healthy"} in ListAndWatchResponse: 2 + (2 + id) + (2 + 7) bytes.
    expected = sum(13 + len(str(number)) for number in range(count))
    assert device_list_bytes(count) == expected
