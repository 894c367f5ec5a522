from __future__ import annotations

import pytest

from cpupool.plugins.load_controller import Controller, Gains, Limits, Regulator

GAINS = Gains(above=0.05, below=0.009, dead_above=0.05, dead_below=0.2)


def needed(controller: Controller, current: float, cpus: float = 10.0) -> tuple[Controller, float]:
    after = controller.after(GAINS, cpus=cpus, current=current, target=1.0, upper=40.0)
    return after, after.needed(lower=4.0, upper=40.0)


def sizes(limits: Limits, *steps: tuple[float, float]) -> list[int]:
    """Return the sizes for what is needed at some times; each size comes into force."""
    regulator = Regulator()
    found = []
    for now_s, cpus in steps:
        regulator = regulator.after(limits, cpus, in_force=regulator.size, now_s=now_s)
        assert regulator.size is not None
        found.append(regulator.size)
    return found


@pytest.mark.parametrize("current", [0.81, 1.0, 1.04])
def test_an_indicator_near_its_target_changes_nothing(current: float) -> None:
    controller = Controller()
    for _ in range(100):
        controller, cpus = needed(controller, current)
        assert cpus == 10.0


def test_more_load_needs_more_cpus_and_less_load_fewer() -> None:
    _, above = needed(Controller(), 2.0)
    _, below = needed(Controller(), 0.5)
    assert below < 10.0 < above
    after = Controller().after(GAINS, cpus=10.0, current=2.0, target=1.0, upper=40.0)
    assert after.needed(lower=4.0, upper=40.0, inverse=True) < 10.0


def test_a_need_adds_up_while_the_size_stays_and_begins_anew_with_another() -> None:
    controller, first = needed(Controller(), 1.5)
    controller, second = needed(controller, 1.5)
    assert second > first
    for _ in range(50):
        controller, most = needed(controller, 1.5)
    assert most == 20.0
    _, anew = needed(controller, 1.5, cpus=20.0)
    assert anew == first + 10.0


def test_a_pool_grows_quickly_and_shrinks_slowly() -> None:
    limits = Limits(4, 60, spare_cpus=0)
    assert sizes(limits, (0, 10), (1, 50), (2, 50)) == [10, 20, 30]
    assert sizes(limits, (0, 30), (10, 5), (20, 5), (41, 5)) == [30, 28, 28, 26]


def test_limits_count_last_and_cores_stay_whole() -> None:
    assert sizes(Limits(4, 60, even=True), (0, 6.2)) == [12]
    assert sizes(Limits(5, 9, spare_cpus=0, even=True), (0, 1), (1, 30)) == [5, 9]
