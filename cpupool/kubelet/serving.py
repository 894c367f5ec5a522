"""The one thread in which every device plugin is served."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

if TYPE_CHECKING:
    from collections.abc import Coroutine

_CALL_S: Final = 10.0

T = TypeVar("T")


class ServingLoop:
    """An event loop in a thread of its own; runs from `with` to its end.

    An idle server of grpc.aio sleeps, where a threaded one wakes several times a second
    (docs/dev/decisions/0006-device-plugins-on-one-event-loop.md).
    """

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="device plugins", daemon=True
        )
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        if self._loop is not None and self._thread is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()
            self._loop = self._thread = None

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the loop's thread and give its result; for other threads.

        Raises:
            TimeoutError: it takes longer than ten seconds.
            RuntimeError: the loop does not run.
        """
        if self._loop is None:
            work.close()
            raise RuntimeError("the serving loop does not run; enter it first")
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(_CALL_S)
