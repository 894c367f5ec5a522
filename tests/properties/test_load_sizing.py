"""Pools that are sized by their load, under loads that stay, jump, are noisy or not measured."""

from __future__ import annotations

import random
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from cpupool.plugins.config import Aims
from cpupool.plugins.load_simulation import Replay, by_load
from cpupool.plugins.load_sizing import PERIOD_S, Memory, PoolLoad, PoolNow, decide

TOTAL = 76
AIMS = Aims()
CONSTANT = st.floats(0.01, 120)
LOADS = st.lists(st.tuples(st.integers(1, 40), CONSTANT), min_size=1, max_size=6).map(
    lambda phases: [cpus for periods, cpus in phases for _ in range(periods)]
)
MEASURED = st.one_of(
    st.none(),
    st.builds(PoolLoad, st.floats(0, 200), waiting=st.one_of(st.none(), st.floats(0, 1))),
)


def sizes(replay: Replay, pool: str) -> list[int]:
    return [period.queues[pool].cpus for period in replay.periods]


@given(load=CONSTANT)
def test_a_constant_load_ends_every_change(load: float) -> None:
    found = sizes(by_load({"online": [load] * 600}, {"online": 4}, TOTAL, AIMS), "online")
    assert len(set(found[-200:])) == 1
    # No oscillation: a size that was too small is not tried again.
    too_small = [before for before, after in pairwise(found) if after > before]
    assert len(too_small) == len(set(too_small))


@given(load=st.floats(5, 50), seed=st.integers(0, 1000))
def test_noise_moves_few_cpus(load: float, seed: int) -> None:
    dice = random.Random(seed)  # noise, no secret
    noisy = [load * dice.uniform(0.95, 1.05) for _ in range(720)]
    settled = sizes(by_load({"online": noisy}, {"online": 4}, TOTAL, AIMS), "online")[360:]
    moved = sum(abs(after - before) for before, after in pairwise(settled))
    # In half an hour.
    assert moved <= load


@given(
    loads=st.tuples(LOADS, LOADS, LOADS),
    floors=st.tuples(*[st.integers(1, 20)] * 3),
)
def test_floors_the_whole_and_the_pause_hold(
    loads: tuple[list[float], ...], floors: tuple[int, ...]
) -> None:
    periods = max(map(len, loads))
    names = ("batch", "offline", "online")
    offered = {
        name: load + [load[-1]] * (periods - len(load))
        for name, load in zip(names, loads, strict=True)
    }
    least = dict(zip(names, floors, strict=True))
    replay = by_load(offered, least, TOTAL, AIMS)
    for period in replay.periods:
        assert sum(queue.cpus for queue in period.queues.values()) <= TOTAL
        assert all(queue.cpus >= least[name] for name, queue in period.queues.items())
    for name in names:
        shrunk_s = None
        for number, (before, after) in enumerate(pairwise(sizes(replay, name)), start=1):
            assert -AIMS.most_down <= after - before <= AIMS.most_up
            if after < before:
                now_s = number * PERIOD_S
                assert shrunk_s is None or now_s - shrunk_s >= AIMS.pause_s
                shrunk_s = now_s


@given(measured=st.lists(st.tuples(MEASURED, MEASURED), max_size=60))
def test_any_measurement_leaves_the_bounds(
    measured: list[tuple[PoolLoad | None, PoolLoad | None]],
) -> None:
    now, floors = {"a": 10, "b": 20}, {"a": 6, "b": 4}
    memories: dict[str, Memory] = {}
    for number, loads in enumerate(measured):
        pools = {
            name: PoolNow(now[name], floors[name], load)
            for name, load in zip(now, loads, strict=True)
        }
        decided = decide(AIMS, pools, memories, 40, number * PERIOD_S)
        for name, decision in decided.items():
            if pools[name].load is None:
                assert decision.size <= pools[name].size
        now = {name: decision.size for name, decision in decided.items()}
        memories = {name: decision.memory for name, decision in decided.items()}
        assert sum(now.values()) <= 40
        assert all(now[name] >= floors[name] for name in now)
