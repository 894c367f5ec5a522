"""Loops, as production threads run them, in threads of a test."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from tests.waiting import DEADLINE_S

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from contextlib import AbstractContextManager

    Loop = Callable[[threading.Event], object]


class Looping(Protocol):
    """What has loops: a `Cluster`, a `CertificateKeeper`, a `Webhook`."""

    def loops(self) -> Mapping[str, Callable[[threading.Event], None]]: ...

    def wake(self) -> None: ...


@contextmanager
def running(*loops: Loop, wake: Callable[[], object] = lambda: None) -> Iterator[threading.Event]:
    """Run each loop in a thread, give what stops them, and see that each ends.

    Args:
        loops: each ends when the event that it is given is set.
        wake: called once it is.
    """
    stop = threading.Event()
    threads = [threading.Thread(target=loop, args=(stop,)) for loop in loops]
    for thread in threads:
        thread.start()
    try:
        yield stop
    finally:
        stop.set()
        wake()
        for thread in threads:
            thread.join(DEADLINE_S)
            assert not thread.is_alive()


def running_all(of: Looping) -> AbstractContextManager[threading.Event]:
    """Run every loop of something as `running` does."""
    return running(*of.loops().values(), wake=of.wake)
