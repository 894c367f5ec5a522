from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cpupool.config import kubelet_config


@given(st.integers(0, 10**7))
def test_amounts_come_back_as_they_were(milli: int) -> None:
    assert kubelet_config.milli_of(kubelet_config.as_quantity(milli)) == milli
