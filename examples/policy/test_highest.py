"""Tests of the policy, without a node: its functions are pure."""

import pytest
from cpupool_highest import HighestCPUs

from cpupool.core.cpuset import CPUSet
from cpupool.core.errors import NotEnoughCPUs
from cpupool.core.names import POLICY_CPUS
from cpupool.core.topology import NO_CPUS
from cpupool.core.workloads import Container, Pod, PodUID
from cpupool.policies.base import ChoiceRequest
from cpupool.policies.view import NodeView

VIEW = NodeView(NO_CPUS)


def request(count: int, available: str, has: str = "") -> ChoiceRequest:
    return ChoiceRequest(
        POLICY_CPUS, count, CPUSet.parse(available), has=CPUSet.parse_or_empty(has)
    )


def test_the_highest_free_cpus_are_chosen() -> None:
    assert HighestCPUs().choose(VIEW, request(1, "0-3")).cpus == CPUSet.of(3)
    assert HighestCPUs().choose(VIEW, request(2, "0-1,5")).cpus == CPUSet.parse("1,5")


def test_a_container_keeps_what_it_has() -> None:
    assert HighestCPUs().choose(VIEW, request(1, "2-3", has="0")).cpus == CPUSet.of(0)


def test_too_few_cpus_are_refused() -> None:
    with pytest.raises(NotEnoughCPUs):
        HighestCPUs().choose(VIEW, request(2, "3"))


def test_every_container_requests_a_cpu() -> None:
    containers = (Container("main", whole_cpus=2), Container("sidecar"))
    pod = Pod(PodUID("uid"), "default", "web", None, containers)
    assert HighestCPUs().requests(pod) == {"main": 2, "sidecar": 1}
