"""Containers that keep the shared CPUs which their pools had before an edit.

A container with CPUs of its own may have pinned its threads. Some kernels forget the pinned CPUs
when the cpuset changes; there the container keeps its shared CPUs until it restarts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cpupool.core.cpuset import CPUSet
from cpupool.core.workloads import ContainerID, ContainerRef

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from cpupool.core.assignments import CPUAssignment
    from cpupool.core.cgroups import FoundContainer
    from cpupool.core.pools import NodePools
    from cpupool.manager.facts import ContainerKey, NodeFacts
    from cpupool.manager.resolve import PlacedContainer, Resolution


def concerned(
    containers: Mapping[ContainerKey, PlacedContainer], before: NodePools, after: NodePools
) -> dict[ContainerKey, CPUSet]:
    """Return the containers that an edit of the pools must not move, and the shared CPUs they keep.

    Args:
        containers: the placement of each container before the edit.
        before: the pools until now.
        after: the pools after the edit.
    """
    return {
        key: shared
        for key, placed in containers.items()
        if _mixes(placed.assignment)
        and (shared := _shared_cpus(before, placed)) != _shared_cpus(after, placed)
    }


def found_stale(
    facts: NodeFacts, resolution: Resolution, found: Iterable[FoundContainer]
) -> dict[ContainerKey, CPUSet]:
    """Return the containers that an earlier agent did not move, with their shared CPUs.

    Such a container runs on exactly its own CPUs and the CPUs that its shared pools had when the
    container started.
    """
    kept: dict[ContainerKey, CPUSet] = {}
    for container in found:
        key = (container.pod, ContainerID(container.id))
        placed = resolution.containers.get(key)
        if placed is None or not _mixes(placed.assignment):
            continue
        announced = _shared_as_announced(facts, placed)
        then = placed.assignment.exclusive | announced & facts.topology.online
        if announced and container.cpus == str(then) != str(placed.assignment.cpus):
            kept[key] = announced
    return kept


def still_stale(facts: NodeFacts, resolution: Resolution) -> dict[ContainerKey, CPUSet]:
    """Return the kept CPUs that are still valid.

    A container that has ended keeps nothing; its successor starts with the pools in force.
    """
    return {
        key: cpus
        for key, cpus in facts.kept_shared.items()
        if key in resolution.containers
        and cpus != _shared_cpus(facts.pools, resolution.containers[key])
    }


def _mixes(assignment: CPUAssignment) -> bool:
    return bool(assignment.exclusive and assignment.shared)


def _shared_cpus(pools: NodePools, placed: PlacedContainer) -> CPUSet:
    shared = (resource for resource in placed.container.requests if not resource.kind.exclusive)
    behind = (pools.behind(resource) for resource in shared)
    return CPUSet.union(pool.cpus for pool in behind if pool is not None)


def _shared_as_announced(facts: NodeFacts, placed: PlacedContainer) -> CPUSet:
    held = facts.devices.get(ContainerRef(placed.pod.cgroup_uid, placed.container.name), {})
    return CPUSet.union(
        given.announced for resource, given in held.items() if not resource.kind.exclusive
    )
