"""The paths of the Kubernetes API, which name a resource, a namespace and an object.

Source: https://kubernetes.io/docs/reference/using-api/api-concepts/#resource-uris.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final
from urllib.parse import quote

from cpupool.core.errors import NoObjectName
from cpupool.wire import node_topology


@dataclass(frozen=True, slots=True)
class APIPath:
    """A path that a request names.

    Attributes:
        resource: the resource in the words of RBAC: `pods`, `pods/status`.
        text: the path, from `/api` or `/apis` on.
    """

    resource: str
    text: str


def group(name: str) -> APIPath:
    """Return the path that names the versions of an API group."""
    return APIPath("apis", f"/apis/{quote(name, safe='')}")


@dataclass(frozen=True, slots=True)
class Resource:
    """A resource of the Kubernetes API.

    Attributes:
        group: its API group; empty for the core group.
        version: the version of the group, as `v1`.
        plural: its name in paths, as `pods`.
    """

    group: str
    version: str
    plural: str

    def collection(self, namespace: str = "") -> APIPath:
        """Return the path of all objects.

        Args:
            namespace: theirs; empty for the objects of the whole cluster.

        Raises:
            NoObjectName: the namespace cannot be part of a path.
        """
        group = f"apis/{self.group}" if self.group else "api"
        parts = ["", group, self.version]
        if namespace:
            parts += ["namespaces", _segment(namespace)]
        return APIPath(self.plural, "/".join([*parts, self.plural]))

    def object(self, name: str, namespace: str = "", *, subresource: str = "") -> APIPath:
        """Return the path of one object.

        Args:
            name: its name.
            namespace: where it is; empty for an object that has no namespace.
            subresource: a part of it, as `status`, or what is behind it, as `proxy/configz`; empty
                for the object itself.

        Raises:
            NoObjectName: the name or the namespace cannot be part of a path.
        """
        parts = [self.collection(namespace).text, _segment(name)]
        if not subresource:
            return APIPath(self.plural, "/".join(parts))
        part = subresource.partition("/")[0]
        return APIPath(f"{self.plural}/{part}", "/".join([*parts, subresource]))


def _segment(name: str) -> str:
    """Return a name as a part of a path; an empty one, or dots alone, would name another path."""
    if name in {"", ".", ".."}:
        raise NoObjectName(name)
    return quote(name, safe="")


PODS: Final = Resource("", "v1", "pods")
NODES: Final = Resource("", "v1", "nodes")
NODE_TOPOLOGIES: Final = {
    version: Resource(node_topology.GROUP, version, node_topology.PLURAL)
    for version in node_topology.VERSIONS
}
"""Version → the resource of the nodes' topologies."""
NAMESPACES: Final = Resource("", "v1", "namespaces")
CONFIG_MAPS: Final = Resource("", "v1", "configmaps")
SECRETS: Final = Resource("", "v1", "secrets")
EVENTS: Final = Resource("", "v1", "events")
WEBHOOK_CONFIGURATIONS: Final = Resource(
    "admissionregistration.k8s.io", "v1", "mutatingwebhookconfigurations"
)
