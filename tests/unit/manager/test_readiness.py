"""What is offered to the kubelet, and touched, before the facts are known: nothing."""

from __future__ import annotations

import pytest

from cpupool.core.cpu_manager import CPUManager
from cpupool.core.cpuset import CPUSet
from cpupool.core.pools import NodePools, Pool
from cpupool.manager import readiness
from cpupool.manager.manager import Manager
from cpupool.manager.readiness import NRI, POOL_FILE
from tests import builders
from tests.machines import MACHINES
from tests.unit.manager.laptop import MACHINE, manager

HOLDER = builders.pod("p", builders.container(exclusive_a=1))
KUBELET = "the kubelet's answer about its CPU manager"
RECORDS = "the kubelet's records of its devices"
POLICY = CPUManager("koordinator", reserved=CPUSet.parse("0-1"))
ALONE = NodePools.of(cpu_manager=POLICY)


def waiting_for(
    node: Manager, *, kubelet_answers: bool = True, records_read: bool = True, nri: bool = False
) -> str:
    return readiness.waiting_for(
        node.snapshot(), kubelet_answers=kubelet_answers, records_read=records_read, nri=nri
    )


def conflict(pools: NodePools, static: str, node: Manager | None = None) -> str:
    """Return what must end beside Koordinator's classes; other policies: `learner/`."""
    node = node or Manager()
    node.reconfigure(pools, MACHINES["laptop_4c8t"].topology())
    node.observe(static_cpus=CPUSet.parse(static))
    return readiness.conflict(node.snapshot())


def test_an_agent_that_knows_nothing_waits_for_the_pods() -> None:
    assert waiting_for(Manager()) == "the list of this node's pods"


def test_it_waits_for_each_record_of_the_kubelet_in_turn() -> None:
    node = manager()
    node.observe(pods=[HOLDER])
    assert waiting_for(node, kubelet_answers=False, records_read=False) == KUBELET
    assert waiting_for(node, records_read=False) == RECORDS
    assert waiting_for(node) == ""
    node.accept(builders.given(HOLDER, exclusive_a="2"))
    assert waiting_for(node, records_read=False) == ""


def test_last_comes_the_pool_file() -> None:
    node = Manager()
    node.observe(pods=[])
    assert waiting_for(node, kubelet_answers=False) == KUBELET
    assert waiting_for(node) == POOL_FILE


@pytest.mark.parametrize(
    ("waits", "offers", "knows_owners"),
    [
        pytest.param("", True, True, id="nothing"),
        pytest.param(POOL_FILE, True, True, id="pods may hold devices of pools that are gone"),
        pytest.param(NRI, False, True, id="NRI"),
        pytest.param(RECORDS, False, False, id="records"),
        pytest.param(KUBELET, False, False, id="the kubelet"),
    ],
)
def test_devices_are_offered_once_the_owner_of_each_cpu_is_known(
    waits: str, offers: bool, knows_owners: bool
) -> None:
    assert readiness.offers(waits) is offers
    assert readiness.knows_owners(waits) is knows_owners


def test_there_is_no_conflict_where_there_is_nothing_to_place() -> None:
    node = Manager()
    node.observe(pods=[], static_cpus=MACHINE.topology().online)
    assert readiness.conflict(node.snapshot()) == ""
    node = manager()
    node.observe(static_cpus=MACHINE.topology().online)
    assert "static CPU manager" in readiness.conflict(node.snapshot())


@pytest.mark.parametrize(
    "pools", [ALONE, NodePools.of(Pool.named("default", "0-5"), cpu_manager=POLICY)]
)
def test_without_pools_to_give_out_there_is_no_conflict(pools: NodePools) -> None:
    assert conflict(pools, "2-7") == ""


@pytest.mark.parametrize("name", ["exclusive_a", "shared_a"])
def test_with_pools_to_give_out_the_kubelet_must_give_up(name: str) -> None:
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
    node = Manager()
    owner = builders.pod("owner", builders.container(exclusive_a=1))
    exclusive = NodePools.of(Pool.named("exclusive_a", "4,6"))
    node.reconfigure(exclusive, MACHINES["laptop_4c8t"].topology())
    node.observe(pods=(owner,))
    node.accept(builders.given(owner, exclusive_a="4"))

    assert conflict(ALONE, "2-7", node).startswith("the end of pods that have CPUs 4 of")

    node.observe(pods=())
    assert conflict(ALONE, "2-7", node) == ""
