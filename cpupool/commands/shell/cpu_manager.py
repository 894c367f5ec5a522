"""The CPU manager policy of a pool file on a machine, for commands that run without an agent."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cpupool.core.errors import ConfigError, errors_in
from cpupool.policies import built_in

if TYPE_CHECKING:
    from cpupool.config.pool_file import PoolFile
    from cpupool.core.errors import Problem
    from cpupool.core.pools import NodePools
    from cpupool.core.topology import CPUTopology


def problems(file: PoolFile, machine: CPUTopology | None) -> tuple[Problem, ...]:
    """Find everything wrong with a pool file, also by the rules that only its policy knows.

    Args:
        file: the pool file.
        machine: the machine that it must fit; None for the file by itself.
    """
    found = file.problems(machine)
    if machine is None or errors_in(found):
        return found
    return (*found, *file.located(refusal(file.pools, machine)))


def refusal(pools: NodePools, machine: CPUTopology) -> tuple[Problem, ...]:
    """Return why the policy does not allow the configuration on this machine; empty if it does."""
    try:
        built_in.assignable(pools, machine)
    except ConfigError as error:
        return error.problems
    return ()
