"""Loops of a process, which begin and end together."""

from __future__ import annotations

import threading

import pytest

from cpupool.core.errors import HostFileError
from cpupool.loops import supervisor
from cpupool.loops.supervisor import LoopFailed, supervise
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


@pytest.mark.parametrize(
    ("end", "reason"),
    [
        pytest.param(SystemExit, "SystemExit", id="an exception that no loop raises"),
        pytest.param(None, "it has ended by itself", id="no exception"),
    ],
)
def test_a_loop_that_ends_unasked_is_a_failure(
    end: type[BaseException] | None, reason: str
) -> None:
    def ending(_stop: threading.Event) -> None:
        if end:
            raise end

    with pytest.raises(LoopFailed, match=f"the short one stopped: {reason}"):
        supervise({"short one": ending}, threading.Event(), lambda: None)


def test_an_exception_in_the_supervising_thread_ends_the_loops() -> None:
    ended = threading.Event()

    class Stop(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            if threading.current_thread() is supervising:
                raise ZeroDivisionError
            return super().wait(timeout)

    def loop(stop: threading.Event) -> None:
        if stop.wait(DEADLINE_S):
            ended.set()

    supervising = threading.current_thread()
    with pytest.raises(ZeroDivisionError):
        supervise({"one": loop}, Stop(), lambda: None)
    assert ended.is_set()


def test_a_process_whose_loops_only_probes_look_at_wakes_up_for_nothing_but_its_end() -> None:
    waits: list[float | None] = []

    class Stop(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            waits.append(timeout)
            self.set()
            return super().wait(timeout)

    def loop(stop: threading.Event) -> None:
        while not stop.is_set():
            pass

    supervise({"one": loop}, Stop(), lambda: None)
    assert waits == [None]


def test_a_loop_that_hangs_ends_the_others_and_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "_LOOK_S", 0.01)

    def loop(stop: threading.Event) -> None:
        stop.wait(DEADLINE_S)

    with pytest.raises(LoopFailed, match="the one stopped: it hangs; this process must be"):
        supervise({"one": loop}, threading.Event(), lambda: None, lambda: "one")


def test_a_loop_that_is_silent_at_one_look_alone_ends_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As each loop of a process that was stopped for a while."""
    monkeypatch.setattr(supervisor, "_LOOK_S", 0.01)
    stop, looks = threading.Event(), iter(("one", "two", "", "one", ""))

    def hung() -> str:
        if (name := next(looks, None)) is None:
            stop.set()
        return name or ""

    def loop(stop: threading.Event) -> None:
        stop.wait(DEADLINE_S)

    supervise({"one": loop, "two": loop}, stop, lambda: None, hung)
    assert next(looks, None) is None


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
