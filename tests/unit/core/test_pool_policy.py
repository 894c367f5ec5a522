from __future__ import annotations

import pytest

from cpupool.core.cpuset import CPUSet
from cpupool.core.pool_policy import CPUBindPolicy, ExclusivePolicy, NUMAPolicy, PoolPolicy


@pytest.mark.parametrize(
    ("policy", "written"),
    [
        (PoolPolicy(), {}),
        (
            PoolPolicy(
                CPUBindPolicy.SPREAD_ACROSS_CORES,
                NUMAPolicy.MOST_ALLOCATED,
                align_by_uncore_cache=False,
                exclusive=ExclusivePolicy.NUMA_NODE,
                reserved=CPUSet.of(2, 3),
            ),
            {
                "cpuBindPolicy": "spreadAcrossCores",
                "numaPolicy": "mostAllocated",
                "alignByUncoreCache": "false",
                "exclusivePolicy": "numaNode",
                "reserved": "2-3",
            },
        ),
        (PoolPolicy(align_by_uncore_cache=True), {"alignByUncoreCache": "true"}),
    ],
)
def test_a_policy_is_written_without_its_defaults_and_read_back(
    policy: PoolPolicy, written: dict[str, str]
) -> None:
    assert policy.written() == written
    assert PoolPolicy.read(written) == policy


def test_a_value_that_no_policy_has_is_refused() -> None:
    with pytest.raises(ValueError, match="packd"):
        PoolPolicy.read({"numaPolicy": "packd"})
