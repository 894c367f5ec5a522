"""The facts that the agent needs before it touches a container or offers a device to the kubelet.

Before the agent has read the pods and the kubelet's devices once, it cannot distinguish an
exclusive container from others: a wrong write might cause an outage, and the kubelet might give a
device to two pods.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from cpupool.core.cpuset import CPUSet
from cpupool.core.grants import Source
from cpupool.manager import served_requests, zones
from cpupool.policies.built_in import kind

if TYPE_CHECKING:
    from cpupool.manager.resolve import Resolution, Snapshot

POOL_FILE: Final = "a pool file for this node"
NRI: Final = (
    "NRI: the next update of the kubelet's static CPU manager would undo what cpupool writes;"
    " enable NRI in the container runtime, and leave out --enforcement"
)
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


def waiting_for(now: Snapshot, *, kubelet_answers: bool, records_read: bool, nri: bool) -> str:
    """Return the fact or event that the agent awaits before it touches containers; empty for none.

    Args:
        now: the facts and the decisions.
        kubelet_answers: whether the kubelet has named its CPU manager's CPUs, or never will.
        records_read: whether the agent has read the kubelet's records.
        nri: whether the runtime asks before it creates or updates a container.
    """
    facts, resolution = now
    if facts.pods is None:
        return "the list of this node's pods"
    if why := conflict(now):
        return why
    if not kubelet_answers:
        return "the kubelet's answer about its CPU manager"
    if resolution.missing and not records_read:
        return "the kubelet's records of its devices"
    if served_requests.kubelet_gives(facts) and not nri:
        return NRI
    # Last: by now the agent knows which devices of removed pools pods hold, and lists them.
    return "" if places(now) else POOL_FILE


def conflict(now: Snapshot) -> str:
    """Return what must end, and how, because the kubelet places containers, too; empty if not.

    cpupool tolerates the kubelet's static CPU manager in two cases: where it gives out CPUs and
    cpupool only adds shared CPUs to them (OpenShift's mixed CPUs), and beside a policy that
    tolerates it for the time of a migration. Then the CPUs that cpupool shares must not be the
    kubelet's, and no pod may have CPUs of a pool that is gone. There is no conflict where there is
    nothing to place.
    """
    facts, resolution = now
    if not facts.static_cpus or not places(now):
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


def places(now: Snapshot) -> bool:
    """Return whether there is something to place, or pods own CPUs of an earlier pool file."""
    facts, resolution = now
    return facts.pools.places or (facts.configured and any(resolution.grants.of_pods))


def knows_owners(waits: str) -> bool:
    """Return whether the owner of each CPU is known while the agent waits for this."""
    return offers(waits) or waits == NRI


def offers(waits: str) -> bool:
    """Return whether the agent offers devices to the kubelet while it waits for this.

    Without a pool file pods may hold devices of pools that are gone.
    """
    return waits in {"", POOL_FILE}


def _granted(resolution: Resolution, sources: set[Source]) -> CPUSet:
    grants = resolution.grants.of_pods
    return CPUSet.union(grant.cpus for _, grant in grants if grant.source in sources)
