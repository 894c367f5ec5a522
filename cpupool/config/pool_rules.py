"""The rules of pools: for the CPUs of several pools, and for the keys of one."""

from __future__ import annotations

from collections import defaultdict
from itertools import combinations
from typing import TYPE_CHECKING, Final

from cpupool.config import cpu_manager
from cpupool.core import default_pool, withheld
from cpupool.core.cpu_manager import CPU_MANAGER
from cpupool.core.cpuset import MAX_CPU, CPUSet
from cpupool.core.device_list_limit import MAX_DEVICE_LIST_BYTES, device_list_bytes
from cpupool.core.devices import capacity
from cpupool.core.errors import Problem, Severity
from cpupool.core.names import ENABLE_SHARED_CPUS, pool_variable
from cpupool.core.pool_policy import (
    ALIGN_BY_UNCORE_CACHE,
    CPU_BIND_POLICY,
    EXCLUSIVE_POLICY,
    NUMA_POLICY,
    RESERVED,
    ExclusivePolicy,
    NUMAPolicy,
)
from cpupool.core.pools import HyperThreadingPolicy, NodePools, Pool, PoolKind
from cpupool.policies.built_in import kind

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from cpupool.core.topology import CPUTopology

MIXED_CPUS: Final = "mixedCPUs"
MIXED_POOL: Final = "pool"
CONTAINERS_LIMIT: Final = "containersLimit"
"""The part of a pool file that offers OpenShift's resource, and its keys."""


def validate(pools: NodePools, topology: CPUTopology | None) -> tuple[Problem, ...]:
    """Find everything wrong with the pools, on this machine or, without one, by themselves."""
    if pools.by_name(ENABLE_SHARED_CPUS) is not None:
        # The kind of the pool, and so other faults, follow from its next name.
        return (
            Problem(
                what=f"this is the name of OpenShift's resource, which {MIXED_CPUS} switches on",
                remedy="rename the pool",
                path=f"pools.{ENABLE_SHARED_CPUS}",
                pool=ENABLE_SHARED_CPUS,
            ),
        )
    if topology is not None:
        pools = pools.on(topology.present)
    problems = [*_each_alone(pools), *_overlaps(pools, topology), *_clashing_names(pools)]
    problems += [*_mixed(pools), *cpu_manager.validate(pools, topology)]
    if topology is not None:
        problems += [*_against_machine(pools, topology), *_nothing_left(pools, topology)]
    order = {pool.name: place for place, pool in enumerate(pools)}
    return tuple(sorted(problems, key=lambda problem: order.get(problem.pool or "", len(order))))


def suits_static_kubelet(pools: NodePools) -> bool:
    """Return whether the kubelet's static CPU manager may give out the exclusive CPUs.

    It may if cpupool only adds shared CPUs, and places no other containers; or beside a policy that
    tolerates it, if cpupool has no pools to give out.
    """
    if kind(pools.cpu_manager).beside_kubelet:
        return all(pool.kind is PoolKind.DEFAULT for pool in pools)
    return pools.mixed is not None and pools.shared_alone


def _problem(
    pool: Pool,
    cpus: CPUSet,
    what: str,
    remedy: str,
    severity: Severity = Severity.ERROR,
    *,
    key: str = "cpus",
) -> Problem:
    return Problem(
        what=what,
        remedy=remedy,
        severity=severity,
        path=f"pools.{pool.name}.{key}",
        pool=pool.name,
        cpus=cpus,
    )


def _each_alone(pools: NodePools) -> Iterator[Problem]:
    for pool in pools:
        if not pool.cpus and pool.open_from is None:
            yield _problem(pool, pool.cpus, "the pool has no CPUs", "list some, or remove the pool")
        needed = device_list_bytes(capacity(pool)) if pool.kind is PoolKind.SHARED else 0
        if needed > MAX_DEVICE_LIST_BYTES:
            yield _problem(
                pool,
                pool.cpus,
                f"its {len(pool.cpus)} CPUs make {_too_long(needed)}",
                "split it into two shared pools",
            )
        yield from _contradictions(pool)
        yield from _wrongly_reserved(pool)
        yield from _behind_open_end(pool, pools)
    defaults = pools.of_kind(PoolKind.DEFAULT)
    for extra in defaults[1:]:
        yield _problem(
            extra,
            extra.cpus,
            f"{defaults[0].name}{_listed(defaults[0])} is already the default pool, and any name"
            f" without the prefix exclusive or shared is one{_listed(extra)}",
            "merge the two, or give this one a prefix",
        )


def _behind_open_end(pool: Pool, pools: NodePools) -> Iterator[Problem]:
    """Find pools that begin behind the open end of another one.

    The admin may have meant that these CPUs, too, are shared.
    """
    if pool.open_from is None:
        return
    first = pool.open_from
    others = CPUSet.union(other.cpus for other in pools if other is not pool)
    if behind := CPUSet(cpu for cpu in others if cpu >= first):
        last = max(behind)
        between = CPUSet(range(first, last)) - behind
        above = f"{last + 1}-" if last < MAX_CPU else ""
        closed = ",".join(filter(None, (str(between), above)))
        what = f"other pools have CPUs {behind}, which {first}- includes"
        yield _problem(pool, behind, what, f"write {closed} in place of {first}-")


def _listed(pool: Pool) -> str:
    """Return a pool's CPUs in brackets; empty for a pool without CPUs."""
    return f" ({pool.cpus})" if pool.cpus else ""


def _contradictions(pool: Pool) -> Iterator[Problem]:
    """Find keys that say opposite things; the kubelet refuses the first three, too.

    NewStaticPolicyOptions in pkg/kubelet/cm/cpumanager/policy_options.go.
    """
    policy = pool.policy
    distributed = policy.numa is NUMAPolicy.DISTRIBUTED
    aligned = policy.align_by_uncore_cache is True
    multi_threaded = pool.hyper_threading is HyperThreadingPolicy.MULTI_THREADED
    for found, key, what in (
        (
            distributed and policy.spreads,
            NUMA_POLICY,
            f"with {CPU_BIND_POLICY}: spreadAcrossCores CPUs are dealt out over cores, not nodes",
        ),
        (
            aligned and distributed,
            ALIGN_BY_UNCORE_CACHE,
            f"with {NUMA_POLICY}: distributed CPUs are far apart, not behind one cache",
        ),
        (
            aligned and policy.spreads,
            ALIGN_BY_UNCORE_CACHE,
            f"with {CPU_BIND_POLICY}: spreadAcrossCores CPUs are far apart, not behind one cache",
        ),
        (
            multi_threaded and policy.spreads,
            CPU_BIND_POLICY,
            "multiThreaded pools hand out whole cores, so there are no threads to spread",
        ),
        (
            multi_threaded and policy.whole_cores,
            CPU_BIND_POLICY,
            "multiThreaded pools hand out whole cores already",
        ),
    ):
        if found:
            yield _problem(pool, pool.cpus, what, "remove one of the two", key=key)
    if policy.exclusive is ExclusivePolicy.PHYSICAL_CORE and not policy.spreads:
        yield _problem(
            pool,
            pool.cpus,
            f"only with {CPU_BIND_POLICY}: spreadAcrossCores do pods ever share a core",
            "remove it",
            Severity.WARNING,
            key=EXCLUSIVE_POLICY,
        )


def _wrongly_reserved(pool: Pool) -> Iterator[Problem]:
    reserved = pool.policy.reserved
    if strange := reserved - pool.cpus:
        yield _problem(
            pool,
            strange,
            f"CPUs {strange} are not among the pool's own, {pool.cpus}",
            "remove them here, or add them to its cpus",
            key=RESERVED,
        )
    if reserved and not pool.offered:
        yield _problem(
            pool, pool.cpus, "no CPU of the pool is left to give out", "reserve fewer", key=RESERVED
        )


def _too_long(needed_bytes: int) -> str:
    return f"a device list of {needed_bytes} bytes, and the kubelet takes {MAX_DEVICE_LIST_BYTES}"


def _mixed(pools: NodePools) -> Iterator[Problem]:
    mixed = pools.mixed
    if mixed is None:
        return
    shared = [pool.name for pool in pools.of_kind(PoolKind.SHARED)]
    if mixed.pool not in shared:
        yield Problem(
            what=f"{mixed.pool[:63]!r} is no shared pool of this file",
            remedy=f"name {' or '.join(shared)}" if shared else "add a shared pool and name it",
            path=f"{MIXED_CPUS}.{MIXED_POOL}",
        )
    needed = device_list_bytes(mixed.containers_limit)
    if needed > MAX_DEVICE_LIST_BYTES:
        yield Problem(
            what=f"{mixed.containers_limit} containers make {_too_long(needed)}",
            remedy="a node runs some hundred containers: write no more than it has room for",
            path=f"{MIXED_CPUS}.{CONTAINERS_LIMIT}",
        )
    if pools.cpu_manager.chooses:
        if pools.shared_alone:
            yield Problem(
                what="with shared pools alone the kubelet's static CPU manager gives out the other"
                f" CPUs, and so does the policy {pools.cpu_manager.policy} of {CPU_MANAGER}",
                remedy=f"list the CPUs of {CPU_MANAGER} in a pool named default, or remove"
                f" {CPU_MANAGER}",
                path=MIXED_CPUS,
            )
    elif not pools.of_kind(PoolKind.EXCLUSIVE):
        for default in pools.of_kind(PoolKind.DEFAULT):
            yield Problem(
                what="without an exclusive pool the kubelet's static CPU manager gives out CPUs,"
                " and places the containers of a default pool itself",
                remedy="remove this pool: a node with that CPU manager refuses this file",
                severity=Severity.WARNING,
                path=f"pools.{default.name}",
                pool=default.name,
            )


def _overlaps(pools: NodePools, topology: CPUTopology | None) -> Iterator[Problem]:
    for pool in pools.of_kind(PoolKind.EXCLUSIVE):
        if topology is not None and pool.policy.bind is None:
            yield from _two_threads_of_one_core(pool, topology)
    for left, right in combinations(pools, 2):
        first, second = sorted((left, right), key=lambda pool: pool.kind is not PoolKind.EXCLUSIVE)
        if first.kind is PoolKind.EXCLUSIVE:
            yield from _exclusive_overlap(first, second, topology)
        elif not (common := first.cpus & second.cpus):
            continue
        elif pools.cpu_manager.chooses and left.kind is not right.kind:
            yield _problem(
                first,
                common,
                f"CPUs {common} are also in {second.name}, and the policy"
                f" {pools.cpu_manager.policy} of {CPU_MANAGER} gives out the default pool's CPUs",
                "remove them from one of the two",
            )
        else:
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
    resources = (pool for pool in pools if pool.kind is not PoolKind.DEFAULT)
    for pool in resources:
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
        if pool.open_from is not None and not pool.cpus:
            what = f"this machine has no CPU from {pool.open_from} on; it has {topology.present}"
            yield _problem(pool, pool.cpus, what, "begin with a lower CPU")
        if absent := pool.cpus - topology.present:
            yield _problem(
                pool,
                absent,
                f"this machine has no CPUs {absent}; it has {topology.present}",
                "remove them, or use this file for a machine that has them",
            )
        gone = pool.cpus & topology.present - topology.online
        if kept := gone & withheld.all_of(topology.withheld):
            yield _problem(
                pool,
                kept,
                withheld.why(kept, topology.withheld),
                withheld.remedy(kept, topology.withheld),
                Severity.WARNING,
            )
        if offline := gone - kept:
            remedy = "no container gets them until they are switched on"
            if not set(offline) <= topology.offline.keys() and _shares_no_core(pool, pools):
                # The kernel does not name the core of an offline CPU.
                remedy += (
                    "; if they turn out to share a core with another pool, no further container"
                    " gets that core: validate with a recording of this machine with every CPU on"
                )
            yield _problem(pool, offline, f"CPUs {offline} are offline", remedy, Severity.WARNING)
        if pool.policy.whole_cores:
            yield from _never_whole(pool, topology)


def _shares_no_core(pool: Pool, pools: NodePools) -> bool:
    """Return whether another pool of the file must not have a CPU on the cores of a pool."""
    others = (other for other in pools if other is not pool)
    return any(PoolKind.EXCLUSIVE in {pool.kind, other.kind} for other in others)


def _never_whole(pool: Pool, topology: CPUTopology) -> Iterator[Problem]:
    """Find cores that fullPhysicalCores could never give out."""
    if missing := topology.with_siblings(pool.cpus) - pool.cpus:
        yield _problem(
            pool,
            topology.with_siblings(missing),
            f"the pool lacks CPUs {missing}, siblings of its own: their cores are never whole",
            f"add {missing}, or list one CPU per core and use hyperThreadingPolicy: multiThreaded"
            f" in place of {CPU_BIND_POLICY}",
        )
    reserved = pool.policy.reserved & pool.cpus
    if split := topology.with_siblings(reserved) & pool.offered:
        yield _problem(
            pool,
            topology.with_siblings(split) & pool.cpus,
            f"CPUs {split} are siblings of reserved ones, and their cores are never whole",
            f"reserve {split} too, or reserve none of their cores",
            key=RESERVED,
        )
    cores = {topology.core_of(cpu) for cpu in pool.cpus}
    most = max(map(len, cores), default=0)
    if smaller := CPUSet.union(core for core in cores if len(core) < most):
        yield _problem(
            pool,
            smaller,
            f"CPUs {smaller} are on cores of fewer threads than the {most} of the others",
            "no container gets them: list them in a pool of their own, or switch their siblings on",
            Severity.WARNING,
        )


def _nothing_left(pools: NodePools, topology: CPUTopology) -> Iterable[Problem]:
    if (
        pools.pools
        and not pools.of_kind(PoolKind.DEFAULT)
        and not default_pool.declared(pools, topology)
    ):
        yield Problem(
            what="no default pool is configured and the pools take every CPU",
            remedy="containers without a request stay where they are: add a pool named default",
            severity=Severity.WARNING,
            path="pools",
        )
