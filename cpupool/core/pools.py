"""Pools: named parts of a node's CPUs."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TYPE_CHECKING, Final

from cpupool.core.cpu_manager import CPUManager
from cpupool.core.cpuset import CPUSet
from cpupool.core.names import (
    EXCLUSIVE_PREFIX,
    SHARED_PREFIX,
)
from cpupool.core.pool_policy import PoolPolicy
from cpupool.core.requests import ResourceKind

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cpupool.core.requests import Resource
    from cpupool.core.topology import CPUTopology

MILLI_PER_CPU: Final = 1000
_NAME: Final = re.compile(r"[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?", re.ASCII)


class PoolKind(Enum):
    """The way in which containers use a pool's CPUs."""

    EXCLUSIVE = EXCLUSIVE_PREFIX
    SHARED = SHARED_PREFIX
    DEFAULT = "default"

    @classmethod
    def of_name(cls, name: str) -> PoolKind:
        """Return the kind that the prefix of a pool's name means; CPU-Pooler reads it alike."""
        for kind in (cls.EXCLUSIVE, cls.SHARED):
            if name.startswith(kind.value):
                return kind
        return cls.DEFAULT


class HyperThreadingPolicy(Enum):
    """The CPUs that come with an exclusive CPU: none, or the siblings on its core."""

    SINGLE_THREADED = "singleThreaded"
    MULTI_THREADED = "multiThreaded"


@dataclass(frozen=True, slots=True)
class Pool:
    """One pool in the admin's words.

    Attributes:
        name: as in the resource `nokia.k8s.io/<name>`.
        kind: exclusive, shared or default.
        cpus: the CPUs listed; for an exclusive pool one per core, unless it has `cpuBindPolicy`.
        hyper_threading: the CPUs that come with an exclusive CPU.
        policy: how an exclusive pool's CPUs are chosen.
        open_from: the pool also has every CPU of the machine from this one on; only a default pool
            may. None for a closed list.
    """

    name: str
    kind: PoolKind
    cpus: CPUSet
    hyper_threading: HyperThreadingPolicy = HyperThreadingPolicy.SINGLE_THREADED
    policy: PoolPolicy = field(default_factory=PoolPolicy)
    open_from: int | None = None

    @classmethod
    def named(cls, name: str, cpus: str, *, multi_threaded: bool = False) -> Pool:
        """Return a pool with this name and CPU list.

        Raises:
            CPUSetParseError: the list is not a CPU list.
        """
        policy = (
            HyperThreadingPolicy.MULTI_THREADED
            if multi_threaded
            else HyperThreadingPolicy.SINGLE_THREADED
        )
        return cls(name, PoolKind.of_name(name), CPUSet.parse(cpus), policy)

    @property
    def listed(self) -> str:
        """The CPUs as in the pool file: `0-1,16-` with an open end."""
        end = "" if self.open_from is None else f"{self.open_from}-"
        return ",".join(filter(None, (str(self.cpus), end)))

    def on(self, present: CPUSet) -> Pool:
        """Return the pool on a machine with these CPUs: an open list has them to the last one."""
        if self.open_from is None:
            return self
        above = (cpu for cpu in present if cpu >= self.open_from)
        return replace(self, cpus=self.cpus | CPUSet(above))

    @property
    def offered(self) -> CPUSet:
        """The CPUs that containers may get: the listed CPUs without the reserved CPUs."""
        return self.cpus - self.policy.reserved

    def reach(self, topology: CPUTopology) -> CPUSet:
        """Return the CPUs that no other pool may use: for an exclusive pool whole cores."""
        exclusive = self.kind is PoolKind.EXCLUSIVE
        return topology.with_running_siblings(self.cpus) if exclusive else self.cpus

    def granted(self, cpus: CPUSet, topology: CPUTopology) -> CPUSet:
        """Return the CPUs that come with exclusive devices: under multiThreaded whole cores."""
        multi_threaded = self.hyper_threading is HyperThreadingPolicy.MULTI_THREADED
        return topology.with_siblings(cpus) if multi_threaded else cpus


@dataclass(frozen=True, slots=True)
class MixedCPUs:
    """OpenShift's resource for shared CPUs in addition to exclusive CPUs, switched on.

    Source: openshift/enhancements, node-tuning/mixed-cpu-node-plugin.md.

    Attributes:
        pool: the shared pool whose CPUs such containers get.
        containers_limit: how many containers of the node may have these CPUs at the same time.
    """

    pool: str
    containers_limit: int = 256


@dataclass(frozen=True, slots=True)
class NodePools:
    """All pools of one node, sorted by name; `pool_rules` checks whether they are valid together.

    Attributes:
        pools: as configured; an iteration goes over these.
        mixed: whether and how the agent offers OpenShift's resource.
        cpu_manager: how containers get the default pool's CPUs.
    """

    pools: tuple[Pool, ...] = ()
    mixed: MixedCPUs | None = None
    cpu_manager: CPUManager = field(default_factory=CPUManager)

    @classmethod
    def of(
        cls, *pools: Pool, mixed: MixedCPUs | None = None, cpu_manager: CPUManager | None = None
    ) -> NodePools:
        """Return these pools in the order of their names."""
        by_name = tuple(sorted(pools, key=lambda pool: pool.name))
        return cls(by_name, mixed, cpu_manager or CPUManager())

    def __iter__(self) -> Iterator[Pool]:
        return iter(self.pools)

    def by_name(self, name: str) -> Pool | None:
        """Return the pool with this exact name, or None."""
        return next((pool for pool in self.pools if pool.name == name), None)

    def behind(self, resource: Resource) -> Pool | None:
        """Return the configured pool whose CPUs come with a resource, or None."""
        if resource.kind is not ResourceKind.ADDITIONAL:
            return self.by_name(resource)
        if self.mixed is None:
            return None
        return self.by_name(self.mixed.pool) or Pool.named(self.mixed.pool, "")

    def of_kind(self, kind: PoolKind) -> tuple[Pool, ...]:
        """Return the pools of one kind."""
        return tuple(pool for pool in self.pools if pool.kind is kind)

    def on(self, present: CPUSet) -> NodePools:
        """Return the pools on a machine with these CPUs, with a closed list of CPUs each."""
        return replace(self, pools=tuple(pool.on(present) for pool in self.pools))

    @property
    def places(self) -> bool:
        """Whether containers get their CPUs from pools or from the CPU manager policy."""
        return bool(self.pools) or self.cpu_manager.chooses or self.cpu_manager.declared

    @property
    def shared_alone(self) -> bool:
        """Whether there are only shared pools: none is exclusive and none is the default pool."""
        return all(pool.kind is PoolKind.SHARED for pool in self.pools)


def is_name(text: str) -> bool:
    """Return whether a pool can have this name: the part of its resource after the slash.

    Kubernetes: IsQualifiedName in k8s.io/apimachinery/pkg/util/validation.
    """
    return _NAME.fullmatch(text) is not None
