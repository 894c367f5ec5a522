"""The check whether the pools of a node fit its machine: as an edit, and while they are in force.

Both judge the machine without its offline CPUs, also where the agent remembers their cores: the
next agent does not.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from cpupool.config.pool_rules import validate
from cpupool.core.cpuset import CPUSet
from cpupool.core.errors import ConfigError, Problem, errors_in, refuse_errors
from cpupool.manager.guard import made
from cpupool.policies.none.policy import NonePolicy

if TYPE_CHECKING:
    from collections.abc import Iterable

    from cpupool.core.pools import NodePools
    from cpupool.core.topology import CPUTopology
    from cpupool.policies.base import CPUManagerPolicy


@dataclass(frozen=True, slots=True)
class Fit:
    """Pools on a machine.

    Attributes:
        problems: the problems that they have there.
        policy: the CPU manager policy.
        blocked: CPUs that no container may get until the pools are corrected.
    """

    problems: tuple[Problem, ...]
    policy: CPUManagerPolicy
    blocked: CPUSet


def of_edit(pools: NodePools, topology: CPUTopology) -> Fit:
    """Return how new pools fit.

    Raises:
        ConfigError: they are not valid on this machine, or no policy has their policy's name.
    """
    online = replace(topology, offline={})
    problems = validate(pools, online)
    refuse_errors(problems)
    return Fit(problems, made(pools, online), CPUSet())


def of_restart(pools: NodePools, topology: CPUTopology) -> Fit:
    """Return how pools fit that an earlier agent had in force: as `in_force`.

    Raises:
        ConfigError: the machine can have no CPU of a pool, so the pools are of another one.
    """
    possible = topology.possible
    if any(pool.cpus.isdisjoint(possible) for pool in pools.on(possible)):
        refuse_errors(validate(pools, topology))
    return in_force(pools, topology)


def in_force(pools: NodePools, topology: CPUTopology) -> Fit:
    """Return how pools fit that came into force when other CPUs were online.

    The answer follows from the pools and the online CPUs alone, so it is the same after a restart
    of the agent. CPUs whose return shows a contradiction, as a core of two pools, are blocked, and
    the policy takes them for offline. Where the policy does not allow its configuration on the rest
    either, or is gone with its package, no further container gets CPUs of its own.
    """
    online = replace(topology, offline={})
    problems = validate(pools, online)
    blocked = _contradictory(problems)
    try:
        return Fit(problems, made(pools, _without(blocked, online)), blocked)
    except ConfigError as error:
        problems = (*problems, *(each for each in error.problems if each not in problems))
        blocked |= _contradictory(error.problems)
    try:
        return Fit(problems, made(pools, _without(blocked, online)), blocked)
    except ConfigError:
        return Fit(problems, NonePolicy(), blocked)


def _contradictory(problems: Iterable[Problem]) -> CPUSet:
    return CPUSet.union(problem.cpus or CPUSet() for problem in errors_in(problems))


def _without(cpus: CPUSet, topology: CPUTopology) -> CPUTopology:
    if cpus.isdisjoint(topology.online):
        return topology
    return topology.cut_to(topology.online - cpus)
