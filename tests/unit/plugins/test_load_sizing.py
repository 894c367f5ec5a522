from __future__ import annotations

import pytest

from cpupool.plugins.config import Aims
from cpupool.plugins.load_sizing import PERIOD_S, Memory, NextSize, PoolLoad, PoolNow, decide

AIMS = Aims()


def pool(size: int, used: float, waiting: float | None = None, *, floor: int = 4) -> PoolNow:
    return PoolNow(size, floor, PoolLoad(used, waiting))


def decided(
    total: int,
    *,
    memories: dict[str, Memory] | None = None,
    now_s: float = 0.0,
    **pools: PoolNow,
) -> dict[str, NextSize]:
    return decide(AIMS, pools, memories or {}, total, now_s)


def sizes(total: int, **pools: PoolNow) -> dict[str, int]:
    return {name: one.size for name, one in decide(AIMS, pools, {}, total, 0.0).items()}


def test_a_pool_that_is_as_busy_as_it_may_be_keeps_its_size() -> None:
    assert sizes(76, online=pool(10, 7.9)) == {"online": 10}


def test_a_busy_pool_grows_a_pool_whose_threads_wait_grows_more() -> None:
    busy = sizes(76, online=pool(10, 9.5))["online"]
    waits = sizes(76, online=pool(10, 9.5, 0.5))["online"]
    assert 10 < busy < waits <= 20


def test_threads_that_wait_in_a_pool_that_is_half_idle_need_no_cpus() -> None:
    assert sizes(76, online=pool(10, 4.0, 0.9))["online"] <= 10


def test_a_pool_shrinks_after_the_pause_and_then_once_in_a_pause() -> None:
    memory, size, found = Memory(), 20, []
    for number in range(20):
        now_s = number * PERIOD_S
        load = pool(size, 15.0 if number == 0 else 4.0)
        one = decided(76, memories={"online": memory}, now_s=now_s, online=load)["online"]
        memory, size = one.memory, one.size
        found.append(size)
    assert found == [20] * 6 + [18] * 6 + [16] * 6 + [14] * 2


def test_a_size_at_which_threads_waited_is_kept_out_until_the_load_falls() -> None:
    first = decided(76, online=pool(5, 3.0, 0.2))["online"]
    assert first.memory.tight == (5, 3.0)
    memories = {"online": first.memory}
    later = decided(76, memories=memories, now_s=60.0, online=pool(6, 3.0, 0.05))
    assert later["online"].size == 6
    fallen = decided(76, memories=memories, now_s=60.0, online=pool(6, 2.0, 0.05))
    assert fallen["online"].size == 4


def test_a_pool_that_was_not_measured_keeps_its_size_and_has_its_floor() -> None:
    found = decided(76, lost=PoolNow(12, 4, None), starts=PoolNow(2, 8, None))
    assert {name: one.size for name, one in found.items()} == {"lost": 12, "starts": 8}
    assert str(found["lost"]) == "not measured: keeps 12 CPUs"


def test_pools_that_need_more_than_there_is_have_their_floor_and_a_part_of_the_rest() -> None:
    found = decided(20, offline=pool(8, 7.9, floor=4), online=pool(12, 11.9, floor=10))
    assert {name: one.share for name, one in found.items()} == {"offline": 7, "online": 13}
    # The one gives before the other takes.
    assert {name: one.size for name, one in found.items()} == {"offline": 7, "online": 13}
    assert str(found["offline"]).startswith("7.9 in use: needs ")
    assert str(found["offline"]).endswith(", has a share of 7: from 8 to 7 CPUs")


def test_a_pool_grows_only_by_cpus_that_are_free() -> None:
    found = decided(20, offline=pool(10, 10.0, 1.0), online=pool(9, 9.0, 1.0))
    assert {name: one.size for name, one in found.items()} == {"offline": 10, "online": 10}


def test_pools_keep_their_sizes_where_not_even_their_floors_fit() -> None:
    low = {"a": pool(3, 3.0, 1.0, floor=8), "b": pool(3, 3.0, 1.0, floor=8)}
    assert sizes(6, **low) == {"a": 3, "b": 3}


def test_more_pools_than_cpus_above_the_floors_keep_their_floors() -> None:
    found = sizes(9, **{name: pool(4, 4.0, 1.0) for name in ("a", "b")})
    assert found == {"a": 4, "b": 4}


@pytest.mark.parametrize(
    ("load", "said"),
    [
        (PoolLoad(7.9), "7.9 in use: needs 10: 10 CPUs"),
        (PoolLoad(7.9, 0.08), "7.9 in use, 8% waiting: needs 10: 10 CPUs"),
        (PoolLoad(9.5), "9.5 in use: needs 12: from 10 to 12 CPUs"),
    ],
)
def test_a_decision_tells_its_inputs(load: PoolLoad, said: str) -> None:
    assert str(decided(76, online=PoolNow(10, 4, load))["online"]) == said
