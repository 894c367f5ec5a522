"""Koordinator's labels and annotations of pods, by their authors and koord-scheduler.

The module reads today's names, and those of the proposal *Fine-grained CPU orchestration* where
Koordinator has other names now. A value that Koordinator does not know is a fault, and has no
effect.

Source: koordinator-sh/koordinator, apis/extension (qos.go, priority.go, priority_utils.go,
resource.go, numa_aware.go, node.go); the proposal, "CPU orchestration API".
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, TypeVar

from cpupool.core.errors import QuantityError
from cpupool.core.orchestration import (
    BindPolicy,
    Orchestration,
    QoS,
)
from cpupool.core.pool_policy import ExclusivePolicy
from cpupool.core.quantity import Quantity
from cpupool.policies.koordinator.annotation_json import (
    ALIGNMENTS,
    NO_POLICY,
    UNSET,
    AnnotationError,
    cpu_list,
    json_object,
    shown,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from cpupool.core.cpuset import CPUSet

QOS_CLASS: Final = "koordinator.sh/qosClass"
RESOURCE_STATUS: Final = "scheduling.koordinator.sh/resource-status"
OWNERS: Final = frozenset({QoS.LSE.value, QoS.LSR.value})
"""The classes whose pods own CPUs."""
_CHOSEN_BY: Final = "chosenBy"
_AGENT: Final = "cpupool"
"""The field, and its value, with which the agent marks its own choice."""
PRIORITY_CLASS: Final = "koordinator.sh/priority-class"
RESOURCE_SPEC: Final = "scheduling.koordinator.sh/resource-spec"
BATCH: Final = ("kubernetes.io/batch-cpu", "kubernetes.io/batch-memory")
"""Resources that koord-manager offers to pods of the class BE."""
TOPOLOGY_SPEC: Final = "scheduling.koordinator.sh/numa-topology-spec"
LABELS: Final = (QOS_CLASS, PRIORITY_CLASS)
ANNOTATIONS: Final = (RESOURCE_STATUS, RESOURCE_SPEC, TOPOLOGY_SPEC)
"""The labels and annotations of a pod that the policy reads."""

PROD: Final = "koord-prod"
_PRIORITIES: Final = {
    PROD: range(9000, 10_000),
    "koord-mid": range(7000, 8000),
    "koord-batch": range(5000, 6000),
    "koord-free": range(3000, 4000),
}
"""Koordinator's priority classes, with the values of `spec.priority` that stand for each."""
PRIORITY_VALUES: Final = {name: values.start for name, values in _PRIORITIES.items()}
"""The values of Koordinator's own PriorityClasses, which have the names of the classes."""
LABEL_WORDS: Final[Mapping[str, Collection[str]]] = {
    QOS_CLASS: tuple(qos.value for qos in QoS),
    PRIORITY_CLASS: tuple(_PRIORITIES),
}
"""The labels, with the words that Koordinator knows there."""
_AMOUNTS: Final = ("cpu", BATCH[0])
_BINDS: Final = {policy.value: policy for policy in BindPolicy}
_EXCLUSIVE: Final = {
    "PCPULevel": ExclusivePolicy.PHYSICAL_CORE,
    "NUMANodeLevel": ExclusivePolicy.NUMA_NODE,
}
_REQUIRED: Final = "requiredCPUBindPolicy"
_PREFERRED: Final = "preferredCPUBindPolicy"
SPEC_FIELDS: Final[Mapping[str, Collection[str]]] = {
    _REQUIRED: tuple(_BINDS),
    _PREFERRED: tuple(_BINDS),
    "preferredCPUExclusivePolicy": tuple(_EXCLUSIVE),
}
"""The fields of `resource-spec`, with the words that mean something there."""
_NUMA_POLICY: Final = "numaTopologyPolicy"
_SINGLE_NODE: Final = "singleNUMANodeExclusive"
TOPOLOGY_FIELDS: Final[Mapping[str, Collection[str]]] = {
    _NUMA_POLICY: tuple(ALIGNMENTS),
    _SINGLE_NODE: ("Preferred", "Required"),
}
"""The fields of `numa-topology-spec`, with the words that mean something there."""
WISHES: Final = {RESOURCE_SPEC: SPEC_FIELDS, TOPOLOGY_SPEC: TOPOLOGY_FIELDS}
"""The annotations in which a pod's author says how its CPUs are to lie."""
_TRUTH: Final = {"true": True, "false": False}
_BY_SCHEDULER: Final = "let the scheduler write it"
_T = TypeVar("_T")


def of_pod(
    labels: Mapping[str, str],
    annotations: Mapping[str, str],
    priority: int | None,
    *,
    split: str = "",
) -> Orchestration | None:
    """Read Koordinator's labels and annotations of a pod; return None where it has none.

    Args:
        labels: the pod's labels.
        annotations: its annotations.
        priority: its `spec.priority`.
        split: the annotation that splits its CPUs; it has an effect only beside one of
            Koordinator's.
    """
    if not any(key in labels or key in annotations for key in (*LABELS, *ANNOTATIONS)):
        return None
    qos = next((each for each in QoS if each.value == labels.get(QOS_CLASS)), None)
    prod = _is_prod(labels.get(PRIORITY_CLASS, ""), priority, qos)
    fields: dict[str, Any] = {}
    faults: dict[str, str] = {}
    for key, read in (
        (RESOURCE_STATUS, _assigned),
        (RESOURCE_SPEC, _wished),
        (TOPOLOGY_SPEC, _aligned),
        (split, _split),
    ):
        # Each annotation is read by itself: a fault in one takes nothing from the others.
        try:
            fields |= read(key, annotations.get(key))
        except AnnotationError as error:
            faults[key] = f"{error.key} {error.what}; {error.remedy}"
    told = Orchestration(qos, prod, **fields)
    # Without an assignment the CPUs of an owner follow from its preferences.
    needed = (RESOURCE_STATUS, *((*WISHES, split) if told.owns and not told.cpus else ()))
    fault = next((faults.pop(key) for key in needed if key in faults), "")
    return replace(told, fault=fault, ignored=(*_unknown(labels), *faults.values()))


def may_own(labels: Mapping[str, str], annotations: Mapping[str, str]) -> bool:
    """Return whether a pod's class owns CPUs, or a scheduler may have assigned some to the pod."""
    return RESOURCE_STATUS in annotations or labels.get(QOS_CLASS) in OWNERS


def _assigned(key: str, text: str | None) -> Mapping[str, Any]:
    status = json_object(key, text)
    cpus = cpu_list(key, status, "cpuset", _BY_SCHEDULER)
    nodes = frozenset(_nodes(status))
    if status.get(_CHOSEN_BY) == _AGENT:
        return {"published": cpus}
    return {"cpus": cpus, "nodes": nodes, "scheduled": text is not None}


def _wished(key: str, text: str | None) -> Mapping[str, Any]:
    spec = json_object(key, text)
    required = _choice(key, spec, _REQUIRED, _BINDS, None)
    preferred = _choice(key, spec, _PREFERRED, _BINDS, None)
    word = spec.get(_REQUIRED) or spec.get(_PREFERRED)
    return {
        "bind": required or preferred,
        "required": required is not None,
        # As in the plugin's PreFilter; a required Default means nothing here.
        "unbound": word == NO_POLICY,
        "exclusive": _choice(
            key, spec, "preferredCPUExclusivePolicy", _EXCLUSIVE, ExclusivePolicy.NONE
        ),
    }


def _aligned(key: str, text: str | None) -> Mapping[str, Any]:
    numa = json_object(key, text)
    _choice(key, numa, _SINGLE_NODE, dict.fromkeys(TOPOLOGY_FIELDS[_SINGLE_NODE]), None)
    return {"topology": _choice(key, numa, _NUMA_POLICY, ALIGNMENTS, None)}


def _split(key: str, text: str | None) -> Mapping[str, Any]:
    if text is not None and text not in _TRUTH:
        raise AnnotationError(key, f"is {shown(text)}", 'write "true" or "false"')
    return {"split": text is not None and _TRUTH[text]}


def _unknown(labels: Mapping[str, str]) -> Iterator[str]:
    """Yield the labels whose words Koordinator does not know."""
    for key, words in LABEL_WORDS.items():
        if (text := labels.get(key, "")) and text not in words:
            yield f"the label {key} is {shown(text)}; write one of {', '.join(words)}"


def resource_status(cpus: CPUSet) -> str:
    """Return the value of `resource-status` with CPUs that the agent chose.

    koord-scheduler reads the CPUs, and ignores the second field.
    """
    return json.dumps({"cpuset": str(cpus), _CHOSEN_BY: _AGENT}, separators=(",", ":"))


def priority_class(labels: Mapping[str, str], priority: int | None) -> str:
    """Return the priority class that a pod names by label or priority; empty for none.

    Source: GetPriorityClass in apis/extension/priority.go.
    """
    named = labels.get(PRIORITY_CLASS) or _class_of(priority)
    return named if named in _PRIORITIES else ""


def _is_prod(written: str, priority: int | None, qos: QoS | None) -> bool:
    if named := written or _class_of(priority):
        return named == PROD
    return qos in {QoS.LSE, QoS.LSR, QoS.LS, QoS.SYSTEM}


def _class_of(priority: int | None) -> str:
    return next((name for name, values in _PRIORITIES.items() if priority in values), "")


def _choice(
    annotation: str, value: Mapping[str, Any], key: str, known: Mapping[str, _T], otherwise: _T
) -> _T:
    text = value.get(key) or ""
    if text in UNSET:
        return otherwise
    if not isinstance(text, str) or text not in known:
        raise AnnotationError(
            annotation, f"has {key} {shown(text)}", f"write one of {', '.join(known)}"
        )
    return known[text]


def _nodes(status: Mapping[str, Any]) -> Iterator[int]:
    """Yield the NUMA nodes that a scheduler has assigned, if an entry names an amount of cpu."""
    entries = _entries(status, "numaNodeResources")
    if any(_has_cpu(entry) for entry in entries):
        yield from map(_node, entries)
    yield from map(_node, _entries(status, "cpuSharedPools"))


def _entries(status: Mapping[str, Any], key: str) -> list[Mapping[str, Any]]:
    value = status.get(key) or []
    if not isinstance(value, list) or not all(isinstance(entry, dict) for entry in value):
        raise AnnotationError(RESOURCE_STATUS, f"has in {key} {shown(value)}", _BY_SCHEDULER)
    return value


def _node(entry: Mapping[str, Any]) -> int:
    node = entry.get("node", 0)
    if isinstance(node, bool) or not isinstance(node, int) or node < 0:
        raise AnnotationError(RESOURCE_STATUS, f"has the NUMA node {shown(node)}", _BY_SCHEDULER)
    return node


def _has_cpu(entry: Mapping[str, Any]) -> bool:
    resources = entry.get("resources") or {}
    if not isinstance(resources, dict):
        raise AnnotationError(RESOURCE_STATUS, f"has resources {shown(resources)}", _BY_SCHEDULER)
    try:
        return any(Quantity.read(resources[name]).milli for name in _AMOUNTS if name in resources)
    except QuantityError as error:
        raise AnnotationError(
            RESOURCE_STATUS, f"has in resources: {error}", _BY_SCHEDULER
        ) from error
