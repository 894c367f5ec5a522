"""A loop that works in steps, and what ends its waits."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from cpupool.loops.step_loop import StepLoop
from tests.waiting import DEADLINE_S

if TYPE_CHECKING:
    from collections.abc import Callable


class Recorded(StepLoop):
    """A loop that records what happens, and does in each step what the test wants."""

    def __init__(self, *steps: Callable[[], float]) -> None:
        self.calls: list[str] = []
        self.woken: list[bool] = []
        self._left = list(steps)
        super().__init__(lambda: self.calls.append("beat"), [self])

    def ensure(self) -> None:
        self.calls.append("ensure")

    def stop(self) -> None:
        self.calls.append("stop")

    def step(self) -> float:
        self.calls.append("step")
        self.woken.append(self._woken)
        return self._left.pop(0)()

    def end(self, stop: threading.Event) -> Callable[[], float]:
        """Return a step that ends the loop as its owner does."""

        def ending() -> float:
            stop.set()
            self.wake()
            return DEADLINE_S

        return ending


def test_each_step_follows_a_beat_and_the_watches_end_with_the_loop() -> None:
    stop = threading.Event()
    loop = Recorded(lambda: 0.0)
    loop._left.append(loop.end(stop))

    loop.run(stop)

    assert loop.calls == [*("beat", "ensure", "step") * 2, "stop"]


def test_a_loop_that_is_woken_during_a_step_steps_once_more() -> None:
    stop = threading.Event()
    loop = Recorded()

    def woken() -> float:
        loop.wake()
        loop.wake()
        return DEADLINE_S

    loop._left += [woken, lambda: 0.0, loop.end(stop)]
    loop.run(stop)

    # Two calls are one event, and the third step is due by its time.
    assert loop.woken == [False, True, False]


def test_another_thread_ends_a_wait() -> None:
    stop, waits = threading.Event(), threading.Event()

    def wait() -> float:
        waits.set()
        return DEADLINE_S

    loop = Recorded(wait)
    thread = threading.Thread(target=loop.run, args=(stop,))
    thread.start()
    assert waits.wait(DEADLINE_S)
    stop.set()
    loop.wake()
    thread.join(DEADLINE_S)

    assert not thread.is_alive()
    assert loop.calls.count("step") == 1


def test_a_step_that_fails_ends_the_loop_and_its_watches() -> None:
    def fail() -> float:
        raise OSError("the disk is gone")

    loop = Recorded(fail)
    with pytest.raises(OSError, match="the disk is gone"):
        loop.run(threading.Event())

    assert loop.calls == ["beat", "ensure", "step", "stop"]
