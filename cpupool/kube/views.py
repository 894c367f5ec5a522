"""From texts to pod bodies, and from a body to what placing pods on CPUs needs.

A body is a dict with Kubernetes' field names (k8s.io/api/core/v1/types.go). Fields that cpupool
does not read may hold anything.
"""

from __future__ import annotations

import copy
import json
import re
import reprlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final, TypeGuard, cast

import yaml

from cpupool.core import quantity
from cpupool.core.errors import Location, ManifestError, QuantityError
from cpupool.core.names import STATIC_POD_HASH, STATIC_POD_MIRROR
from cpupool.core.workloads import Container, ContainerID, ContainerKind, Pod, PodUID, QoSClass

if TYPE_CHECKING:
    from cpupool.core.names import Names

Body = Mapping[str, Any]
"""An object, most often a pod, as the API server writes it in JSON."""

_NAME: Final = re.compile(r"[0-9A-Za-z][0-9A-Za-z._-]*", re.ASCII)
_LISTS: Final = ("PodList", "List")
_STATUS_LISTS: Final = (
    "initContainerStatuses",
    "containerStatuses",
    "ephemeralContainerStatuses",
)
_FINISHED: Final = ("Succeeded", "Failed")
_QOS_RESOURCES: Final = ("cpu", "memory")


def pods_from_text(name: str, text: str) -> list[dict[str, Any]]:
    """Read the pod bodies of a JSON text or of all documents of a YAML text.

    Args:
        name: the file, for messages.
        text: Pods, PodLists and Lists of Pods.

    Raises:
        ManifestError: the text is not YAML or JSON, or holds something else than pods.
    """
    found: list[dict[str, Any]] = []
    for location, document in _documents(name, text):
        if document is not None:
            found += _pods_in(str(location), "", document)
    return found


def created(body: Body, uid: str) -> dict[str, Any]:
    """Copy a manifest as the API server would store it: with a namespace, a UID, and no status yet.

    Raises:
        ManifestError: the manifest has no metadata.
    """
    stored = copy.deepcopy(dict(body))
    metadata = stored.get("metadata")
    if not isinstance(metadata, dict):
        raise ManifestError("pod default/(no name)", "metadata", "is missing or not a mapping")
    metadata.setdefault("namespace", "default")
    metadata["uid"] = uid
    stored["status"] = {"phase": "Pending"}
    return stored


def pod(body: Body, names: Names) -> Pod:
    """Read one pod.

    Raises:
        ManifestError: a field that is read is missing or holds something else than it should.
    """
    top = _Field.of(body)
    metadata, status = top["metadata"], top["status"]
    annotations = metadata["annotations"]
    static = annotations[STATIC_POD_HASH].text("")
    # The kubelet writes the hash into both; a mark that somebody else forged names no cgroup.
    mirrored = static and annotations[STATIC_POD_MIRROR].text("") == static and static.isalnum()
    return Pod(
        uid=PodUID(metadata["uid"].name()),
        namespace=metadata["namespace"].name("default"),
        name=metadata["name"].name(),
        qos=_qos(top["spec"], status["qosClass"]),
        containers=tuple(_containers(top["spec"], status, names)),
        cgroup_uid=static if mirrored else "",
        finished=status["phase"].text("") in _FINISHED,
    )


def node_labels(body: Body) -> dict[str, str]:
    """Read a node's labels.

    Raises:
        ManifestError: they hold something else than texts.
    """
    labels = _Field("node", "", body)["metadata"]["labels"]
    return {key: value.text("") for key, value in labels.entries()}


def environment(body: Body, container: str) -> dict[str, str]:
    """Read the variables that a container's spec gives a literal value.

    Raises:
        ManifestError: a variable without a name, or one that no process can carry.
    """
    literal = {}
    for _, found in _container_fields(_Field.of(body)["spec"]):
        if found["name"].value != container:
            continue
        for variable in found["env"]:
            name, value = variable["name"].text(), variable["value"].text("")
            if "=" in name or "\0" in name + value:
                raise variable.error("a name has no '=', and neither part a NUL character")
            if variable["valueFrom"].value is None:
                literal[name] = value
    return literal


@dataclass(frozen=True, slots=True)
class _Field:
    """A value with the way to it, so that an error can name the pod and the field."""

    source: str
    path: str
    value: object

    @classmethod
    def of(cls, body: object) -> _Field:
        metadata = body.get("metadata") if isinstance(body, Mapping) else None
        given = metadata if isinstance(metadata, Mapping) else {}
        parts = (given.get("namespace", "default"), given.get("name"))
        shown = "/".join(part if _is_name(part) else "(no name)" for part in parts)
        return cls(f"pod {shown}", "", body)

    def error(self, what: str) -> ManifestError:
        return ManifestError(self.source, self.path, what)

    def __getitem__(self, key: str) -> _Field:
        path = f"{self.path}.{key}" if self.path else key
        return _Field(self.source, path, self._mapping().get(key))

    def entries(self) -> Iterator[tuple[str, _Field]]:
        for key in self._mapping():
            yield str(key), self[key]

    def __iter__(self) -> Iterator[_Field]:
        if self.value is None:
            return
        if not isinstance(self.value, Sequence) or isinstance(self.value, str):
            raise self.error(f"{_shown(self.value)} is not a list")
        for place, value in enumerate(self.value):
            yield _Field(self.source, f"{self.path}[{place}]", value)

    def text(self, default: str | None = None) -> str:
        if self.value is None and default is not None:
            return default
        if self.value is None or (self.value == "" and default is None):
            raise self.error("is missing")
        if not isinstance(self.value, str):
            raise self.error(f"{_shown(self.value)} is not a text; quote it")
        return self.value

    def name(self, default: str | None = None) -> str:
        # Names and ids go into paths and logs. Kubernetes' own rules are stricter.
        text = self.text(default)
        if not _is_name(text):
            raise self.error(f"{_shown(text)} is not a name; use letters, digits, '-' and '.'")
        return text

    def number(self) -> str:
        if isinstance(self.value, bool) or not isinstance(self.value, int | float | str):
            raise self.error(f"{_shown(self.value)} is not a quantity")
        try:
            return str(self.value)
        except ValueError as error:
            raise self.error("is a number of too many digits") from error

    def _mapping(self) -> Mapping[str, object]:
        if self.value is None:
            return {}
        if not isinstance(self.value, Mapping):
            raise self.error(f"{_shown(self.value)} is not a mapping")
        return self.value


def _is_name(value: object) -> TypeGuard[str]:
    return isinstance(value, str) and _NAME.fullmatch(value) is not None


def _shown(value: object) -> str:
    # Not all of it: a body can hold anything, and all of that may not fit into memory.
    try:
        text = repr(value[:60]) if isinstance(value, str) else reprlib.repr(value)
    except ValueError:  # an integer of too many digits
        text = f"this {type(value).__name__}"
    return text if len(text) <= 60 else f"{text[:57]}..."


def _containers(spec: _Field, status: _Field, names: Names) -> Iterator[Container]:
    ids = dict(_running_ids(status))
    seen: set[str] = set()
    for kind, found in _container_fields(spec):
        name = found["name"].name()
        if name in seen:
            raise found["name"].error(f"{name!r} is the name of two containers")
        seen.add(name)
        yield Container(name, kind, _pool_requests(found["resources"], names), ids.get(name))
    if not seen:
        raise spec["containers"].error("is missing")


def _container_fields(spec: _Field) -> Iterator[tuple[ContainerKind, _Field]]:
    for found in spec["initContainers"]:
        sidecar = found["restartPolicy"].value == "Always"
        yield (ContainerKind.SIDECAR if sidecar else ContainerKind.INIT), found
    for found in spec["containers"]:
        yield ContainerKind.APP, found
    for found in spec["ephemeralContainers"]:
        yield ContainerKind.EPHEMERAL, found


def _pool_requests(resources: _Field, names: Names) -> dict[str, int]:
    # For an extended resource the API server takes equal requests and limits, or limits alone.
    wanted = dict(resources["requests"].entries()) | dict(resources["limits"].entries())
    requests = {}
    for resource, amount in wanted.items():
        name = names.pool_of(resource)
        if name is None:
            continue
        try:
            count = quantity.parse_count(amount.number())
        except QuantityError as error:
            raise amount.error(str(error)) from error
        if count:
            requests[name] = count
    return requests


def _running_ids(status: _Field) -> Iterator[tuple[str, ContainerID]]:
    """Give each container's instance, unless it has ended.

    While a container waits for its restart, the status still carries the id of the instance that
    has ended.
    """
    for statuses in _STATUS_LISTS:
        for found in status[statuses]:
            identifier = found["containerID"].text("")
            ended = found["state"]["terminated"].value is not None
            previous = found["lastState"]["terminated"]["containerID"].value
            if identifier and not ended and identifier != previous:
                bare = identifier.rpartition("://")[2]
                yield found["name"].text(), ContainerID(bare)


def _qos(spec: _Field, given: _Field) -> QoSClass:
    """Read the class that the API server has set, or compute it as Kubernetes does.

    Source: pkg/apis/core/v1/helper/qos/qos.go. Pod-level resources stand for those of all
    containers; ephemeral containers have none.
    """
    if given.value is not None:
        try:
            return QoSClass(given.value)
        except ValueError:
            choices = ", ".join(known.value for known in QoSClass)
            raise given.error(f"{_shown(given.value)} is none of {choices}") from None
    pod_level = _compute_resources(spec["resources"])
    parts = (
        [pod_level]
        if any(pod_level)
        else [
            _compute_resources(found["resources"])
            for kind, found in _container_fields(spec)
            if kind is not ContainerKind.EPHEMERAL
        ]
    )
    if not any(requests or limits for requests, limits in parts):
        return QoSClass.BEST_EFFORT
    limited = all(len(limits) == len(_QOS_RESOURCES) for _, limits in parts)
    equal = all(
        sum(requests.get(name, Decimal()) for requests, _ in parts)
        == sum(limits.get(name, Decimal()) for _, limits in parts)
        for name in _QOS_RESOURCES
    )
    return QoSClass.GUARANTEED if limited and equal else QoSClass.BURSTABLE


def _compute_resources(resources: _Field) -> tuple[dict[str, Decimal], dict[str, Decimal]]:
    """Read requests and limits of cpu and memory; a missing request is the limit."""
    limits = dict(_amounts(resources["limits"]))
    requests = limits | dict(_amounts(resources["requests"]))
    return _positive(requests), _positive(limits)


def _amounts(resources: _Field) -> Iterator[tuple[str, Decimal]]:
    for name, amount in resources.entries():
        if name in _QOS_RESOURCES:
            try:
                yield name, quantity.parse(amount.number())
            except QuantityError as error:
                raise amount.error(str(error)) from error


def _positive(amounts: Mapping[str, Decimal]) -> dict[str, Decimal]:
    return {name: amount for name, amount in amounts.items() if amount > 0}


def _pods_in(source: str, path: str, document: object) -> Iterator[dict[str, Any]]:
    if not isinstance(document, dict):
        raise ManifestError(
            source, path.removesuffix("."), "this is not a mapping; a Pod is expected"
        )
    kind = document.get("kind")
    if kind == "Pod":
        yield document
    elif kind in _LISTS:
        items = document.get("items")
        if not isinstance(items, list):
            raise ManifestError(source, f"{path}items", "is missing or not a list")
        for place, item in enumerate(items):
            # The API server leaves out the kind of a PodList's items.
            whole = {"kind": "Pod", **item} if isinstance(item, dict) else item
            yield from _pods_in(source, f"{path}items[{place}].", whole)
    else:
        raise ManifestError(
            source, f"{path}kind", f"{str(kind)[:60]!r} is not Pod, PodList or List of Pods"
        )


class _Loader(yaml.SafeLoader):
    """YAML as Kubernetes reads it: a date is a text. An alias is refused: few make a huge body."""

    # PyYAML declares this attribute as one that is assigned to.
    yaml_implicit_resolvers = {  # noqa: RUF012
        first: [resolver for resolver in resolvers if resolver[0] != "tag:yaml.org,2002:timestamp"]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        event = self.peek_event()  # type: ignore[no-untyped-call]  # a gap in the stubs
        if isinstance(event, yaml.AliasEvent):
            mark = cast("yaml.Mark", event.start_mark)
            what = "aliases are not supported; write the value out in full"
            raise yaml.MarkedYAMLError(problem=what, problem_mark=mark)
        return super().compose_node(parent, index)


def _documents(name: str, text: str) -> Iterator[tuple[Location, object]]:
    try:
        # JSON by its own parser: a node's PodList is long, and JSON may be indented with tabs.
        if text.lstrip().startswith("{"):
            yield Location(name), json.loads(text)
            return
        loader = _Loader(text)
        while loader.check_node():
            node = cast("yaml.Node", loader.get_node())
            start = node.start_mark
            location = Location(name, start.line + 1, start.column + 1)
            yield location, loader.construct_document(node)
    except json.JSONDecodeError as error:
        raise ManifestError(
            str(Location(name, error.lineno, error.colno)), "", error.msg
        ) from error
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = Location(name, mark.line + 1, mark.column + 1) if mark else Location(name)
        raise ManifestError(str(where), "", error.problem or "this is not YAML") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ManifestError(name, "", f"this is not YAML: {error}") from error
