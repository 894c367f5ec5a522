"""The facts that the agent needs before it touches a container or offers a device to the kubelet.

Before the agent has read the pods and the kubelet's devices once, it cannot distinguish an
exclusive container from others: a wrong write might cause an outage, and the kubelet might give a
device to two pods.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from cpupool.manager import kubelet_conflict, served_requests

if TYPE_CHECKING:
    from cpupool.manager.resolve import Snapshot

POOL_FILE: Final = "a pool file for this node"
NRI: Final = (
    "NRI: the next update of the kubelet's static CPU manager would undo what cpupool writes;"
    " enable NRI in the container runtime, and leave out --enforcement"
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

    There is no conflict where there is nothing to place.
    """
    return kubelet_conflict.found(now) if places(now) else ""


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
