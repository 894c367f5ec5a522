"""Which extended resources the node's status is to have from resource plugins: a pure decision.

One amount stands for capacity and allocatable: the kubelet sets the allocatable amount of each
resource that no device plugin serves to its capacity (MachineInfo in pkg/kubelet/nodestatus).
A resource that pods can have none of is not written: the scheduler treats both alike, but at
its start the kubelet fails running pods for a resource that the status has, and not for one that
is missing (removeMissingExtendedResources in pkg/kubelet/lifecycle).
"""

from __future__ import annotations

from math import floor, isfinite
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from cpupool.core.pod_resources import can_be_extended

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cpupool.core.names import Names
    from cpupool.core.workloads import NodeAmount

_T = TypeVar("_T")
_END: Final = 2**63
"""An amount is smaller (k8s.io/apimachinery: pkg/api/resource/quantity.go)."""
_DIGITS: Final = 3
"""All that is beyond these digits of a plugin's amount is an error of its sum."""


class PluginAmounts(NamedTuple):
    """The resources that plugins offer for the node.

    Attributes:
        by_plugin: the resource of each plugin → resource → how much pods can have.
        complete: whether all plugins have had time to register.
    """

    by_plugin: Mapping[str, Mapping[str, float]]
    complete: bool = False


class StatusAmounts(NamedTuple):
    """The resources that the node's status is to have from cpupool.

    Attributes:
        amounts: resource → how much pods can have.
        refused: resource → why it is not written.
    """

    amounts: Mapping[str, int]
    refused: Mapping[str, str]


def wanted(
    offers: Mapping[str, Mapping[str, float]],
    present: Mapping[str, NodeAmount],
    names: Names,
    *,
    complete: bool,
) -> StatusAmounts:
    """Return what the node's status is to have.

    Args:
        offers: the resource of each plugin → resource → how much pods can have; an argument of
            `merged`.
        present: what the status has.
        names: the names of the pools' resources.
        complete: whether all plugins have had time to register: before that a resource that an
            earlier agent has written stays.
    """
    amounts: dict[str, int] = {}
    refused: dict[str, str] = {}
    for name, amount in sorted(merged(offers).items()):
        if why := _refusal(name, amount, present.get(name), names):
            refused[name] = why
        elif count := floor(round(amount, _DIGITS)):
            amounts[name] = count
    if not complete:
        kept = {name: has.capacity for name, has in present.items() if has.ours and has.capacity}
        offered = amounts.keys() | refused.keys()
        amounts |= {name: count for name, count in kept.items() if name not in offered}
    return StatusAmounts(amounts, refused)


def shown(present: Mapping[str, NodeAmount], amounts: Mapping[str, int]) -> bool:
    """Return whether the status has these amounts from cpupool, and no more."""
    ours = {name: (has.capacity, has.allocatable) for name, has in present.items() if has.ours}
    return ours == {name: (count, count) for name, count in amounts.items()}


def merged(said: Mapping[str, Mapping[str, _T]]) -> dict[str, _T]:
    """Return resource → the entry that prevails among those of plugins.

    Args:
        said: the resource of each plugin → resource → its entry. Of two plugins that name a
            resource the one that is registered for it prevails, else the first by name.
    """
    found: dict[str, _T] = {}
    for plugin in sorted(said, reverse=True):
        found |= said[plugin]
    own = {name: each[name] for name, each in said.items() if name in each}
    return found | own


def _refusal(name: str, amount: float, has: NodeAmount | None, names: Names) -> str:
    """Return why an offer is not written; empty if it is."""
    if names.pool_of(name) is not None:
        return "this is a pool of cpupool, which the kubelet knows as a device"
    if not can_be_extended(name):
        return "this is no name of an extended resource, as example.com/nic"
    if not isfinite(amount) or not 0 <= amount < _END:
        return f"{amount:g} is no amount from 0 to 2^63 - 1"
    # Zero is what the kubelet leaves of a resource that it does not know, after the node has been
    # set up anew (reconcileExtendedResource in pkg/kubelet/kubelet_node_status.go).
    if has and not has.ours and (has.capacity or has.allocatable):
        return f"another program has set it to {has.capacity} in the node's status"
    return ""
