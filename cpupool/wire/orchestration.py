"""Koordinator's labels and annotations of pods and nodes, by admins and koord-scheduler.

Today's names count, and the names of the proposal *Fine-grained CPU orchestration* where
Koordinator has other names now. A value that Koordinator does not know is a fault, and counts as
none.

Source: koordinator-sh/koordinator, apis/extension (qos.go, priority.go, priority_utils.go,
resource.go, numa_aware.go, node.go); the proposal, "CPU orchestration API".
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final, TypeVar

from cpupool.core.cpu_manager import TopologyPolicy
from cpupool.core.cpuset import CPUSet
from cpupool.core.errors import QuantityError
from cpupool.core.koordinator import (
    BindPolicy,
    NodeRules,
    Orchestration,
    QoS,
    Reservation,
    SystemCPUs,
)
from cpupool.core.pool_policy import ExclusivePolicy, NUMAPolicy
from cpupool.core.quantity import Quantity
from cpupool.wire import koordinator
from cpupool.wire.koordinator import AnnotationError, cpu_list, json_object

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping

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
"""What of a pod counts."""
_BIND_POLICY: Final = "node.koordinator.sh/cpu-bind-policy"
_STRATEGY: Final = "node.koordinator.sh/numa-allocate-strategy"
_TOPOLOGY_POLICIES: Final = (
    "node.koordinator.sh/numa-topology-policy",
    "node.koordinator.sh/numa-topology-alignment-policy",
)
"""Today's name, and the proposal's."""
_ARCHITECTURE: Final = "kubernetes.io/arch"
"""The label in which the kubelet has the machine's architecture, by Go's name."""
_ARM: Final = "arm64"

PROD: Final = "koord-prod"
_PRIORITIES: Final = {
    PROD: range(9000, 10_000),
    "koord-mid": range(7000, 8000),
    "koord-batch": range(5000, 6000),
    "koord-free": range(3000, 4000),
}
"""Koordinator's priority classes, with the values of `spec.priority` that stand for each."""
_AMOUNTS: Final = ("cpu", BATCH[0])
_BINDS: Final = {policy.value: policy for policy in BindPolicy}
_EXCLUSIVE: Final = {
    "PCPULevel": ExclusivePolicy.PHYSICAL_CORE,
    "NUMANodeLevel": ExclusivePolicy.NUMA_NODE,
}
SPEC_FIELDS: Final[Mapping[str, Collection[str]]] = {
    "requiredCPUBindPolicy": tuple(_BINDS),
    "preferredCPUBindPolicy": tuple(_BINDS),
    "preferredCPUExclusivePolicy": tuple(_EXCLUSIVE),
}
"""The fields of `resource-spec`, with the words that mean something there."""
UNSET: Final = ("", "None", "Default")
"""The words that mean nothing."""
_FULL_CORES_ONLY: Final = ("FullPCPUsOnly", "PCPUOnly")
_NODE_BINDS: Final = {
    **dict.fromkeys((*_FULL_CORES_ONLY, BindPolicy.FULL_PCPUS.value), BindPolicy.FULL_PCPUS),
    BindPolicy.SPREAD_BY_PCPUS.value: BindPolicy.SPREAD_BY_PCPUS,
}
_STRATEGIES: Final = {
    "MostAllocated": NUMAPolicy.MOST_ALLOCATED,
    "LeastAllocated": NUMAPolicy.LEAST_ALLOCATED,
    "DistributeEvenly": NUMAPolicy.DISTRIBUTED,
}
_ALIGNMENTS: Final = {
    "BestEffort": TopologyPolicy.BEST_EFFORT,
    "Restricted": TopologyPolicy.RESTRICTED,
    "SingleNUMANode": TopologyPolicy.SINGLE_NUMA_NODE,
}
_TRUTH: Final = {"true": True, "false": False}
_SHOWN_CHARACTERS: Final = 63
_BY_SCHEDULER: Final = "let the scheduler write it"
_T = TypeVar("_T")


def of_pod(
    labels: Mapping[str, str],
    annotations: Mapping[str, str],
    priority: int | None,
    *,
    split: str = "",
) -> Orchestration | None:
    """Return what Koordinator's labels and annotations say of a pod; None where it has none.

    Args:
        labels: the pod's labels.
        annotations: its annotations.
        priority: its `spec.priority`.
        split: the annotation that splits its CPUs; it counts with one of Koordinator's only.
    """
    if not any(key in labels or key in annotations for key in (*LABELS, *ANNOTATIONS)):
        return None
    qos = next((each for each in QoS if each.value == labels.get(QOS_CLASS)), None)
    prod = _is_prod(labels.get(PRIORITY_CLASS, ""), priority, qos)
    try:
        spec = json_object(RESOURCE_SPEC, annotations.get(RESOURCE_SPEC))
        bind, required = _bind(spec)
        exclusive = _choice(
            RESOURCE_SPEC,
            spec,
            "preferredCPUExclusivePolicy",
            _EXCLUSIVE,
            ExclusivePolicy.NONE,
        )
        numa = json_object(TOPOLOGY_SPEC, annotations.get(TOPOLOGY_SPEC))
        status = json_object(RESOURCE_STATUS, annotations.get(RESOURCE_STATUS))
        cpus = cpu_list(RESOURCE_STATUS, status, "cpuset", _BY_SCHEDULER)
        ours = status.get(_CHOSEN_BY) == _AGENT
        return Orchestration(
            qos,
            prod,
            CPUSet() if ours else cpus,
            frozenset() if ours else frozenset(_nodes(status)),
            bind,
            required,
            exclusive,
            _choice(TOPOLOGY_SPEC, numa, "numaTopologyPolicy", _ALIGNMENTS, None),
            split=_truth(split, annotations),
            scheduled=RESOURCE_STATUS in annotations and not ours,
            published=cpus if ours else CPUSet(),
        )
    except AnnotationError as error:
        return Orchestration(qos, prod, fault=f"{error.key} {error.what}; {error.remedy}")


def resource_status(cpus: CPUSet) -> str:
    """Return the value of `resource-status` with CPUs that the agent chose.

    koord-scheduler reads the CPUs, and ignores the second field.
    """
    return json.dumps({"cpuset": str(cpus), _CHOSEN_BY: _AGENT}, separators=(",", ":"))


def of_node(labels: Mapping[str, str], annotations: Mapping[str, str]) -> NodeRules:
    """Return what Koordinator's labels and annotations say of a node."""
    faults: list[str] = []

    def read(parse: Callable[[], _T], otherwise: _T) -> _T:
        try:
            return parse()
        except AnnotationError as error:
            faults.append(str(error))
            return otherwise

    def label(keys: tuple[str, ...], known: Mapping[str, _T]) -> _T | None:
        for key in keys:
            if (text := labels.get(key, "")) in known:
                return known[text]
            if text not in UNSET:
                words = ", ".join(known)
                faults.append(f"the Node's label {key} is {_shown(text)}; write one of {words}")
        return None

    bind = label((_BIND_POLICY,), _NODE_BINDS)
    return NodeRules(
        read(
            lambda: koordinator.reservation(annotations.get(koordinator.RESERVATION)), Reservation()
        ),
        read(
            lambda: koordinator.system_cpus(annotations.get(koordinator.SYSTEM_QOS)), SystemCPUs()
        ),
        bind,
        labels.get(_BIND_POLICY) in _FULL_CORES_ONLY,
        label((_STRATEGY,), _STRATEGIES),
        label(_TOPOLOGY_POLICIES, _ALIGNMENTS),
        labels.get(_ARCHITECTURE) == _ARM,
        tuple(faults),
    )


def _truth(key: str, annotations: Mapping[str, str]) -> bool:
    """Read a truth value; false without the annotation."""
    text = annotations.get(key, "false")
    if text not in _TRUTH:
        raise AnnotationError(key, f"is {_shown(text)}", 'write "true" or "false"')
    return _TRUTH[text]


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


def _bind(spec: Mapping[str, Any]) -> tuple[BindPolicy | None, bool]:
    required = _choice(RESOURCE_SPEC, spec, "requiredCPUBindPolicy", _BINDS, None)
    if required:
        return required, True
    return _choice(RESOURCE_SPEC, spec, "preferredCPUBindPolicy", _BINDS, None), False


def _choice(
    annotation: str, value: Mapping[str, Any], key: str, known: Mapping[str, _T], otherwise: _T
) -> _T:
    text = value.get(key) or ""
    if text in UNSET:
        return otherwise
    if not isinstance(text, str) or text not in known:
        raise AnnotationError(
            annotation, f"has {key} {_shown(text)}", f"write one of {', '.join(known)}"
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
        raise AnnotationError(RESOURCE_STATUS, f"has in {key} {_shown(value)}", _BY_SCHEDULER)
    return value


def _node(entry: Mapping[str, Any]) -> int:
    node = entry.get("node", 0)
    if isinstance(node, bool) or not isinstance(node, int) or node < 0:
        raise AnnotationError(RESOURCE_STATUS, f"has the NUMA node {_shown(node)}", _BY_SCHEDULER)
    return node


def _has_cpu(entry: Mapping[str, Any]) -> bool:
    resources = entry.get("resources") or {}
    if not isinstance(resources, dict):
        raise AnnotationError(RESOURCE_STATUS, f"has resources {_shown(resources)}", _BY_SCHEDULER)
    try:
        return any(Quantity.read(resources[name]).milli for name in _AMOUNTS if name in resources)
    except QuantityError as error:
        raise AnnotationError(
            RESOURCE_STATUS, f"has in resources: {error}", _BY_SCHEDULER
        ) from error


def _shown(value: object) -> str:
    return repr(value)[:_SHOWN_CHARACTERS]
