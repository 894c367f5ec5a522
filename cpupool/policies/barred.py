"""The barred CPUs: those that a node keeps for the containers of their owner."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cpupool.core.cpuset import CPUSet

if TYPE_CHECKING:
    from cpupool.core.grants import Grants
    from cpupool.core.topology import CPUTopology


def barred(topology: CPUTopology, grants: Grants, blocked: CPUSet) -> CPUSet:
    """Return the CPUs on which only their owner's containers run.

    An owner of whole cores has the siblings of its CPUs to itself, although they are not its own.

    Args:
        topology: the machine.
        grants: the owners of CPUs.
        blocked: CPUs that no container may get.
    """
    whole = CPUSet.union(grant.cpus for grant in grants if grant.whole_cores)
    return topology.with_siblings(whole) | grants.cpus | blocked
