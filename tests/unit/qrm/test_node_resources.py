from __future__ import annotations

from math import inf, nan

import pytest

from cpupool.core.names import Names
from cpupool.core.workloads import NodeAmount
from cpupool.qrm.node_resources import StatusAmounts, shown, wanted

NIC, GPU = "example.com/nic", "example.com/gpu"


def decided(
    offers: dict[str, dict[str, float]],
    present: dict[str, NodeAmount] | None = None,
    *,
    complete: bool = True,
) -> StatusAmounts:
    return wanted(offers, present or {}, Names(), complete=complete)


def why(name: str, amount: float = 1, present: NodeAmount | None = None) -> str:
    found = decided({"a": {name: amount}}, {name: present} if present else {})
    assert found.amounts.keys() | found.refused.keys() == {name}
    return found.refused.get(name, "")


def test_all_plugins_offers_are_wanted_in_whole_numbers() -> None:
    offers = {"a": {NIC: 2.9}, "b": {GPU: 8999.99999}}
    assert decided(offers) == StatusAmounts({NIC: 2, GPU: 9000}, {})


@pytest.mark.parametrize("amount", [0.0, 0.9])
def test_a_resource_of_which_pods_can_have_nothing_is_left_out(amount: float) -> None:
    assert decided({"a": {NIC: amount}}) == StatusAmounts({}, {})


def test_of_two_plugins_the_one_of_the_resource_counts_else_the_first_by_name() -> None:
    assert decided({"a": {NIC: 1}, NIC: {NIC: 2}, "z": {NIC: 3}}).amounts == {NIC: 2}
    assert decided({"z": {NIC: 3}, "b": {NIC: 1}}).amounts == {NIC: 1}


@pytest.mark.parametrize(
    "name",
    ["cpu", "memory", "pods", "ephemeral-storage", "hugepages-2Mi", "a.kubernetes.io/b", "A/b"],
)
def test_a_resource_of_kubernetes_is_refused(name: str) -> None:
    assert "no name of an extended resource" in why(name)


@pytest.mark.parametrize("pool", ["exclusive_a", "shared_b"])
def test_the_name_of_a_pool_is_refused(pool: str) -> None:
    assert "a pool of cpupool" in why(f"nokia.k8s.io/{pool}")
    assert why(f"example.com/{pool}") == why("nokia.k8s.io/sriov_vfio") == ""


@pytest.mark.parametrize("amount", [nan, inf, -inf, -1.0, 2.0**63])
def test_a_number_that_is_no_amount_is_refused(amount: float) -> None:
    assert "no amount from 0 to 2^63 - 1" in why(NIC, amount)


def test_the_largest_amount_is_written() -> None:
    largest = 2.0**63 - 1024
    assert decided({"a": {NIC: largest}}).amounts == {NIC: 2**63 - 1024}


@pytest.mark.parametrize("present", [NodeAmount(7, 7), NodeAmount(7, None), NodeAmount(0, 7)])
def test_what_another_program_has_set_stays(present: NodeAmount) -> None:
    assert f"another program has set it to {present.capacity}" in why(NIC, present=present)


@pytest.mark.parametrize(
    "present",
    [NodeAmount(0, 0), NodeAmount(None, None), NodeAmount(7, 7, ours=True)],
    ids=["zeroed by the kubelet", "unreadable", "ours"],
)
def test_what_the_kubelet_has_zeroed_and_what_is_ours_is_written(present: NodeAmount) -> None:
    assert why(NIC, present=present) == ""


def test_an_earlier_agents_resource_stays_until_plugins_have_had_time() -> None:
    present = {
        NIC: NodeAmount(7, 7, ours=True),
        GPU: NodeAmount(2, 2),
        "example.com/zero": NodeAmount(0, 0, ours=True),
    }
    assert decided({}, present, complete=False) == StatusAmounts({NIC: 7}, {})
    assert decided({}, present) == StatusAmounts({}, {})
    assert decided({"a": {NIC: 5}}, present, complete=False).amounts == {NIC: 5}
    bad = decided({"a": {NIC: -1}}, present, complete=False)
    assert bad.amounts == {}
    assert bad.refused.keys() == {NIC}


def test_the_status_shows_the_amounts_if_both_lists_have_them_from_cpupool() -> None:
    ours = NodeAmount(7, 7, ours=True)
    others = {GPU: NodeAmount(2, 2)}
    assert shown({NIC: ours, **others}, {NIC: 7})
    assert shown(others, {})
    assert not shown({NIC: ours}, {NIC: 8})
    assert not shown({NIC: ours}, {})
    assert not shown({NIC: NodeAmount(7, 7)}, {NIC: 7})
    assert not shown({NIC: NodeAmount(7, 6, ours=True)}, {NIC: 7})
    assert not shown({NIC: NodeAmount(6, 7, ours=True)}, {NIC: 7})
    assert not shown({}, {NIC: 7})
