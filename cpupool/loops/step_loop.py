"""A loop that works in steps: most loops of a process differ only in their step.

A step compares what is with what should be, repairs the difference, and says when it is to run
again. An event does not carry work. It only wakes the loop, so that the next step runs at once. A
loop that is woken during a step runs one more step: no event is lost, and a burst is one step.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from contextlib import ExitStack
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


class Watch(Protocol):
    """A source of events that wake the loop, for example `host.files.DirectoryWatch`."""

    def ensure(self) -> object:
        """Watch, if the source is not being watched."""
        ...

    def stop(self) -> None:
        """Stop watching."""
        ...


class StepLoop(ABC):
    """A loop: beat, step, and wait until the next step is due or `wake` is called.

    One thread calls `run`; any thread may call `wake`. A subclass that needs other resources
    overrides `run`: it opens them, calls `super().run(stop)`, and closes them.

    Args:
        beat: called before each step; tells that the loop runs.
        watches: the sources of events, which the loop watches while it runs.
    """

    def __init__(
        self, beat: Callable[[], None] = lambda: None, watches: Iterable[Watch] = ()
    ) -> None:
        self._beat = beat
        self._watches = tuple(watches)
        self._stop = threading.Event()
        self._wake = threading.Event()
        # Whether `wake` has ended the last wait.
        self._woken = False

    @abstractmethod
    def step(self) -> float:
        """Do what is due; return the seconds to the next step."""

    def wake(self) -> None:
        """Step now: something has changed, or `run` is to notice `stop`."""
        self._wake.set()

    def run(self, stop: threading.Event) -> None:
        """Step until `stop` is set; `wake` after setting it returns at once."""
        self._stop = stop
        with ExitStack() as ending:
            for watch in self._watches:
                ending.callback(watch.stop)
            while not stop.is_set():
                self._beat()
                for watch in self._watches:
                    watch.ensure()
                self._woken = self._wake.wait(self.step())
                # Before the next step: it sees every change that came until now.
                self._wake.clear()
