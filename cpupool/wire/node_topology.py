"""The custom resource NodeResourceTopology: the content of an object, and the owners of its fields.

Source: k8stopologyawareschedwg/noderesourcetopology-api, manifests/crd.yaml, for the schemas of
v1alpha1 and v1alpha2; kubernetes-sigs/scheduler-plugins, pkg/noderesourcetopology, for the names of
zones and attributes; k8stopologyawareschedwg/podfingerprint for the fingerprint's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from cpupool.core.cpu_manager import Scope, TopologyPolicy

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cpupool.core.node_topology import Amounts, NodeTopology, TopologyManager, Zone

GROUP: Final = "topology.node.k8s.io"
KIND: Final = "NodeResourceTopology"
PLURAL: Final = "noderesourcetopologies"
V1ALPHA1: Final = "v1alpha1"
V1ALPHA2: Final = "v1alpha2"
VERSIONS: Final = (V1ALPHA2, V1ALPHA1)
"""The versions that cpupool writes, the better one first."""
MANAGER: Final = "cpupool"
"""The field manager of server-side apply."""

ZONES: Final = "zones"
ATTRIBUTES: Final = "attributes"
POLICIES: Final = "topologyPolicies"
LISTS: Final = (ZONES, ATTRIBUTES, POLICIES)
"""Each is one field of server-side apply: the schema names no keys of their items."""
_PARTS: Final = ("annotations", "labels")
_COUNTED_PODS: Final = "with-exclusive-resources"
_WORDS: Final = {
    TopologyPolicy.BEST_EFFORT: "BestEffort",
    TopologyPolicy.RESTRICTED: "Restricted",
    TopologyPolicy.SINGLE_NUMA_NODE: "SingleNUMANode",
}


@dataclass(frozen=True, slots=True)
class Field:
    """A field of the object that one manager sets as a whole.

    Attributes:
        path: the keys from the object down to it.
    """

    path: tuple[str, ...]

    @property
    def name(self) -> str:
        """Its name for messages."""
        return self.path[-1]

    def of(self, body: Mapping[str, Any]) -> object:
        """Return its value in an object; None without one."""
        found: object = body
        for key in self.path:
            found = found.get(key) if isinstance(found, dict) else None
        return found

    def written(self, body: dict[str, Any], value: object) -> None:
        """Write its value into an object."""
        *above, last = self.path
        for key in above:
            body = body.setdefault(key, {})
        body[last] = value


Values = Mapping[Field, Any]
"""Field → its value in JSON."""


@dataclass(frozen=True, slots=True)
class Observed:
    """The object as the API server has it, as far as cpupool may write it.

    Attributes:
        body: its fields.
        owners: the Nodes of its owner references, as name and UID.
        ours: the fields that cpupool has set.
        others: field → the other manager that has set it; the attributes also where a manager has
            written the object in v1alpha1, be it cpupool: its next apply ends that.
    """

    body: Mapping[str, Any]
    owners: frozenset[tuple[str, str]]
    ours: frozenset[Field]
    others: Mapping[Field, str]

    def shows(self, node: str, node_uid: str, values: Values) -> bool:
        """Return whether the object is the Node's, and has these values from cpupool and no more.

        Args:
            node: the Node's name.
            node_uid: its UID.
            values: the fields that cpupool sets.
        """
        return (
            (node, node_uid) in self.owners
            and self.ours == values.keys()
            and all(field.of(self.body) == value for field, value in values.items())
        )


def values(topology: NodeTopology, version: str) -> Values:
    """Return every field that the agent sets, but the owner reference.

    Args:
        topology: the node's topology.
        version: the version of the object.
    """
    manager = topology.manager
    found: dict[Field, Any] = {
        Field((ZONES,)): [_zone(zone) for zone in topology.zones],
        Field((POLICIES,)): [] if manager is None else [_policy(manager)],
    }
    # A node of v1alpha1 has no attributes.
    if version != V1ALPHA1:
        found[Field((ATTRIBUTES,))] = [
            {"name": name, "value": value} for name, value in _attributes(topology)
        ]
    for part, entries in zip(_PARTS, (topology.annotations, topology.labels), strict=True):
        for key, value in entries.items():
            found[Field(("metadata", part, key))] = value
    return found


def applied(name: str, node_uid: str | None, version: str, given: Values) -> dict[str, Any]:
    """Return the body of a server-side apply.

    Args:
        name: the node's name.
        node_uid: the UID of the Node: with the Node goes the object. None for an object without
            an owner.
        version: of the object.
        given: the fields to set.
    """
    body: dict[str, Any] = {
        "apiVersion": f"{GROUP}/{version}",
        "kind": KIND,
        "metadata": {"name": name},
    }
    if node_uid is not None:
        owner = {"apiVersion": "v1", "kind": "Node", "name": name, "uid": node_uid}
        body["metadata"]["ownerReferences"] = [owner]
    for field, value in given.items():
        field.written(body, value)
    return body


def observed(body: Mapping[str, Any]) -> Observed:
    """Read an object, without the parts that are no fields of its schema."""
    metadata = _mapping(body.get("metadata"))
    kept = {part: metadata.get(part) for part in _PARTS}
    ours: set[Field] = set()
    others: dict[Field, str] = {}
    for entry in map(_mapping, _list(metadata.get("managedFields"))):
        manager, fields = str(entry.get("manager")), set(_owned(_mapping(entry.get("fieldsV1"))))
        # An update under the same name is no apply: a person has used the agent's token.
        if (manager, entry.get("operation")) == (MANAGER, "Apply"):
            ours |= fields
        else:
            others.update(dict.fromkeys(fields, manager))
        if entry.get("apiVersion") == f"{GROUP}/{V1ALPHA1}":
            # The API server converts the object back to the version of each manager, and answers
            # 500 where v1alpha1 has no such field.
            others[Field((ATTRIBUTES,))] = f"{manager} in {V1ALPHA1}"
    owners = map(_mapping, _list(metadata.get("ownerReferences")))
    return Observed(
        {"metadata": kept, **{name: body.get(name) for name in LISTS}},
        frozenset((str(owner.get("name")), str(owner.get("uid"))) for owner in owners),
        frozenset(ours),
        others,
    )


def _owned(fields: Mapping[str, Any]) -> Iterator[Field]:
    for name in LISTS:
        if f"f:{name}" in fields:
            yield Field((name,))
    metadata = _mapping(fields.get("f:metadata"))
    for part in _PARTS:
        for key in _mapping(metadata.get(f"f:{part}")):
            # A dot stands for the map itself.
            if key != ".":
                yield Field(("metadata", part, key.removeprefix("f:")))


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: object) -> list[object]:
    return value if isinstance(value, list) else []


def _zone(zone: Zone) -> dict[str, Any]:
    return {
        "name": _zone_name(zone.node),
        "type": "Node",
        "costs": [
            {"name": _zone_name(node), "value": distance}
            for node, distance in zone.distances.items()
        ],
        "resources": [_resource(name, amounts) for name, amounts in zone.resources.items()],
    }


def _resource(name: str, amounts: Amounts) -> dict[str, str]:
    return {
        "name": name,
        "capacity": str(amounts.capacity),
        "allocatable": str(amounts.allocatable),
        "available": str(amounts.available),
    }


def _zone_name(node: int) -> str:
    return f"node-{node}"


def _attributes(topology: NodeTopology) -> Iterator[tuple[str, str]]:
    if topology.manager is not None:
        yield "topologyManagerPolicy", topology.manager.policy.value
        yield "topologyManagerScope", topology.manager.scope.value
    yield "nodeTopologyPodsFingerprint", topology.fingerprint
    yield "nodeTopologyPodsFingerprintMethod", _COUNTED_PODS


def _policy(manager: TopologyManager) -> str:
    """Return the kubelet's policy and scope in one word, as the API's types name them."""
    word = _WORDS.get(manager.policy)
    return f"{word}{'Pod' if manager.scope is Scope.POD else 'Container'}Level" if word else "None"
