"""What the manager answers: values, and how they are made of what it knows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from cpupool.core import devices
from cpupool.core.names import (
    EXCLUSIVE_CPUS,
    OPENSHIFT_ISOLATED_CPUS,
    SHARED_CPUS,
    pool_variable,
)
from cpupool.core.pools import PoolKind

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from cpupool.core.cpuset import CPUSet
    from cpupool.core.devices import Offer
    from cpupool.core.errors import Problem
    from cpupool.core.names import Names
    from cpupool.core.pools import NodePools


@dataclass(frozen=True, slots=True)
class DeviceList:
    """A pool's offer, numbered.

    Attributes:
        generation: differs from an earlier list of this pool where a device differs.
        offer: the devices.
        held: the ids that pods hold.
    """

    generation: int
    offer: Offer
    held: frozenset[str]


@dataclass(frozen=True, slots=True)
class PoolChange:
    """What a new configuration changed.

    Attributes:
        problems: its warnings.
        added: names of pools that are new.
        removed: names of pools that are gone.
        resized: names of pools with other CPUs, or another policy.
    """

    problems: tuple[Problem, ...]
    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    resized: tuple[str, ...] = ()

    @classmethod
    def between(
        cls, earlier: NodePools, later: NodePools, problems: tuple[Problem, ...]
    ) -> PoolChange:
        """Compare two configurations; OpenShift's resource is a pool like the others here."""
        before, after = (
            {pool.name: pool for pool in (*either, *either.advertised)}
            for either in (earlier, later)
        )
        return cls(
            problems,
            added=tuple(sorted(after.keys() - before.keys())),
            removed=tuple(sorted(before.keys() - after.keys())),
            resized=tuple(name for name, pool in after.items() if before.get(name, pool) != pool),
        )


@dataclass(frozen=True, slots=True)
class Allocation:
    """What Allocate answers.

    Attributes:
        cpus: what the container is told; offline ones are in a shared pool only.
        environment: variables of the container.
        annotations: those by which the container is recognised.
    """

    cpus: CPUSet
    environment: Mapping[str, str]
    annotations: Mapping[str, str]

    @classmethod
    def of(cls, offer: Offer, ids: Sequence[str], names: Names, *, mixed: bool) -> Allocation:
        """Answer for the devices `ids` of an offer.

        Args:
            offer: the pool's.
            ids: some that are free.
            names: the public strings.
            mixed: whether OpenShift's resource is offered. Whether the container requests it, too,
                the kubelet does not say.
        """
        pool = offer.pool
        variables = {pool_variable(pool.name)}
        if pool.kind is PoolKind.SHARED:
            variables.add(SHARED_CPUS)
            cpus = pool.cpus
        else:
            variables |= {EXCLUSIVE_CPUS, *([OPENSHIFT_ISOLATED_CPUS] if mixed else [])}
            granted = pool.granted(devices.exclusive_cpus(ids), offer.topology)
            cpus = granted & offer.topology.online
        return cls(
            cpus,
            dict.fromkeys(sorted(variables), str(cpus)),
            {names.allocated(pool.name): devices.describe_ids(ids)},
        )
