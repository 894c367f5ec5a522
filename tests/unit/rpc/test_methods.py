"""Callers of a real server that share an answer."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from cpupool.api.deviceplugin_pb2 import Empty
from cpupool.rpc.methods import shared, unary
from cpupool.rpc.serving import ServedSocket, Server
from tests.waiting import DEADLINE_S

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from grpclib.const import Handler


class Slow:
    """A service whose answer is made while a test lets it; it counts how often.

    Attributes:
        runs: how often the answer has been begun.
        begun: set when it is begun.
        go: lets it end, once for each.
        error: what it raises.
    """

    def __init__(self) -> None:
        self.runs = 0
        self.begun = threading.Semaphore(0)
        self.go = threading.Semaphore(0)
        self.error: Exception | None = None

    def __mapping__(self) -> Mapping[str, Handler]:
        return dict(
            (
                shared("/test.Slow/Ask", Empty, self._answer),
                unary("/test.Slow/Ping", Empty, lambda _request: Empty()),
            )
        )

    def _answer(self) -> Empty:
        self.runs += 1
        self.begun.release()
        assert self.go.acquire(timeout=DEADLINE_S)
        if self.error:
            raise self.error
        return Empty()


class Caller:
    """A program with one connection."""

    def __init__(self, channel: grpc.Channel) -> None:
        self._ask: Any = channel.unary_unary("/test.Slow/Ask")
        self._ping: Any = channel.unary_unary("/test.Slow/Ping")

    def ask(self) -> Any:
        """Begin a call; the server has it at the end of this."""
        call = self._ask.future(b"", timeout=DEADLINE_S)
        self.ping()
        return call

    def ping(self) -> None:
        """Wait until the server has seen what has been sent."""
        self._ping(b"", timeout=DEADLINE_S)


@pytest.fixture
def slow() -> Slow:
    return Slow()


@pytest.fixture
def socket(folder: Path, slow: Slow) -> Iterator[Path]:
    with ServedSocket(folder / "slow.sock", lambda: Server(slow), "slow") as served:
        served.ensure()
        yield served.path
        # None is left waiting, whatever has failed.
        for _ in range(slow.runs + 1):
            slow.go.release()


@contextmanager
def calling(socket: Path) -> Iterator[Caller]:
    options = [("grpc.use_local_subchannel_pool", 1)]
    with grpc.insecure_channel(f"unix:{socket}", options) as channel:
        yield Caller(channel)


def test_callers_at_one_time_share_an_answer_that_is_begun_after_they_have_come(
    slow: Slow, socket: Path
) -> None:
    with calling(socket) as one, calling(socket) as other:
        first = one.ask()
        assert slow.begun.acquire(timeout=DEADLINE_S)
        # What the first caller waits for is older than these calls.
        later = [each.ask() for each in (one, other) * 5]
        slow.go.release()
        first.result()
        assert slow.begun.acquire(timeout=DEADLINE_S)
        assert not any(call.done() for call in later)
        slow.go.release()
        for call in later:
            call.result()
        assert slow.runs == 2

        # At rest a call is answered at once.
        again = one.ask()
        slow.go.release()
        again.result()
        assert slow.runs == 3


def test_a_caller_that_goes_away_ends_nothing_else(slow: Slow, socket: Path) -> None:
    with calling(socket) as stays:
        with calling(socket) as goes:
            running = goes.ask()
            assert slow.begun.acquire(timeout=DEADLINE_S)
            waiting = goes.ask()
            stayed = stays.ask()
            # Also the call for which the answer is made.
            for call in (running, waiting):
                call.cancel()
            goes.ping()
        slow.go.release()
        assert slow.begun.acquire(timeout=DEADLINE_S)
        slow.go.release()
        stayed.result()
        assert slow.runs == 2


def test_a_failure_is_each_callers_and_the_next_one_asks_again(
    slow: Slow, socket: Path, caplog: pytest.LogCaptureFixture
) -> None:
    slow.error = RuntimeError("no such peer")
    with calling(socket) as caller:
        first = caller.ask()
        assert slow.begun.acquire(timeout=DEADLINE_S)
        later = [caller.ask(), caller.ask()]
        for _ in range(2):
            slow.go.release()
        for call in (first, *later):
            assert call.code() is grpc.StatusCode.INTERNAL
        assert "no such peer" in caplog.text

        slow.error = None
        again = caller.ask()
        slow.go.release()
        again.result()
