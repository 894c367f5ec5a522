"""Koordinator's shared sets of CPUs, for pods without CPUs of their own and for best-effort pods.

The results equal those of calCPUSharePools, removeNodeReservedCPUs and removeSystemQOSCPUs in
Koordinator 1.8, pkg/koordlet/statesinformer/impl/states_noderesourcetopology.go, except that a
NUMA node that spans sockets always has the socket of its lowest CPU.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cpupool.core.cpuset import CPUSet
from cpupool.core.grants import Sharing
from cpupool.core.koordinator import SharedPool, SharedPools

if TYPE_CHECKING:
    from collections.abc import Iterable

    from cpupool.core.topology import CPUTopology


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
