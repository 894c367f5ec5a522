"""Pools: named parts of a node's CPUs, and the rules that keep them apart."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass
from enum import Enum
from itertools import combinations
from typing import TYPE_CHECKING, Final

from cpupool.core.cpuset import CPUSet
from cpupool.core.errors import Problem, Severity
from cpupool.core.names import pool_variable

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from cpupool.core.topology import CPUTopology

MILLI_PER_CPU: Final = 1000
MAX_DEVICE_LIST_BYTES: Final = 4 * 1024 * 1024
"""The kubelet's gRPC client takes no larger message (grpc-go's default)."""
_NAME: Final = re.compile(r"[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?", re.ASCII)
_DEVICE_BYTES: Final = 13
"""One healthy device in ListAndWatchResponse beside its id: tags, lengths and `Healthy`."""


class PoolKind(Enum):
    """Who may own a pool's CPUs."""

    EXCLUSIVE = "exclusive"
    SHARED = "shared"
    DEFAULT = "default"

    @classmethod
    def of_name(cls, name: str) -> PoolKind:
        """Tell a pool's kind from the prefix of its name, as CPU-Pooler does."""
        for kind in (cls.EXCLUSIVE, cls.SHARED):
            if name.startswith(kind.value):
                return kind
        return cls.DEFAULT


class HyperThreadingPolicy(Enum):
    """What an exclusive CPU brings with it: nothing, or the siblings on its core."""

    SINGLE_THREADED = "singleThreaded"
    MULTI_THREADED = "multiThreaded"


@dataclass(frozen=True, slots=True)
class Pool:
    """One pool as the admin wrote it.

    Attributes:
        name: as in the resource `nokia.k8s.io/<name>`.
        kind: exclusive, shared or default.
        cpus: the CPUs listed; for an exclusive pool one per core.
        hyper_threading: what an exclusive CPU brings with it.
    """

    name: str
    kind: PoolKind
    cpus: CPUSet
    hyper_threading: HyperThreadingPolicy = HyperThreadingPolicy.SINGLE_THREADED

    @classmethod
    def named(cls, name: str, cpus: str, *, multi_threaded: bool = False) -> Pool:
        """Make a pool from its name and CPU list.

        Raises:
            CPUSetParseError: the list is not one.
        """
        policy = (
            HyperThreadingPolicy.MULTI_THREADED
            if multi_threaded
            else HyperThreadingPolicy.SINGLE_THREADED
        )
        return cls(name, PoolKind.of_name(name), CPUSet.parse(cpus), policy)

    def reach(self, topology: CPUTopology) -> CPUSet:
        """Give the CPUs that nobody else may use: for an exclusive pool whole cores."""
        exclusive = self.kind is PoolKind.EXCLUSIVE
        return topology.with_siblings(self.cpus) if exclusive else self.cpus

    def granted(self, cpus: CPUSet, topology: CPUTopology) -> CPUSet:
        """Give what a container gets for exclusive devices: under multiThreaded whole cores."""
        multi_threaded = self.hyper_threading is HyperThreadingPolicy.MULTI_THREADED
        return topology.with_siblings(cpus) if multi_threaded else cpus


@dataclass(frozen=True, slots=True)
class NodePools:
    """All pools of one node, sorted by name; `validate` tells whether they may stand together."""

    pools: tuple[Pool, ...] = ()

    @classmethod
    def of(cls, *pools: Pool) -> NodePools:
        """Collect pools in the order of their names."""
        return cls(tuple(sorted(pools, key=lambda pool: pool.name)))

    def __iter__(self) -> Iterator[Pool]:
        return iter(self.pools)

    def by_name(self, name: str) -> Pool | None:
        """Find a pool by its exact name."""
        return next((pool for pool in self.pools if pool.name == name), None)

    def of_kind(self, kind: PoolKind) -> tuple[Pool, ...]:
        """List the pools of one kind."""
        return tuple(pool for pool in self.pools if pool.kind is kind)

    @property
    def advertised(self) -> tuple[Pool, ...]:
        """The pools that are resources: all but the default one."""
        return tuple(pool for pool in self.pools if pool.kind is not PoolKind.DEFAULT)

    def default_cpus(self, topology: CPUTopology) -> CPUSet:
        """Give the default pool's CPUs; where none is configured, every CPU that no pool lists.

        The idle siblings of exclusive cores belong to nobody.
        """
        configured = self.of_kind(PoolKind.DEFAULT)
        if configured:
            return configured[0].cpus
        return topology.present - CPUSet.union(pool.reach(topology) for pool in self.pools)


def is_name(text: str) -> bool:
    """Tell whether a pool can be called so: its name is the part of a resource after the slash.

    Kubernetes: IsQualifiedName in k8s.io/apimachinery/pkg/util/validation.
    """
    return _NAME.fullmatch(text) is not None


def validate(pools: NodePools, topology: CPUTopology | None) -> tuple[Problem, ...]:
    """Find everything wrong with the pools, on this machine or, without one, by themselves."""
    problems = [*_each_alone(pools), *_overlaps(pools, topology), *_clashing_names(pools)]
    if topology is not None:
        problems += [*_against_machine(pools, topology), *_nothing_left(pools, topology)]
    order = {pool.name: place for place, pool in enumerate(pools)}
    return tuple(sorted(problems, key=lambda problem: order.get(problem.pool or "", len(order))))


def _problem(
    pool: Pool, cpus: CPUSet, what: str, remedy: str, severity: Severity = Severity.ERROR
) -> Problem:
    return Problem(
        what=what,
        remedy=remedy,
        severity=severity,
        path=f"pools.{pool.name}.cpus",
        pool=pool.name,
        cpus=cpus,
    )


def _each_alone(pools: NodePools) -> Iterator[Problem]:
    for pool in pools:
        if not pool.cpus:
            yield _problem(pool, pool.cpus, "the pool has no CPUs", "list some, or remove the pool")
        needed = device_list_bytes(len(pool.cpus)) if pool.kind is PoolKind.SHARED else 0
        if needed > MAX_DEVICE_LIST_BYTES:
            yield _problem(
                pool,
                pool.cpus,
                f"its {len(pool.cpus)} CPUs make a device list of {needed} bytes, and the kubelet"
                f" takes {MAX_DEVICE_LIST_BYTES}",
                "split it into two shared pools",
            )
    defaults = pools.of_kind(PoolKind.DEFAULT)
    for extra in defaults[1:]:
        yield _problem(
            extra,
            extra.cpus,
            f"{defaults[0].name} ({defaults[0].cpus}) is already the default pool, and any name"
            f" without the prefix exclusive or shared is one ({extra.cpus})",
            "merge the two, or give this one a prefix",
        )


def device_list_bytes(cpus: int) -> int:
    """Size the ListAndWatch message of a shared pool of so many CPUs, one device per milli-CPU."""
    count = cpus * MILLI_PER_CPU
    # Every id has a first digit, those from 10 on a second one, those from 100 on a third, ...
    further_digits: int = sum(count - 10**power for power in range(1, len(str(count))))
    return count * (_DEVICE_BYTES + 1) + further_digits


def _overlaps(pools: NodePools, topology: CPUTopology | None) -> Iterator[Problem]:
    for pool in pools.of_kind(PoolKind.EXCLUSIVE):
        if topology is not None:
            yield from _two_threads_of_one_core(pool, topology)
    for one, other in combinations(pools, 2):
        first, second = sorted((one, other), key=lambda pool: pool.kind is not PoolKind.EXCLUSIVE)
        if first.kind is PoolKind.EXCLUSIVE:
            yield from _exclusive_overlap(first, second, topology)
        elif common := first.cpus & second.cpus:
            yield _problem(
                first,
                common,
                f"CPUs {common} are also in {second.name}: both pools run on them",
                "keep them in one pool unless sharing is meant",
                Severity.WARNING,
            )


def _two_threads_of_one_core(pool: Pool, topology: CPUTopology) -> Iterator[Problem]:
    for core in dict.fromkeys(topology.core_of(cpu) for cpu in pool.cpus):
        listed = core & pool.cpus
        if len(listed) > 1:
            yield _problem(
                pool,
                listed,
                f"CPUs {listed} are threads of one core, and an exclusive pool lists cores",
                f"list only {listed.first}; hyperThreadingPolicy: multiThreaded adds its siblings",
            )


def _exclusive_overlap(pool: Pool, other: Pool, topology: CPUTopology | None) -> Iterator[Problem]:
    if listed := pool.cpus & other.cpus:
        yield _problem(
            pool,
            listed,
            f"CPUs {listed} are also in {other.name}",
            "an exclusive CPU may be in one pool only: remove them from one of the two",
        )
    if topology is None:
        return
    threads = topology.with_siblings(pool.cpus - listed)
    if siblings := threads & other.cpus - listed:
        owners = topology.with_siblings(siblings) & pool.cpus
        yield _problem(
            pool,
            owners | siblings,
            f"CPUs {siblings} in {other.name} are siblings of its CPUs {owners} on the same cores",
            f"remove {siblings} from {other.name}, or {owners} from {pool.name}",
        )


def _clashing_names(pools: NodePools) -> Iterator[Problem]:
    same: defaultdict[str, list[Pool]] = defaultdict(list)
    for pool in pools.advertised:
        same[pool_variable(pool.name)].append(pool)
    for variable, clashing in same.items():
        for extra in clashing[1:]:
            yield Problem(
                what=f"its variable {variable} is also that of {clashing[0].name}",
                remedy="rename one of the two pools",
                path=f"pools.{extra.name}",
                pool=extra.name,
            )


def _against_machine(pools: NodePools, topology: CPUTopology) -> Iterator[Problem]:
    for pool in pools:
        if absent := pool.cpus - topology.present:
            yield _problem(
                pool,
                absent,
                f"this machine has no CPUs {absent}; it has {topology.present}",
                "remove them from the pool",
            )
        if offline := pool.cpus & topology.present - topology.online:
            yield _problem(
                pool,
                offline,
                f"CPUs {offline} are offline",
                "nobody gets them until they are switched on",
                Severity.WARNING,
            )


def _nothing_left(pools: NodePools, topology: CPUTopology) -> Iterable[Problem]:
    if pools.pools and not pools.of_kind(PoolKind.DEFAULT) and not pools.default_cpus(topology):
        yield Problem(
            what="no default pool is configured and the pools take every CPU",
            remedy="containers without a request stay where they are: add a pool named default",
            severity=Severity.WARNING,
            path="pools",
        )
