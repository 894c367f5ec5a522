"""The node's state as one JSON document, which the agent writes and the commands read."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from cpupool.core.assignments import Placement, Step
from cpupool.core.cpu_manager import CPU_MANAGER, CPUManager
from cpupool.core.cpuset import CPUSet
from cpupool.core.names import KUBELET_CPUS, POLICY_CPUS, resource_named
from cpupool.core.pool_policy import PoolPolicy
from cpupool.core.pools import HyperThreadingPolicy, MixedCPUs, NodePools, Pool, PoolKind
from cpupool.manager.ports import Writer
from cpupool.manager.report import (
    ContainerStatus,
    NodeResource,
    NodeStatus,
    PluginAnswer,
    PluginStatus,
    PoolShare,
    RefusedPod,
)
from cpupool.policies.base import Choice, Size

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from cpupool.core.requests import Resource

SCHEMA = "cpupool-status/2"


def to_json(status: NodeStatus) -> dict[str, Any]:
    """Write a status as JSON values."""
    return {
        "schema": SCHEMA,
        "waiting_for": status.waiting_for,
        "enforcement": status.enforcement.value,
        "offline": str(status.offline),
        "blocked": str(status.blocked),
        "pools": {
            pool.name: {
                "kind": pool.kind.value,
                "cpus": str(pool.cpus),
                "hyperThreadingPolicy": pool.hyper_threading.value,
                "policy": pool.policy.written(),
            }
            for pool in status.pools
        },
        "mixedCPUs": _mixed_to_json(status.pools.mixed),
        CPU_MANAGER: status.pools.cpu_manager.written(),
        "reserved": str(status.reserved),
        "sets": {name: str(cpus) for name, cpus in status.sets.items()},
        "draining": dict(status.draining),
        "sizes": {name: asdict(size) for name, size in status.sizes.items()},
        "plugin_folders": list(status.plugin_folders),
        "plugins": [asdict(plugin) for plugin in status.plugins],
        "lost": list(status.lost),
        "node_resources": [asdict(each) for each in status.node_resources],
        "refused": [{"name": pod.name, "why": pod.why, "held": pod.held} for pod in status.refused],
        "containers": [
            {
                "name": container.name,
                "placement": container.placement.value,
                "wanted": str(container.wanted),
                "found": container.found,
                "reason": container.reason,
                "exclusive": str(container.exclusive),
                "qos": container.qos,
                "assigned": str(container.assigned),
                "shares": [_share_to_json(share) for share in container.shares],
                "answers": [asdict(answer) for answer in container.answers],
            }
            for container in status.containers
        ],
    }


def _mixed_to_json(mixed: MixedCPUs | None) -> dict[str, Any] | None:
    if mixed is None:
        return None
    return {"pool": mixed.pool, "containersLimit": mixed.containers_limit}


def _share_to_json(share: PoolShare) -> dict[str, Any]:
    return {
        "pool": share.pool,
        "requested": share.requested,
        "devices": share.devices,
        "given": str(share.given),
        "siblings": str(share.siblings),
        "reused_from": share.reused_from,
        "choice": share.choice
        and {
            "cpus": str(share.choice.cpus),
            "proven": share.choice.proven,
            "steps": steps_to_json(share.choice.steps),
        },
        "cpus": str(share.cpus),
    }


def _mixed_from_json(mixed: Mapping[str, Any] | None) -> MixedCPUs | None:
    return MixedCPUs(mixed["pool"], mixed["containersLimit"]) if mixed else None


def _share_from_json(share: Mapping[str, Any]) -> PoolShare:
    choice = share["choice"]
    return PoolShare(
        pool=resource(share["pool"]),
        requested=share["requested"],
        devices=share["devices"],
        given=CPUSet.parse(share["given"]),
        siblings=CPUSet.parse(share["siblings"]),
        reused_from=share["reused_from"],
        choice=choice
        and Choice(
            CPUSet.parse(choice["cpus"]), steps_from_json(choice["steps"]), choice["proven"]
        ),
        cpus=CPUSet.parse(share["cpus"]),
    )


def resource(name: str) -> Resource:
    """Return the resource that a status names.

    Raises:
        ValueError: it is not a resource of cpupool.
    """
    native = {str(cpus): cpus for cpus in (KUBELET_CPUS, POLICY_CPUS)}
    found = native.get(name) or resource_named(name)
    if found is None:
        raise ValueError(f"{name!r} is no resource of cpupool")
    return found


def steps_to_json(steps: Iterable[Step]) -> list[dict[str, str]]:
    """Write the reasons of a choice as JSON values."""
    return [{"rule": step.rule, "why": step.why, "left": str(step.left)} for step in steps]


def steps_from_json(steps: Sequence[Mapping[str, str]]) -> tuple[Step, ...]:
    """Read what `steps_to_json` wrote.

    Raises:
        ValueError: a text is not a CPU list.
        KeyError: a key is missing.
    """
    return tuple(Step(step["rule"], step["why"], CPUSet.parse(step["left"])) for step in steps)


def from_json(document: Mapping[str, Any]) -> NodeStatus:
    """Read a status that `to_json` wrote.

    Raises:
        ValueError: it has another schema.
        KeyError: a key is missing.
    """
    if document.get("schema") != SCHEMA:
        raise ValueError(f"schema {document.get('schema')!r}, not {SCHEMA}")
    pools = (
        Pool(
            name,
            PoolKind(pool["kind"]),
            CPUSet.parse(pool["cpus"]),
            HyperThreadingPolicy(pool["hyperThreadingPolicy"]),
            PoolPolicy.read(pool["policy"]),
        )
        for name, pool in document["pools"].items()
    )
    containers = (
        ContainerStatus(
            name=container["name"],
            placement=Placement(container["placement"]),
            wanted=CPUSet.parse(container["wanted"]),
            found=container["found"],
            reason=container["reason"],
            exclusive=CPUSet.parse(container["exclusive"]),
            shares=tuple(map(_share_from_json, container["shares"])),
            qos=container.get("qos", ""),
            assigned=CPUSet.parse(container.get("assigned", "")),
            answers=tuple(map(_answer_from_json, container.get("answers", ()))),
        )
        for container in document["containers"]
    )
    manager = CPUManager.read(document.get(CPU_MANAGER, {}))
    return NodeStatus(
        NodePools.of(
            *pools, mixed=_mixed_from_json(document.get("mixedCPUs")), cpu_manager=manager
        ),
        tuple(containers),
        document["waiting_for"],
        document["draining"],
        Writer(document["enforcement"]),
        CPUSet.parse(document["offline"]),
        CPUSet.parse(document["blocked"]),
        CPUSet.parse(document.get("reserved", "")),
        tuple(RefusedPod(**pod) for pod in document.get("refused", ())),
        {name: CPUSet.parse(cpus) for name, cpus in document.get("sets", {}).items()},
        {name: Size(**size) for name, size in document.get("sizes", {}).items()},
        tuple(document.get("plugin_folders", ())),
        tuple(PluginStatus(**plugin) for plugin in document.get("plugins", ())),
        tuple(document.get("lost", ())),
        tuple(NodeResource(**each) for each in document.get("node_resources", ())),
    )


def _answer_from_json(document: Mapping[str, Any]) -> PluginAnswer:
    return PluginAnswer(**{**document, "texts": tuple(document["texts"])})
