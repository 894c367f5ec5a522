from __future__ import annotations

import pytest

from cpupool.core import environment
from cpupool.core.assignments import CPUAssignment, Placement
from cpupool.core.cpuset import CPUSet
from tests import builders


def test_an_application_gets_its_cpus_by_pool_and_by_kind() -> None:
    assigned = CPUAssignment(
        Placement.POOLS,
        exclusive=CPUSet.of(4, 6),
        shared=CPUSet.of(0, 1),
        resources={
            builders.resource("exclusive-a"): CPUSet.of(4),
            builders.resource("exclusive-b"): CPUSet.of(6),
            builders.resource("shared"): CPUSet.of(0, 1),
            builders.resource("shared-off"): CPUSet(),
        },
    )
    assert environment.of_container(assigned) == {
        "EXCLUSIVE_CPUS": "4,6",
        "SHARED_CPUS": "0-1",
        "CPUPOOL_CPUS_EXCLUSIVE_A": "4",
        "CPUPOOL_CPUS_EXCLUSIVE_B": "6",
        "CPUPOOL_CPUS_SHARED": "0-1",
    }


def test_of_plugins_cpus_an_application_learns_its_own() -> None:
    assigned = CPUAssignment(Placement.PLUGIN, exclusive=CPUSet.of(2, 3))
    assert environment.of_container(assigned) == {"EXCLUSIVE_CPUS": "2-3"}
    shares = CPUAssignment(Placement.PLUGIN, shared=CPUSet.of(4, 5))
    assert environment.of_container(shares) == {}


@pytest.mark.parametrize("placement", [Placement.DEFAULT, Placement.CONFINED])
def test_a_container_that_is_not_as_requested_gets_nothing(
    placement: Placement,
) -> None:
    came_with = {builders.resource("shared"): CPUSet.of(0)}
    assigned = CPUAssignment(placement, default=CPUSet.of(0), resources=came_with)
    assert environment.of_container(assigned) == {}
