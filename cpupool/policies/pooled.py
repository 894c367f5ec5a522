"""CPU-Pooler's pools with a good choice of CPUs: whole NUMA nodes before splitting one."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from cpupool.core.cpuset import CPUSet

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cpupool.core.topology import CPUTopology


def prefer(free: CPUSet, required: CPUSet, count: int, topology: CPUTopology) -> CPUSet:
    """Choose `count` CPUs on as few NUMA nodes as possible, leaving whole nodes to others.

    A request that fits into one node goes to the fullest node that takes it; a larger one empties
    the largest nodes first. Nodes of CPUs that must be included come before all others.

    Args:
        free: what there is to choose from, `required` included or not.
        required: CPUs that the answer must hold; at most `count`.
        count: how many CPUs to choose.
        topology: the machine.

    Returns:
        `count` CPUs, or all of `free | required` where there are fewer.
    """
    chosen = required
    nodes = _by_node(free - required, topology)
    near = {topology.node_of(cpu) for cpu in required}
    while nodes and len(chosen) < count:
        missing = count - len(chosen)
        node = _next_node(nodes, near, missing)
        chosen |= _lowest(nodes.pop(node), missing)
    return chosen


def _by_node(cpus: CPUSet, topology: CPUTopology) -> dict[int | None, CPUSet]:
    grouped: defaultdict[int | None, list[int]] = defaultdict(list)
    for cpu in cpus:
        grouped[topology.node_of(cpu)].append(cpu)
    return {node: CPUSet(members) for node, members in grouped.items()}


def _next_node(
    nodes: Mapping[int | None, CPUSet], near: set[int | None], missing: int
) -> int | None:
    def rank(node: int | None) -> tuple[bool, bool, int, int]:
        size = len(nodes[node])
        fits = size >= missing
        return (node not in near, not fits, size if fits else -size, -1 if node is None else node)

    return min(nodes, key=rank)


def _lowest(cpus: CPUSet, count: int) -> CPUSet:
    return CPUSet(cpu for cpu, _ in zip(cpus, range(count), strict=False))
