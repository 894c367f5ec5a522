"""What a PATCH makes of an object.

Source: https://kubernetes.io/docs/reference/using-api/api-concepts/#patch-and-apply; conflicts of
server-side apply: https://kubernetes.io/docs/reference/using-api/server-side-apply/#conflicts.
"""

from __future__ import annotations

import copy
import json
from typing import TYPE_CHECKING, Any

import jsonpatch

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

Body = dict[str, Any]
Fields = set[tuple[str, ...]]

MERGE = "application/merge-patch+json"
JSON = "application/json-patch+json"
APPLY = "application/apply-patch+yaml"
_MANAGED = "managedFields"
_NAMES = {"apiVersion", "kind"}


class RefusedPatchError(Exception):
    """The patch is not taken: the HTTP status, Kubernetes' word for it, and a sentence."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(status, reason, message)


def changed(known: Body, content_type: str, text: bytes, parameters: Mapping[str, str]) -> Body:
    """Change an object as the content type says.

    Raises:
        RefusedPatchError: it is not taken.
    """
    if content_type == MERGE:
        return dict(merged(known, json.loads(text)))
    if content_type == JSON:
        return patched(known, json.loads(text))
    if content_type == APPLY:
        return applied(known, text, parameters)
    what = f"the body of the request was in an unknown format: {content_type}"
    raise RefusedPatchError(415, "UnsupportedMediaType", what)


def merged(target: Any, patch: Any) -> Any:
    """Merge as RFC 7386 says."""
    if not isinstance(patch, dict):
        return patch
    result = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merged(result.get(key), value)
    return result


def patched(body: Body, operations: Any) -> Body:
    """Carry out the operations of RFC 6902.

    Raises:
        RefusedPatchError: one of them cannot be carried out, or a `test` fails.
    """
    try:
        result: Body = jsonpatch.apply_patch(copy.deepcopy(body), operations)
    except (jsonpatch.JsonPatchException, jsonpatch.JsonPointerException) as error:
        raise RefusedPatchError(422, "Invalid", f"the patch was refused: {error}") from error
    return result


def applied(body: Body, text: bytes, parameters: Mapping[str, str]) -> Body:
    """Apply fields as their manager; `metadata.managedFields` says who has which.

    Raises:
        RefusedPatchError: no manager is named, or another one owns a field that would be changed.
    """
    manager = parameters.get("fieldManager")
    if not manager:
        raise RefusedPatchError(400, "BadRequest", "fieldManager is required for apply patch")
    given = json.loads(text)
    wanted = {path: value for path, value in _leaves(given) if path[0] not in _NAMES}
    before = dict(_leaves(body))
    different = {path for path, value in wanted.items() if before.get(path) != value}
    owners = _owners(body)
    rivals = {other: fields & different for other, fields in owners.items() if other[0] != manager}
    conflicts = sorted(other for other, fields in rivals.items() if fields)
    if conflicts and parameters.get("force") != "true":
        what = f"Apply failed with conflicts with {', '.join(name for name, _ in conflicts)}"
        raise RefusedPatchError(409, "Conflict", what)
    for other in conflicts:
        owners[other] -= rivals[other]
    result = copy.deepcopy(body)
    mine = (manager, "Apply")
    others = set().union(*(fields for other, fields in owners.items() if other != mine))
    for path in owners.get(mine, set()) - wanted.keys() - others:
        _remove(result, path)
    owners[mine] = set(wanted)
    return _managed(merged(result, given), owners)


def updated(body: Body, changes: Body, manager: str) -> Body:
    """Change fields as a manager that updates or patches: it owns what gets another value.

    Args:
        body: the object.
        changes: the fields with their new values; None removes one.
        manager: who changes them.
    """
    whole = merged(body, changes)
    before, after = dict(_leaves(body)), dict(_leaves(whole))
    taken = {path for path, value in after.items() if path not in before or before[path] != value}
    owners = {
        other: fields - taken - (before.keys() - after.keys())
        for other, fields in _owners(body).items()
    }
    mine = (manager, "Update")
    return _managed(whole, {**owners, mine: owners.get(mine, set()) | taken})


def _managed(body: Body, owners: Mapping[tuple[str, str], Fields]) -> Body:
    body["metadata"][_MANAGED] = [
        {"manager": name, "operation": operation, "fieldsV1": _tree(fields)}
        for (name, operation), fields in owners.items()
        if fields
    ]
    return body


def _owners(body: Body) -> dict[tuple[str, str], Fields]:
    """Give the fields of each manager, by its name and its way of writing."""
    return {
        (entry["manager"], entry["operation"]): set(_paths(entry["fieldsV1"]))
        for entry in body["metadata"].get(_MANAGED, ())
    }


def _paths(tree: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for key, inner in tree.items():
        below = (*path, key.removeprefix("f:"))
        if inner:
            yield from _paths(inner, below)
        else:
            yield below


def _tree(fields: Fields) -> Body:
    tree: Body = {}
    for path in sorted(fields):
        place = tree
        for key in path:
            place = place.setdefault(f"f:{key}", {})
    return tree


def _leaves(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    # A list is one field here, as with `x-kubernetes-list-type: atomic`.
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _leaves(inner, (*path, key))
    else:
        yield path, value


def _remove(body: Body, path: tuple[str, ...]) -> None:
    *parents, last = path
    for key in parents:
        body = body.get(key, {})
    body.pop(last, None)
