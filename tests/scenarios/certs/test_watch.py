from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest

from cpupool import cli
from cpupool.commands import certs
from cpupool.kube.client import APIServer
from cpupool.webhook import certificate_keeper
from cpupool.webhook.certificate_keeper import CertificateKeeper
from cpupool.webhook.https.certificate_renewal import SecretContents
from tests.certificates import uses_library
from tests.loops import running_all
from tests.processes import Process
from tests.scenarios.certs.objects import (
    CONFIGURATION,
    INSTALLED,
    SECRET,
    WATCHED,
    bundles,
    check_history,
    command,
    keeper,
    log,
    maker,
)
from tests.waiting import DEADLINE_S, eventually

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Iterator
    from pathlib import Path

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
    check_history(server, SecretContents(), datetime.now(UTC))
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
    monkeypatch.setattr(certificate_keeper, "COMPARE_S", 1000 * DEADLINE_S)
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
    monkeypatch.setattr(certificate_keeper, "COMPARE_S", 0.01)
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


class Looks:
    """A keeper whose looks are counted, and whose time a test moves."""

    def __init__(self, server: FakeAPIServer) -> None:
        self.now_s = 0.0
        self._looks = 0
        self._server = server
        self._meanwhile: Callable[[], object] = lambda: None
        self._loop = CertificateKeeper(
            APIServer.at(server.url), INSTALLED, self._look, clock_s=lambda: self.now_s
        )

    def _look(self) -> None:
        self._looks += 1
        maker(self._server).look()
        self._meanwhile()

    def in_turns(self, turns: int, meanwhile: Callable[[], object] = lambda: None) -> int:
        """Return how many looks some turns take; the other thing happens at the end of each."""

        def rest(rests: int) -> None:
            if rests == turns:
                stop.set()
            self._loop.wake()

        stop, self._looks, self._meanwhile = Rests(rest), 0, meanwhile
        self._loop.run(stop)
        return self._looks


def test_what_is_the_same_is_looked_at_once_an_hour(server: FakeAPIServer) -> None:
    looks = Looks(server)
    # The first one makes all, the second one finds it to be good.
    assert looks.in_turns(9) == 2
    looks.now_s += certificate_keeper.LOOK_S - 1
    assert looks.in_turns(9) == 0
    looks.now_s += 1
    assert looks.in_turns(9) == 1


@pytest.mark.parametrize("path", [SECRET, CONFIGURATION])
def test_what_is_another_is_looked_at_at_once(server: FakeAPIServer, path: str) -> None:
    looks, empty = Looks(server), server.kept(path)
    looks.in_turns(2)
    server.keep(path, empty)
    assert looks.in_turns(1) == 1
    assert filled(server)
    assert "tls.crt" in server.kept(SECRET)["data"]


def test_what_others_write_during_a_look_is_looked_at(server: FakeAPIServer) -> None:
    looks, empty = Looks(server), server.kept(CONFIGURATION)
    assert looks.in_turns(1, lambda: server.keep(CONFIGURATION, empty)) == 1
    assert not filled(server)
    assert looks.in_turns(9) == 2
    assert filled(server)


def test_the_library_is_not_in_the_process_that_stays(server: FakeAPIServer) -> None:
    with watching(server) as (process, lines):
        eventually(
            lambda: any("certificates are good" in line for line in lines),
            lambda: f"all is well: {lines}",
        )
        assert not uses_library(process.pid)
        assert uses_library(os.getpid())


def test_a_look_that_fails_is_told_and_done_again(server: FakeAPIServer) -> None:
    server.forbidden = {("update", "secrets")}
    with watching(server) as (_, lines):
        eventually(lambda: any("not looked at" in line for line in lines), lambda: f"told: {lines}")
        server.forbidden = set()
        eventually(lambda: filled(server), lambda: f"all is made: {lines}")
    text = "".join(lines)
    assert "cpupool: Secret cpupool/cpupool-webhook-tls: there is no right to update it" in text
    assert 'reason="`cpupool certs` ended with 1; a line before this one says why"' in text


@pytest.mark.parametrize("why", ["it shall end", "it takes too long"])
def test_a_look_without_an_end_is_ended(
    server: FakeAPIServer,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    why: str,
) -> None:
    began, stop = folder / "began", threading.Event()
    endless = folder / "endless"
    endless.write_text(f"#!/bin/sh\ntouch {began}\nexec sleep 1000\n")
    endless.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(endless))
    monkeypatch.setattr(certs, "asked_to_end", lambda: stop)
    monkeypatch.setattr(certs, "_POLL_S", 0.01)
    if why != "it shall end":
        monkeypatch.setattr(certs, "_LOOK_S", 0.0)
    with ThreadPoolExecutor() as threads:
        ended = threads.submit(cli.main, command(server, "--watch")[5:])
        eventually(began.exists, "it has begun")
        told = ""
        if why != "it shall end":

            def said() -> bool:
                nonlocal told
                told += capsys.readouterr().err
                return "`cpupool certs` ended with -9" in told

            eventually(said, "it says so")
        stop.set()
        assert ended.result(DEADLINE_S) == 0
