"""What the cluster holds, as a test sees and changes it, and what was asked of the API server."""

from __future__ import annotations

import copy
import threading
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tests.apiserver.objects import Objects
from tests.apiserver.paths import Path

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

Body = dict[str, Any]

PODS, NODES = Path("", "v1", "pods"), Path("", "v1", "nodes")


@dataclass(frozen=True)
class Request:
    """What was asked: in the words of RBAC, and as it came over the wire."""

    verb: str
    resource: str
    parameters: Mapping[str, str]
    method: str
    path: str
    content_type: str
    body: bytes
    user: str
    """The common name of the client's certificate; empty without one."""


class Cluster:
    """The objects of a cluster with one node, behind one lock.

    Args:
        node: the one node that there is; a pod that names none is bound to it.
        labels: its labels.
    """

    def __init__(self, node: str, labels: Mapping[str, str]) -> None:
        self.node = node
        self.requests: list[Request] = []
        self.created: set[str] = set()
        self._lock = threading.Condition()
        self._objects = Objects()
        self.set_labels(labels)

    def set_pods(self, bodies: Iterable[Body]) -> None:
        """Set the pods; each difference goes to the watches.

        A pod that has failed keeps its status, as the kubelet leaves it to a pod.
        """
        given = {body["metadata"]["uid"]: self._bound_to_node(body) for body in bodies}
        with self._lock:
            known = self._objects.everywhere(PODS)
            for uid in given.keys() & known.keys():
                status = known[uid][1].get("status") or {}
                if status.get("phase") == "Failed":
                    given[uid] = {**given[uid], "status": status}
            self._objects.replace_all(PODS, given)

    def set_labels(self, labels: Mapping[str, str]) -> None:
        """Give the node these labels."""
        uid = f"{self.node}-uid"
        body = {"metadata": {"name": self.node, "uid": uid, "labels": dict(labels)}}
        with self._lock:
            known = uid in self._objects.everywhere(NODES)
            self._objects.change("MODIFIED" if known else "ADDED", NODES, uid, body)

    def keep(self, path: str, body: Body) -> None:
        """Hold this object at its path, as a new version of the one that is there, if there is."""
        with self._lock:
            self._objects.keep(Path.of(path), body)

    def keep_config_map(self, path: str, **files: str) -> None:
        """Hold a ConfigMap at this path, with these texts as `poolconfig-<name>.yaml`."""
        data = {f"poolconfig-{name}.yaml": text for name, text in files.items()}
        self.keep(path, {"kind": "ConfigMap", "data": data})

    def kept(self, path: str) -> Body:
        """Give what is held at a path."""
        with self._lock:
            return self._objects.kept(Path.of(path))

    def has(self, path: str) -> bool:
        """Return whether something is held at a path."""
        with self._lock:
            return self._objects.has(Path.of(path))

    def change_as(self, manager: str, path: str, changes: Body) -> None:
        """Change fields of an object, None removes one, as an Update of another manager does."""
        with self._lock:
            self._objects.change_as(manager, Path.of(path), changes)

    def forget(self, path: str) -> None:
        """Delete what is held at a path."""
        with self._lock:
            self._objects.forget(Path.of(path))

    def verbs(self) -> set[tuple[str, str]]:
        """Give every (verb, resource) that was asked for; an apply that creates asks for both."""
        asked = {(asked.verb, asked.resource) for asked in list(self.requests)}
        return asked | {("create", resource) for resource in self.created}

    def count(self, verb: str, resource: str) -> int:
        counts = Counter((asked.verb, asked.resource) for asked in list(self.requests))
        return counts[verb, resource]

    def watching(self, resource: str) -> int:
        """Return how many watches of a resource are open."""
        with self._lock:
            return sum(watch.collection.plural == resource for watch in self._objects.watches)

    def _bound_to_node(self, body: Body) -> Body:
        bound = copy.deepcopy(body)
        bound.setdefault("spec", {}).setdefault("nodeName", self.node)
        return bound
