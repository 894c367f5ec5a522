"""The objects of manifests: pods, workloads that make pods, and others beside them."""

from __future__ import annotations

import difflib
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, cast

from cpupool.core.errors import ManifestError
from cpupool.kube import templates
from cpupool.kube.fields import Field, shown
from cpupool.kube.manifest_text import documents

if TYPE_CHECKING:
    from collections.abc import Iterator

_LIST: Final = "List"
_POD: Final = "Pod"
_MAKERS: Final = (_POD, *templates.COUNTS)
"""The kinds that are pods, or make some."""
_GROUPS: Final = ("", "apps", "batch", "extensions")
"""The API groups of these kinds; Pods are in the one without a name."""
_KNOWN: Final = f"{', '.join(_MAKERS)}, or a list of them"
_ALIKE: Final = 0.85
"""A kind as like as this to one of `_MAKERS` is a slip in their groups: Service is none."""


@dataclass(frozen=True, slots=True)
class Manifests:
    """The objects that a text holds.

    Attributes:
        pods: the bodies of pods.
        others: the objects that make no pods.
        makes_pods: whether an object is a pod or makes some, also if it makes none now.
    """

    pods: tuple[dict[str, Any], ...]
    others: tuple[Field, ...]
    makes_pods: bool

    def refuse_others_alone(self) -> None:
        """Raise ManifestError if there are only objects that make no pods."""
        if self.others and not self.makes_pods:
            kind = self.others[0]["kind"]
            raise kind.error(f"{shown(kind.value)} is not one of {_KNOWN}")


def read(name: str, text: str, *, copies: bool = True) -> Manifests:
    """Read the objects of a text.

    Args:
        name: the file, for messages.
        text: JSON, or documents of YAML: Pods, workloads with a template for pods, other objects,
            and lists of these.
        copies: whether a workload stands for each of its pods, or for one.

    Raises:
        ManifestError: the text is not YAML or JSON, or an object cannot be one.
    """
    pods: list[dict[str, Any]] = []
    others: list[Field] = []
    makes_pods = False
    for location, document in documents(name, text):
        if document is None:
            continue
        for found in _objects_in(Field(str(location), "", document)):
            if not _makes_pods(found):
                others.append(found)
                continue
            makes_pods = True
            if found["kind"].value == _POD:
                pods.append(cast("dict[str, Any]", found.value))
            else:
                pods += templates.pods(found, copies=copies)
    return Manifests(tuple(pods), tuple(others), makes_pods)


def _makes_pods(found: Field) -> bool:
    """Return whether an object is a pod, or a workload with a template for pods.

    Other API groups have workloads of the same names, some with a template at the same place.
    """
    kind = found["kind"].value
    if kind not in _MAKERS or _is_of_kubernetes(found):
        return kind in _MAKERS
    with suppress(ManifestError):
        return kind != _POD and templates.template(found)["spec"].value is not None
    return False


def _is_of_kubernetes(found: Field) -> bool:
    """Return whether an object can be of Kubernetes' own groups; so can one without a version."""
    version = found["apiVersion"].value
    return not isinstance(version, str) or version.rpartition("/")[0] in _GROUPS


def _objects_in(found: Field) -> Iterator[Field]:
    """Yield an object, or those in a list of objects."""
    document = found.value
    if not isinstance(document, dict):
        raise found.error("this is not a mapping; a Pod is expected")
    kind = document.get("kind")
    listed = kind.removesuffix(_LIST) if isinstance(kind, str) else None
    # Other resources may have a name as a list's, but no items.
    if listed != kind and (listed in ("", *_MAKERS) or isinstance(document.get("items"), list)):
        items = found["items"]
        if not isinstance(items.value, list):
            raise items.error("is missing or not a list")
        for item in items:
            # The API server leaves out kind and version of the items of a list of one kind.
            named = {"kind": listed or _POD}
            if listed and "apiVersion" in document:
                named["apiVersion"] = document["apiVersion"]
            whole = {**named, **item.value} if isinstance(item.value, dict) else item.value
            yield from _objects_in(replace(item, value=whole))
        return
    if not isinstance(kind, str):
        problem = "is missing; it must be" if kind is None else f"{shown(kind)} is not"
        raise found["kind"].error(f"{problem} one of {_KNOWN}")
    if kind not in _MAKERS and _is_of_kubernetes(found):
        for near in difflib.get_close_matches(kind, _MAKERS, 1, _ALIKE):
            raise found["kind"].error(f"{shown(kind)} is not one of {_KNOWN}; did you mean {near}?")
    yield found
