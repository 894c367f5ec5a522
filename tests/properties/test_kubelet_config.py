from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cpupool.config import kubelet_config
from cpupool.core.quantity import as_quantity


@given(st.integers(0, 10**7))
def test_amounts_come_back_as_they_were(milli: int) -> None:
    assert kubelet_config.milli_of(as_quantity(milli)) == milli
