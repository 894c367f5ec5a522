"""The part of a node's state that koord-scheduler reads in annotations."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cpupool.core.cpu_manager import NONE, STATIC
from cpupool.core.cpuset import CPUSet
from cpupool.core.grants import Sharing
from cpupool.core.pools import MILLI_PER_CPU
from cpupool.core.workloads import oldest_first
from cpupool.manager import zones
from cpupool.policies.accumulators.kubelet import take_packed
from cpupool.policies.built_in import kind
from cpupool.policies.koordinator.shared_sets import shared_pools
from cpupool.policies.koordinator.topology_annotations import (
    MANAGED_BY,
    EffectiveCPUManager,
    PodCPUs,
    Published,
    written,
)
from cpupool.policies.layout import Layout

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from cpupool.config.kubelet_settings import KubeletConfig
    from cpupool.core.node_topology import CPUModel
    from cpupool.core.topology import CPUTopology
    from cpupool.core.workloads import Pod
    from cpupool.manager.facts import NodeFacts
    from cpupool.manager.resolve import Resolution, Snapshot
    from cpupool.policies.view import NodeView


def metadata(
    snapshot: Snapshot, model: CPUModel, kubelet: KubeletConfig | None
) -> tuple[Mapping[str, str], Mapping[str, str]]:
    """Return the annotations and the labels of a node's NodeResourceTopology.

    Args:
        snapshot: the facts and the decisions.
        model: the kind of the machine's CPUs.
        kubelet: the kubelet's configuration; None where it is not known.
    """
    return written(published(snapshot, model, kubelet)), dict([MANAGED_BY])


def published(
    snapshot: Snapshot,
    model: CPUModel,
    kubelet: KubeletConfig | None,
) -> Published:
    """Return the facts of a node that koord-scheduler reads.

    CPUs outside the default pool are reserved, so koord-scheduler never gives out a pool's CPU.

    Args:
        snapshot: the facts and the decisions.
        model: the kind of the machine's CPUs.
        kubelet: the kubelet's configuration; None where it is not known.
    """
    facts, resolution = snapshot
    topology, view = facts.topology, resolution.view
    ours = view.cpus & topology.online
    reservation, system = facts.rules.reservation, facts.rules.system
    reserved = reservation.cpus or _packed(topology, ours, reservation.count)
    reserved |= topology.online - ours
    owned = [(grant.cpus, grant.sharing) for grant in view.grants]
    idle = view.barred - view.grants.cpus
    return Published(
        topology,
        model,
        _manager(facts, view, kubelet),
        tuple(_pods(resolution)),
        shared_pools(
            topology,
            topology.online,
            [*owned, (idle, Sharing.NONE)],
            reserved | system.withheld,
        ),
        reservation,
        reserved,
        system,
    )


def chosen(snapshot: Snapshot) -> Iterator[tuple[Pod, CPUSet]]:
    """Yield the pods whose CPUs the agent itself chose, with these CPUs, the oldest pod first.

    Static pods are left out, because the API server has only a copy of them.
    """
    facts, resolution = snapshot
    if not kind(facts.pools.cpu_manager).reads_classes:
        return
    view = resolution.view
    for pod in oldest_first(view.pods):
        grant = view.chosen.get(pod.cgroup_uid)
        if grant and _chosen_here(pod) and pod.cgroup_uid == pod.uid and not pod.finished:
            yield pod, grant.cpus


def _chosen_here(pod: Pod) -> bool:
    """Return whether the agent chooses the CPUs of a pod, and no scheduler does."""
    orchestration = pod.orchestration
    if orchestration is None or orchestration.scheduled or orchestration.fault:
        return False
    return orchestration.owns


def _pods(resolution: Resolution) -> Iterator[PodCPUs]:
    owned: dict[str, CPUSet] = {}
    for uid, grant in resolution.grants.of_pods:
        owned[uid] = owned.get(uid, CPUSet()) | grant.cpus
    for uid, cpus in owned.items():
        pod = resolution.pods.get(uid)
        if pod is None:
            yield PodCPUs("", "", uid, cpus)
            continue
        orchestration = pod.orchestration
        recorded = (orchestration.cpus, orchestration.published) if orchestration else ()
        # koord-scheduler keeps books of each pod with the annotation, by any writer.
        scheduled = bool(cpus) and cpus in recorded
        yield PodCPUs(pod.namespace, pod.name, pod.uid, cpus, scheduled)


def _manager(
    facts: NodeFacts, view: NodeView, kubelet: KubeletConfig | None
) -> EffectiveCPUManager:
    ours = view.cpus & facts.topology.online
    own = facts.pools.cpu_manager
    if own.chooses:
        reserved = ours - zones.allocatable_cpus(facts, view)
        # koord-scheduler knows the kubelet's policies only, and its own is none of these.
        policy = NONE if kind(own).reads_classes else STATIC
        return EffectiveCPUManager(policy, own.options.written(), reserved)
    if facts.static_cpus:
        options = kubelet.cpu_manager_options if kubelet else {}
        return EffectiveCPUManager(STATIC, options, ours - facts.static_cpus)
    return EffectiveCPUManager(NONE, {}, _kubelet_reserved(facts.topology, ours, kubelet))


def _kubelet_reserved(topology: CPUTopology, ours: CPUSet, kubelet: KubeletConfig | None) -> CPUSet:
    """Return the CPUs that the kubelet keeps from pods, those of pools left out.

    Koordinator takes the amounts that the kubelet reserves as that many CPUs, but the CPUs of pools
    are among these amounts.
    """
    if kubelet is None:
        return CPUSet()
    if kubelet.reserved_cpus:
        return kubelet.reserved_cpus & ours
    milli = kubelet.reserved_milli - len(topology.online - ours) * MILLI_PER_CPU
    return _packed(topology, ours, -(-milli // MILLI_PER_CPU))


def _packed(topology: CPUTopology, cpus: CPUSet, count: int) -> CPUSet:
    count = min(count, len(cpus))
    if count <= 0:
        return CPUSet()
    return take_packed(Layout.of_topology(topology, cpus), cpus, count).cpus
