"""The thread that serves every device plugin."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

import grpc.aio

from cpupool.core.errors import CPUPoolError
from cpupool.threads import OwnedThread

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

_CALL_S: Final = 10.0

T = TypeVar("T")


class ServingFailed(CPUPoolError):
    """The thread of the device plugins does not do what it is asked for."""

    def __init__(self, what: str) -> None:
        super().__init__(
            f"the thread of the device plugins {what}; if this repeats, start the agent again"
        )


class ServingLoop:
    """An event loop in a thread of its own; runs from `with` to its end.

    An idle server of grpc.aio sleeps; a threaded server wakes several times a second
    (docs/dev/decisions/0006-device-plugins-on-one-event-loop.md).

    Args:
        failed: called in the loop's thread when that ends by an error; `check` raises then.
        name: the thread's name.
    """

    def __init__(
        self, failed: Callable[[], None] = lambda: None, *, name: str = "device plugins"
    ) -> None:
        self._runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._end = asyncio.Event()
        self._servers: set[grpc.aio.Server] = set()
        self._thread = OwnedThread(name, self._run, ask=self._ask, failed=failed)

    def __enter__(self) -> Self:
        self._loop = self._runner.get_loop()
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._post(self._end.set)
        self._thread.join()

    @property
    def runs(self) -> bool:
        """Whether anything can be asked of it."""
        return self._loop is not None and self._thread.runs

    def check(self) -> None:
        """See that the loop runs, and has turned since an earlier check.

        Raises:
            ThreadFailed: it has ended, or hangs.
        """
        self._thread.check()

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the loop's thread and return its result; for other threads.

        Raises:
            ServingFailed: it takes longer than ten seconds, or the loop does not run.
        """
        if self._loop is None or not self.runs:
            work.close()
            raise ServingFailed("does not run")
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result(_CALL_S)
        except TimeoutError as error:
            if not future.cancel():
                raise
            raise ServingFailed(f"has not answered for {_CALL_S:g} s") from error

    async def begin(self, server: grpc.aio.Server) -> None:
        """Start a server; for coroutines of this loop, as `end` is."""
        await server.start()
        self._servers.add(server)

    async def end(self, server: grpc.aio.Server) -> None:
        """Stop a server, cut off what it serves, and let go of it."""
        await server.stop(grace=None)
        self._servers.discard(server)

    def _ask(self) -> None:
        self._post(self._thread.answer)

    def _post(self, callback: Callable[[], object]) -> None:
        # It is closed where the thread has ended.
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(callback)

    def _run(self) -> None:
        # Where it fails, nothing of grpc's is touched any more, not even by a close: grpc's core
        # writes a server's next call into memory that a cancelled task frees.
        self._runner.run(self._serve())
        self._runner.close()

    async def _serve(self) -> None:
        # Until the end, not until the last server's: with that grpc.aio would close the queue that
        # this loop reads, in the thread in which the server is collected.
        grpc.aio.init_grpc_aio()
        await self._end.wait()
        # A server that is never stopped would not let the process end.
        for server in self._servers:
            await server.stop(grace=None)
        self._servers.clear()
        grpc.aio.shutdown_grpc_aio()
