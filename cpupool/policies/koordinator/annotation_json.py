"""A reader of Koordinator's annotations: JSON, lists of CPUs, words of pods and nodes alike.

A value that is not as Koordinator writes it is an error, which the caller turns into a fault of the
pod or of the node.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from cpupool.core.cpu_manager import TopologyPolicy
from cpupool.core.cpuset import CPUSet
from cpupool.core.errors import CPUPoolError, CPUSetParseError
from cpupool.wire import json_text
from cpupool.wire.json_text import JSONRefused

if TYPE_CHECKING:
    from collections.abc import Mapping

NO_POLICY: Final = "None"
UNSET: Final = ("", NO_POLICY, "Default")
"""The words that choose nothing."""
ALIGNMENTS: Final = {
    "BestEffort": TopologyPolicy.BEST_EFFORT,
    "Restricted": TopologyPolicy.RESTRICTED,
    "SingleNUMANode": TopologyPolicy.SINGLE_NUMA_NODE,
}
_SHOWN_CHARACTERS: Final = 63


class AnnotationError(CPUPoolError):
    """An annotation of the Node that is not what Koordinator writes there.

    Attributes:
        key: the annotation.
        what: the fault.
        remedy: the right value.
    """

    def __init__(self, key: str, what: str, remedy: str) -> None:
        self.key = key
        self.what = what
        self.remedy = remedy
        super().__init__(f"the Node's annotation {key} {what}; {remedy}")


def json_object(key: str, text: str | None) -> Mapping[str, Any]:
    """Return the object in an annotation; an empty one for no annotation, and for null.

    Raises:
        AnnotationError: it is no JSON object.
    """
    if not text:
        return {}
    try:
        value = json_text.load(text)
    except JSONRefused:
        value = text
    if value is None:
        return {}
    if not isinstance(value, dict):
        shown = repr(text[:_SHOWN_CHARACTERS])
        raise AnnotationError(key, f"is {shown}", "write a JSON object, or remove it")
    return value


def cpu_list(
    key: str,
    value: Mapping[str, Any],
    name: str,
    remedy: str = 'write a list of CPUs, as "0-3,8"',
) -> CPUSet:
    """Return the CPUs that an entry of an annotation lists; none for no entry.

    Raises:
        AnnotationError: the entry is no list of CPUs.
    """
    text = value.get(name)
    if text is None:
        return CPUSet()
    if not isinstance(text, str):
        raise AnnotationError(key, f"has in {name} no text", remedy)
    try:
        return CPUSet.parse(text)
    except CPUSetParseError as error:
        raise AnnotationError(key, f"has in {name}: {error}", remedy) from error


def shown(value: object) -> str:
    """Return a value as messages show it."""
    return repr(value)[:_SHOWN_CHARACTERS]
