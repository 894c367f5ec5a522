"""The API server's own admission, which changes a pod before it asks webhooks, without a cluster.

The objects that decide the changes stand in the same input as the pods; well-known classes of
priority need no object.

Source: kubernetes plugin/pkg/admission: priority, runtimeclass, limitranger; SystemPriorityClasses
in pkg/apis/scheduling; the PriorityClasses that a policy's scheduler installs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from cpupool.core.names import NODE_CRITICAL
from cpupool.policies.built_in import BUILT_IN

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from cpupool.kube.fields import Field
    from cpupool.kube.views import Body

_WELL_KNOWN: Final = {
    name: value for policy in BUILT_IN.values() for name, value in policy.priority_classes.items()
} | {"system-cluster-critical": 2_000_000_000, NODE_CRITICAL: 2_000_001_000}
_DEFAULT_NAMESPACE: Final = "default"
_LIMITED: Final = ("initContainers", "containers")
"""The containers that a LimitRange has defaults for: there are none for ephemeral ones."""


@dataclass(frozen=True, slots=True)
class EarlierAdmission:
    """The objects of an input that decide which fields its pods get.

    Attributes:
        priorities: PriorityClass → its value.
        usual: the value for a pod that names no PriorityClass; None for the API server's 0.
        overheads: RuntimeClass → what a pod's sandbox uses, resource → amount.
        limits: namespace → the default requests and limits of its containers and init containers.
        namespaces: Namespace → its annotations.
    """

    priorities: Mapping[str, int] = field(default_factory=lambda: dict(_WELL_KNOWN))
    usual: int | None = None
    overheads: Mapping[str, Body] = field(default_factory=dict)
    limits: Mapping[str, tuple[tuple[Body, Body], ...]] = field(default_factory=dict)
    namespaces: Mapping[str, Body] = field(default_factory=dict)

    @classmethod
    def of(cls, objects: Iterable[Field]) -> EarlierAdmission:
        """Read the objects of these four kinds, and ignore others.

        Raises:
            ManifestError: a field that is read holds something else than it should.
        """
        priorities, usual = dict(_WELL_KNOWN), []
        overheads: dict[str, Body] = {}
        limits: dict[str, tuple[tuple[Body, Body], ...]] = {}
        namespaces: dict[str, Body] = {}
        for found in objects:
            metadata = found["metadata"]
            match found["kind"].value:
                case "PriorityClass":
                    value = found["value"].value or 0
                    if isinstance(value, bool) or not isinstance(value, int):
                        raise found["value"].error("is not a whole number")
                    priorities[metadata["name"].name()] = value
                    if found["globalDefault"].value is True:
                        usual.append(value)
                case "RuntimeClass":
                    overheads[metadata["name"].name()] = _amounts(found["overhead"]["podFixed"])
                case "LimitRange":
                    namespace = metadata["namespace"].name(_DEFAULT_NAMESPACE)
                    limits[namespace] = (*limits.get(namespace, ()), *_defaults(found))
                case "Namespace":
                    namespaces[metadata["name"].name()] = metadata["annotations"].texts()
        return cls(priorities, min(usual, default=None), overheads, limits, namespaces)

    def added(self, pod: Body) -> Mapping[str, Any]:
        """Return the fields that a pod's spec gets."""
        spec = pod.get("spec")
        if not isinstance(spec, Mapping):
            return {}
        found = {
            "priority": self._priority(spec.get("priorityClassName")),
            "overhead": self.overheads.get(str(spec.get("runtimeClassName"))),
        }
        return {key: value for key, value in found.items() if value and not spec.get(key)}

    def limited(self, pod: Body) -> Body:
        """Return a pod with the defaults of its namespace."""
        spec, metadata = pod.get("spec"), pod.get("metadata")
        given = metadata.get("namespace") if isinstance(metadata, Mapping) else None
        defaults = self.limits.get(str(given or _DEFAULT_NAMESPACE), ())
        if not defaults or not isinstance(spec, Mapping):
            return pod
        limited = {
            key: [_with_defaults(each, defaults) for each in listed]
            for key in _LIMITED
            if isinstance(listed := spec.get(key), list)
        }
        return {**pod, "spec": {**spec, **limited}}

    def completed(self, pod: Body) -> Body:
        """Return a pod as webhooks see it."""
        limited, added = self.limited(pod), self.added(pod)
        return {**limited, "spec": {**limited["spec"], **added}} if added else limited

    def _priority(self, name: object) -> int | None:
        return self.priorities.get(name) if isinstance(name, str) and name else self.usual


def _with_defaults(container: object, defaults: Iterable[tuple[Body, Body]]) -> object:
    if not isinstance(container, Mapping):
        return container
    resources = container.get("resources") or {}
    if not isinstance(resources, Mapping):
        return container
    # A limit of the container itself is its request, too, before a default is.
    limits = dict(resources.get("limits") or {})
    requests = {**limits, **(resources.get("requests") or {})}
    for usual_requests, usual_limits in defaults:
        limits = {**usual_limits, **limits}
        requests = {**usual_requests, **requests}
    return {**container, "resources": {**resources, "requests": requests, "limits": limits}}


def _defaults(limit_range: Field) -> Iterator[tuple[Body, Body]]:
    """Yield the default requests and limits of each item for containers.

    Source: SetDefaults_LimitRangeItem in pkg/apis/core/v1/defaults.go.
    """
    for item in limit_range["spec"]["limits"]:
        if item["type"].value == "Container":
            limits = {**_amounts(item["max"]), **_amounts(item["default"])}
            requests = {**_amounts(item["min"]), **limits, **_amounts(item["defaultRequest"])}
            yield requests, limits


def _amounts(found: Field) -> Body:
    return {key: each.value for key, each in found.entries()}
