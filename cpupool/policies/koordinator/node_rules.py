"""The admin's rules for a Node's CPUs in Koordinator's labels and annotations.

The module reads today's names, and those of the proposal *Fine-grained CPU orchestration* where
Koordinator has other names now. A value that Koordinator does not know is a fault, and has no
effect.

Source: koordinator-sh/koordinator, apis/extension (node.go, node_qos.go, numa_aware.go); the
proposal, "CPU orchestration API".
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeVar

from cpupool.core.errors import QuantityError
from cpupool.core.orchestration import BindPolicy, NodeRules, Reservation, SystemCPUs
from cpupool.core.pool_policy import NUMAPolicy
from cpupool.core.pools import MILLI_PER_CPU
from cpupool.core.quantity import Quantity
from cpupool.policies.koordinator.annotation_json import (
    ALIGNMENTS,
    UNSET,
    AnnotationError,
    cpu_list,
    json_object,
    shown,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

RESERVATION: Final = "node.koordinator.sh/reservation"
SYSTEM_QOS: Final = "node.koordinator.sh/system-qos-resource"
NODE_ANNOTATIONS: Final = (RESERVATION, SYSTEM_QOS)
"""The annotations of a Node that say which CPUs an admin keeps from pods."""
RESERVED_CPUS: Final = "reservedCPUs"
"""The entry of a reservation that names CPUs."""
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
_T = TypeVar("_T")


def of_node(labels: Mapping[str, str], annotations: Mapping[str, str]) -> NodeRules:
    """Read the rules in Koordinator's labels and annotations of a node."""
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
                faults.append(f"the Node's label {key} is {shown(text)}; write one of {words}")
        return None

    bind = label((_BIND_POLICY,), _NODE_BINDS)
    return NodeRules(
        read(
            lambda: reservation(annotations.get(RESERVATION)),
            Reservation(),
        ),
        read(
            lambda: system_cpus(annotations.get(SYSTEM_QOS)),
            SystemCPUs(),
        ),
        bind,
        labels.get(_BIND_POLICY) in _FULL_CORES_ONLY,
        label((_STRATEGY,), _STRATEGIES),
        label(_TOPOLOGY_POLICIES, ALIGNMENTS),
        labels.get(_ARCHITECTURE) == _ARM,
        tuple(faults),
    )


def reservation(text: str | None) -> Reservation:
    """Read the annotation `reservation` of a Node; None for no annotation.

    Raises:
        AnnotationError: it is no such JSON.
    """
    value = json_object(RESERVATION, text)
    cpus = cpu_list(RESERVATION, value, RESERVED_CPUS)
    resources = value.get("resources") or {}
    amount = resources.get("cpu") if isinstance(resources, dict) else None
    try:
        milli = 0 if cpus or amount is None else Quantity.read(amount).milli
    except QuantityError as error:
        raise AnnotationError(
            RESERVATION, f"has in resources.cpu: {error}", "write an amount of cpu, as 2 or 500m"
        ) from error
    return Reservation(cpus, -(-milli // MILLI_PER_CPU), value)


def system_cpus(text: str | None) -> SystemCPUs:
    """Read the annotation `system-qos-resource` of a Node; None for no annotation.

    Raises:
        AnnotationError: it is no such JSON.
    """
    value = json_object(SYSTEM_QOS, text)
    cpus = cpu_list(SYSTEM_QOS, value, "cpuset")
    return SystemCPUs(cpus, value.get("cpusetExclusive") is not False, value)
