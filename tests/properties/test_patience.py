from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cpupool.enforce.patience import Backoff, RepairBudget


@given(st.lists(st.tuples(st.floats(0, 5), st.floats(0, 1)), max_size=50))
def test_no_schedule_takes_more_than_the_share(sweeps: list[tuple[float, float]]) -> None:
    budget, now_s, spent_s, last_s = RepairBudget(), 100.0, 0.0, 0.0
    never = Backoff((1e9,), 1e9)
    for pause_s, cost_s in sweeps:
        now_s += pause_s
        if budget.due_s(never, now_s, failed=False) <= now_s:
            budget.spend(cost_s, now_s)
            spent_s, last_s = spent_s + cost_s, cost_s
    assert spent_s - last_s <= 1.0 + 0.25 * (now_s - 100.0) + 1e-6
