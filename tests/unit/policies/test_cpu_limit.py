"""The CPU time of a container; through the manager in `tests/unit/manager/test_mixed_cpus.py`."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cpupool.core.bandwidth import Limit
from cpupool.core.cpuset import CPUSet
from cpupool.core.grants import WHOLE_POD
from cpupool.core.requests import CPURequest
from cpupool.core.workloads import ContainerKind
from cpupool.policies import cpu_limit
from tests import builders

OWN = builders.chosen("web-uid", "main", CPUSet.of(2, 3))


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
    assert cpu_limit.of_policy(OWN, builders.container(cpu=cpu), wanted) == limit


@pytest.mark.parametrize(("equal", "limit"), [(2, Limit(None)), (0, None)])
def test_a_whole_request_needs_no_guaranteed_pod(equal: int, limit: Limit | None) -> None:
    container = replace(builders.container(), equal_cpus=equal)
    assert cpu_limit.of_policy(OWN, container, {"main"}) == limit


@pytest.mark.parametrize(
    ("name", "kind", "level_cpus", "limit"),
    [
        pytest.param("db", ContainerKind.APP, 2, Limit(None), id="a part of its own"),
        pytest.param("db", ContainerKind.APP, 0, Limit(None), id="also after a resize"),
        pytest.param("logs", ContainerKind.APP, 0, None, id="the rest"),
        pytest.param("logs", ContainerKind.APP, 1, None, id="the rest, also after a resize"),
        pytest.param("init", ContainerKind.INIT, 0, None, id="an init container that shares"),
        pytest.param("init", ContainerKind.INIT, 1, Limit(None), id="an init container that owns"),
    ],
)
def test_only_the_owner_of_a_part_of_a_bubble_has_no_limit(
    name: str, kind: ContainerKind, level_cpus: int, limit: Limit | None
) -> None:
    parts = {"db": CPUSet.of(2, 3), "init": CPUSet.of(2, 3, 4), WHOLE_POD: CPUSet.of(4)}
    bubble = replace(OWN, parts=parts, bubble=True)
    container = replace(builders.container(name, kind), level_cpus=level_cpus)
    assert cpu_limit.of_policy(bubble, container, {WHOLE_POD}) == limit
