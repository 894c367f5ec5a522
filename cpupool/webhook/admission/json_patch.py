"""JSON patches (RFC 6902), in which the webhook answers what is to be changed in a pod."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def patch(before: object, after: object, path: str = "") -> list[dict[str, Any]]:
    """Return the JSON patch (RFC 6902) that changes one document into another.

    It covers the changes of admission: it adds, replaces and removes entries of an object; a list
    grows at its end, keeps its length or is replaced. It does not compare parts that are the same
    object in both documents, so a body may have any depth; a general diff compares everything.
    """
    if before is after:
        return []
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        keys = {**before, **after}
        return [change for key in keys for change in _entry(before, after, key, path)]
    if isinstance(before, list) and isinstance(after, list):
        pairs = list(zip(before, after, strict=False))
        if len(before) == len(after):
            return [
                change
                for place, (old, new) in enumerate(pairs)
                for change in patch(old, new, f"{path}/{place}")
            ]
        if len(pairs) == len(before) and all(old is new for old, new in pairs):
            added = after[len(before) :]
            return [{"op": "add", "path": f"{path}/-", "value": value} for value in added]
    elif type(before) is type(after) and before == after:
        return []
    return [{"op": "replace", "path": path, "value": after}]


def _entry(
    before: Mapping[str, Any], after: Mapping[str, Any], key: str, path: str
) -> list[dict[str, Any]]:
    inner = f"{path}/{key.replace('~', '~0').replace('/', '~1')}"
    if key not in after:
        return [{"op": "remove", "path": inner}]
    if key not in before:
        return [{"op": "add", "path": inner, "value": after[key]}]
    return patch(before[key], after[key], inner)
