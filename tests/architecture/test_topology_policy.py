"""An agent may publish the topology of its own node, and write nothing else of the object.

The expressions run in another implementation of CEL than the API server's.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import cel
import pytest
import yaml

from cpupool.core.node_topology import NodeTopology
from cpupool.wire import node_topology
from tests.apiserver import patches

FILE = Path(__file__).parents[2] / "daemonsets/topology-reporter/admission-policy.yaml"
POLICY, BINDING = yaml.safe_load_all(FILE.read_text())
SPEC = POLICY["spec"]
CONDITIONS = [cel.compile(one["expression"]) for one in SPEC["matchConditions"]]
VARIABLES = {one["name"]: cel.compile(one["expression"]) for one in SPEC["variables"]}
VALIDATIONS = {one["message"]: cel.compile(one["expression"]) for one in SPEC["validations"]}
AGENT = "system:serviceaccount:cpupool:cpupool-agent"
NODE_NAME = "authentication.kubernetes.io/node-name"
NOTE, LABEL = "node.koordinator.sh/cpu-topology", "app.kubernetes.io/managed-by"

Body = dict[str, Any]


def owner(**fields: str) -> Body:
    return {"apiVersion": "v1", "kind": "Node", "name": "node-a", "uid": "1-2-3", **fields}


NFD: Body = {"apiVersion": "v1", "kind": "ConfigMap", "name": "nfd", "uid": "4-5-6"}


def applied(version: str = node_topology.V1ALPHA2, uid: str = "1-2-3") -> Body:
    """Return the object as the agent's apply makes it."""
    topology = NodeTopology((), None, "pfp0v001aa", {NOTE: "{}"}, {LABEL: "Koordinator"})
    values = node_topology.values(topology, version)
    return node_topology.applied("node-a", uid, version, values)


def old() -> Body:
    """Return an object to which NFD and an admin have added their own."""
    ours = applied()
    others: Body = {
        "spec": {"kept": True},
        "metadata": {
            "uid": "7-8-9",
            "resourceVersion": "7",
            "generation": 3,
            "creationTimestamp": "2026-11-24T00:00:00Z",
            "finalizers": ["example.com/keep"],
            "annotations": {"example.com/note": "yes"},
            "labels": {"example.com/team": "a"},
            "ownerReferences": [
                NFD,
                *ours["metadata"]["ownerReferences"],
            ],
        },
    }
    merged: Body = patches.merged(ours, others)
    return merged


def changed(changes: Body) -> Body:
    """Return that object after a write with these changes; None removes a field."""
    stored: Body = {"metadata": {"generation": 4, "managedFields": [{"manager": "cpupool"}]}}
    merged: Body = patches.merged(patches.merged(old(), stored), changes)
    return merged


def denials(new: Body, before: Body | None = None, user: Body | None = None) -> set[str]:
    """Return why the API server denies a write; nothing if it allows it."""
    agent = {"username": AGENT, "extra": {NODE_NAME: ["node-a"]}}
    operation = "UPDATE" if before else "CREATE"
    request = {"userInfo": user or agent, "operation": operation}
    values: Body = {"request": request, "object": new, "oldObject": before}
    if not all(condition.execute(values) for condition in CONDITIONS):
        return set()
    values["variables"] = {}
    for name, expression in VARIABLES.items():
        values["variables"][name] = expression.execute(values)
    return {why for why, allows in VALIDATIONS.items() if not allows.execute(values)}


@pytest.mark.parametrize("version", node_topology.VERSIONS)
def test_an_agent_may_make_the_object_of_its_node(version: str) -> None:
    assert denials(applied(version)) == set()


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"zones": [{"name": "node-0", "type": "Node"}], "attributes": [], "topologyPolicies": []},
        {"zones": None, "attributes": None, "topologyPolicies": None},
        {"metadata": {"annotations": {NOTE: "[]", "kubelet.koordinator.sh/x": "y"}}},
        {"metadata": {"annotations": {NOTE: None}, "labels": {LABEL: None}}},
        {"metadata": {"labels": {LABEL: "cpupool"}}},
        {"metadata": {"ownerReferences": [NFD, owner(uid="other")]}},
    ],
)
def test_an_agent_may_change_what_it_publishes(changes: Body) -> None:
    assert denials(changed(changes), old()) == set()


@pytest.mark.parametrize("extra", [{}, {NODE_NAME: ["node-b"]}, {NODE_NAME: ["node-b", "node-a"]}])
def test_no_agent_may_write_the_object_of_another_node(extra: Body) -> None:
    user = {"username": AGENT, "extra": extra}
    why = {"an agent may write only the object of its own node"}
    assert denials(applied(), user=user) == why
    assert denials(changed({"zones": []}), old(), user) == why


@pytest.mark.parametrize(
    "owners",
    [
        None,
        [],
        [owner(name="node-b")],
        [owner(kind="Pod")],
        [owner(apiVersion="v2")],
        [owner(), owner(kind="Pod", name="web")],
    ],
)
def test_the_owner_is_the_node_and_no_other_is_added(owners: list[Body] | None) -> None:
    why = {"an agent may make only the object's Node its owner"}
    new = copy.deepcopy(applied())
    if owners is None:
        del new["metadata"]["ownerReferences"]
    else:
        new["metadata"]["ownerReferences"] = owners
    assert denials(new) == why
    assert denials(changed({"metadata": {"ownerReferences": owners}}), old()) == why


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"spec": {"kept": False}}, "only zones, attributes"),
        ({"status": {}}, "only zones, attributes"),
        ({"metadata": {"finalizers": None}}, "the metadata of the object"),
        ({"metadata": {"finalizers": ["a/b"]}}, "the metadata of the object"),
        ({"metadata": {"generateName": "a"}}, "the metadata of the object"),
        ({"metadata": {"annotations": {"example.com/note": "no"}}}, "only the annotations"),
        ({"metadata": {"annotations": {"example.com/note": None}}}, "only the annotations"),
        ({"metadata": {"annotations": {"example.com/new": "x"}}}, "only the annotations"),
        ({"metadata": {"annotations": {"node.koordinator.sh.evil/x": "x"}}}, "only the annot"),
        ({"metadata": {"labels": {"example.com/team": "b"}}}, "only the label"),
        ({"metadata": {"labels": {"example.com/team": None}}}, "only the label"),
        ({"metadata": {"labels": {"example.com/new": "x"}}}, "only the label"),
        ({"metadata": {"labels": None}}, "only the label"),
    ],
)
def test_an_agent_may_write_nothing_else(changes: Body, why: str) -> None:
    (found,) = denials(changed(changes), old())
    assert why in found


@pytest.mark.parametrize("owners", [[NFD], [owner()]])
def test_an_agent_may_remove_neither_the_node_nor_another_owner(owners: list[Body]) -> None:
    why = {"an agent may make only the object's Node its owner"}
    assert denials(changed({"metadata": {"ownerReferences": owners}}), old()) == why


def test_a_new_object_has_nothing_else_either() -> None:
    changes = {
        "spec": {},
        "metadata": {"finalizers": ["a/b"], "labels": {"a": "b"}, "annotations": {"a": "b"}},
    }
    assert len(denials(patches.merged(applied(), changes))) == 4


def test_nobody_else_is_asked() -> None:
    nfd = {"username": "system:serviceaccount:node-feature-discovery:nfd-topology-updater"}
    assert denials({**applied(), "spec": {}}, user=nfd) == set()


def test_the_policy_denies_and_fails_closed() -> None:
    assert SPEC["failurePolicy"] == "Fail"
    (rule,) = SPEC["matchConstraints"]["resourceRules"]
    assert rule == {
        "apiGroups": [node_topology.GROUP],
        "apiVersions": ["*"],
        "operations": ["CREATE", "UPDATE"],
        "resources": [node_topology.PLURAL],
    }
    assert BINDING["spec"]["validationActions"] == ["Deny"]
