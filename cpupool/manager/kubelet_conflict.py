"""The kubelet's static CPU manager, which cpupool tolerates only in two cases.

It may give out CPUs where cpupool only adds shared CPUs to them (OpenShift's mixed CPUs), and
beside a policy that tolerates it for the time of a migration.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from cpupool.core.cpuset import CPUSet
from cpupool.core.grants import Source
from cpupool.manager import served_requests, zones
from cpupool.policies.built_in import kind

if TYPE_CHECKING:
    from cpupool.manager.resolve import Resolution, Snapshot

_RESTART: Final = "delete cpu_manager_state in its folder and restart the kubelet"
_OVERLAP: Final = (
    "the kubelet to keep CPUs {cpus} of the shared pools, which its static CPU manager gives out:"
    f" add them to its reservedSystemCPUs, {_RESTART}"
)
_FLOOR: Final = (
    "the kubelet to keep CPUs {cpus}, which cpuManager reserves in the pool file and the kubelet's"
    f" static CPU manager gives out: add them to its reservedSystemCPUs, {_RESTART}"
)
_HELD: Final = (
    "the end of pods that have CPUs {cpus} of exclusive pools which are gone: the kubelet's static"
    " CPU manager gives these out, too; drain the node"
)
_STATIC: Final = (
    "the kubelet to give up its static CPU manager, which gives out CPUs {cpus}: set"
    f" cpuManagerPolicy to none, {_RESTART}; {{instead}}"
)
_ONLY_ADD: Final = (
    "or let cpupool only add to these CPUs, by a pool file with mixedCPUs and shared pools alone"
)
_TWO_MANAGERS: Final = (
    "the policy {policy} of cpuManager in the pool file gives out the same CPUs, and only one of"
    " the two can do so"
)
_WITHOUT_POOLS: Final = (
    "or remove the exclusive and shared pools from the pool file: without them the policy {policy}"
    " of cpuManager works beside it"
)


def found(snapshot: Snapshot) -> str:
    """Return what must end, and how, for cpupool to place containers; empty for no conflict.

    Beside the kubelet, the CPUs that cpupool shares must not be the kubelet's, and no pod may have
    CPUs of a pool that is gone.
    """
    facts, resolution = snapshot
    if not facts.static_cpus:
        return ""
    manager = facts.pools.cpu_manager
    if served_requests.kubelet_owns(facts):
        ours = CPUSet.union(pool.cpus for pool in facts.pools)
        overlap, foreign = _OVERLAP, {Source.DEVICES, Source.POLICY}
    elif served_requests.beside_kubelet(facts):
        ours = resolution.view.cpus - zones.allocatable_cpus(facts, resolution.view)
        overlap, foreign = _FLOOR, {Source.DEVICES}
    else:
        instead = _TWO_MANAGERS if manager.chooses else _ONLY_ADD
        if kind(manager).beside_kubelet:
            instead = _WITHOUT_POOLS
        instead = instead.format(policy=manager.policy)
        return _STATIC.format(cpus=facts.static_cpus, instead=instead)
    if both := ours & facts.static_cpus:
        return overlap.format(cpus=both)
    held = _granted(resolution, foreign) & facts.static_cpus
    return _HELD.format(cpus=held) if held else ""


def _granted(resolution: Resolution, sources: set[Source]) -> CPUSet:
    grants = resolution.grants.of_pods
    return CPUSet.union(grant.cpus for _, grant in grants if grant.source in sources)
