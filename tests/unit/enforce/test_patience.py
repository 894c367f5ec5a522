from __future__ import annotations

from cpupool.enforce.patience import Backoff, RepairBudget


def tried(times: int, backoff: Backoff, start_s: float, step_s: float) -> Backoff:
    for number in range(times):
        backoff = backoff.after(start_s + number * step_s)
    return backoff


def test_ten_tries_in_ten_seconds_are_made_at_once_and_the_eleventh_is_one_too_many() -> None:
    ten = tried(10, Backoff(), 100.0, 0.5)
    assert ten.delay_s == 0
    assert ten.due_s == 104.5
    eleven = ten.after(105.0)
    assert (eleven.delay_s, eleven.due_s) == (0.2, 105.2)


def test_slower_tries_are_always_made_at_once() -> None:
    assert tried(100, Backoff(), 100.0, 1.0).delay_s == 0


def test_the_wait_doubles_up_to_ten_seconds() -> None:
    backoff = tried(11, Backoff(), 100.0, 0.0)
    waits = []
    for _ in range(8):
        waits.append(backoff.delay_s)
        backoff = backoff.after(backoff.due_s)
    assert waits == [0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10.0, 10.0]


def test_a_minute_of_quiet_forgives() -> None:
    backoff = tried(12, Backoff(), 100.0, 0.0)
    assert backoff.after(159.9).delay_s == 0.8
    assert backoff.after(160.0) == Backoff((160.0,))


FOUGHT = tried(20, Backoff(), 100.0, 0.0)


def test_a_trespasser_that_is_fought_over_does_not_wait() -> None:
    assert FOUGHT.due_s == 110.0
    assert RepairBudget().due_s(FOUGHT, 100.0, failed=False) == 100.0


def test_one_that_cannot_be_repaired_is_tried_again_after_a_second() -> None:
    assert RepairBudget().due_s(FOUGHT, 100.0, failed=True) == 101.0
    assert RepairBudget().due_s(tried(11, Backoff(), 100.0, 0.0), 100.0, failed=True) == 100.2


def test_what_does_not_wait_takes_a_quarter_of_a_cpu() -> None:
    budget = RepairBudget()
    budget.spend(1.0, 100.0)
    assert budget.due_s(FOUGHT, 100.0, failed=False) == 100.0, "a second is saved up"
    budget.spend(0.5, 100.0)
    assert budget.due_s(FOUGHT, 100.0, failed=False) == 102.0
    assert budget.due_s(FOUGHT, 101.0, failed=False) == 102.0
    assert budget.due_s(FOUGHT, 102.0, failed=False) == 102.0
    budget.spend(100.0, 102.0)
    assert budget.due_s(FOUGHT, 102.0, failed=False) == FOUGHT.due_s, "never later than a back-off"
