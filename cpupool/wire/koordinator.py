"""Koordinator's annotations of a Node and of its NodeResourceTopology, as JSON.

Source: koordinator-sh/koordinator, apis/extension (node.go, node_qos.go, numa_aware.go) for names
and fields; pkg/koordlet/statesinformer/impl/states_noderesourcetopology.go for the order of lists
and for `null` and `{}`. Compact, as Go writes it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from cpupool.core.cpuset import CPUSet
from cpupool.core.errors import CPUPoolError, CPUSetParseError, QuantityError
from cpupool.core.koordinator import Reservation, SystemCPUs
from cpupool.core.pools import MILLI_PER_CPU
from cpupool.core.quantity import Quantity
from cpupool.wire import json_text
from cpupool.wire.json_text import JSONRefused

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from cpupool.core.koordinator import (
        CPUModel,
        EffectiveCPUManager,
        PodCPUs,
        SharedPool,
        SharedPools,
    )
    from cpupool.core.topology import CPUTopology

MANAGED_BY: Final = ("app.kubernetes.io/managed-by", "Koordinator")
"""The label of objects that koord-scheduler and koord-manager take for Koordinator's."""

RESERVATION: Final = "node.koordinator.sh/reservation"
SYSTEM_QOS: Final = "node.koordinator.sh/system-qos-resource"
NODE_ANNOTATIONS: Final = (RESERVATION, SYSTEM_QOS)
"""The annotations of a Node that say which CPUs an admin keeps from pods."""

_CPU_MANAGER_POLICY: Final = "kubelet.koordinator.sh/cpu-manager-policy"
CPU_TOPOLOGY: Final = "node.koordinator.sh/cpu-topology"
_POD_CPUS: Final = "node.koordinator.sh/pod-cpu-allocs"
_SHARED_POOLS: Final = "node.koordinator.sh/cpu-shared-pools"
_BEST_EFFORT_POOLS: Final = "node.koordinator.sh/be-cpu-shared-pools"
_CPU_MODEL: Final = "node.koordinator.sh/cpu-basic-info"

_RESERVED_CPUS: Final = "reservedCPUs"
_SHOWN_CHARACTERS: Final = 63


class AnnotationError(CPUPoolError):
    """An annotation of the Node that is not what Koordinator writes there.

    Attributes:
        key: the annotation.
        what: what is wrong.
        remedy: what to write.
    """

    def __init__(self, key: str, what: str, remedy: str) -> None:
        self.key = key
        self.what = what
        self.remedy = remedy
        super().__init__(f"the Node's annotation {key} {what}; {remedy}")


@dataclass(frozen=True, slots=True)
class Published:
    """What koord-scheduler reads of a node in annotations.

    Attributes:
        topology: the machine.
        model: the kind of its CPUs.
        manager: what gives containers CPUs of their own.
        pods: the pods that own CPUs.
        pools: the shared sets.
        reservation: the admin's reservation.
        reserved: the CPUs that no pod of the scheduler may have.
        system: the admin's CPUs for pods of the class SYSTEM.
    """

    topology: CPUTopology
    model: CPUModel
    manager: EffectiveCPUManager
    pods: tuple[PodCPUs, ...]
    pools: SharedPools
    reservation: Reservation
    reserved: CPUSet
    system: SystemCPUs


def written(published: Published) -> dict[str, str]:
    """Return the annotations of a node's NodeResourceTopology."""
    reservation = dict(published.reservation.written)
    if published.reserved:
        reservation[_RESERVED_CPUS] = str(published.reserved)
    values = {
        _CPU_MANAGER_POLICY: _manager(published.manager),
        CPU_TOPOLOGY: {"detail": [*_cpus(published.topology)]},
        _POD_CPUS: pod_cpu_allocs(published.pods),
        _SHARED_POOLS: cpu_shared_pools(published.pools.shared),
        _BEST_EFFORT_POOLS: cpu_shared_pools(published.pools.best_effort),
        _CPU_MODEL: _model(published.model, published.topology),
        RESERVATION: reservation,
        SYSTEM_QOS: dict(published.system.written),
    }
    return {key: json.dumps(value, separators=(",", ":")) for key, value in values.items()}


def pod_cpu_allocs(pods: Iterable[PodCPUs]) -> list[dict[str, Any]] | None:
    """Return the value of `pod-cpu-allocs`, sorted by UID; None without pods.

    `managedByKubelet` makes koord-scheduler subtract the CPUs from those that it can give: for CPUs
    that it has assigned itself, that would count them twice.
    """
    return [
        _without_empty(
            namespace=pod.namespace,
            name=pod.name,
            uid=pod.uid,
            cpuset=str(pod.cpus),
            managedByKubelet=not pod.scheduled,
        )
        for pod in sorted(pods, key=lambda pod: pod.uid)
    ] or None


def cpu_shared_pools(pools: Iterable[SharedPool]) -> list[dict[str, Any]]:
    """Return the value of `cpu-shared-pools` or of `be-cpu-shared-pools`."""
    return [
        {
            "socket": pool.socket,
            "node": pool.node,
            **_without_empty(cpuset=str(pool.cpus)),
        }
        for pool in pools
    ]


def reservation(text: str | None) -> Reservation:
    """Read the annotation `reservation` of a Node; None for no annotation.

    Raises:
        AnnotationError: it is no such JSON.
    """
    value = json_object(RESERVATION, text)
    cpus = cpu_list(RESERVATION, value, _RESERVED_CPUS)
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


def _manager(manager: EffectiveCPUManager) -> dict[str, Any]:
    return _without_empty(
        policy=manager.policy, options=dict(manager.options), reservedCPUs=str(manager.reserved)
    )


def _cpus(topology: CPUTopology) -> Iterable[dict[str, int]]:
    # Core and socket are numbers that are unique on the machine, as in lscpu.
    for cpu, info in sorted(topology.cpus.items()):
        yield {"id": cpu, "core": info.core, "socket": info.socket, "node": info.node or 0}


def _model(model: CPUModel, topology: CPUTopology) -> dict[str, Any]:
    return _without_empty(
        cpuModel=model.name,
        hyperThreadEnabled=any(len(core) > 1 for core in topology.cores),
        turboEnabled=model.turbo,
        catL3CbmMask=model.l3_mask,
        vendorID=model.vendor,
    )


def _without_empty(**values: Any) -> dict[str, Any]:  # noqa: ANN401 - values of JSON
    """Return the values that Go's `omitempty` writes."""
    return {key: value for key, value in values.items() if value}
