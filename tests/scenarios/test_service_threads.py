"""Every thread of the webhook and of `certs --watch` is ended, and every loop is made to hang."""

from __future__ import annotations

import signal
import threading
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from http.client import HTTPException
from typing import TYPE_CHECKING

import pytest

from cpupool.cli import main
from cpupool.commands import certs
from cpupool.commands import webhook as command
from cpupool.kube.client import APIServer
from cpupool.kube.config_map import CONFIG_MAP_WATCH, ConfigMapName
from cpupool.loops import supervisor
from cpupool.telemetry.health import Health
from cpupool.telemetry.metrics import WebhookMetrics
from cpupool.telemetry.server import TelemetryServer
from cpupool.webhook.admission.rules import Rules
from cpupool.webhook.https import server as https
from cpupool.webhook.service import NAME, SERVER, Webhook, WebhookSettings
from tests.apiserver import FakeAPIServer
from tests.scenarios.certs.objects import WATCHED, fill
from tests.scenarios.test_threads import MAIN, Victim
from tests.scenarios.webhook.processes import POOLS, Files, WebhookProcess, asking
from tests.victim import CONTROLLER
from tests.waiting import DEADLINE_S, eventually
from tests.webhooks import LOCALHOST, PATIENT, Client

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

CONFIG_MAP = "/api/v1/namespaces/cpupool/configmaps/cpu-pooler-configmap"
LOOPS = {NAME, SERVER, CONFIG_MAP_WATCH}
"""What has a heartbeat."""
WATCHES = {"watch FOLDER/pools", "watch FOLDER/tls"}
END = "request_0"
"""What waits for the end."""
IDLE = "request_1"
"""What has been used for a heartbeat, and waits for a request."""
CERTS = {"certificates", "webhook configuration watch"}


class WebhookVictim(Victim, WebhookProcess):
    """A webhook whose threads can be ended."""

    def __init__(self, files: Files, server: FakeAPIServer) -> None:
        super().__init__(
            *("webhook", "--port", "0", "--metrics-port", "1", "--config", files.pools.folder),
            *("--tls-cert-file", files.secret.certificate),
            *("--tls-private-key-file", files.secret.key, "--api-server", server.url),
            *("--configmap", "cpupool/cpu-pooler-configmap"),
        )
        self.files = files

    def answers(self) -> bool:
        """Return whether a review is answered; wake the loop that takes connections."""
        try:
            return self.ask(asking()).status == 200
        except (OSError, HTTPException):
            return False

    def ends(self, thread: str) -> bool:
        """Return whether it has ended, and ask again where the exception was lost in a task."""
        if thread == SERVER and self.answers():
            self.end(thread)
        return self.process.poll() is not None


@pytest.fixture
def server() -> Iterator[FakeAPIServer]:
    with FakeAPIServer() as server:
        server.keep_config_map(CONFIG_MAP, worker=POOLS)
        fill(server)
        yield server


@pytest.fixture
def files(tmp_path: Path) -> Files:
    files = Files(tmp_path)
    files.pools.show(worker=POOLS)
    files.secret.rotate()
    return files


@contextmanager
def webhook(files: Files, server: FakeAPIServer) -> Iterator[WebhookVictim]:
    with WebhookVictim(files, server).collecting() as victim:
        assert isinstance(victim, WebhookVictim)
        victim.await_line("certificate in use")
        victim.await_line("ConfigMap is followed")
        eventually(lambda: server.watching("configmaps"), "the ConfigMap is watched")
        eventually(lambda: IDLE in victim.threads(), "a heartbeat")
        yield victim


@contextmanager
def keeper(server: FakeAPIServer) -> Iterator[Victim]:
    options = ("certs", "--watch", "--namespace", "cpupool", "--api-server", server.url)
    with Victim(*options).collecting() as victim:
        victim.await_line("certificates are good")
        eventually(lambda: server.watching(WATCHED), "the configuration is watched")
        yield victim


def test_every_thread_is_known(files: Files, server: FakeAPIServer, tmp_path: Path) -> None:
    with webhook(files, server) as victim:
        victim.await_threads(LOOPS | WATCHES | {MAIN, CONTROLLER, "telemetry", END, IDLE}, tmp_path)
    with keeper(server) as victim:
        victim.await_threads(CERTS | {MAIN, CONTROLLER}, tmp_path)


@pytest.mark.parametrize("thread", sorted(LOOPS | WATCHES | {MAIN, "telemetry"}))
def test_a_thread_that_is_ended_ends_the_webhook(
    files: Files, server: FakeAPIServer, tmp_path: Path, thread: str
) -> None:
    with webhook(files, server) as victim:
        victim.end(thread.replace("FOLDER", str(tmp_path)))
        eventually(lambda: victim.ends(thread), lambda: victim.log)
        assert victim.process.returncode == 1
    if thread in LOOPS:
        assert f"cpupool: the {thread} stopped: Ended; this process must be started" in victim.log


def test_requests_are_answered_after_a_thread_of_the_pool_is_ended(
    files: Files, server: FakeAPIServer
) -> None:
    with webhook(files, server) as victim:
        victim.end(IDLE)
        # What this thread was handed is lost: a request, or the heartbeat.
        eventually(victim.answers, lambda: victim.log)


def test_the_thread_that_waits_for_the_end_fails_at_the_end(
    files: Files, server: FakeAPIServer
) -> None:
    with webhook(files, server) as victim:
        victim.end(END)
        eventually(victim.answers, lambda: victim.log)
        victim.process.send_signal(signal.SIGTERM)
        assert victim.process.wait(DEADLINE_S) == 1
    assert "cpupool: the server stopped: Ended" in victim.log


@pytest.mark.parametrize("thread", sorted(CERTS | {MAIN}))
def test_a_thread_that_is_ended_ends_certs(server: FakeAPIServer, thread: str) -> None:
    with keeper(server) as victim:
        victim.end(thread)
        eventually(lambda: victim.process.poll() is not None, lambda: victim.log)
        assert victim.process.returncode == 1
    if thread in CERTS:
        assert f"cpupool: the {thread} stopped: Ended; this process must be started" in victim.log


def test_a_loop_of_the_webhook_that_hangs_is_named_by_the_probe(
    files: Files, server: FakeAPIServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    hanging: dict[str, threading.Event] = {}
    hung: set[str] = set()
    now_s, beats, refusing = [0.0], Health.beat, threading.Event()

    def beat(health: Health, loop: str) -> None:
        if release := hanging.get(loop):
            hung.add(loop)
            release.wait(DEADLINE_S)
        beats(health, loop)

    def refused(_metrics: WebhookMetrics, _status: object) -> None:
        hung.add(SERVER)
        refusing.wait(DEADLINE_S)

    monkeypatch.setattr(Health, "beat", beat)
    monkeypatch.setattr(WebhookMetrics, "refused", refused)
    monkeypatch.setattr(https, "_BEAT_S", 0.01)
    metrics, health = WebhookMetrics(), Health(lambda: now_s[0])
    settings = WebhookSettings(
        *(files.pools.folder, files.secret.certificate, files.secret.key, Rules()),
        address=LOCALHOST,
        port=0,
        limits=PATIENT,
        api_server=APIServer.at(server.url),
        config_map=ConfigMapName("cpupool", "cpu-pooler-configmap"),
    )
    here = Webhook(settings, metrics, health)
    assert here._config_map
    following = here._config_map
    telemetry = TelemetryServer(LOCALHOST, 0, metrics, health)
    stop = threading.Event()
    thread = threading.Thread(target=command.serve, args=(here, telemetry, stop))

    def failing() -> set[str]:
        here._wake.set()
        following.wake()
        lines = health.live().lines
        return {line.partition(":")[0] for line in lines if ": failing: silent for" in line}

    def check(loop: str) -> None:
        def named() -> bool:
            found = failing()
            if not found:
                # Another thread beats for the server: a beat that had begun has come just now.
                now_s[0] += 1000
            return found == {loop}

        # A beat that has begun must not come after the time has passed.
        eventually(lambda: failing() == set() and loop in hung, f"{loop} hangs")
        # Each of the others must beat again before it is known which one hangs.
        now_s[0] += 1000
        eventually(named, lambda: f"{loop}: {failing()}")

    with ExitStack() as stack:
        stack.callback(thread.join, DEADLINE_S)
        stack.callback(stop.set)
        thread.start()
        eventually(lambda: here.server.presents, "the certificate")
        for loop in sorted(LOOPS):
            release = hanging[loop] = threading.Event()
            check(loop)
            del hanging[loop]
            release.set()
            eventually(lambda: not failing(), lambda: str(failing()))
        with closing(Client(here.server.port, files.secret.trusting())) as client:
            client.connection.request("POST", "/mutating-pods", b"", {"Content-Type": "a/b"})
            check(SERVER)
            refusing.set()
            assert client.answer().status == 415
    assert not thread.is_alive()


@pytest.mark.parametrize("hanging", sorted(CERTS))
def test_certs_end_where_a_loop_hangs(
    server: FakeAPIServer,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    hanging: str,
) -> None:
    beats, stop, other = Health.beat, threading.Event(), threading.Event()

    def beat(health: Health, loop: str) -> None:
        if loop == hanging:
            stop.wait(DEADLINE_S)
        else:
            beats(health, loop)
            other.set()

    def clock_s() -> float:
        """Return a time of which the main thread knows once the other loop has beaten."""
        late = threading.current_thread() is not threading.main_thread() or other.is_set()
        return 1000.0 if late else 0.0

    monkeypatch.setattr(Health, "beat", beat)
    monkeypatch.setattr(certs, "Health", partial(Health, clock_s))
    monkeypatch.setattr(certs, "asked_to_end", lambda: stop)
    monkeypatch.setattr(supervisor, "_LOOK_S", 0.01)
    options = ("certs", "--watch", "--namespace", "cpupool", "--api-server", server.url)
    assert main(options) == 1
    assert f"cpupool: the {hanging} stopped: it hangs; this process" in capsys.readouterr().err
