"""The rules of admission: from the command line, the pool files, and the namespaces."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TYPE_CHECKING, Final

from cpupool.core.cpu_manager import Eligible
from cpupool.core.names import ENABLE_SHARED_CPUS, Names
from cpupool.core.pools import MILLI_PER_CPU, HyperThreadingPolicy, PoolKind
from cpupool.core.requests import ResourceKind
from cpupool.policies.built_in import BUILT_IN, kind, named
from cpupool.policies.dynamic.policy import DynamicPolicy
from cpupool.webhook.admission import mixed_cpus

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from cpupool.core.pools import NodePools
    from cpupool.policies.base import CPUManagerPolicy
    from cpupool.webhook.admission.mixed_cpus import Namespaces
    from cpupool.webhook.admission.pod_requests import ContainerRequests

MOST_THREADS: Final = 2
"""The most CPUs of an exclusive core for an annotation, as with multiThreaded pools."""
KOORD_SCHEDULER: Final = "system:serviceaccount:koordinator-system:koord-scheduler"
"""The account of koord-scheduler in Koordinator's own installation."""
_EXCLUSIVE_SURPLUS_MILLI: Final = 100
"""CPU-Pooler's addition to the limit of a container with exclusive CPUs only."""


class CFSQuotas(Enum):
    """Which containers get a cpu limit."""

    ALL = "all"
    SHARED = "shared"


class RequiredAgent(Enum):
    """Which pods the container runtime must not start without the agent."""

    NONE = "none"
    EXCLUSIVE = "exclusive"
    """Pods that request exclusive CPUs of a pool."""
    GUARANTEED = "guaranteed"
    """These, and pods with a container that a CPU manager policy may give its whole request."""


@dataclass(frozen=True, slots=True)
class LargestPool:
    """The largest pool with a name on any node.

    Attributes:
        cpus: how many CPUs it offers.
        multi_threaded: whether the siblings come with an exclusive CPU on any node.
    """

    cpus: int
    multi_threaded: bool = False


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules of admission.

    Attributes:
        names: for the resource domain.
        pools: each pool that is a resource → the largest pool of this name in the pool files; None
            where the pool files are not known.
        cfs_quotas: whether a container with exclusive CPUs gets a cpu limit, too.
        mixed: each shared pool behind OpenShift's resource → the most CPUs that a pool file gives
            it; empty where no pool file has the resource switched on.
        required_agent: which pods get the annotation that the runtime must not start them without
            the agent.
        namespaces: returns a namespace's annotations, for pods that request this resource.
        koordinator: whether the rules for Koordinator's classes count: the CPU manager policy of
            a pool file reads them.
        policies: the CPU manager policies that check the words for them: those of the pool files,
            and `dynamic`, whose words have our domain, so that a wrong one is wrong on any node.
        max_notice_s: the longest notice that any node gives before it takes CPUs; None where no
            pool file is known that says it.
        schedulers: the accounts that may assign CPUs by `resource-status`.
        eligible: which containers get CPUs of their own on any node.
        pod_level: whether Guaranteed pods with resources of their own get CPUs on any node.
    """

    names: Names = field(default_factory=Names)
    pools: Mapping[str, LargestPool] | None = None
    cfs_quotas: CFSQuotas = CFSQuotas.ALL
    mixed: Mapping[str, int] = field(default_factory=dict)
    required_agent: RequiredAgent = RequiredAgent.NONE
    namespaces: Namespaces = mixed_cpus.no_api_server
    koordinator: bool = False
    policies: tuple[type[CPUManagerPolicy], ...] = (DynamicPolicy,)
    max_notice_s: int | None = None
    schedulers: frozenset[str] = frozenset({KOORD_SCHEDULER})
    eligible: Eligible = Eligible.POD
    pod_level: bool = False

    def knowing(self, files: Sequence[NodePools]) -> Rules:
        """Return the rules with these pool files instead; no files means that none are known.

        A policy that is not known here may go by the words of any other: so their rules apply.
        """
        policies = [named(file.cpu_manager) for file in files]
        others = BUILT_IN.values() if None in policies else ()
        return replace(
            self,
            pools=largest_pools(files) if files else None,
            mixed=mixed_pools(files),
            koordinator=any(each is None or each.reads_classes for each in policies),
            policies=tuple(dict.fromkeys(filter(None, (DynamicPolicy, *policies, *others)))),
            max_notice_s=longest_notice_s(files),
            eligible=max(
                (file.cpu_manager.eligible for file in files),
                key=list(Eligible).index,
                default=Eligible.POD,
            ),
            pod_level=any(file.cpu_manager.pod_level for file in files),
        )

    def limit_milli(self, container: ContainerRequests) -> int | None:
        """Compute a container's cpu limit as CPU-Pooler does; None for no limit."""
        exclusive = sum(container.of_kind(ResourceKind.EXCLUSIVE).values())
        shared = container.of_kind(ResourceKind.SHARED)
        if not exclusive:
            return sum(shared.values())
        if self.cfs_quotas is CFSQuotas.SHARED:
            return None
        if container.enables_shared:
            return (exclusive + max(self.mixed.values())) * MILLI_PER_CPU
        if not shared:
            return exclusive * MILLI_PER_CPU + _EXCLUSIVE_SURPLUS_MILLI
        if self.pools is None:
            return None
        sizes = (self.pools[pool].cpus for pool in shared if pool in self.pools)
        return (exclusive + sum(sizes)) * MILLI_PER_CPU

    def awaited(self, container: ContainerRequests) -> list[str]:
        """Return the pools for whose CPUs the process starter waits.

        If pool files name different pools behind OpenShift's resource, none of them is included:
        the starter then reads the container's `SHARED_CPUS`.
        """
        behind = self.mixed if container.enables_shared and len(self.mixed) == 1 else ()
        return [*container.requests, *behind]

    def threads(self, pool: str) -> int:
        """Return the most CPUs that come with a core of an exclusive pool."""
        known = None if self.pools is None else self.pools.get(pool)
        return 1 if known and not known.multi_threaded else MOST_THREADS


def largest_pools(files: Iterable[NodePools]) -> dict[str, LargestPool]:
    """Return every pool that is a resource, with its largest form in the files."""
    found: dict[str, LargestPool] = {}
    for file in files:
        for pool in (*file.of_kind(PoolKind.EXCLUSIVE), *file.of_kind(PoolKind.SHARED)):
            known = found.get(pool.name, LargestPool(0))
            multi_threaded = pool.hyper_threading is HyperThreadingPolicy.MULTI_THREADED
            found[pool.name] = LargestPool(
                max(known.cpus, len(pool.offered)), known.multi_threaded or multi_threaded
            )
    return found


def longest_notice_s(files: Iterable[NodePools]) -> int | None:
    """Return the longest notice of the files whose policy takes CPUs from running containers.

    None if there is no such file.
    """
    managers = (file.cpu_manager for file in files)
    return max(
        (manager.max_notice_s for manager in managers if kind(manager).resizes), default=None
    )


def mixed_pools(files: Iterable[NodePools]) -> dict[str, int]:
    """Return the pools behind OpenShift's resource, with their most CPUs in any of the files."""
    found: dict[str, int] = {}
    for file in files:
        shared = file.behind(ENABLE_SHARED_CPUS)
        if file.mixed is not None and shared is not None:
            found[file.mixed.pool] = max(found.get(file.mixed.pool, 0), len(shared.offered))
    return found
