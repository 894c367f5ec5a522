"""A stand-in for the filter of NodeResourceTopologyMatch, by its rules.

Source: kubernetes-sigs/scheduler-plugins, pkg/noderesourcetopology, at 903da7df (2026-08-16). There
is no cache and no preemption: the filter reads the object as it is now.
"""

from __future__ import annotations

import re
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

from cpupool.core.node_topology import HUGE_PAGES
from cpupool.core.pod_resources import CPU, MEMORY, is_extended
from cpupool.core.quantity import Quantity
from cpupool.core.workloads import QoSClass

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

Amounts = dict[str, Decimal]
"""Resource → how much, in CPUs, bytes or devices."""

_SINGLE: Final = "single-numa-node"
_FORMER: Final = {f"SingleNUMANode{scope}Level": scope.lower() for scope in ("Container", "Pod")}
_NAME: Final = re.compile(r"node-(\d+)")
_IDS: Final = range(64)
_STORAGE: Final = ("ephemeral-storage", "storage")


def unfit(
    body: Mapping[str, Any],
    qos: QoSClass,
    topology: Mapping[str, Any] | None,
    allocatable: Iterable[str],
) -> str:
    """Return why a pod must not run on a node; empty where it may.

    Args:
        body: the pod.
        qos: its QoS class.
        topology: the node's object in v1alpha2; None without one.
        allocatable: the names of the resources that the node has.
    """
    init, app = (
        [_requests(one) for one in body["spec"].get(part, ())]
        for part in ("initContainers", "containers")
    )
    asks_devices = any(is_extended(name) for one in (*init, *app) for name in one)
    if topology is None or (qos is QoSClass.BEST_EFFORT and not asks_devices):
        return ""
    policy, scope = _manager(topology)
    if policy != _SINGLE:
        return ""
    match = _Match(_zones(topology), {*allocatable}, guaranteed=qos is QoSClass.GUARANTEED)
    if scope == "pod":
        overhead = _amounts(body["spec"].get("overhead", {}))
        return match.lacking(_sum([_largest([*init, _sum(app)]), overhead]))
    return next(filter(None, map(match.lacking, init)), "") or next(
        filter(None, map(match.taking, app)), ""
    )


class _Match:
    def __init__(
        self, zones: Mapping[int, Amounts], allocatable: set[str], *, guaranteed: bool
    ) -> None:
        self._zones = zones
        self._allocatable = allocatable
        self._guaranteed = guaranteed

    def lacking(self, asked: Amounts) -> str:
        """Return the resource for which no zone is left; empty if there is a zone for all."""
        return self._aligned(asked)[0]

    def taking(self, asked: Amounts) -> str:
        """Do the same, and take what is asked from the lowest zone."""
        lacking, nodes = self._aligned(asked)
        if not lacking:
            zone = self._zones[min(nodes)] if nodes else {}
            zone |= {name: zone[name] - n for name, n in asked.items() if self._counts(name, zone)}
        return lacking

    def _aligned(self, asked: Amounts) -> tuple[str, set[int]]:
        nodes = set(_IDS)
        for name, amount in asked.items():
            if not amount:
                continue
            if name not in self._allocatable:
                return name, set()
            listing = {node: zone for node, zone in self._zones.items() if name in zone}
            if not listing and (is_extended(name) or name in _STORAGE):
                continue
            nodes &= {
                node
                for node, zone in listing.items()
                if not self._counts(name, zone) or zone[name] >= amount
            }
            if not nodes:
                return name, set()
        return "", nodes & self._zones.keys()

    def _counts(self, name: str, zone: Amounts) -> bool:
        pinned = name in {CPU, MEMORY} or name.startswith(HUGE_PAGES)
        return name in zone and (self._guaranteed or not pinned)


def _manager(topology: Mapping[str, Any]) -> tuple[str, str]:
    former = next(iter(topology.get("topologyPolicies") or ()), "")
    found = {
        "topologyManagerPolicy": _SINGLE if former in _FORMER else "none",
        "topologyManagerScope": _FORMER.get(former, "container"),
    }
    found |= {one["name"]: one["value"] for one in topology.get("attributes", ())}
    return found["topologyManagerPolicy"], found["topologyManagerScope"]


def _zones(topology: Mapping[str, Any]) -> dict[int, Amounts]:
    named = ((_NAME.fullmatch(zone["name"]), zone) for zone in topology["zones"])
    return {
        int(name[1]): _amounts({one["name"]: one["available"] for one in zone["resources"]})
        for name, zone in named
        if name and zone["type"] == "Node" and int(name[1]) in _IDS
    }


def _requests(container: Mapping[str, Any]) -> Amounts:
    resources = container.get("resources", {})
    # The API server takes a limit for a request that is missing.
    return _amounts({**resources.get("limits", {}), **resources.get("requests", {})})


def _amounts(written: Mapping[str, Any]) -> Amounts:
    return {name: Quantity.read(amount, name).value for name, amount in written.items()}


def _sum(parts: list[Amounts]) -> Amounts:
    names = {name: None for part in parts for name in part}
    return {name: sum((part[name] for part in parts if name in part), Decimal()) for name in names}


def _largest(parts: list[Amounts]) -> Amounts:
    names = {name: None for part in parts for name in part}
    return {name: max(part[name] for part in parts if name in part) for name in names}
