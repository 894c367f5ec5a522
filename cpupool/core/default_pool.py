"""The CPUs of the default pool, on which the containers without a pool run.

* The pool file has a default pool: `declared` returns its CPUs. An open list (`16-`) has all CPUs
  from its last number on.
* The pool file has none: `declared` returns each CPU that no pool uses. An exclusive pool also uses
  the siblings of its CPUs.
* Containers can use none of these CPUs now: `substitute` returns others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cpupool.core.cpuset import CPUSet
from cpupool.core.pools import PoolKind

if TYPE_CHECKING:
    from cpupool.core.pools import NodePools
    from cpupool.core.topology import CPUTopology


def declared(pools: NodePools, topology: CPUTopology) -> CPUSet:
    """Return the CPUs of the default pool, offline CPUs included."""
    configured = pools.of_kind(PoolKind.DEFAULT)
    if not configured:
        return _unused(pools, topology.present, topology)
    return configured[0].on(topology.present).cpus


def online(pools: NodePools, topology: CPUTopology) -> CPUSet:
    """Return the CPUs of `declared` that are online."""
    return declared(pools, topology) & topology.online


def substitute(pools: NodePools, topology: CPUTopology, common: CPUSet) -> CPUSet:
    """Return the CPUs of the default pool while it has no common CPU of its own.

    If the agent wrote no CPUs, the kernel would let the containers run on every CPU of the cgroup
    above. CPUs that no pool uses are better; the last choice is every common CPU.

    Args:
        pools: the pools in force.
        topology: the machine.
        common: the CPUs that are online and not barred.
    """
    return _unused(pools, common, topology) or common


def _unused(pools: NodePools, cpus: CPUSet, topology: CPUTopology) -> CPUSet:
    return cpus - CPUSet.union(pool.reach(topology) for pool in pools)
