"""An agent may write extended resources into the status of its own Node, and nothing else of it.

The expressions run in another implementation of CEL than the API server's.
"""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import cel
import pytest
import yaml

from cpupool.wire import node_status
from tests.apiserver import patches

FILE = Path(__file__).parents[2] / "daemonsets/node-resources/admission-policy.yaml"
POLICY, BINDING = yaml.safe_load_all(FILE.read_text())
SPEC = POLICY["spec"]
CONDITIONS = [cel.compile(each["expression"]) for each in SPEC["matchConditions"]]
VARIABLES = {each["name"]: cel.compile(each["expression"]) for each in SPEC["variables"]}
VALIDATIONS = {each["message"]: cel.compile(each["expression"]) for each in SPEC["validations"]}
AGENT = "system:serviceaccount:cpupool:cpupool-agent"
NODE_NAME = "authentication.kubernetes.io/node-name"
NIC, GPU = "example.com/nic", "example.com/gpu"

Body = dict[str, Any]

NODE: Body = {
    "metadata": {
        "name": "node-a",
        "uid": "1-2-3",
        "resourceVersion": "7",
        "labels": {"role": "worker"},
        "managedFields": [],
    },
    "spec": {},
    "status": {
        "capacity": {"cpu": "8", "a.kubernetes.io/b": "1", GPU: "2"},
        "allocatable": {"cpu": "7", "a.kubernetes.io/b": "1", GPU: "2"},
        "conditions": [{"type": "Ready", "status": "True"}],
    },
}


def applied(amounts: dict[str, int], before: Body = NODE) -> Body:
    """Return the Node as the agent's apply makes it."""
    body = node_status.applied("node-a", "1-2-3", amounts)
    parameters = {"fieldManager": node_status.MANAGER, "force": "true"}
    result = patches.applied(copy.deepcopy(before), json.dumps(body).encode(), parameters)
    return {key: value for key, value in result.items() if key not in {"apiVersion", "kind"}}


def changed(changes: Body, before: Body = NODE) -> Body:
    merged: Body = patches.merged(copy.deepcopy(before), changes)
    return merged


def denials(new: Body, old: Body = NODE, user: Body | None = None) -> set[str]:
    """Return why the API server denies a change; nothing if it allows it.

    Args:
        new: the Node.
        old: the Node before.
        user: who asks; None for the agent of the Node.
    """
    agent = {"username": AGENT, "extra": {NODE_NAME: ["node-a"]}}
    context = cel.Context()
    context.add_variable("request", {"userInfo": user or agent})
    context.add_variable("object", new)
    context.add_variable("oldObject", old)
    if not all(condition.execute(context) for condition in CONDITIONS):
        return set()
    context.add_variable(
        "variables", {name: variable.execute(context) for name, variable in VARIABLES.items()}
    )
    return {why for why, allows in VALIDATIONS.items() if not allows.execute(context)}


def test_an_agent_writes_changes_and_removes_extended_resources() -> None:
    first = applied({NIC: 7})
    second = applied({NIC: 8, "example.com/a": 1}, first)
    last = applied({}, second)
    assert last["status"] == NODE["status"]
    assert denials(first) == denials(second, first) == denials(last, second) == set()


def test_a_node_that_has_no_lists_yet_gets_them() -> None:
    young: Body = {**NODE, "status": {}}
    assert denials(applied({NIC: 7}, young), young) == set()


@pytest.mark.parametrize("extra", [{}, {NODE_NAME: ["node-b"]}, {NODE_NAME: ["node-b", "node-a"]}])
def test_no_agent_writes_another_node(extra: Body) -> None:
    user = {"username": AGENT, "extra": extra}
    assert denials(applied({NIC: 7}), user=user) == {
        "an agent may write only the status of its own node"
    }


def test_no_other_account_is_asked() -> None:
    kubelet = {"username": "system:node:node-a"}
    assert denials(changed({"status": {"capacity": {"cpu": "9"}}}), user=kubelet) == set()


@pytest.mark.parametrize("amount", ["9", None])
@pytest.mark.parametrize("name", ["cpu", "a.kubernetes.io/b"])
@pytest.mark.parametrize(
    ("part", "why"),
    [
        ("capacity", "an agent may write only the capacity of extended resources"),
        ("allocatable", "an agent may write only what pods can have of extended resources"),
    ],
)
def test_an_agent_writes_no_resource_of_kubernetes(
    part: str, why: str, name: str, amount: str | None
) -> None:
    assert denials(changed({"status": {part: {name: amount}}})) == {why}


@pytest.mark.parametrize("part", ["capacity", "allocatable"])
@pytest.mark.parametrize("name", ["memory", "hugepages-2Mi", "pods", "kubernetes.io/c"])
def test_an_agent_adds_no_resource_of_kubernetes(part: str, name: str) -> None:
    (why,) = denials(changed({"status": {part: {name: "1"}}}))
    assert "of extended resources" in why


@pytest.mark.parametrize(
    "changes",
    [
        {"status": {"conditions": [{"type": "Ready", "status": "False"}]}},
        {"status": {"conditions": None}},
        {"status": {"phase": "Running"}},
    ],
)
def test_an_agent_writes_no_other_part_of_the_status(changes: Body) -> None:
    assert denials(changed(changes)) == {
        "an agent may write only capacity and allocatable of a node's status"
    }


@pytest.mark.parametrize(
    "metadata",
    [
        {"labels": {"role": "infra"}},
        {"labels": None},
        {"annotations": {"a": "b"}},
        {"finalizers": ["a/b"]},
    ],
)
def test_an_agent_writes_no_metadata(metadata: Body) -> None:
    assert denials(changed({"metadata": metadata})) == {
        "an agent may not write the metadata of a node"
    }


def test_the_policy_denies_and_fails_closed() -> None:
    assert SPEC["failurePolicy"] == "Fail"
    (rule,) = SPEC["matchConstraints"]["resourceRules"]
    assert (rule["operations"], rule["resources"]) == (["UPDATE"], ["nodes/status"])
    assert BINDING["spec"]["validationActions"] == ["Deny"]
