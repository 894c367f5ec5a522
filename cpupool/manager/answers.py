"""The manager's answers: values, and their construction from its facts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from cpupool.core import devices
from cpupool.core.assignments import environment
from cpupool.core.cpuset import CPUSet

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from cpupool.core.devices import Offer
    from cpupool.core.errors import Problem
    from cpupool.core.names import Names
    from cpupool.core.pools import NodePools


@dataclass(frozen=True, slots=True)
class PoolChange:
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
    ) -> PoolChange:
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


@dataclass(frozen=True, slots=True)
class Allocation:
    """The answer of Allocate.

    Attributes:
        cpus: the CPUs that it announces to the container; offline CPUs only of a shared pool.
        environment: variables of the container.
        annotations: annotations by which the agent recognises the container.
    """

    cpus: CPUSet
    environment: Mapping[str, str]
    annotations: Mapping[str, str]

    @classmethod
    def of(cls, offer: Offer, ids: Sequence[str], names: Names, *, mixed: bool) -> Allocation:
        """Return the answer for the devices `ids` of an offer.

        Args:
            offer: the pool's offer.
            ids: free devices.
            names: the public names.
            mixed: whether the agent offers OpenShift's resource. The kubelet does not say whether
                the container requests it, too.
        """
        resource, pool = offer.resource.name, offer.pool
        exclusive = shared = CPUSet()
        if resource.kind.exclusive:
            granted = pool.granted(devices.exclusive_cpus(ids), offer.topology)
            exclusive = granted & offer.topology.online
        else:
            shared = pool.cpus
        cpus = exclusive | shared
        return cls(
            cpus,
            environment(exclusive, shared, {resource: cpus}, isolated=mixed),
            {names.allocated(resource): devices.describe_ids(ids)},
        )
