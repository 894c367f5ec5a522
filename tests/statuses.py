"""A status that has something of everything, and what may become of its file."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from cpupool.core.assignments import Placement, Step
from cpupool.core.cgroups import Writer
from cpupool.core.cpu_manager import (
    Compaction,
    CPUManager,
    Eligible,
    StaticOptions,
    Suppression,
    SystemPods,
)
from cpupool.core.cpuset import CPUSet
from cpupool.core.grants import PastResize
from cpupool.core.names import KUBELET_CPUS, POLICY_CPUS
from cpupool.core.pool_policy import NUMAPolicy, PoolPolicy
from cpupool.core.pools import MixedCPUs, NodePools, Pool, PoolKind
from cpupool.core.withheld import Withheld
from cpupool.manager.report import (
    ContainerStatus,
    InBubble,
    NodeResource,
    NodeStatus,
    OwnChanges,
    PluginAnswer,
    PluginStatus,
    PoolShare,
    RefusedPod,
)
from cpupool.manager.status_json import to_json
from cpupool.policies.base import Choice
from cpupool.policies.view import BEST_EFFORT, DEFAULT, Size
from tests.builders import resource

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cpupool.core.requests import Resource

Path = tuple[str | int, ...]
"""The place of a value in a document."""

FOUR = CPUSet.parse("4-7")
CHANGES = OwnChanges(
    CPUSet.of(4),
    CPUSet.of(6),
    notice_ends_unix_s=1_795_356_005.5,
    resizes=(PastResize(CPUSet.of(4), FOUR, 1_795_355_995, "so that pod ns/late fits"),),
)


def _share(pool: Resource, choice: Choice | None = None) -> PoolShare:
    return PoolShare(pool, 2, 2, CPUSet.parse("4-5"), CPUSet.of(6), "init", choice, FOUR)


def _container(name: str, placement: Placement, *shares: PoolShare) -> ContainerStatus:
    answer = PluginAnswer("example.com/nic", {"CpusetCpus": "4-7"}, ("NIC",), "0", "", "at noon")
    lacks = PluginAnswer("memory", why="it is away")
    return ContainerStatus(
        f"ns/{name}/main", placement, FOUR, "4-6", "a reason", FOUR, shares, "LSR", FOUR,
        (answer, lacks), CHANGES,
    )  # fmt: skip


STATUS = NodeStatus(
    NodePools.of(
        Pool("exclusive_a", PoolKind.EXCLUSIVE, FOUR,
             policy=PoolPolicy(numa=NUMAPolicy.DISTRIBUTED, reserved=CPUSet.of(7))),
        Pool.named("shared_b", "2-3"),
        Pool.named("default", "0-1"),
        mixed=MixedCPUs("shared_b", 7),
        cpu_manager=CPUManager(
            "static", 2, StaticOptions(full_pcpus_only=True), suppression=Suppression(),
            max_notice_s=30, eligible=Eligible.CONTAINER,
            system_pods=SystemPods(("kube-system", "monitoring"), CPUSet.of(1)),
            pod_level=True,
            compaction=Compaction(3, 60),
        ),
    ),
    (
        _container("a", Placement.POOLS,
                   _share(resource("exclusive_a"), Choice(FOUR, (Step("rule", "why", FOUR),))),
                   _share(resource("shared_b"))),
        replace(_container("b", Placement.POLICY, _share(POLICY_CPUS, Choice(FOUR))),
                bubble=InBubble(FOUR, owns=True)),
        _container("c", Placement.KUBELET, _share(KUBELET_CPUS)),
        *(_container(each.value, each) for each in Placement),
    ),
    draining={"exclusive_a": 1, "exclusive_gone": 2},
    enforcement=Writer.NRI,
    offline=CPUSet.of(3),
    blocked=CPUSet.of(6),
    reserved=CPUSet.of(0),
    refused=(RefusedPod("ns/late", "no CPUs", held=True), RefusedPod("ns/b", "none", held=False)),
    sets={DEFAULT: CPUSet.of(1), BEST_EFFORT: CPUSet.of(1, 4)},
    sizes={BEST_EFFORT: Size(1, 2, "the load")},
    plugin_folders=("/plugins",),
    plugins=(PluginStatus("/plugins/a", "cpu", "is away", "at noon"), PluginStatus("/b", "")),
    lost=("example.com/nic",),
    node_resources=(NodeResource("example.com/nic", 2, "403", "allow it"),),
    withheld=(Withheld(CPUSet.of(3), "/dpdk.service", "isolated"),),
    nri="waits for default/slow until 2027-01-15T08:00:00Z",
)  # fmt: skip


def document() -> dict[str, Any]:
    """Return its JSON values."""
    read: dict[str, Any] = json.loads(json.dumps(to_json(STATUS)))
    return read


def places(value: object, path: Path = ()) -> Iterator[Path]:
    """Yield the place of every value."""
    yield path
    if isinstance(value, dict):
        for key, each in value.items():
            yield from places(each, (*path, key))
    elif isinstance(value, list):
        for at, each in enumerate(value):
            yield from places(each, (*path, at))


def at(value: Any, path: Path) -> Any:
    """Return the value at a place."""
    for step in path:
        value = value[step]
    return value


def with_value(value: dict[str, Any], path: Path, new: object) -> Any:
    """Return a copy with another value at a place."""
    if not path:
        return new
    changed = copy.deepcopy(value)
    at(changed, path[:-1])[path[-1]] = new
    return changed


def without(value: dict[str, Any], path: Path) -> Any:
    """Return a copy without the value at a place."""
    changed = copy.deepcopy(value)
    del at(changed, path[:-1])[path[-1]]
    return changed
