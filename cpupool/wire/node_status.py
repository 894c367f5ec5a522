"""The extended resources in the status of a Node, as far as cpupool writes them.

Source: https://kubernetes.io/docs/tasks/administer-cluster/extended-resource-node/; who has set a
field: https://kubernetes.io/docs/reference/using-api/server-side-apply/#field-management.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from cpupool.core.errors import QuantityError
from cpupool.core.pod_resources import is_extended
from cpupool.core.quantity import Quantity
from cpupool.core.workloads import NodeAmount

if TYPE_CHECKING:
    from collections.abc import Mapping

MANAGER: Final = "cpupool"
"""The field manager of server-side apply."""
_CAPACITY: Final = "capacity"
_ALLOCATABLE: Final = "allocatable"
_LISTS: Final = (_CAPACITY, _ALLOCATABLE)


def applied(name: str, uid: str, amounts: Mapping[str, int]) -> dict[str, Any]:
    """Return the body of a server-side apply to the status of a Node.

    Args:
        name: the Node's name.
        uid: its UID; another Node of this name is not changed.
        amounts: extended resource → capacity, and what pods can have.
    """
    body: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "uid": uid},
    }
    # An empty map would be a field of its own, which cpupool then had.
    if amounts:
        texts = {resource: str(amount) for resource, amount in sorted(amounts.items())}
        body["status"] = dict.fromkeys(_LISTS, texts)
    return body


def resources(body: Mapping[str, Any]) -> dict[str, NodeAmount]:
    """Read the extended resources of a Node, without those that are not as in the API."""
    status = _mapping(body.get("status"))
    capacity, allocatable = (_mapping(status.get(name)) for name in _LISTS)
    ours = _ours(_mapping(body.get("metadata")))
    return {
        name: NodeAmount(_count(capacity.get(name)), _count(allocatable.get(name)), name in ours)
        for name in sorted(capacity.keys() | allocatable.keys())
        if is_extended(name)
    }


def _ours(metadata: Mapping[str, Any]) -> frozenset[str]:
    """Return the resources whose capacity, or allocatable amount, cpupool has set."""
    entries = metadata.get("managedFields")
    found: set[str] = set()
    for entry in map(_mapping, entries if isinstance(entries, list) else ()):
        if (entry.get("manager"), entry.get("operation")) == (MANAGER, "Apply"):
            status = _mapping(_mapping(entry.get("fieldsV1")).get("f:status"))
            for name in _LISTS:
                found |= _mapping(status.get(f"f:{name}")).keys()
    return frozenset(name.removeprefix("f:") for name in found)


def _count(written: object) -> int | None:
    try:
        return Quantity.read(written).count
    except QuantityError:
        return None


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}
