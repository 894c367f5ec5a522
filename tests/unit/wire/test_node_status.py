from __future__ import annotations

from typing import Any

import pytest

from cpupool.core.workloads import NodeAmount
from cpupool.wire.node_status import applied, resources

NIC = "example.com/nic"


def managed(manager: str, *lists: str, operation: str = "Apply") -> dict[str, Any]:
    fields: Any = {"f:status": {f"f:{name}": {f"f:{NIC}": {}} for name in lists}}
    return {"manager": manager, "operation": operation, "fieldsV1": fields}


def body(capacity: Any, allocatable: Any, *entries: Any) -> dict[str, Any]:
    return {
        "metadata": {"managedFields": list(entries)},
        "status": {"capacity": capacity, "allocatable": allocatable},
    }


def test_both_lists_have_each_amount() -> None:
    amounts = {"example.com/b": 9000, "example.com/a": 1}
    texts = {"example.com/a": "1", "example.com/b": "9000"}
    assert applied("node-a", "1-2-3", amounts) == {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": "node-a", "uid": "1-2-3"},
        "status": {"capacity": texts, "allocatable": texts},
    }


def test_without_resources_no_field_is_set() -> None:
    assert applied("node-a", "1-2-3", {}).keys() == {"apiVersion", "kind", "metadata"}


def test_extended_resources_are_read_in_the_words_of_the_api_server() -> None:
    found = resources(body({NIC: "9k", "cpu": "8"}, {NIC: "9000", "a.kubernetes.io/b": "1"}))
    assert found == {NIC: NodeAmount(9000, 9000)}


@pytest.mark.parametrize("lists", [("capacity",), ("allocatable",), ("capacity", "allocatable")])
def test_ours_is_what_cpupool_has_applied(lists: tuple[str, ...]) -> None:
    here = {NIC: "1"}
    for entry, ours in (
        (managed("cpupool", *lists), True),
        (managed("kubelet", *lists), False),
        (managed("cpupool", *lists, operation="Update"), False),
    ):
        assert resources(body(here, here, entry))[NIC].ours is ours


@pytest.mark.parametrize(
    ("capacity", "allocatable", "found"),
    [
        ({NIC: "1"}, None, NodeAmount(1, None)),
        ({}, {NIC: "1"}, NodeAmount(None, 1)),
        ({NIC: "500m"}, {NIC: "x"}, NodeAmount(None, None)),
        ({NIC: 2}, {NIC: -1}, NodeAmount(2, None)),
    ],
)
def test_an_amount_that_is_missing_or_no_whole_number_is_none(
    capacity: Any, allocatable: Any, found: NodeAmount
) -> None:
    assert resources(body(capacity, allocatable)) == {NIC: found}


@pytest.mark.parametrize(
    "odd",
    [
        {},
        {"status": [], "metadata": 1},
        {"status": {"capacity": []}, "metadata": {"managedFields": {}}},
        {"metadata": {"managedFields": [1, {"manager": "cpupool", "operation": "Apply"}]}},
    ],
)
def test_what_is_not_as_in_the_api_is_missing(odd: Any) -> None:
    assert resources(odd) == {}
