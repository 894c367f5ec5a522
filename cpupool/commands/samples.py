"""Pool files and pods for `cpupool demo`, made for the machine at hand."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from cpupool.core.cpuset import CPUSet
from cpupool.core.pools import PoolKind
from cpupool.wire.katalyst import PROPOSED_ROLE
from cpupool.wire.orchestration import QOS_CLASS, RESOURCE_STATUS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from cpupool.core.names import Names
    from cpupool.core.pools import NodePools
    from cpupool.core.topology import CPUTopology

MILLI = 250


def pool_file(machine: CPUTopology) -> str:
    """Write a pool file with every core: the first is the default pool, the last ones exclusive."""
    default, *others = machine.cores
    # With three cores or more the shared pool has one of its own.
    shared = others.pop(0) if len(others) > 1 else default
    text = f'pools:\n  default: {{cpus: "{default}"}}\n  shared_demo: {{cpus: "{shared}"}}\n'
    if len(others) > 1 and len(others[-1]) > 1:
        whole = others.pop()
        text += f'  exclusive_smt: {{cpus: "{whole.first}", hyperThreadingPolicy: multiThreaded}}\n'
    if others:
        first_threads = CPUSet(core.first for core in others)
        text += f'  exclusive_demo: {{cpus: "{first_threads}"}}\n'
    return text


def cpu_manager_file(machine: CPUTopology, policy: str) -> str:
    """Write a pool file with a CPU manager policy, which reserves one core."""
    first, *others = machine.cores
    return f"cpuManager: {{policy: {policy}, reserved: {len(first) if others else 1}}}\n"


def static_pods(cpus: int) -> Iterator[dict[str, Any]]:
    """Return pods for a CPU manager policy: two that do not fit at once, and one that shares.

    Args:
        cpus: how many CPUs the policy can give.
    """
    half = (cpus + 1) // 2
    for name, whole in (("early", half), ("late", cpus - half + 1)):
        yield pod(name, [_native("main", str(whole))], [_native("prepare", str(whole))])
    resources = {"requests": {"cpu": f"{MILLI}m"}}
    yield pod("sharer", [{"name": "work", "resources": resources}])


def koordinator_pods(machine: CPUTopology, own: CPUSet, shared: CPUSet) -> Iterator[dict[str, Any]]:
    """Return pods of Koordinator's classes; two owners wait until the first one ends.

    Args:
        machine: the machine.
        own: the CPUs that pods can own.
        shared: other CPUs of the policy, which none can own.
    """
    sharing = {"requests": {"cpu": f"{MILLI}m"}}
    yield _classed("ls", "LS", sharing)
    near = {"node": machine.cpus[shared.first].node or 0, "resources": {"cpu": f"{MILLI}m"}}
    yield _classed("near", "LS", sharing, {"numaNodeResources": [near]})
    yield _classed("be", "BE", {})
    yield _classed("burstable", "", sharing)
    yield _classed("assigned", "LSR", _whole(len(own)), {"cpuset": str(own)})
    share = max(1, len(own) // 3)
    yield _classed("late", "LSR", _whole(share))
    yield _classed("sole", "LSE", _whole(share))
    # As the author of a pod may write the annotation, in place of a scheduler.
    yield _classed("forged", "LSE", _whole(1), {"cpuset": str(shared.first)})


def role_pods(roles: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    """Return pods for plugins: pod → its role; and one for which no plugin is asked."""
    for name, role in roles.items():
        body = pod(name, [{"name": "main", "resources": {"requests": {"cpu": f"{MILLI}m"}}}])
        body["metadata"]["annotations"] = {PROPOSED_ROLE: role}
        yield body
    yield pod("system", [{"name": "main"}])


def pods(pools: NodePools, names: Names) -> Iterator[dict[str, Any]]:
    """Return three pods: with exclusive CPUs, with shared CPUs, and without a request."""
    exclusive = {pool.name: 1 for pool in pools.of_kind(PoolKind.EXCLUSIVE)}
    first = dict(list(exclusive.items())[:1])
    shared = {pool.name: MILLI for pool in pools.of_kind(PoolKind.SHARED)[:1]}
    pollers = [container("poll", names, first)]
    if len(exclusive) > 1:
        last = dict(list(exclusive.items())[-1:])
        pollers.append(container("mixed", names, last | shared))
    yield pod("poller", pollers, [container("prepare", names, first)])
    yield pod("sharer", [container("work", names, shared), container("logs", names, {})])
    yield pod("plain", [container("main", names, {})])


def pod(
    name: str, containers: list[dict[str, Any]], init: list[dict[str, Any]] | None = None
) -> dict[str, Any]:
    """Return a pod's manifest."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "demo"},
        "spec": {"initContainers": init or [], "containers": containers},
    }


def container(name: str, names: Names, pools: dict[str, int]) -> dict[str, Any]:
    """Return a container that requests amounts of pools."""
    amounts = {names.resource(pool): str(amount) for pool, amount in pools.items()}
    return {"name": name, "resources": {"requests": amounts, "limits": amounts}}


def _classed(
    name: str, qos: str, resources: dict[str, Any], status: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Return a pod of a class of Koordinator, with what a scheduler has assigned."""
    body = pod(name, [{"name": "main", "resources": resources}])
    if qos:
        body["metadata"]["labels"] = {QOS_CLASS: qos}
    if status:
        body["metadata"]["annotations"] = {RESOURCE_STATUS: json.dumps(status)}
    return body


def _native(name: str, cpu: str) -> dict[str, Any]:
    """Return a container of a Guaranteed pod."""
    return {"name": name, "resources": _whole(cpu)}


def _whole(cpu: int | str) -> dict[str, Any]:
    """Return the resources of a container of a Guaranteed pod."""
    return {"limits": {"cpu": str(cpu), "memory": "1Gi"}}
