"""Koordinator's shared sets of CPUs, for pods without CPUs of their own and for best-effort pods.

The results equal those of calCPUSharePools, removeNodeReservedCPUs and removeSystemQOSCPUs in
Koordinator 1.8, pkg/koordlet/statesinformer/impl/states_noderesourcetopology.go, except that a
NUMA node that spans sockets always has the socket of its lowest CPU. The metrics of these sets have
the names of pkg/koordlet/metrics/cpu_cpuset.go with another prefix.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from cpupool.core.cpuset import CPUSet
from cpupool.core.grants import Sharing

if TYPE_CHECKING:
    from collections.abc import Iterable

    from cpupool.core.topology import CPUTopology


@dataclass(frozen=True, slots=True)
class SharedPool:
    """The part of a shared set of CPUs that lies on one NUMA node.

    Attributes:
        socket: the number of the socket, in the order of the sockets' lowest CPUs.
        node: the NUMA node's id.
        cpus: the CPUs.
    """

    socket: int
    node: int
    cpus: CPUSet


@dataclass(frozen=True, slots=True)
class SharedPools:
    """The shared sets of a node.

    Attributes:
        shared: for pods without CPUs of their own.
        best_effort: for best-effort pods.
    """

    shared: tuple[SharedPool, ...]
    best_effort: tuple[SharedPool, ...]


def shared_pools(
    topology: CPUTopology,
    cpus: CPUSet,
    owned: Iterable[tuple[CPUSet, Sharing]],
    withheld: CPUSet,
) -> SharedPools:
    """Return the shared sets of each NUMA node, sorted by socket and node.

    A NUMA node on which pods own every CPU is left out; a node on which only withheld CPUs remain
    has an empty set.

    Args:
        topology: the machine.
        cpus: the CPUs to share.
        owned: CPUs that pods own, and who else may run there.
        withheld: CPUs that an admin keeps from these pods.
    """
    own = tuple(owned)
    shared = cpus - CPUSet.union(taken for taken, _ in own)
    kept = (taken for taken, sharing in own if sharing is not Sharing.BEST_EFFORT)
    best_effort = cpus - CPUSet.union(kept)
    return SharedPools(
        _by_node(topology, shared, withheld), _by_node(topology, best_effort, withheld)
    )


def _by_node(topology: CPUTopology, cpus: CPUSet, withheld: CPUSet) -> tuple[SharedPool, ...]:
    on_nodes = ((node, on & cpus) for node, on in topology.nodes.items())
    pools = (
        SharedPool(topology.cpus[on.first].socket, node, on - withheld)
        for node, on in on_nodes
        if on
    )
    return tuple(sorted(pools, key=lambda pool: (pool.socket, pool.node)))
