"""The CPU manager policy of a pool file on a machine, for commands that run without an agent."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cpupool.core.errors import ConfigError, errors_in
from cpupool.policies.base import NodeView
from cpupool.policies.built_in import BUILT_IN

if TYPE_CHECKING:
    from cpupool.config.poolconfig import PoolFile
    from cpupool.core.cpuset import CPUSet
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
        assignable(pools, machine)
    except ConfigError as error:
        return error.problems
    return ()


def assignable(pools: NodePools, machine: CPUTopology) -> CPUSet | None:
    """Return the online CPUs that containers can get of their own while no container runs.

    None where the policy is `none`, or a policy that only the agent knows.

    Raises:
        ConfigError: the policy does not allow this configuration on this machine.
    """
    factory = BUILT_IN.get(pools.cpu_manager.policy)
    if factory is None or not pools.cpu_manager.chooses:
        return None
    empty = NodeView(machine, pools, pools.default_cpus(machine))
    given = factory(pools, machine).available(empty)
    if pools.cpu_manager.options.full_pcpus_only:
        # A core with a reserved CPU is never given as a whole.
        given -= machine.with_siblings(empty.free - given)
    return given
