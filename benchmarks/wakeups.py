"""Wake-up latency of a process beside busy neighbours, under the CPU manager's policies.

The synthetic workload for phase 2 of the CPU Manager proposal (kubernetes/community#654): a
Guaranteed pod wakes up each millisecond, and best-effort pods use all the CPU time that they can
get. Under `dynamic` the pod grows and shrinks in place meanwhile. `python -m benchmarks.wakeups`
prints the table and draws the picture.
"""

from __future__ import annotations

import json
import sys
from itertools import cycle
from typing import TYPE_CHECKING, Final

from benchmarks.documents import Times, table
from benchmarks.workloads import (
    IMAGES,
    NONE,
    STATIC,
    Curve,
    drawn,
    loaded_node,
    online,
    other_work,
    show,
)
from cpupool.core.cpuset import CPUSet
from cpupool.core.errors import HostError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

IMAGE: Final = IMAGES / "wakeups.svg"
BUSY: Final = 4
ROUNDS: Final = 20
WAKE_UPS: Final = 500
PERIOD_S: Final = 0.001
_SIZES: Final = (2, 1)
"""How many CPUs the pod has after each resize, again and again."""
CPUS: Final = max(_SIZES) + 1
"""How many CPUs are used: one is for the others."""
_DYNAMIC: Final = "dynamic"
_POLICIES: Final = {
    "none": NONE,
    "static": STATIC,
    _DYNAMIC: "policy: dynamic, reserved: {reserved}, maxNoticeSeconds: 0",
}
_CURVES: Final = {
    "none": Curve("#d55e00", "--"),
    "static": Curve("#0072b2", "-"),
    _DYNAMIC: Curve("#009e73", ":", 2.5),
}
_SPIN: Final = (sys.executable, "-c", "print(input(), flush=True)\nwhile True: pass")
_WAKE_UP: Final = f"""
import json, sys, time
input()
late_us = []
for _ in range({WAKE_UPS}):
    before_s = time.monotonic()
    time.sleep({PERIOD_S})
    late_us.append(round((time.monotonic() - before_s - {PERIOD_S}) * 1e6, 1))
json.dump(late_us, sys.stdout)
"""
"""Prints by how many microseconds each wake-up was late."""


def wakeups(tell: Callable[[str], None]) -> str:
    """Return a table of the latencies by policy; draw their distributions into `IMAGE`."""
    before, there = other_work(), CPUSet(list(online())[:CPUS])
    with_resizes = there if len(there) == CPUS else CPUSet(range(CPUS))
    found: dict[str, list[float]] = {policy: [] for policy in _POLICIES}
    resizes = 0
    try:
        for number in range(1, ROUNDS + 1):
            # In turns, so that all policies meet the same machine.
            for policy in _POLICIES:
                tell(f"{WAKE_UPS} wake-ups beside {BUSY} busy pods, {policy}, round {number}")
                cpus = with_resizes if policy == _DYNAMIC else there
                latencies_us, more = _measured(policy, cpus)
                found[policy] += latencies_us
                resizes += more
    except HostError as reason:
        return f"Not measured: {reason}"
    IMAGE.write_bytes(drawn(found, _CURVES, "wake-ups that are later", "wake-up latency (µs)"))
    what = f"{_DYNAMIC}, {resizes} resizes"
    if missing := with_resizes - online():
        what += f"; CPU {missing} is emulated"
        tell(f"CPU {missing} was emulated: a pod cannot grow on this machine's {there}")
    rows = [
        before,
        *(
            (what if policy == _DYNAMIC else policy, _spread(latencies_us))
            for policy, latencies_us in found.items()
        ),
    ]
    return table(("policy", "median / 99th percentile / maximum"), rows)


def _measured(policy: str, cpus: CPUSet) -> tuple[Sequence[float], int]:
    """Return the latencies under a policy, and how many resizes there were meanwhile."""
    resizes, sizes = 0, cycle(_SIZES)
    with loaded_node(_POLICIES[policy], cpus, BUSY) as node:

        def meanwhile() -> None:
            nonlocal resizes
            if policy == _DYNAMIC:
                node.resize(next(sizes))
                resizes += 1

        latencies_us: list[float] = json.loads(
            node.measured((sys.executable, "-c", _WAKE_UP), _SPIN, meanwhile)
        )
    return latencies_us, resizes


def _spread(latencies_us: Sequence[float]) -> str:
    times = Times.of_values([latency_us / 1000 for latency_us in latencies_us])
    return times.shown(float("inf"))


if __name__ == "__main__":
    show(wakeups)
