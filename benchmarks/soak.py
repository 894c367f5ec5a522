"""Look for a leak: `python -m benchmarks.soak [EVENTS] [--trace]`, 100,000 events.

A Manager and a cpusetter live through pods that come and go, edits of the pools, and strange
writes, on the tests' model of a kernel: everything else of the process is the same at each look.
A sweep follows each event. Without a leak the memory stays after the first thousands of events.
"""

from __future__ import annotations

import gc
import sys
import tracemalloc
from typing import Final

from benchmarks.processes import resident_mib
from cpupool.core.cpuset import CPUSet
from cpupool.core.pools import NodePools, Pool
from tests import builders
from tests.setters import EVERYTHING, MACHINE, Node, ids

EVENTS: Final = 100_000
_LOOKS: Final = (0, 1_000, 10_000, 50_000, 100_000)
_POOLS: Final = (
    NodePools.of(
        Pool.named("exclusive_a", "2,4"), Pool.named("shared_a", "0"), Pool.named("default", "1")
    ),
    NodePools.of(
        Pool.named("exclusive_a", "2,4"), Pool.named("shared_b", "0,6"), Pool.named("default", "1")
    ),
)
_TOP: Final = 8


def main(arguments: list[str]) -> None:
    """Print the memory at some numbers of events; with --trace also the lines that grew."""
    events = int(next((word for word in arguments if word.isdigit()), EVENTS))
    trace = "--trace" in arguments
    node = Node()
    before = None
    print("events  resident MiB")
    for number in range(events + 1):
        if number in _LOOKS or number == events:
            gc.collect()
            print(f"{number:6}  {resident_mib():12.1f}", flush=True)
        if trace and number == events // 10:
            # Later than the imports and the first caches: what is new from here on has grown.
            tracemalloc.start()
            before = tracemalloc.take_snapshot()
        _happen(node, number)
    if before:
        gc.collect()
        for line in tracemalloc.take_snapshot().compare_to(before, "lineno")[:_TOP]:
            print(line)


def _happen(node: Node, number: int) -> None:
    """Let one thing happen: of each six, two pods start, a write is strange, an edit, two end."""
    turn, step = divmod(number, 6)
    owner, plain = f"owner-{turn}", f"plain-{turn}"
    match step:
        case 0:
            node.run(owner, builders.container(exclusive_a=1))
            node.source.saved = {owner: {"exclusive_a": ids("2")}}
        case 1:
            node.run(plain)
        case 2:
            node.kernel.write(node.path(plain), CPUSet.parse(EVERYTHING))
        case 3:
            node.manager.reconfigure(_POOLS[turn % 2], MACHINE.topology())
        case _:
            name = owner if step == 4 else plain
            if step == 4:
                node.source.saved = {}
            pods = node.source.listed or []
            node.source.listed = [pod for pod in pods if pod.name != name]
            node.kernel.remove(node.path(name))
            node.kernel.remove(f"kubepods/pod{name}-uid")
    # Past every wait for a next attempt.
    node.now_s += 60.0
    node.setter.sweep()
    # What the stand-ins write down.
    node.events.pods.clear()
    node.events.nodes.clear()
    node.source.asked.clear()
    node.kernel.writes.clear()


if __name__ == "__main__":
    main(sys.argv[1:])
