"""The node's state as one JSON document: what `cpupool status` shows."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from cpupool.core.assignments import Placement
from cpupool.core.cpuset import CPUSet
from cpupool.core.pools import HyperThreadingPolicy, NodePools, Pool, PoolKind
from cpupool.core.workloads import ContainerID
from cpupool.manager.ports import POD_ITSELF
from cpupool.manager.usage import usage
from cpupool.manager.ways import Way

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from cpupool.manager.ports import FoundContainer
    from cpupool.manager.resolve import ContainerKey, NodeFacts, Resolution

SCHEMA = "cpupool-status/1"
_STALE = "stale-shared: until it restarts it keeps the shared CPUs that its pools had"
_MOVED = " (moved by the kernel)"


@dataclass(frozen=True, slots=True)
class ContainerStatus:
    """One container directory of the node.

    Attributes:
        name: `namespace/pod/container`; `namespace/pod` for its sandbox and what is not reported
            yet, the same marked for its own directory, and the ids in its path where the pod is
            not known.
        placement: why it belongs there.
        wanted: the CPUs that it belongs on.
        found: the CPUs that it was found on, as the kernel wrote them.
        reason: why it is confined, or is not on its pools' present CPUs.
        exclusive: the part of `wanted` that is its own.
    """

    name: str
    placement: Placement
    wanted: CPUSet
    found: str
    reason: str
    exclusive: CPUSet


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """The pools in force and every container.

    Attributes:
        pools: as configured.
        containers: by name.
        draining: pool → how many devices pods hold that it has lost; those of pools that are
            configured no longer included.
        enforcement: by which way a container that starts now gets its CPUs.
        waiting_for: what must be known before any container is touched; empty once it is.
    """

    pools: NodePools
    containers: tuple[ContainerStatus, ...]
    waiting_for: str = ""
    draining: Mapping[str, int] = field(default_factory=dict)
    enforcement: Way = Way.CGROUP

    def free(self, pool: Pool) -> CPUSet:
        """Give the CPUs of an exclusive pool that no container here has."""
        return pool.cpus - CPUSet.union(container.exclusive for container in self.containers)


def describe(
    facts: NodeFacts,
    resolution: Resolution,
    found: Iterable[FoundContainer],
    waiting_for: str = "",
    enforcement: Way = Way.CGROUP,
) -> NodeStatus:
    """Put what was found beside what should be."""
    containers = sorted((_container(resolution, one) for one in found), key=lambda one: one.name)
    draining = {pool.name: pool.draining for pool in usage(facts) if pool.draining}
    return NodeStatus(facts.pools, tuple(containers), waiting_for, draining, enforcement)


def _container(resolution: Resolution, found: FoundContainer) -> ContainerStatus:
    key = (found.pod, ContainerID(found.id))
    assignment = resolution.assignment(key)
    return ContainerStatus(
        name=_name(resolution, key),
        placement=assignment.placement,
        wanted=assignment.cpus,
        found=found.cpus,
        reason=_STALE if assignment.stale else assignment.reason,
        exclusive=assignment.exclusive,
    )


def _name(resolution: Resolution, key: ContainerKey) -> str:
    pod = resolution.pods.get(key[0])
    if key[1] == POD_ITSELF:
        return f"{pod.namespace}/{pod.name}{_MOVED}" if pod else f"{key[0]}{_MOVED}"
    if pod is None:
        return f"{key[0]}/{key[1]}"
    placed = resolution.containers.get(key)
    return "/".join([pod.namespace, pod.name, *([placed.container.name] if placed else [])])


def to_json(status: NodeStatus) -> dict[str, Any]:
    """Write a status as JSON values."""
    return {
        "schema": SCHEMA,
        "waiting_for": status.waiting_for,
        "enforcement": status.enforcement.value,
        "pools": {
            pool.name: {
                "kind": pool.kind.value,
                "cpus": str(pool.cpus),
                "hyperThreadingPolicy": pool.hyper_threading.value,
            }
            for pool in status.pools
        },
        "draining": dict(status.draining),
        "containers": [
            {
                "name": container.name,
                "placement": container.placement.value,
                "wanted": str(container.wanted),
                "found": container.found,
                "reason": container.reason,
                "exclusive": str(container.exclusive),
            }
            for container in status.containers
        ],
    }


def from_json(document: Mapping[str, Any]) -> NodeStatus:
    """Read a status that `to_json` wrote.

    Raises:
        ValueError: it is of another schema.
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
        )
        for container in document["containers"]
    )
    return NodeStatus(
        NodePools.of(*pools),
        tuple(containers),
        document["waiting_for"],
        document["draining"],
        Way(document["enforcement"]),
    )
