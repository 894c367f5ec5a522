"""What a NodeResourceTopology says, and who owns its fields."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from cpupool.core.cpu_manager import Scope, TopologyPolicy
from cpupool.core.node_topology import Amounts, NodeTopology, TopologyManager, Zone
from cpupool.wire import node_topology
from cpupool.wire.node_topology import V1ALPHA1, V1ALPHA2, Field

ZONES, ATTRIBUTES, POLICIES = (
    Field(("zones",)),
    Field(("attributes",)),
    Field(("topologyPolicies",)),
)
LABEL = Field(("metadata", "labels", "app.kubernetes.io/managed-by"))
NOTE = Field(("metadata", "annotations", "node.koordinator.sh/cpu-topology"))
UID = "1-2-3"
TOPOLOGY = NodeTopology(
    zones=(
        Zone(0, {"cpu": Amounts(8, 6, 4)}, {0: 10, 1: 21}),
        Zone(1, {"cpu": Amounts(8, 8, 8)}, {0: 21, 1: 10}),
    ),
    manager=TopologyManager(TopologyPolicy.SINGLE_NUMA_NODE, Scope.POD),
    fingerprint="pfp0v001aa",
)


LABELLED = replace(TOPOLOGY, labels={LABEL.name: "cpupool"})


def with_manager(policy: TopologyPolicy, scope: Scope) -> NodeTopology:
    return NodeTopology((), TopologyManager(policy, scope), "")


def attributes(topology: NodeTopology) -> dict[str, str]:
    found = node_topology.values(topology, V1ALPHA2)[ATTRIBUTES]
    return {each["name"]: each["value"] for each in found}


class TestValues:
    def test_a_zone_has_the_amounts_of_a_numa_node_and_its_distances(self) -> None:
        first, second = node_topology.values(TOPOLOGY, V1ALPHA2)[ZONES]
        assert first == {
            "name": "node-0",
            "type": "Node",
            "costs": [{"name": "node-0", "value": 10}, {"name": "node-1", "value": 21}],
            "resources": [
                {"name": "cpu", "capacity": "8", "allocatable": "6", "available": "4"},
            ],
        }
        assert second["name"] == "node-1"

    def test_the_attributes_are_the_kubelets_words_and_the_fingerprint(self) -> None:
        assert attributes(TOPOLOGY) == {
            "topologyManagerPolicy": "single-numa-node",
            "topologyManagerScope": "pod",
            "nodeTopologyPodsFingerprint": "pfp0v001aa",
            "nodeTopologyPodsFingerprintMethod": "with-exclusive-resources",
        }

    def test_an_unknown_topology_manager_is_not_published(self) -> None:
        unknown = NodeTopology((), None, "pfp0v001aa")
        assert set(attributes(unknown)) == {
            "nodeTopologyPodsFingerprint",
            "nodeTopologyPodsFingerprintMethod",
        }
        assert node_topology.values(unknown, V1ALPHA2)[POLICIES] == []

    @pytest.mark.parametrize(
        ("policy", "scope", "word"),
        [
            (TopologyPolicy.NONE, Scope.CONTAINER, "None"),
            (TopologyPolicy.NONE, Scope.POD, "None"),
            (TopologyPolicy.BEST_EFFORT, Scope.CONTAINER, "BestEffortContainerLevel"),
            (TopologyPolicy.BEST_EFFORT, Scope.POD, "BestEffortPodLevel"),
            (TopologyPolicy.RESTRICTED, Scope.CONTAINER, "RestrictedContainerLevel"),
            (TopologyPolicy.RESTRICTED, Scope.POD, "RestrictedPodLevel"),
            (TopologyPolicy.SINGLE_NUMA_NODE, Scope.CONTAINER, "SingleNUMANodeContainerLevel"),
            (TopologyPolicy.SINGLE_NUMA_NODE, Scope.POD, "SingleNUMANodePodLevel"),
        ],
    )
    def test_policy_and_scope_are_one_word(
        self, policy: TopologyPolicy, scope: Scope, word: str
    ) -> None:
        values = node_topology.values(with_manager(policy, scope), V1ALPHA2)
        assert values[POLICIES] == [word]

    def test_v1alpha1_has_no_attributes(self) -> None:
        old, new = (node_topology.values(TOPOLOGY, version) for version in (V1ALPHA1, V1ALPHA2))
        assert new.keys() - old.keys() == {ATTRIBUTES}
        assert {**old, ATTRIBUTES: new[ATTRIBUTES]} == new

    def test_each_annotation_and_each_label_is_a_field_of_its_own(self) -> None:
        noted = NodeTopology((), None, "", {NOTE.name: "{}"}, {LABEL.name: "Koordinator"})
        values = node_topology.values(noted, V1ALPHA2)
        assert (values[NOTE], values[LABEL]) == ("{}", "Koordinator")


def apply(version: str = V1ALPHA2) -> dict[str, Any]:
    values = node_topology.values(LABELLED, version)
    return node_topology.applied("node-a", UID, version, values)


def stored(**changes: Any) -> dict[str, Any]:
    """Return the object as the API server has it after the agent's apply."""
    body = apply()
    tree: dict[str, Any] = {
        "f:metadata": {
            "f:labels": {".": {}, f"f:{LABEL.name}": {}},
            "f:ownerReferences": {f'k:{{"uid":"{UID}"}}': {}},
        },
        "f:attributes": {},
        "f:topologyPolicies": {},
        "f:zones": {},
    }
    ours = {"manager": "cpupool", "operation": "Apply", "fieldsV1": tree}
    body["metadata"]["managedFields"] = [ours]
    return {**body, **changes}


def shown(body: dict[str, Any], node_uid: str = UID, version: str = V1ALPHA2) -> bool:
    wanted = node_topology.values(LABELLED, version)
    return node_topology.observed(body).shows("node-a", node_uid, wanted)


@pytest.mark.parametrize("version", node_topology.VERSIONS)
def test_an_apply_names_object_owner_and_every_field(version: str) -> None:
    body = apply(version)
    assert body["apiVersion"] == f"topology.node.k8s.io/{version}"
    assert body["kind"] == "NodeResourceTopology"
    assert body["metadata"] == {
        "name": "node-a",
        "labels": {LABEL.name: "cpupool"},
        "ownerReferences": [
            {"apiVersion": "v1", "kind": "Node", "name": "node-a", "uid": UID},
        ],
    }
    assert ("attributes" in body) == (version == V1ALPHA2)
    assert [zone["name"] for zone in body["zones"]] == ["node-0", "node-1"]


class TestObserved:
    def test_the_agents_own_object_shows_what_it_applied(self) -> None:
        found = node_topology.observed(stored())
        assert found.ours == {ZONES, ATTRIBUTES, POLICIES, LABEL}
        assert found.others == {}
        assert shown(stored())

    def test_another_value_another_owner_and_a_lost_field_are_differences(self) -> None:
        assert not shown(stored(zones=[]))
        assert not shown(stored(attributes=None))
        assert not shown(stored(), node_uid="4-5-6")
        # The agent has set a field that it no longer sets.
        assert not shown(stored(), version=V1ALPHA1)
        body = stored()
        del body["metadata"]["managedFields"][0]["fieldsV1"]["f:attributes"]
        assert not shown(body)

    @pytest.mark.parametrize(
        ("manager", "operation"),
        [("nfd-topology-updater", "Update"), ("nfd-master", "Apply"), ("cpupool", "Update")],
    )
    def test_who_else_has_set_a_field_is_named(self, manager: str, operation: str) -> None:
        body = stored()
        tree: dict[str, Any] = {
            "f:zones": {},
            "f:metadata": {"f:annotations": {f"f:{NOTE.name}": {}}},
        }
        entry = {"manager": manager, "operation": operation, "fieldsV1": tree}
        body["metadata"]["managedFields"].append(entry)
        assert node_topology.observed(body).others == {ZONES: manager, NOTE: manager}

    @pytest.mark.parametrize(
        ("manager", "operation"), [("koordlet", "Update"), ("cpupool", "Apply")]
    )
    def test_the_attributes_are_left_out_while_v1alpha1_has_been_written(
        self, manager: str, operation: str
    ) -> None:
        body = stored()
        entry = {"manager": manager, "operation": operation, "fieldsV1": {}}
        body["metadata"]["managedFields"].append(entry)
        assert not node_topology.observed(body).others

        entry["apiVersion"] = "topology.node.k8s.io/v1alpha1"

        assert node_topology.observed(body).others == {ATTRIBUTES: f"{manager} in v1alpha1"}


ODD: list[Any] = [None, "text", 7, [], {}, [None, "text", 7, [[]], {}], {"a": []}, {"f:": 1}]


@pytest.mark.parametrize("odd", ODD, ids=repr)
@pytest.mark.parametrize(
    "path",
    [
        ("metadata",),
        ("metadata", "managedFields"),
        ("metadata", "managedFields", 0),
        ("metadata", "managedFields", 0, "fieldsV1"),
        ("metadata", "managedFields", 0, "manager"),
        ("metadata", "managedFields", 0, "operation"),
        ("metadata", "managedFields", 0, "fieldsV1", "f:metadata"),
        ("metadata", "managedFields", 0, "fieldsV1", "f:metadata", "f:labels"),
        ("metadata", "ownerReferences"),
        ("metadata", "ownerReferences", 0),
        ("metadata", "ownerReferences", 0, "uid"),
        ("metadata", "labels"),
        ("metadata", "labels", LABEL.name),
        ("zones",),
        ("attributes",),
        ("topologyPolicies",),
    ],
    ids=str,
)
def test_an_odd_body_is_a_difference_and_no_error(path: tuple[str | int, ...], odd: Any) -> None:
    body: Any = stored()
    place = body
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = odd
    assert not shown(body)
