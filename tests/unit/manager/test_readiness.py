"""What is offered to the kubelet, and touched, before the facts are known: nothing."""

from __future__ import annotations

import pytest

from cpupool.manager import readiness
from cpupool.manager.manager import Manager
from cpupool.manager.readiness import NRI, POOL_FILE
from tests import builders
from tests.unit.manager.laptop import MACHINE, manager

HOLDER = builders.pod("p", builders.container(exclusive_a=1))
KUBELET = "the kubelet's answer about its CPU manager"
RECORDS = "the kubelet's records of its devices"


def waiting_for(
    node: Manager, *, kubelet_answers: bool = True, records_read: bool = True, nri: bool = False
) -> str:
    return readiness.waiting_for(
        node.snapshot(), kubelet_answers=kubelet_answers, records_read=records_read, nri=nri
    )


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
