from __future__ import annotations

import math

import pytest

from cpupool.plugins.config import Aims
from cpupool.plugins.load_simulation import Period, Queue, Replay, by_load, fixed, fixed_as_good
from cpupool.plugins.load_sizing import PERIOD_S


def test_the_share_of_requests_that_wait_is_erlangs() -> None:
    """One CPU: the part that equals the load waits. Two at half load: a third waits."""
    assert Queue(1, 0.7).waits_longer(0.0, 1.0) == pytest.approx(0.7)
    assert Queue(2, 1.0).waits_longer(0.0, 1.0) == pytest.approx(1 / 3)
    assert Queue(2, 1.0).waits_longer(2.0, 1.0) == pytest.approx(math.exp(-2) / 3)
    assert Queue(2, 1.0).load.waiting == pytest.approx(1 / 6)


def test_a_load_above_the_cpus_is_worked_off_later() -> None:
    queue = Queue(4, 6.0)
    assert queue.load.used_cpus == 4.0
    assert queue.load.waiting == 1.0
    assert queue.left_s == 2 * PERIOD_S
    after = Queue(4, 1.0, queue.left_s)
    assert after.left_s == 0.0
    assert after.load.used_cpus == 3.0
    assert after.waits_longer(1.2, 0.01) == 1.0
    assert after.waits_longer(1.3, 0.01) < 0.01


def test_all_work_is_done_in_the_end() -> None:
    load = [2.0, 9.0, 9.0, *[0.5] * 40]
    replay = fixed({"online": load}, {"online": 4}, 16)
    used = sum(period.queues["online"].load.used_cpus for period in replay.periods)
    assert used == pytest.approx(sum(load))


def test_a_replay_counts_what_batch_work_has_and_what_moved() -> None:
    periods = [Period(0.0, {"a": Queue(2, 1.0)}), Period(5.0, {"a": Queue(5, 1.0)})]
    replay = Replay(8, periods)
    assert replay.batch_cpu_hours == pytest.approx((6 + 3) * PERIOD_S / 3600)
    assert replay.moved_cpus_per_hour == pytest.approx(3 * 3600 / (2 * PERIOD_S))


def test_a_wait_is_the_longest_but_for_a_share() -> None:
    replay = fixed({"a": [0.5]}, {"a": 1}, 4)
    # P(W > t) = 0.5 exp(-0.5 t) for a request of a second.
    assert replay.wait_s("a", 0.1, 1.0) == pytest.approx(math.log(5) * 2)
    assert replay.wait_s("a", 0.6, 1.0) == 0.0


def test_a_pool_of_a_fixed_size_is_as_good_as_its_wait() -> None:
    load = [4.0, 12.0, 4.0]
    waits = {cpus: fixed({"": load}, {"": cpus}, 64).wait_s("", 0.01, 0.01) for cpus in (14, 15)}
    assert fixed_as_good(load, waits[15], 0.01, 0.01, 64) == 15
    assert fixed_as_good(load, waits[14], 0.01, 0.01, 64) == 14
    assert fixed_as_good(load, waits[14], 0.01, 0.01, 13) is None


def test_pools_begin_with_what_their_load_needs_if_that_fits() -> None:
    load = {"a": [12.0, 12.0], "b": [1.0, 1.0]}

    def first(total: int) -> dict[str, int]:
        replay = by_load(load, {"a": 4, "b": 4}, total, Aims())
        return {name: queue.cpus for name, queue in replay.periods[0].queues.items()}

    assert first(40) == {"a": 15, "b": 4}
    assert first(16) == {"a": 4, "b": 4}
