"""The kubelet's static CPU manager beside Koordinator's classes: when nothing is placed, and why.

`learner/test_static_cpu_manager.py` has the other policies.
"""

from __future__ import annotations

import pytest

from cpupool.core.cpu_manager import CPUManager
from cpupool.core.cpuset import CPUSet
from cpupool.core.pools import NodePools, Pool
from cpupool.manager import kubelet_conflict
from cpupool.manager.manager import Manager
from tests import builders
from tests.machines import MACHINES

POLICY = CPUManager("koordinator", reserved=CPUSet.parse("0-1"))
ALONE = NodePools.of(cpu_manager=POLICY)


def conflict(pools: NodePools, static: str, manager: Manager | None = None) -> str:
    manager = manager or Manager()
    manager.reconfigure(pools, MACHINES["laptop_4c8t"].topology())
    manager.observe(static_cpus=CPUSet.parse(static))
    return kubelet_conflict.found(manager.snapshot())


@pytest.mark.parametrize(
    "pools", [ALONE, NodePools.of(Pool.named("default", "0-5"), cpu_manager=POLICY)]
)
def test_without_pools_to_give_out_there_is_none(pools: NodePools) -> None:
    assert conflict(pools, "2-7") == ""


@pytest.mark.parametrize("name", ["exclusive_a", "shared_a"])
def test_with_them_the_kubelet_must_give_up(name: str) -> None:
    pools = NodePools.of(Pool.named(name, "6"), cpu_manager=POLICY)

    assert conflict(pools, "2-7") == (
        "the kubelet to give up its static CPU manager, which gives out CPUs 2-7: set"
        " cpuManagerPolicy to none, delete cpu_manager_state in its folder and restart the kubelet;"
        " or remove the exclusive and shared pools from the pool file: without them the policy"
        " koordinator of cpuManager works beside it"
    )


def test_the_kubelet_must_not_give_out_the_reserved_cpus() -> None:
    assert conflict(ALONE, "1-7") == (
        "the kubelet to keep CPUs 1, which cpuManager reserves in the pool file and the kubelet's"
        " static CPU manager gives out: add them to its reservedSystemCPUs, delete"
        " cpu_manager_state in its folder and restart the kubelet"
    )


def test_no_pod_may_have_cpus_of_an_exclusive_pool_that_is_gone() -> None:
    manager = Manager()
    owner = builders.pod("owner", builders.container(exclusive_a=1))
    exclusive = NodePools.of(Pool.named("exclusive_a", "4,6"))
    manager.reconfigure(exclusive, MACHINES["laptop_4c8t"].topology())
    manager.observe(pods=(owner,))
    manager.accept(builders.given(owner, exclusive_a="4"))

    assert conflict(ALONE, "2-7", manager).startswith("the end of pods that have CPUs 4 of")

    manager.observe(pods=())
    assert conflict(ALONE, "2-7", manager) == ""
