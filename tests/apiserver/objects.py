"""What the cluster holds, by resource and namespace, with its versions and their history."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from tests.apiserver import patches
from tests.apiserver.patches import RefusedPatchError
from tests.apiserver.watches import line, matches

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.apiserver.paths import Path
    from tests.apiserver.watches import Watch

Body = dict[str, Any]
Answer = tuple[int, dict[str, str], Body]


@dataclass(frozen=True)
class Change:
    version: int
    kind: str
    collection: Path
    body: Body

    def line(self) -> bytes:
        meant = {"kind": self.collection.kind, "apiVersion": self.collection.api_version}
        return line(self.kind, {**meant, **self.body})


class Objects:
    """The objects and the open watches; who uses it holds the server's lock."""

    def __init__(self) -> None:
        self.version = 100
        self.compacted = 0
        self.history: list[Change] = []
        self.watches: list[Watch] = []
        # By the path of the collection, and there pods and nodes by UID, and the rest by name.
        self._bodies: defaultdict[Path, dict[str, Body]] = defaultdict(dict)
        self._pages: dict[str, tuple[str, list[Body]]] = {}

    def everywhere(self, collection: Path) -> dict[str, tuple[Path, Body]]:
        """Give each object of a collection by UID, with the collection that holds it."""
        return {body["metadata"]["uid"]: (path, body) for path, body in self._covered(collection)}

    def _covered(self, collection: Path) -> list[tuple[Path, Body]]:
        return [
            (path, body)
            for path, bodies in self._bodies.items()
            if collection.covers(path)
            for body in bodies.values()
        ]

    def change(self, kind: str, collection: Path, key: str, body: Body) -> None:
        self.version += 1
        body = _copied(body)
        body["metadata"]["resourceVersion"] = str(self.version)
        if kind == "DELETED":
            del self._bodies[collection][key]
        else:
            self._bodies[collection][key] = body
        change = Change(self.version, kind, collection, body)
        self.history.append(change)
        for watch in self.watches:
            if watch.wants(collection, body):
                watch.put(change.line())

    def replace_all(self, resource: Path, given: Mapping[str, Body]) -> None:
        """Make these, by UID, the objects of a resource in all namespaces."""
        known = self.everywhere(resource)
        for uid in known.keys() - given:
            collection, body = known[uid]
            self.change("DELETED", collection, uid, body)
        for uid, body in given.items():
            collection = replace(resource, namespace=body["metadata"].get("namespace", "default"))
            if uid not in known:
                self.change("ADDED", collection, uid, body)
            elif _unversioned(known[uid][1]) != _unversioned(body):
                self.change("MODIFIED", collection, uid, body)

    def tell(self, *lines: object, resource: str = "") -> None:
        """Write these into every open watch of a resource, or of all."""
        for watch in self.watches:
            if resource in {"", watch.collection.plural}:
                for text in lines:
                    watch.put(text)

    def keep(self, path: Path, body: Body) -> None:
        """Hold this object at its path, as a new version of the one that is there, if there is."""
        found = self._find(path)
        key, known = found or (path.name, None)
        uid = known["metadata"]["uid"] if known else f"{path.name}-{self.version}"
        metadata = {**body.get("metadata", {}), "name": path.name, "uid": uid}
        kind = "MODIFIED" if known else "ADDED"
        self.change(kind, path.collection, key, {**body, "metadata": metadata})

    def kept(self, path: Path) -> Body:
        """Give what is held at a path."""
        found = self._find(path)
        assert found, f"there is no {path}"
        return _copied(found[1])

    def change_as(self, manager: str, path: Path, changes: Body) -> None:
        """Change fields of an object as another manager does."""
        self.keep(path, patches.updated(self.kept(path), changes, manager))

    def has(self, path: Path) -> bool:
        return self._find(path) is not None

    def forget(self, path: Path) -> None:
        found = self._find(path)
        assert found, f"there is no {path}"
        self.change("DELETED", path.collection, *found)

    def compact(self) -> None:
        """Forget every older version."""
        # Something happens that no client watches: even the newest known version is too old.
        self.version += 1
        self.compacted = self.version
        self.history.clear()
        self._pages.clear()

    def list(self, collection: Path, parameters: Mapping[str, str], limit: int) -> Answer:
        if token := parameters.get("continue"):
            if token not in self._pages:
                return 410, {}, refusal(410, "Expired", "the continue token is too old")
            version, left = self._pages.pop(token)
        else:
            version = str(self.version)
            bodies = [body for _, body in self._covered(collection)]
            left = [body for body in bodies if matches(body, parameters)]
        metadata = {"resourceVersion": version}
        if left[limit:]:
            metadata["continue"] = f"{version}-{len(left)}"
            self._pages[metadata["continue"]] = (version, left[limit:])
        meant = {"kind": f"{collection.kind}List", "apiVersion": collection.api_version}
        return 200, {}, {**meant, "metadata": metadata, "items": left[:limit]}

    def get(self, path: Path) -> Answer:
        found = self._find(path)
        return (200, {}, found[1]) if found else _not_found(path)

    def update(self, path: Path, text: bytes) -> Answer:
        """Replace an object, from the version that the body names."""
        found = self._find(path)
        if not found:
            return _not_found(path)
        key, known = found
        body = json.loads(text)
        if body["metadata"]["resourceVersion"] != known["metadata"]["resourceVersion"]:
            return 409, {}, refusal(409, "Conflict", "the object has been modified")
        self.change("MODIFIED", path.collection, key, body)
        return 200, {}, self._bodies[path.collection][key]

    def patch(
        self, path: Path, content_type: str, text: bytes, parameters: Mapping[str, str]
    ) -> Answer:
        """Change an object; with server-side apply, make it where there is none."""
        found = self._find(path)
        if not found and content_type != patches.APPLY:
            return _not_found(path)
        key, known = found or (path.name, {"metadata": {"name": path.name}})
        try:
            body = patches.changed(known, content_type, text, parameters)
        except RefusedPatchError as error:
            code, reason, message = error.args
            return code, {}, refusal(code, reason, message)
        body = _stored(known, body, path.subresource)
        if not found:
            self.keep(path, body)
            return 201, {}, self.kept(path)
        if body["metadata"].get("resourceVersion") != known["metadata"]["resourceVersion"]:
            return 409, {}, refusal(409, "Conflict", "the object has been modified")
        if body["metadata"].get("uid") != known["metadata"].get("uid"):
            return 422, {}, refusal(422, "Invalid", "metadata.uid: field is immutable")
        if body != known:
            self.change("MODIFIED", path.collection, key, body)
        return 200, {}, self._bodies[path.collection][key]

    def _find(self, path: Path) -> tuple[str, Body] | None:
        # Pods stand there by UID.
        for key, body in self._bodies[path.collection].items():
            if body["metadata"]["name"] == path.name:
                return key, body
        return None


def _stored(known: Body, body: Body, subresource: str) -> Body:
    """Take of a change what the endpoint takes: `status` and metadata, or all but `status`."""
    taken = {**known, "metadata": body["metadata"]} if subresource == "status" else dict(body)
    source = body if subresource == "status" else known
    taken.pop("status", None)
    return {**taken, **({"status": source["status"]} if "status" in source else {})}


def _copied(body: Body) -> Body:
    copied: Body = json.loads(json.dumps(body))
    return copied


def _unversioned(body: Body) -> Body:
    metadata = {key: value for key, value in body["metadata"].items() if key != "resourceVersion"}
    return {**body, "metadata": metadata}


def _not_found(path: Path) -> Answer:
    return 404, {}, refusal(404, "NotFound", f"{path.resource} {path.name!r} not found")


def refusal(code: int, reason: str, message: str) -> Body:
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": message,
        "reason": reason,
        "code": code,
    }
