"""Whatever comes and whenever its facts do, the runtime waits for 1 s in any 10 s at most."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from cpupool.runtime.nri.wait_budget import SOON_S, SPENT_S, WITHIN_S, WaitBudget

ROUNDING_S = 1e-6


@given(
    st.lists(
        st.tuples(
            st.floats(0, 4),  # until the next container comes
            st.integers(0, 30),  # which it is
            st.floats(0, 1),  # half of its deadline
            st.floats(0, 3),  # until its facts come
        ),
        max_size=80,
    )
)
def test_no_schedule_makes_the_runtime_wait_too_long(
    schedule: list[tuple[float, int, float, float]],
) -> None:
    budget, now_s = WaitBudget(), 100.0
    ends_s: list[float] = []
    intervals: list[tuple[float, float]] = []
    waited: Counter[int] = Counter()
    since_s = 0.0

    def pass_until(later_s: float) -> None:
        """Answer what is due on the way."""
        while ends_s and min(ends_s) <= later_s:
            at_s = min(ends_s)
            ends_s.remove(at_s)
            budget.count(at_s, waits=bool(ends_s))
            if not ends_s:
                intervals.append((since_s, at_s))

    for pause_s, container, half_s, facts_s in schedule:
        now_s += pause_s
        pass_until(now_s)
        until_s = budget.until_s(container, now_s + half_s, now_s)
        assert until_s <= now_s + half_s
        if until_s > now_s:
            waited[container] += 1
            if not ends_s:
                since_s = now_s
            ends_s.append(min(until_s, now_s + facts_s))
            budget.count(now_s, waits=True)
    pass_until(float("inf"))

    assert set(waited.values()) <= {1}
    for begin_s in [start for start, _ in intervals] + [end - WITHIN_S for _, end in intervals]:
        end_s = begin_s + WITHIN_S
        inside = (min(end, end_s) - max(start, begin_s) for start, end in intervals)
        assert sum(max(0.0, one) for one in inside) <= SPENT_S + ROUNDING_S


def test_what_was_spent_comes_back() -> None:
    budget = WaitBudget()
    assert budget.until_s("a", 102.0, 100.0) == 101.0
    budget.count(100.0, waits=True)
    assert budget.until_s("b", 102.0, 100.5) == 101.0, "they wait together"
    budget.count(101.0, waits=False)
    assert budget.until_s("c", 106.0, 105.0) == 105.0
    assert budget.until_s("c", 111.0, 110.25) == 110.5, "a container that did not wait may later"
    assert budget.until_s("a", 200.0, 150.0) == 150.0, "none waits twice"
    assert budget.until_s("a", 200.0, 150.0, soon=True) == 151.0, "but for the agent alone"
    budget.count(151.0, waits=True)
    budget.count(152.0, waits=False)
    assert budget.until_s("a", 200.0, 152.0, soon=True) == 152.0 + SOON_S
    assert budget.until_s("a", 152.05, 152.0, soon=True) == 152.05


def test_a_container_that_has_started_may_wait_again() -> None:
    budget = WaitBudget()
    assert budget.until_s("main", 100.5, 100.0) == 100.5
    assert budget.until_s("main", 101.5, 101.0) == 101.0
    budget.served("main")
    assert budget.until_s("main", 102.5, 102.0) == 102.5
    budget.served("other")
