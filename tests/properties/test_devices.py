from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cpupool.core import devices
from cpupool.core.names import Names


@given(st.sets(st.integers(0, 999_999_999).map(str), min_size=1))
def test_described_ids_are_read_back(ids: set[str]) -> None:
    annotations = {"nokia.k8s.io/allocated.shared": devices.describe_ids(ids)}
    assert devices.allocated(annotations, {}, Names()) == {"shared": ids}
