"""The pods that moves let start: `python -m benchmarks.compaction`.

A random trace of Guaranteed pods comes to one simulated node on which each pod needs one NUMA node.
Under `static` some of them are held although enough CPUs are free. Under `dynamic` with compaction
containers move for them, as far as all pods say. Each pod of `static` that waits, and does not wait
under the other policy, or waits less, counts as one that starts earlier.
"""

from __future__ import annotations

from dataclasses import dataclass
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
WORDS: Final = (CPUMoves.SAME_NUMA, CPUMoves.ANY)
"""On this machine an L3 cache is a NUMA node."""


@dataclass(frozen=True, slots=True)
class Waits:
    """The pods that waited under one policy.

    Attributes:
        title: the policy.
        result: its result.
        wait_s: pod → how long it waited, of those that did.
    """

    title: str
    result: SimulationResult
    wait_s: Mapping[str, float]


def measured(events: Sequence[Event], policy: str, moves: CPUMoves) -> Waits:
    """Simulate the trace under a policy, with pods that all have one word."""
    moving = tuple(workload.movable(events, moves))
    result = simulation.compare(MACHINE, POOLS, moving, [policy])[policy]
    waits = {
        placed.container.rpartition("/")[0]: placed.waited_s
        for placed in result.placements
        if placed.waited_s or placed.held
    }
    title = policy if policy == STATIC else f"{policy}, all pods with `{moves.value}`"
    return Waits(title, result, waits)


def shown(found: Iterable[Waits]) -> str:
    """Return a table; the first row is what the others are compared with."""
    rows = []
    first: Waits | None = None
    for one in found:
        first = first or one
        summary = one.result.summary
        earlier = [pod for pod, s in first.wait_s.items() if one.wait_s.get(pod, 0.0) < s]
        later = [pod for pod, s in one.wait_s.items() if first.wait_s.get(pod, 0.0) < s]
        for_pods = sum(move.why.startswith("so that pod ") for move in one.result.moves)
        rows.append(
            (
                one.title,
                f"{summary.admitted:,}",
                f"{len(one.wait_s):,}",
                f"{sum(one.wait_s.values()) / 3600:,.1f} h",
                f"{len(earlier):,}",
                f"{len(later):,}",
                f"{for_pods:,} + {summary.moves - for_pods:,}",
                f"{summary.utilisation:.1%}",
            )
        )
    waits = ("pods held", "their waits", "start earlier", "later")
    header = ("", "pods in", *waits, "moves for pods + after releases", "in use")
    return table(header, rows)


def runs(events: Sequence[Event]) -> Iterator[Waits]:
    """Simulate the trace under each policy."""
    yield measured(events, STATIC, CPUMoves.NEVER)
    for moves in WORDS:
        yield measured(events, DYNAMIC, moves)


def main() -> None:
    """Print the table."""
    events = tuple(workload.made_up(MACHINE, POOLS, PODS, seed=1, load=LOAD))
    print(shown(runs(events)))


if __name__ == "__main__":
    main()
