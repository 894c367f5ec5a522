"""Loops of a process, which begin and end together."""

from __future__ import annotations

import threading

import pytest

from cpupool import supervisor
from cpupool.core.errors import HostFileError
from cpupool.supervisor import LoopFailed, supervise
from tests.waiting import DEADLINE_S


def test_a_loop_that_fails_ends_the_others_and_is_named(
    caplog: pytest.LogCaptureFixture,
) -> None:
    woken = threading.Event()
    ended = threading.Event()

    def failing(_stop: threading.Event) -> None:
        raise HostFileError("/sys", "gone", "mount it")

    def other(stop: threading.Event) -> None:
        if woken.wait(DEADLINE_S) and stop.is_set():
            ended.set()

    with pytest.raises(LoopFailed, match=r"the failing one stopped: .*/sys.*gone"):
        supervise({"other": other, "failing one": failing}, threading.Event(), woken.set)

    assert ended.is_set()
    assert 'loop failed name="failing one"' in caplog.text


def test_loops_that_are_stopped_end_without_an_error() -> None:
    stop = threading.Event()
    started = threading.Semaphore(0)

    def loop(stop: threading.Event) -> None:
        started.release()
        stop.wait(DEADLINE_S)

    def stop_both() -> None:
        assert started.acquire(timeout=DEADLINE_S)
        assert started.acquire(timeout=DEADLINE_S)
        stop.set()

    stopper = threading.Thread(target=stop_both)
    stopper.start()
    supervise({"one": loop, "two": loop}, stop, lambda: None)
    stopper.join(DEADLINE_S)

    assert stop.is_set()


def test_a_loop_that_does_not_end_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "_END_S", 0.05)
    release = threading.Event()
    stop = threading.Event()
    stop.set()

    def sleeper(_stop: threading.Event) -> None:
        release.wait(DEADLINE_S)

    with pytest.raises(LoopFailed, match=r"the sleeper did not end within 0\.05 s"):
        supervise({"sleeper": sleeper}, stop, lambda: None)
    release.set()
