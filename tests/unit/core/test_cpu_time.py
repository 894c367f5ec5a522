"""The use of CPUs between two readings of CPU time."""

from __future__ import annotations

import pytest

from cpupool.core.cpu_time import CPUTime, CPUUse, MeasurementError, Waited

EARLIER = CPUTime({0: 5_000_000, 1: 7_000_000}, {"a": 1_000_000, "b": 2_000_000})


def test_the_use_is_the_mean_of_the_time_between() -> None:
    later = CPUTime({0: 6_000_000, 1: 7_500_000}, {"a": 2_000_000, "b": 2_000_000})

    assert later.since(EARLIER, 2.0) == CPUUse({0: 500, 1: 250}, {"a": 500, "b": 0})


def test_what_was_not_there_at_both_readings() -> None:
    later = CPUTime({0: 6_000_000, 2: 9_000_000}, {"a": 1_500_000, "new": 250_000})

    assert later.since(EARLIER, 1.0) == CPUUse({0: 1000}, {"a": 500, "new": 250})


@pytest.mark.parametrize(
    ("later", "elapsed_s", "what"),
    [
        pytest.param(CPUTime({0: 1}, {}), 1.0, "has decreased", id="a CPU's"),
        pytest.param(CPUTime({}, {"a": 1}), 1.0, "has decreased", id="a pod's"),
        pytest.param(EARLIER, 0.0, "more CPU time", id="no time has passed"),
        pytest.param(
            CPUTime(EARLIER.by_cpu_us, {"a": 3_600_000}), 1.0, "more CPU time", id="too much"
        ),
    ],
)
def test_readings_that_do_not_fit_together_are_not_used(
    later: CPUTime, elapsed_s: float, what: str
) -> None:
    with pytest.raises(MeasurementError, match=what) as raised:
        later.since(EARLIER, elapsed_s)

    assert raised.value.elapsed_s == elapsed_s


def test_files_that_are_read_one_after_the_other_differ_a_little() -> None:
    later = CPUTime(EARLIER.by_cpu_us, {"a": 3_400_000})

    assert later.since(EARLIER, 1.0).by_pod_milli == {"a": 2400}


def test_the_share_of_the_time_in_which_a_pod_waited() -> None:
    earlier = CPUTime(
        {0: 0}, {}, {name: Waited(1_000_000, throttled=3) for name in ("a", "b", "c", "gone")}
    )
    later = CPUTime(
        {0: 0},
        {},
        {
            "a": Waited(1_500_000, throttled=3),
            # The two files are not read at the same moment.
            "b": Waited(9_000_000, throttled=3),
            "c": Waited(1_500_000, throttled=4),
            "new": Waited(1_500_000, throttled=0),
        },
    )
    assert later.since(earlier, 2.0).waiting == {"a": 0.25, "b": 1.0}
