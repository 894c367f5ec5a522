"""The loop that sizes pools, under loads that stay, are noisy, or are not measured.

Its measurements are CPU time and waiting as the kernel counts them; a pool is an M/M/c queue.
"""

from __future__ import annotations

import random
from itertools import pairwise
from typing import TYPE_CHECKING

from hypothesis import example, given, settings
from hypothesis import strategies as st

from cpupool.core.cpu_time import CPUTime, Waited
from cpupool.core.cpuset import CPUSet
from cpupool.plugins.config import Aims
from cpupool.plugins.config_file import parse
from cpupool.plugins.cpu import CPUPlugin
from cpupool.plugins.load_simulation import Queue
from cpupool.plugins.load_sizing import PERIOD_S
from cpupool.plugins.pool_sizer import PoolSizer
from cpupool.policies.layout import Level
from tests.unit.plugins.asking import LAYOUT, Asked, ask

if TYPE_CHECKING:
    from collections.abc import Mapping

BOUND = "batch-NUMA1"
"""The pool of a pod that is bound to NUMA node 1; the second of two pods of pool batch."""
FLOORS = {"online": 4, "batch": 6, BOUND: 6}
CONFIG = """
reserved: "0-1,40-41"
pools: {online: {minCpus: 4}, batch: {minCpus: 6}, rest: {}}
roles: {online: {pool: online}, batch: {pool: batch}}
"""
BINDS = {
    "memory_enhancement": '{"numa_binding": "true"}',
    "cpu_enhancement": '{"cpuset_pool": "batch"}',
}
TOTAL = 76
AIMS = Aims()
US_PER_S = 1_000_000
SETTLED = 400
"""Periods until a pool has the size that it needs: it shrinks by two CPUs in half a minute."""
QUARTER = round(900 / PERIOD_S)
"""Of an hour."""

Pools = dict[str, CPUSet]


class Node:
    """A pool for each of three pods, which offer a load; each step is a period."""

    def __init__(self) -> None:
        self.plugin = CPUPlugin(LAYOUT, parse("f.yaml", CONFIG), "mark")
        self.asked = Asked(self.plugin)
        for name in FLOORS.keys() - {BOUND}:
            self.asked.allocate(ask(name, 1, name))
        self.asked.allocate(ask(BOUND, 8, says=BINDS), 1)
        self.sizer = PoolSizer()
        self.now_s = 0.0
        self.backlogs_s = dict.fromkeys(FLOORS, 0.0)
        self.used_us = dict.fromkeys(FLOORS, 0)
        self.waited_us = dict.fromkeys(FLOORS, 0)

    def step(self, offered: Mapping[str, float], *, measured: bool = True) -> Pools:
        """Let the pods work for a period; return the pools after the decision."""
        self.now_s += PERIOD_S
        for name, cpus in offered.items():
            queue = Queue(len(self.asked.state.pools[name]), cpus, self.backlogs_s[name])
            load, self.backlogs_s[name] = queue.load, queue.left_s
            self.used_us[name] += round(load.used_cpus * PERIOD_S * US_PER_S)
            self.waited_us[name] += round((load.waiting or 0.0) * PERIOD_S * US_PER_S)
        waited = {name: Waited(us, throttled=0) for name, us in self.waited_us.items()}
        reading = CPUTime(dict.fromkeys(LAYOUT.cpus, 0), dict(self.used_us), waited)
        self.sizer = self.sizer.after(
            self.plugin, self.asked.state, reading if measured else None, self.now_s
        )
        now = self.asked.state.pools
        if any(len(now[name]) != size for name, size in self.sizer.sizes.items()):
            self.asked.state = self.plugin.resized(self.asked.state, self.sizer.sizes)
        return dict(self.asked.state.pools)


def moved(history: list[Pools], name: str) -> int:
    """Count the CPUs that joined or left a pool."""
    return sum(
        len((before[name] | after[name]) - (before[name] & after[name]))
        for before, after in pairwise(history)
    )


@settings(max_examples=20)
@given(
    load=st.floats(0.01, 70),
    pool=st.sampled_from(("online", BOUND)),
    missing=st.floats(0, 0.5),
    seed=st.integers(0, 1000),
)
@example(load=17.0, pool="online", missing=0.0, seed=0)
def test_a_constant_load_ends_every_change(
    load: float, pool: str, missing: float, seed: int
) -> None:
    dice = random.Random(seed)  # no secret
    node = Node()
    offered = {**dict.fromkeys(FLOORS, 1.0), pool: load}
    history, too_small = [], []
    for _ in range(SETTLED + QUARTER):
        before, backlog_s = len(node.asked.state.pools[pool]), node.backlogs_s[pool]
        history.append(node.step(offered, measured=dice.random() >= missing))
        # A pool that works off a backlog uses more than the load: its size may do for the load.
        if len(history[-1][pool]) > before and not backlog_s:
            too_small.append(before)
    assert moved(history[SETTLED:], pool) == 0
    # No oscillation: a size that was too small for the load is not tried again.
    assert len(too_small) == len(set(too_small))


@settings(max_examples=20)
@given(load=st.floats(5, 50), missing=st.floats(0, 0.5), seed=st.integers(0, 1000))
def test_noise_and_missing_measurements_move_few_cpus(
    load: float, missing: float, seed: int
) -> None:
    dice = random.Random(seed)  # no secret
    node = Node()
    history = [
        node.step(
            {"online": load * dice.uniform(0.95, 1.05), "batch": 1, BOUND: 1},
            measured=dice.random() >= missing,
        )
        for _ in range(SETTLED + QUARTER)
    ]
    # In a quarter of an hour.
    assert moved(history[SETTLED:], "online") <= load
    assert moved(history[SETTLED:], "batch") + moved(history[SETTLED:], BOUND) <= 2


STEPS = st.lists(
    st.tuples(st.integers(1, 30), st.tuples(*[st.floats(0, 100)] * 3), st.booleans()),
    min_size=1,
    max_size=8,
)


@settings(max_examples=40)
@given(steps=STEPS)
def test_floors_steps_and_pauses_hold_and_pools_keep_their_cpus(
    steps: list[tuple[int, tuple[float, ...], bool]],
) -> None:
    node = Node()
    history = [dict(node.asked.state.pools)]
    for periods, loads, measured in steps:
        for _ in range(periods):
            offered = dict(zip(FLOORS, loads, strict=True))
            history.append(node.step(offered, measured=measured))
            if not measured:
                assert history[-1] == history[-2]
    for pools in history:
        assert len(CPUSet.union(pools.values())) == sum(map(len, pools.values())) == TOTAL
        assert all(len(pools[name]) >= floor for name, floor in FLOORS.items())
        assert pools["rest"]
        assert pools[BOUND] <= LAYOUT.groups[Level.NODE][1]
    for name in FLOORS:
        shrunk_s = -AIMS.pause_s
        for number, (then, now) in enumerate(pairwise(history)):
            before, after = then[name], now[name]
            # Only a pool that must have CPUs of one node takes such from another pool.
            kept = before - (now[BOUND] - then[BOUND])
            assert after >= kept or after <= kept
            assert -AIMS.most_down <= len(after) - len(before) <= AIMS.most_up
            if len(after) < len(before):
                assert number * PERIOD_S - shrunk_s >= AIMS.pause_s
                shrunk_s = number * PERIOD_S
