"""The CPU time of a container; through the manager in `tests/unit/manager/test_mixed_cpus.py`."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cpupool.core.bandwidth import Limit
from cpupool.core.cpuset import CPUSet
from cpupool.core.requests import CPURequest
from cpupool.policies import cpu_limit
from tests import builders


@pytest.mark.parametrize(
    ("pools", "limit"),
    [
        ({"shared_a": 1500}, Limit(900, own_milli=4000)),
        ({"exclusive_a": 2}, Limit(None)),
        ({"exclusive_a": 2, "shared_a": 1500}, Limit(None)),
    ],
)
def test_the_least_limit_is_in_force_unless_cpus_are_the_containers_own(
    pools: dict[str, int], limit: Limit
) -> None:
    request = CPURequest(builders.asking(pools))
    container = replace(builders.container(), limit_milli=4000, requests=request.amounts)
    pod = builders.pod("web", container, cpu=900)
    assert cpu_limit.of_pools(pod, container, request, CPUSet.of(6, 7)) == limit


@pytest.mark.parametrize(
    ("cpu", "wanted", "limit"),
    [(2000, {"main"}, Limit(None)), (1500, {"main"}, None), (1500, set(), Limit(None))],
)
def test_a_part_of_a_cpu_keeps_its_own_limit(
    cpu: int, wanted: set[str], limit: Limit | None
) -> None:
    assert cpu_limit.of_policy(builders.container(cpu=cpu), wanted) == limit


@pytest.mark.parametrize(("equal", "limit"), [(2, Limit(None)), (0, None)])
def test_a_whole_request_needs_no_guaranteed_pod(equal: int, limit: Limit | None) -> None:
    container = replace(builders.container(), equal_cpus=equal)
    assert cpu_limit.of_policy(container, {"main"}) == limit
