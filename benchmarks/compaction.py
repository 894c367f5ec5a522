"""The pods that moves let start: `python -m benchmarks.compaction`.

A random trace of Guaranteed pods comes to one simulated node on which each pod needs one NUMA node.
Under `static` some of them are held although enough CPUs are free. Under `dynamic` with compaction
containers move for them, as far as all pods say. Each pod of `static` that waits, and does not wait
under the other policy, or waits less, counts as one that starts earlier.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from benchmarks.documents import table
from cpupool.core.cpu_manager import DYNAMIC, STATIC, Compaction, CPUManager, TopologyPolicy
from cpupool.core.cpuset import CPUSet
from cpupool.core.pools import NodePools
from cpupool.core.workloads import CPUMoves
from cpupool.simulate import simulation, workload
from tests.machines import MACHINES

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from cpupool.simulate.simulation import SimulationResult
    from cpupool.simulate.workload import Event

PODS: Final = 1000
LOAD: Final = 0.9
MACHINE: Final = MACHINES["telco_2s_2n_16c32t"].topology()
POOLS: Final = NodePools.of(
    cpu_manager=CPUManager(
        DYNAMIC,
        CPUSet.parse("0,8,16,24"),
        topology_policy=TopologyPolicy.SINGLE_NUMA_NODE,
        compaction=Compaction(),
    )
)
WORDS: Final = (CPUMoves.SAME_L3, CPUMoves.SAME_NUMA, CPUMoves.ANY)


@dataclass(frozen=True, slots=True)
class Waits:
    """The pods that waited under one policy.

    Attributes:
        title: the policy.
        result: its result.
        wait_s: pod → how long it waited, of those that did.
        held: the pods that still wait at the end.
        took_s: how long the simulation took.
    """

    title: str
    result: SimulationResult
    wait_s: Mapping[str, float]
    held: frozenset[str]
    took_s: float


def measured(events: Sequence[Event], policy: str, moves: CPUMoves, budget: int) -> Waits:
    """Simulate the trace under a policy, with pods that all have one word."""
    pools = POOLS
    if budget != Compaction().moves_per_hour:
        compaction = Compaction(budget)
        pools = replace(POOLS, cpu_manager=replace(POOLS.cpu_manager, compaction=compaction))
    began_s = time.perf_counter()
    moving = tuple(workload.movable(events, moves))
    result = simulation.compare(MACHINE, pools, moving, [policy])[policy]
    waits: dict[str, float] = {}
    held = set()
    for placed in result.placements:
        pod = placed.container.rpartition("/")[0]
        if placed.waited_s or placed.held:
            waits[pod] = placed.waited_s
        if placed.held:
            held.add(pod)
    title = policy if policy == STATIC else f"{policy}, `{moves.value}`, {budget} moves an hour"
    took_s = time.perf_counter() - began_s
    return Waits(title, result, waits, frozenset(held), took_s)


def shown(found: Iterable[Waits]) -> str:
    """Return a table; the first row is what the others are compared with."""
    rows = []
    first: Waits | None = None
    for one in found:
        first = first or one
        summary = one.result.summary
        earlier = [pod for pod, s in first.wait_s.items() if one.wait_s.get(pod, 0.0) < s]
        later = [pod for pod, s in one.wait_s.items() if first.wait_s.get(pod, 0.0) < s]
        rows.append(
            (
                one.title,
                f"{summary.admitted:,}",
                f"{len(one.wait_s):,}",
                f"{sum(one.wait_s.values()) / 3600:,.1f} h",
                f"{len(earlier):,}",
                f"{len(later):,}",
                f"{summary.moves:,}",
                f"{summary.utilisation:.1%}",
            )
        )
    header = ("", "pods in", "held", "all waits", "earlier", "later", "moves", "in use")
    return table(header, rows)


def runs(events: Sequence[Event]) -> Iterator[Waits]:
    """Simulate the trace under each policy."""
    yield measured(events, STATIC, CPUMoves.NEVER, Compaction().moves_per_hour)
    for moves in WORDS:
        yield measured(events, DYNAMIC, moves, Compaction().moves_per_hour)
    yield measured(events, DYNAMIC, CPUMoves.ANY, 60)


def main() -> None:
    """Print the table."""
    events = tuple(workload.made_up(MACHINE, POOLS, PODS, seed=1, load=LOAD))
    print(shown(runs(events)))


if __name__ == "__main__":
    main()
