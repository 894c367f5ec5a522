from __future__ import annotations

import logging
import signal
import threading
import time
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest

from cpupool.https.certificates import Held
from cpupool.roles import certificates as roles
from tests.loops import running_all
from tests.processes import Process
from tests.scenarios.certs.objects import (
    CONFIGURATION,
    WATCHED,
    bundles,
    check_history,
    command,
    keeper,
    log,
)
from tests.waiting import DEADLINE_S, eventually

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Iterator

    from tests.apiserver import FakeAPIServer


@contextmanager
def watching(server: FakeAPIServer) -> Iterator[tuple[subprocess.Popen[str], list[str]]]:
    with Process(*command(server, "--watch")).collecting() as started:
        yield started.process, started.lines


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_watch_gets_over_trouble_and_ends_when_asked(
    server: FakeAPIServer, number: signal.Signals
) -> None:
    server.down()
    with watching(server) as (process, lines):
        eventually(lambda: any("not looked at" in line for line in lines), "the trouble is told")
        server.up()
        eventually(
            lambda: any("certificates are good" in line for line in lines),
            lambda: f"all is well: {lines}",
        )
        eventually(lambda: server.watching(WATCHED), "the configuration is watched")
        process.send_signal(number)
        assert process.wait(DEADLINE_S) == 0
    check_history(server, Held(), datetime.now(UTC))
    text = "".join(lines)
    assert "Traceback" not in text
    assert text.count("serving certificate made") == 1


def test_the_watch_ends_while_the_server_is_silent(server: FakeAPIServer) -> None:
    server.slow()
    with watching(server) as (process, _):
        eventually(lambda: server.requests, "a request has arrived")
        process.send_signal(signal.SIGTERM)
        assert process.wait(DEADLINE_S) == 0


def test_the_loop_tries_again_after_trouble_and_ends_when_it_shall(
    server: FakeAPIServer, caplog: pytest.LogCaptureFixture
) -> None:
    server.refuse(500, "InternalError", times=2)  # one for the look, one for the list
    with caplog.at_level(logging.INFO, "cpupool"), running_all(keeper(server)):
        eventually(lambda: "certificates are good" in caplog.text, "all is made")
    assert "500 InternalError" in caplog.text


def filled(server: FakeAPIServer) -> bool:
    return all(bundles(server.kept(CONFIGURATION)))


@pytest.mark.parametrize("way", ["deleted and applied again", "replaced"])
def test_another_configuration_is_filled_as_soon_as_it_is_there(
    server: FakeAPIServer, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    # So that no look happens but for the watch.
    monkeypatch.setattr(roles, "LOOK_S", 1000 * DEADLINE_S)
    applied = server.kept(CONFIGURATION)
    with running_all(keeper(server)):
        eventually(lambda: filled(server) and server.watching(WATCHED), "the first one is filled")
        for _ in range(2):
            began_s = time.monotonic()
            if way != "replaced":
                server.forget(CONFIGURATION)
            server.keep(CONFIGURATION, applied)
            eventually(lambda: filled(server), "the other one is filled")
            log.info("%s: filled after %.2f s", way, time.monotonic() - began_s)


def test_without_the_right_to_watch_it_looks_every_minute_and_says_so_once(
    server: FakeAPIServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(roles, "LOOK_S", 0.01)
    server.forbidden = {("list", WATCHED), ("watch", WATCHED)}
    applied = server.kept(CONFIGURATION)
    with caplog.at_level(logging.WARNING, "cpupool"), running_all(keeper(server)):
        eventually(lambda: filled(server), "the first one is filled")
        server.forget(CONFIGURATION)
        server.keep(CONFIGURATION, applied)
        eventually(lambda: filled(server), "the other one is filled")
        eventually(lambda: server.count("list", WATCHED) > 4, "the list is tried again and again")
    assert caplog.text.count("this pod's RBAC, which must grant list on " + WATCHED) == 1


class Rests(threading.Event):
    """Ends every wait at once, notes how long it was to be, and lets a test act meanwhile."""

    def __init__(self, act: Callable[[int], object]) -> None:
        super().__init__()
        self.rests_s: list[float | None] = []
        self._act = act

    def wait(self, timeout: float | None = None) -> bool:
        self.rests_s.append(timeout)
        self._act(len(self.rests_s))
        return self.is_set()


def test_another_controller_that_undoes_each_write_slows_it_down(server: FakeAPIServer) -> None:
    applied = server.kept(CONFIGURATION)
    loop = keeper(server)

    def meanwhile(rests: int) -> None:
        if rests <= 9:
            server.keep(CONFIGURATION, applied)
        elif rests == 12:
            stop.set()
        loop.wake()

    stop = Rests(meanwhile)
    loop.run(stop)
    assert stop.rests_s == [0.5, 1, 2, 4, 8, 16, 32, 60, 60, 60, 0.25, 0.25]
