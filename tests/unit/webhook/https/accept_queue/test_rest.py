from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING, Any

from cpupool.webhook.https.accept_queue import AcceptQueue
from tests.webhooks import LOCALHOST

if TYPE_CHECKING:
    from collections.abc import Callable

SILENT_S = 60.0


class Timers(asyncio.SelectorEventLoop):
    """An event loop that keeps its timers for the test, and starts none."""

    def __init__(self) -> None:
        super().__init__()
        self.due: list[tuple[float, Callable[..., object]]] = []
        self.set = asyncio.Event()

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, **_context: Any
    ) -> asyncio.TimerHandle:
        self.due.append((when, callback))
        self.set.set()
        return asyncio.TimerHandle(when, callback, args, self)


def test_without_silent_clients_nothing_is_due() -> None:
    timers = Timers()

    async def wait() -> None:
        listening = socket.create_server((LOCALHOST, 0))
        listening.setblocking(False)
        readable = asyncio.Event()
        queue = AcceptQueue(listening, 8, 8, SILENT_S, readable.set)
        assert not timers.due, "nobody waits"
        with socket.create_connection(listening.getsockname()) as client:
            before_s = timers.time()
            await timers.set.wait()
            ((due_s, expire),) = timers.due
            assert before_s + SILENT_S <= due_s <= timers.time() + SILENT_S
            client.sendall(b"\x16")
            await readable.wait()
            timers.due.clear()
            expire()
            assert not timers.due, "it is silent no more"
            assert list(queue.addresses) == [LOCALHOST], "it waits for a slot"
        queue.close()

    with asyncio.Runner(loop_factory=lambda: timers) as runner:
        runner.run(wait())
