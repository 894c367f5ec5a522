"""What hears from a cluster, running."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from tests.waiting import DEADLINE_S

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping


class Looping(Protocol):
    """What has loops: a `Cluster`, a `CertificateKeeper`, a `Webhook`."""

    def loops(self) -> Mapping[str, Callable[[threading.Event], None]]: ...

    def wake(self) -> None: ...


@contextmanager
def running(heard: Looping) -> Iterator[None]:
    """Run every loop, and see that each ends."""
    stop = threading.Event()
    threads = [threading.Thread(target=loop, args=(stop,)) for loop in heard.loops().values()]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        heard.wake()
        for thread in threads:
            thread.join(DEADLINE_S)
            assert not thread.is_alive()
