"""The CPU manager policy of a pool file or an option, for commands that run without an agent."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from cpupool.config.cpu_manager import Unusable
from cpupool.core.errors import ConfigError, errors_in
from cpupool.host.installed_policies import find_policy, provides
from cpupool.policies import built_in

if TYPE_CHECKING:
    from cpupool.config.pool_file import PoolFile
    from cpupool.core.errors import Problem
    from cpupool.core.pools import NodePools
    from cpupool.core.topology import CPUTopology
    from cpupool.policies.base import CPUManagerPolicy


def of_package(name: str) -> type[CPUManagerPolicy] | None:
    """Return the policy of a package that chooses CPUs itself; None if no package has one.

    Raises:
        ArgumentTypeError: a package provides a policy by this name, and it cannot be used.
    """
    if name in built_in.BUILT_IN or not provides(name):
        return None
    found = find_policy(name)
    if isinstance(found, Unusable):
        raise argparse.ArgumentTypeError(f"{found.what}; {found.remedy}")
    return None if found.asks_plugins else found


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
