"""Koordinator's annotations of a NodeResourceTopology, which koord-scheduler reads, as JSON.

Source: koordinator-sh/koordinator, apis/extension (node.go, node_qos.go, numa_aware.go) for names
and fields; pkg/koordlet/statesinformer/impl/states_noderesourcetopology.go for the order of lists
and for `null` and `{}`. The JSON is compact, as Go writes it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from cpupool.policies.koordinator.node_rules import RESERVATION, RESERVED_CPUS, SYSTEM_QOS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from cpupool.core.cpuset import CPUSet
    from cpupool.core.node_topology import CPUModel
    from cpupool.core.orchestration import Reservation, SystemCPUs
    from cpupool.core.topology import CPUTopology
    from cpupool.policies.koordinator.shared_sets import SharedPool, SharedPools

MANAGED_BY: Final = ("app.kubernetes.io/managed-by", "Koordinator")
"""The label of objects that koord-scheduler and koord-manager take for Koordinator's."""


_CPU_MANAGER_POLICY: Final = "kubelet.koordinator.sh/cpu-manager-policy"
CPU_TOPOLOGY: Final = "node.koordinator.sh/cpu-topology"
_POD_CPUS: Final = "node.koordinator.sh/pod-cpu-allocs"
_SHARED_POOLS: Final = "node.koordinator.sh/cpu-shared-pools"
_BEST_EFFORT_POOLS: Final = "node.koordinator.sh/be-cpu-shared-pools"
_CPU_MODEL: Final = "node.koordinator.sh/cpu-basic-info"


@dataclass(frozen=True, slots=True)
class EffectiveCPUManager:
    """The program that gives containers CPUs of their own: the kubelet, or cpupool in its place.

    Attributes:
        policy: the name of its policy, as the kubelet has it.
        options: the options of the policy: name → value.
        reserved: CPUs that it never gives to a container.
    """

    policy: str
    options: Mapping[str, str]
    reserved: CPUSet


@dataclass(frozen=True, slots=True)
class PodCPUs:
    """CPUs that a pod owns.

    Attributes:
        namespace: the pod's namespace.
        name: its name.
        uid: its UID in the API.
        cpus: the CPUs.
        scheduled: whether koord-scheduler has assigned them, and so keeps its own books of them.
    """

    namespace: str
    name: str
    uid: str
    cpus: CPUSet
    scheduled: bool = False


@dataclass(frozen=True, slots=True)
class Published:
    """The facts of a node that koord-scheduler reads in annotations.

    Attributes:
        topology: the machine.
        model: the kind of its CPUs.
        manager: the program that gives containers CPUs of their own.
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
        reservation[RESERVED_CPUS] = str(published.reserved)
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
