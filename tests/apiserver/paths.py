"""What a request's path names, and who may ask for it."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

KINDS = {
    "pods": "Pod",
    "nodes": "Node",
    "configmaps": "ConfigMap",
    "mutatingwebhookconfigurations": "MutatingWebhookConfiguration",
    "noderesourcetopologies": "NodeResourceTopology",
}
"""What cpupool's parts may list and watch."""
CUSTOM = {"NodeResourceTopology"}
"""The kinds that a CRD defines."""
_SINGLE = {
    ("", "namespaces"),
    ("", "secrets"),
    ("admissionregistration.k8s.io", "mutatingwebhookconfigurations"),
}
"""What they may read and replace, by group and plural."""
_GROUP = re.compile(r"/apis/(?P<group>[^/]+)")
# The path of a namespace's own subresource looks like that of a collection in it.
_PATH = re.compile(
    r"/(?:api|apis/(?P<group>[^/]+))/(?P<version>[^/]+)"
    r"(?:/namespaces/(?P<namespace>[^/]+)(?!/(?:status|finalize)$)(?=/))?"
    r"/(?P<plural>[^/]+)(?:/(?P<name>[^/]+)(?:/(?P<subresource>.+))?)?"
)


@dataclass(frozen=True)
class Path:
    """A collection, an object, or a subresource of one."""

    group: str
    version: str
    plural: str
    namespace: str = ""
    name: str = ""
    subresource: str = ""

    @classmethod
    def of(cls, text: str) -> Path:
        if group := _GROUP.fullmatch(text):
            return cls(group["group"], "", "apis")
        found = _PATH.fullmatch(text)
        if found is None:
            return cls("", "", text.rpartition("/")[2])
        return cls(**{key: value or "" for key, value in found.groupdict().items()})

    @property
    def resource(self) -> str:
        """In the words of RBAC."""
        part = self.subresource.partition("/")[0]
        return f"{self.plural}/{part}" if part else self.plural

    @property
    def kind(self) -> str:
        return KINDS.get(self.plural, self.plural.removesuffix("s").title())

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def collection(self) -> Path:
        return replace(self, name="", subresource="")

    def covers(self, other: Path) -> bool:
        """Whether a list of this collection has the objects of the other one."""
        everywhere = not self.namespace
        return replace(other, namespace="") == replace(self, namespace="") and (
            everywhere or self.namespace == other.namespace
        )


def verb(method: str, path: Path, parameters: Mapping[str, str]) -> str:
    """Give the verb of RBAC."""
    if path.plural == "apis":
        return "get"
    if method == "GET":
        return "get" if path.name else "watch" if "watch" in parameters else "list"
    return {"POST": "create", "PUT": "update", "PATCH": "patch"}.get(method, method.lower())


def is_granted(verb: str, path: Path, parameters: Mapping[str, str]) -> bool:
    """Return whether RBAC lets some part of cpupool ask for this."""
    if path.plural == "apis" or (verb, path.plural) == ("patch", "noderesourcetopologies"):
        return True
    if path.subresource:
        statuses = {"pods/status", "nodes/status"}
        return (verb, path.group) == ("patch", "") and path.resource in statuses
    if verb in {"get", "update"}:
        return (path.group, path.plural) in _SINGLE
    if verb == "create":
        return path.plural == "events" and bool(path.namespace)
    # Beside this node and its pods only single objects, by `resourceNames`.
    single = parameters.get("fieldSelector", "").startswith("metadata.name=")
    everywhere = path.plural in {"pods", "nodes"} and not path.group and not path.namespace
    return verb in {"list", "watch"} and (everywhere or (path.plural in KINDS and single))
