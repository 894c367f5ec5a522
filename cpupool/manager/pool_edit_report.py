"""The difference between two configurations of the pools, which the agent logs after an edit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from cpupool.core import devices

if TYPE_CHECKING:
    from cpupool.core.errors import Problem
    from cpupool.core.pools import NodePools


@dataclass(frozen=True, slots=True)
class PoolDifference:
    """The changes of a new configuration.

    Attributes:
        problems: its warnings.
        added: names of new pools.
        removed: names of removed pools.
        resized: names of pools with other CPUs, or another policy.
        cpu_manager: the changed settings of the CPU manager, each with the value before and after.
    """

    problems: tuple[Problem, ...]
    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    resized: tuple[str, ...] = ()
    cpu_manager: tuple[str, ...] = ()

    @classmethod
    def between(
        cls, earlier: NodePools, later: NodePools, problems: tuple[Problem, ...]
    ) -> PoolDifference:
        """Compare two configurations; OpenShift's resource is a pool like the others here."""
        before, after = (
            {
                **{pool.name: (pool, None) for pool in either},
                **{
                    resource.name: (resource.pool, resource.units)
                    for resource in devices.advertised(either)
                },
            }
            for either in (earlier, later)
        )
        return cls(
            problems,
            added=tuple(sorted(after.keys() - before.keys())),
            removed=tuple(sorted(before.keys() - after.keys())),
            resized=tuple(name for name, pool in after.items() if before.get(name, pool) != pool),
            cpu_manager=tuple(earlier.cpu_manager.changes(later.cpu_manager)),
        )
