"""The CRD takes what the agent applies, in both versions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from cpupool.core.cpu_manager import Scope, TopologyPolicy
from cpupool.core.node_topology import Amounts, NodeTopology, TopologyManager, Zone
from cpupool.wire import node_topology
from cpupool.wire.node_topology import V1ALPHA1, V1ALPHA2

FOLDER = Path(__file__).parents[2] / "daemonsets"
CRD = yaml.safe_load((FOLDER / "topology-crd/crd.yaml").read_text())
VERSIONS = {version["name"]: version for version in CRD["spec"]["versions"]}
RESOURCES = {"cpu": Amounts(8, 6, 4), "memory": Amounts(1 << 36, 1 << 36, 0)}
FULL = NodeTopology(
    (Zone(0, RESOURCES, {0: 10, 1: 21}), Zone(1, RESOURCES, {0: 21, 1: 10})),
    TopologyManager(TopologyPolicy.SINGLE_NUMA_NODE, Scope.POD),
    "pfp0v001aa",
    {"node.koordinator.sh/cpu-topology": "{}"},
    {"app.kubernetes.io/managed-by": "Koordinator"},
)
EMPTY = NodeTopology((), None, "")


def closed(schema: Any) -> Any:
    """Return a schema that refuses what the API server would prune."""
    if isinstance(schema, list):
        return [closed(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    found = {key: closed(value) for key, value in schema.items()}
    if isinstance(schema.get("properties"), dict):
        found["additionalProperties"] = False
    return found


def schema(version: str) -> Any:
    return closed(VERSIONS[version]["schema"]["openAPIV3Schema"])


def applied(topology: NodeTopology, version: str) -> dict[str, Any]:
    values = node_topology.values(topology, version)
    return node_topology.applied("node-a", "1-2-3", version, values)


@pytest.mark.parametrize("topology", [FULL, EMPTY], ids=["full", "empty"])
@pytest.mark.parametrize("version", node_topology.VERSIONS)
def test_the_schema_takes_the_agents_object_and_prunes_nothing(
    version: str, topology: NodeTopology
) -> None:
    jsonschema.validate(applied(topology, version), schema(version))


@pytest.mark.parametrize("field", ["name", "capacity", "allocatable", "available"])
@pytest.mark.parametrize("version", node_topology.VERSIONS)
def test_a_resource_has_every_amount_as_a_quantity(version: str, field: str) -> None:
    body = applied(FULL, version)
    resource = body["zones"][0]["resources"][0]
    resource[field] = 7 if field == "name" else "many"
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(body, schema(version))
    del resource[field]
    with pytest.raises(jsonschema.ValidationError, match="is a required property"):
        jsonschema.validate(body, schema(version))


def test_v1alpha1_has_no_attributes_and_wants_policies() -> None:
    with pytest.raises(jsonschema.ValidationError, match="'attributes' was unexpected"):
        jsonschema.validate(applied(FULL, V1ALPHA2), schema(V1ALPHA1))
    assert VERSIONS[V1ALPHA1]["schema"]["openAPIV3Schema"]["required"] == [
        "topologyPolicies",
        "zones",
    ]
    assert VERSIONS[V1ALPHA2]["schema"]["openAPIV3Schema"]["required"] == ["zones"]


def test_the_crd_is_the_communitys() -> None:
    spec = CRD["spec"]
    assert CRD["metadata"]["name"] == f"{node_topology.PLURAL}.{node_topology.GROUP}"
    assert (spec["group"], spec["scope"]) == (node_topology.GROUP, "Cluster")
    assert spec["names"] == {
        "kind": node_topology.KIND,
        "listKind": f"{node_topology.KIND}List",
        "plural": node_topology.PLURAL,
        "singular": "noderesourcetopology",
        "shortNames": ["node-res-topo"],
    }
    # Without a conversion webhook a version keeps of another one what both have.
    assert "conversion" not in spec
    assert [(name, found["served"], found["storage"]) for name, found in VERSIONS.items()] == [
        (V1ALPHA1, True, False),
        (V1ALPHA2, True, True),
    ]
    # The API server refuses a CRD of a group of Kubernetes without it.
    assert CRD["metadata"]["annotations"]["api-approved.kubernetes.io"].startswith("https://")


def test_no_overlay_has_the_crd() -> None:
    for path in FOLDER.glob("*/kustomization.yaml"):
        found = yaml.safe_load(path.read_text())
        listed = [*found.get("resources", ()), *found.get("components", ())]
        assert not any("topology-crd" in each for each in listed)
