from __future__ import annotations

from cpupool.telemetry.failures import Failures


def test_a_failure_begins_once_and_again_with_another_reason() -> None:
    failures = Failures()
    assert failures.begins("full disk")
    assert not failures.begins("full disk")
    assert failures.begins(OSError("no disk"))
    assert not failures.begins("no disk")


def test_a_failure_ends_once_and_may_begin_again() -> None:
    failures = Failures()
    assert not failures.ends()
    failures.begins("full disk")
    assert failures.ends()
    assert not failures.ends()
    assert failures.begins("full disk")


def test_failures_about_different_things_are_apart() -> None:
    failures = Failures()
    assert not failures
    failures.begins("refused", "web")
    assert failures.begins("refused", "db")
    assert failures.ends("web")
    assert failures
    failures.ends("db")
    assert not failures
