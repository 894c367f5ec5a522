"""The time that the agent adds to the start of pods, one at a time and in bursts of ten.

The same pods start in turns in two real containerds: one beside an agent, one whose node has no CPU
manager.
"""

from __future__ import annotations

import math
import os
from typing import TYPE_CHECKING, Final

import pytest

from benchmarks.documents import Times
from benchmarks.first_instruction import host, somebody_offers, wrong_ms
from benchmarks.processes import AS_IN_THE_IMAGE, cpu_s
from tests.containerd.node import BURST, at_once
from tests.containerd.pods import Kind

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.rows import Row
    from tests.containerd.node import Node

PAIRS: Final = 30
BURSTS: Final = 10
_ADDED_MS: Final = {1: 10.0, BURST: 50.0}
"""Pods that start at once → what the agent may add to their start, at the median."""
_LATE_MS: Final = {"cgroup": 50.0, "cri": math.inf}
"""The way of setting a container's CPUs → the longest time that it may run on others."""
_EACH_MS: Final = 10.0
"""The CPU time that the agent may take for a pod's life."""


def bursts() -> Iterator[Row]:
    """Starts of pods of a shared pool, against the same containerd without a CPU manager."""
    # Other programs on the machine make all of these times longer.
    yield ("load average of the machine before", f"{os.getloadavg()[0]:.1f}", "0")
    try:
        with host() as managed, host() as alone:
            yield from _added(managed, alone)
            yield from _late(managed)
    except pytest.skip.Exception as reason:
        yield ("starts of pods of a shared pool", f"not measured: {reason}", "-")


def _added(managed: Node, alone: Node) -> Iterator[Row]:
    """Start the same pods here and there in turns."""
    layout = managed.layouts[-1]
    managed.configure(layout)
    (resource,) = layout.resources
    ids = tuple(map(str, range(BURST * 100)))
    with (
        managed.agent("nri", environment=AS_IN_THE_IMAGE) as agent,
        somebody_offers(alone, resource, ids),
    ):
        for pods, rounds in ((1, PAIRS), (BURST, BURSTS)):
            before_s = cpu_s(agent.pid)
            pairs = [(_started_ms(alone, pods), _started_ms(managed, pods)) for _ in range(rounds)]
            each_ms = (cpu_s(agent.pid) - before_s) / rounds / pods * 1000
            without, beside = zip(*pairs, strict=True)
            added = Times.of_values([more - less for less, more in pairs])
            what = "one pod starts" if pods == 1 else f"{pods} pods start at once"
            yield (f"{what}, no agent", Times.of_values(without).shown(math.inf), "-")
            yield (f"{what}, nri", Times.of_values(beside).shown(math.inf), "-")
            yield _judged(f"{what}: nri adds, in pairs", added, added.p50_ms, _ADDED_MS[pods])
            yield _life("nri", what, each_ms)


def _late(managed: Node) -> Iterator[Row]:
    """Start bursts of pods whose CPUs are not set by NRI."""
    what = f"{BURST} pods start at once"
    for way, most_ms in _LATE_MS.items():
        with managed.agent(way, environment=AS_IN_THE_IMAGE) as agent:
            before_s = cpu_s(agent.pid)
            started = (at_once(managed.run, [Kind.SHARED] * BURST) for _ in range(BURSTS))
            late = Times.of_values(list(wrong_ms(managed, started)))
            each_ms = (cpu_s(agent.pid) - before_s) / BURSTS / BURST * 1000
        yield _judged(f"{what}, {way}: on wrong CPUs", late, late.max_ms, most_ms)
        yield _life(way, what, each_ms)


def _started_ms(node: Node, pods: int) -> float:
    """Start pods at once; return the time from the first call to the last first instruction."""
    started = at_once(node.run, [Kind.SHARED] * pods)
    last_ns = max(node.record(one).sightings[0].at_ns for one in started)
    at_once(node.remove, started)
    return (last_ns - min(one.called_ns for one in started)) / 1e6


def _life(way: str, what: str, each_ms: float) -> Row:
    text = f"{each_ms:.1f}"
    cell = f"**{text}**" if each_ms > _EACH_MS else text
    return (f"{what}, {way}: the agent's CPU time for a pod's life", cell, f"{_EACH_MS:g}")


def _judged(what: str, times: Times, figure_ms: float, aim_ms: float) -> Row:
    text = times.shown(math.inf)
    cell = f"**{text}**" if figure_ms > aim_ms else text
    return (what, cell, f"{aim_ms:g}" if aim_ms < math.inf else "-")
