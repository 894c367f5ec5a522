"""The quality of placements: the same traces under the pool's policy and under simpler ones."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from benchmarks.documents import table
from cpupool.core.cpu_manager import TopologyPolicy
from cpupool.core.cpuset import CPUSet
from cpupool.core.pool_policy import CPUBindPolicy, PoolPolicy
from cpupool.core.pools import NodePools, Pool
from cpupool.simulate import workload
from cpupool.simulate.simulation import FIRST_FIT, KUBELET_PACKED, POOL, compare
from tests.machines import MACHINES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from cpupool.simulate.simulation import Summary

PODS: Final = 400
SEEDS: Final = (1, 2, 3)
LOADS: Final = (0.5, 0.9)
POLICIES: Final = (POOL, KUBELET_PACKED, FIRST_FIT)


@dataclass(frozen=True, slots=True)
class Setting:
    """A node.

    Attributes:
        machine: one of `MACHINES`.
        full_cores: whether the pool lists all threads and hands out whole cores; else it lists one
            thread of each core.
        manager: the kubelet's Topology Manager policy.
    """

    machine: str
    full_cores: bool = False
    manager: TopologyPolicy = TopologyPolicy.NONE


SETTINGS: Final = (
    Setting("telco_2s_2n_16c32t"),
    Setting("epyc_like"),
    Setting("epyc_256"),
    Setting("epyc_256", manager=TopologyPolicy.RESTRICTED),
    Setting("epyc_like", full_cores=True),
    Setting("smt4", full_cores=True),
)


def quality(tell: Callable[[str], None]) -> str:
    """Simulate made-up traces on several nodes."""
    rows = [row for setting in SETTINGS for row in _rows(setting, tell)]
    header = ("node", "Topology Manager", "load", "policy")
    figures = ("refused", "on one NUMA node", "behind one L3 cache", "fragmentation", "CPUs in use")
    return table((*header, *figures), rows)


def _rows(setting: Setting, tell: Callable[[str], None]) -> Iterator[tuple[str, ...]]:
    topology = MACHINES[setting.machine].topology()
    listed = CPUSet(core.first for core in topology.cores)
    pool = Pool.named("exclusive_a", str(listed))
    if setting.full_cores:
        full = PoolPolicy(bind=CPUBindPolicy.FULL_PHYSICAL_CORES)
        pool = replace(pool, cpus=topology.online, policy=full)
    pools = NodePools.of(pool)
    node = f"{len(listed)} cores, {len(topology.nodes)} nodes, {len(topology.l3)} caches"
    if setting.full_cores:
        node += ", full cores"
    for load in LOADS:
        tell(f"simulating {node} under load {load}")
        traces = [
            tuple(workload.made_up(topology, pools, PODS, seed=seed, load=load)) for seed in SEEDS
        ]
        runs = [
            compare(topology, pools, trace, POLICIES, manager=setting.manager) for trace in traces
        ]
        for policy in POLICIES:
            figures = _figures([run[policy].summary for run in runs])
            yield (node, setting.manager.value, f"{load:.0%}", policy, *figures)


def _figures(runs: list[Summary]) -> tuple[str, ...]:
    """Write the means over several traces."""
    alone = [run.on_one_node for run in runs if run.on_one_node is not None]
    cached = [run.behind_one_cache for run in runs if run.behind_one_cache is not None]
    return (
        f"{sum(run.refused for run in runs) / (PODS * len(runs)):.1%}",
        f"{statistics.mean(alone):.1%}" if alone else "-",
        f"{statistics.mean(cached):.1%}" if cached else "-",
        f"{statistics.mean(run.fragmentation for run in runs):.2f}",
        f"{statistics.mean(run.utilisation for run in runs):.1%}",
    )
