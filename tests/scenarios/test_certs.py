"""The webhook's certificates in a cluster: made, renewed and published, by several at once."""

from __future__ import annotations

import base64
import io
import json
import logging
import queue
import random
import re
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from cryptography import x509
from cryptography.x509.verification import PolicyBuilder, Store

from cpupool import cli
from cpupool.commands import certs
from cpupool.https import certificates
from cpupool.https.certificates import Held
from cpupool.kube.client import APIError, APIServer
from cpupool.roles import certificates as roles
from cpupool.roles.certificates import TRIES, CertificateKeeper, Installed, NotInstalled
from tests.apiserver import FakeAPIServer
from tests.kubeconfigs import login
from tests.loops import running_all
from tests.processes import Process
from tests.waiting import DEADLINE_S, eventually

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

log = logging.getLogger(__name__)

INSTALLED = Installed("cpupool", "cpupool-webhook-tls", "cpupool-webhook", "cpupool-webhook")
WATCHED = "mutatingwebhookconfigurations"
SECRET = "/api/v1/namespaces/cpupool/secrets/cpupool-webhook-tls"
CONFIGURATION = (
    "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/cpupool-webhook"
)
NAMES = certificates.service_names("cpupool-webhook", "cpupool")
NOW = datetime(2026, 11, 21, 8, 0, 0, tzinfo=UTC)
DAY = timedelta(days=1)


def encoded(text: bytes) -> str:
    return base64.b64encode(text).decode()


def decoded(secret: dict[str, Any]) -> dict[str, bytes]:
    return {name: base64.b64decode(text) for name, text in secret.get("data", {}).items()}


def bundles(configuration: dict[str, Any]) -> list[bytes]:
    webhooks = configuration["webhooks"]
    return [base64.b64decode(one["clientConfig"].get("caBundle", "")) for one in webhooks]


def fill(server: FakeAPIServer, held: Held | None = None) -> None:
    """Hold what the manifests make, or what was made of that."""
    held = held or Held()
    data = {name: encoded(text) for name, text in {**held.ca_data(), **held.serving_data()}.items()}
    server.keep(SECRET, {"kind": "Secret", "type": "Opaque", **({"data": data} if data else {})})
    trusting = {"caBundle": encoded(held.bundle)} if held.trusted else {}
    service = {"namespace": "cpupool", "name": "cpupool-webhook"}
    webhooks = [
        {"name": f"{name}.cpupool.io", "clientConfig": {"service": service, **trusting}}
        for name in ("pods", "more")
    ]
    server.keep(CONFIGURATION, {"kind": "MutatingWebhookConfiguration", "webhooks": webhooks})


def aged(days: int) -> Held:
    """Give what is held when nothing is looked at for the last month of these days."""
    held = Held()
    for day in range(0, days - 29, 30):
        held = certificates.without_expired(held, NOW + day * DAY)
        if certificates.ca_due(held, NAMES, NOW + day * DAY):
            held = certificates.with_ca(held, NOW + day * DAY)
        if certificates.serving_due(held, NAMES, NOW + day * DAY):
            held = certificates.with_serving(held, NAMES, NOW + day * DAY)
    return held


def keeper(server: FakeAPIServer, now: datetime = NOW) -> CertificateKeeper:
    return CertificateKeeper(APIServer.at(server.url), INSTALLED, now=lambda: now)


def verify(serving: bytes, bundle: bytes, now: datetime) -> None:
    trusted = Store(x509.load_pem_x509_certificates(bundle))
    shown = x509.load_pem_x509_certificate(serving)
    for name in NAMES:
        verifier = (
            PolicyBuilder().store(trusted).time(now).build_server_verifier(x509.DNSName(name))
        )
        verifier.verify(shown, [])


def check_history(server: FakeAPIServer, start: Held, now: datetime) -> None:
    """See that at each moment every bundle covered all that a replica of the webhook may show."""
    published = [start.bundle]
    shown = {start.serving_data()["tls.crt"]} if start.serving else set()
    for path, body in server.updates:
        if path == CONFIGURATION:
            published = bundles(body)
        elif serving := decoded(body).get("tls.crt"):
            shown.add(serving)
        for one in shown:
            for bundle in published:
                verify(one, bundle, now)


@pytest.fixture
def server() -> Iterator[FakeAPIServer]:
    with FakeAPIServer() as fake:
        fill(fake)
        yield fake


def test_an_empty_secret_is_filled_and_then_left_alone(server: FakeAPIServer) -> None:
    outcome = keeper(server).look()
    assert [change.what for change in outcome.changes] == [
        "CA made",
        "bundle published",
        "serving certificate made",
    ]
    assert [path for path, _ in server.updates] == [SECRET, CONFIGURATION, SECRET]
    secret, configuration = server.kept(SECRET), server.kept(CONFIGURATION)
    assert sorted(secret["data"]) == ["ca.crt", "ca.key", "tls.crt", "tls.key"]
    assert bundles(configuration) == [decoded(secret)["ca.crt"]] * 2
    check_history(server, Held(), NOW)

    again = keeper(server).look()
    assert (again.changes, again.terms) == ((), outcome.terms)
    assert len(server.updates) == 3
    assert server.verbs() == {
        (verb, resource)
        for verb in ("get", "update")
        for resource in ("secrets", "mutatingwebhookconfigurations")
    }


def test_what_others_wrote_into_the_objects_stays(server: FakeAPIServer) -> None:
    server.keep(
        SECRET,
        {"metadata": {"labels": {"a": "b"}}, "type": "Opaque", "data": {"notes": encoded(b"hi")}},
    )
    webhook = {"name": "pods.cpupool.io", "clientConfig": {"url": "https://a"}, "timeoutSeconds": 5}
    server.keep(CONFIGURATION, {"metadata": {"annotations": {"c": "d"}}, "webhooks": [webhook]})
    keeper(server).look()
    secret, configuration = server.kept(SECRET), server.kept(CONFIGURATION)
    assert (secret["metadata"]["labels"], secret["type"]) == ({"a": "b"}, "Opaque")
    assert decoded(secret)["notes"] == b"hi"
    assert configuration["metadata"]["annotations"] == {"c": "d"}
    only = configuration["webhooks"][0]
    assert (only["timeoutSeconds"], only["clientConfig"]["url"]) == (5, "https://a")


def test_over_years_there_is_no_moment_without_trust(server: FakeAPIServer) -> None:
    start = aged(30)
    fill(server, start)
    served = start.serving_data()["tls.crt"]
    for day in range(0, 12 * 365, 20):
        now = NOW + day * DAY
        keeper(server, now).look()
        # What was there before the look is shown until the replicas have read the new one.
        for path, body in server.updates:
            for bundle in bundles(body) if path == CONFIGURATION else []:
                verify(served, bundle, now)
        served = decoded(server.kept(SECRET))["tls.crt"]
        for bundle in bundles(server.kept(CONFIGURATION)):
            verify(served, bundle, now)
        server.updates.clear()


def test_a_bundle_that_somebody_takes_away_is_put_back(server: FakeAPIServer) -> None:
    start = aged(30)
    fill(server, start)
    configuration = server.kept(CONFIGURATION)
    del configuration["webhooks"][1]["clientConfig"]["caBundle"]
    server.keep(CONFIGURATION, configuration)
    outcome = keeper(server).look()
    assert [change.what for change in outcome.changes] == ["bundle published"]
    assert bundles(server.kept(CONFIGURATION)) == [start.bundle] * 2


def test_a_secret_that_is_emptied_costs_no_trust(server: FakeAPIServer) -> None:
    start = aged(30)
    fill(server, start)
    server.keep(SECRET, {"kind": "Secret"})
    keeper(server).look()
    check_history(server, start, NOW)
    assert certificates.read(decoded(server.kept(SECRET))).trusted[1:] == start.trusted


@pytest.mark.parametrize(
    "data",
    [
        None,
        "text",
        ["list"],
        {"tls.crt": 7, "tls.key": None, "ca.crt": {"a": 1}, "ca.key": ["b"]},
        {"tls.crt": "not base64!", "tls.key": "é", "ca.crt": "AA=A", "ca.key": ""},
        {"tls.crt": encoded(b"\xff\0"), "ca.key": encoded(b"-----BEGIN")},
    ],
)
def test_damaged_data_is_made_anew(server: FakeAPIServer, data: object) -> None:
    server.keep(SECRET, {"kind": "Secret", "data": data})
    keeper(server).look()
    for bundle in bundles(server.kept(CONFIGURATION)):
        verify(decoded(server.kept(SECRET))["tls.crt"], bundle, NOW)
    assert keeper(server).look().changes == ()


def test_damage_is_told_and_keys_are_not(
    server: FakeAPIServer, caplog: pytest.LogCaptureFixture
) -> None:
    start = aged(30)
    fill(server, start)
    secret = server.kept(SECRET)
    server.keep(SECRET, {**secret, "data": {**secret["data"], "tls.crt": encoded(b"x")}})
    with caplog.at_level(logging.INFO, "cpupool"):
        keeper(server).look()
    told = [record.getMessage() for record in caplog.records]
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]
    assert told[0].startswith('unusable, made anew object="Secret cpupool/cpupool-webhook-tls"')
    assert "tls.crt cannot be read" in told[0]
    assert told[1].startswith('serving certificate made reason="there is none"')
    made = decoded(server.kept(SECRET))
    keys = [base for name in ("tls.key", "ca.key") for base in made[name].decode().split()]
    assert not any(line in text for line in keys if len(line) > 20 for text in told)


def test_who_comes_second_reads_again(server: FakeAPIServer) -> None:
    first = keeper(server)

    def meanwhile() -> datetime:
        # Between this replica's reading and its writing another one does all.
        if not server.updates:
            first.look()
        return NOW

    second = CertificateKeeper(APIServer.at(server.url), INSTALLED, now=meanwhile)
    outcome = second.look()
    assert outcome.changes == ()
    assert len(server.updates) == 3
    assert outcome.terms == first.look().terms


def test_somebody_who_writes_all_the_time_is_left_to_it(server: FakeAPIServer) -> None:
    def meanwhile() -> datetime:
        server.keep(SECRET, server.kept(SECRET))
        return NOW

    writing = CertificateKeeper(APIServer.at(server.url), INSTALLED, now=meanwhile)
    with pytest.raises(APIError) as conflict:
        writing.look()
    assert conflict.value.status == 409
    assert server.count("update", "secrets") == TRIES
    assert server.updates == []


class Turns:
    """Lets one of several threads ask the API server at a time, in an order of its choice."""

    def __init__(self, choices: random.Random) -> None:
        self._choices = choices
        self._news: queue.Queue[tuple[str, bool]] = queue.Queue()
        self._gates: dict[str, threading.Semaphore] = {}

    def wait(self, name: str) -> None:
        self._news.put((name, True))
        assert self._gates[name].acquire(timeout=DEADLINE_S)

    def run(self, actors: dict[str, Callable[[], object]]) -> None:
        """Run all to their ends; raises what one of them raises."""
        self._gates = {name: threading.Semaphore(0) for name in actors}
        acting, waiting = set(actors), set[str]()
        with ThreadPoolExecutor(len(actors)) as threads:
            ends = [threads.submit(self._act, *item) for item in actors.items()]
            while acting or waiting:
                while acting:
                    name, waits = self._news.get(timeout=DEADLINE_S)
                    acting.remove(name)
                    waiting |= {name} if waits else set()
                if waiting:
                    chosen = self._choices.choice(sorted(waiting))
                    waiting.remove(chosen)
                    acting.add(chosen)
                    self._gates[chosen].release()
        for end in ends:
            end.result()

    def _act(self, name: str, act: Callable[[], object]) -> None:
        try:
            act()
        finally:
            self._news.put((name, False))


class InTurn(APIServer):
    """The API server for one of several threads that take turns."""

    def __init__(self, url: str, turns: Turns, name: str) -> None:
        super().__init__(url)
        self._turns = turns
        self._name = name

    def headers(self) -> dict[str, str]:
        """Wait for a turn: this is called once before each request."""
        self._turns.wait(self._name)
        return super().headers()


@pytest.mark.parametrize(
    ("days", "emptied"),
    [
        pytest.param(0, False, id="new"),
        pytest.param(30, False, id="good"),
        pytest.param(90, False, id="serving due"),
        pytest.param(1230, False, id="CA due"),
        pytest.param(30, True, id="good and emptied meanwhile"),
        pytest.param(90, True, id="serving due and emptied meanwhile"),
        pytest.param(1230, True, id="CA due and emptied meanwhile"),
    ],
)
def test_replicas_at_once_end_alike_whoever_is_first(
    server: FakeAPIServer, days: int, *, emptied: bool
) -> None:
    start, now = aged(days), NOW + max(days - 29, 0) * DAY
    for seed in range(15):
        fill(server, start)
        server.updates.clear()
        choices = random.Random(seed)
        turns = Turns(choices)
        actors: dict[str, Callable[[], object]] = {
            name: CertificateKeeper(
                InTurn(server.url, turns, name), INSTALLED, now=lambda: now
            ).look
            for name in ("a", "b", "c")
        }
        if emptied:
            actors["admin"] = partial(empty, server, turns, after=choices.randrange(1, 8))
        turns.run(actors)
        check_history(server, start, now)
        keeper(server, now).look()
        check_history(server, start, now)
        assert keeper(server, now).look().changes == ()


def empty(server: FakeAPIServer, turns: Turns, *, after: int) -> None:
    for _ in range(after):
        turns.wait("admin")
    server.keep(SECRET, {"kind": "Secret"})


def command(server: FakeAPIServer, *options: str) -> list[str]:
    return [
        *(sys.executable, "-W", "error", "-m", "cpupool", "certs", "--namespace", "cpupool"),
        *("--api-server", server.url, *options),
    ]


def test_processes_at_once_make_one_of_each(server: FakeAPIServer) -> None:
    processes = [
        subprocess.Popen(command(server, "--json"), stdout=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    answers = [json.loads(process.communicate(timeout=DEADLINE_S)[0]) for process in processes]
    assert [process.returncode for process in processes] == [0, 0, 0]
    assert [path for path, _ in server.updates] == [SECRET, CONFIGURATION, SECRET]
    check_history(server, Held(), datetime.now(UTC))
    made = [change["what"] for answer in answers for change in answer["changes"]]
    assert sorted(made) == ["CA made", "bundle published", "serving certificate made"]
    assert answers[0]["certificates"] == answers[1]["certificates"] == answers[2]["certificates"]


def run(server: FakeAPIServer, *options: str) -> tuple[int, str]:
    out = io.StringIO()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdout", out)
        return cli.main(command(server, *options)[5:]), out.getvalue()


def test_the_command_says_what_it_made_and_until_when_it_will_do(server: FakeAPIServer) -> None:
    code, text = run(server)
    assert code == 0
    lines = text.splitlines()
    assert lines[:3] == [
        "CA made: there is none with its key",
        "bundle published: the configuration had another one",
        "serving certificate made: there is none",
    ]
    held = certificates.read(decoded(server.kept(SECRET)))
    terms = held.terms()
    assert lines[3:] == [
        f"{name}: good until {terms[name].until:%Y-%m-%d},"
        f" renewed from {terms[name].renewal:%Y-%m-%d} on"
        for name in ("serving", "ca")
    ]
    assert run(server) == (0, "\n".join(["all is well", *lines[3:], ""]))


@pytest.mark.parametrize("path", [SECRET, CONFIGURATION])
def test_what_is_missing_is_told_with_what_to_apply(
    server: FakeAPIServer, path: str, capsys: pytest.CaptureFixture[str]
) -> None:
    server.forget(path)
    title = (
        "Secret cpupool/cpupool-webhook-tls"
        if path == SECRET
        else "MutatingWebhookConfiguration cpupool-webhook"
    )
    assert run(server) == (1, "")
    assert capsys.readouterr().err == (
        f"cpupool: {title}: there is none; apply the webhook's manifests:"
        " kubectl apply -k daemonsets/webhook\n"
    )
    assert server.updates == []


def test_a_configuration_without_a_webhook_is_not_ours(server: FakeAPIServer) -> None:
    bodies: list[dict[str, Any]] = [{}, {"webhooks": None}, {"webhooks": []}]
    for body in bodies:
        server.keep(CONFIGURATION, body)
        with pytest.raises(NotInstalled, match="there is no webhook in it"):
            keeper(server).look()
    assert server.updates == []


@pytest.mark.parametrize(
    ("status", "reason", "told"),
    [
        (403, "Forbidden", "there is no right to get it; apply the webhook's manifests"),
        (500, "InternalError", "500 InternalError: refused by the test"),
        (401, "Unauthorized", "401 Unauthorized: refused by the test"),
    ],
)
def test_a_refusal_is_one_line(
    server: FakeAPIServer,
    capsys: pytest.CaptureFixture[str],
    status: int,
    reason: str,
    told: str,
) -> None:
    server.refuse(status, reason)
    assert run(server) == (1, "")
    said = capsys.readouterr().err
    assert told in said
    assert said.count("\n") == 1


def test_a_right_to_write_that_is_missing_is_told(server: FakeAPIServer) -> None:
    def meanwhile() -> datetime:
        server.refuse(403, "Forbidden")
        return NOW

    reading = CertificateKeeper(APIServer.at(server.url), INSTALLED, now=meanwhile)
    with pytest.raises(NotInstalled, match=r"^Secret cpupool/.*no right to update it"):
        reading.look()


def test_a_server_that_is_away_is_one_line(
    server: FakeAPIServer, capsys: pytest.CaptureFixture[str]
) -> None:
    server.down()
    assert run(server) == (1, "")
    assert "check that the API server runs" in capsys.readouterr().err


def test_the_namespace_is_that_of_the_pod_unless_it_is_given(
    server: FakeAPIServer,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(certs, "SERVICE_ACCOUNT", folder)
    asked = ["certs", "--api-server", server.url]
    assert cli.main(asked) == 2
    assert "give --namespace, or set POD_NAMESPACE" in capsys.readouterr().err
    (folder / "namespace").write_text("from-file\n")
    assert cli.main(asked) == 1
    monkeypatch.setenv("POD_NAMESPACE", "from-variable")
    assert cli.main(asked) == 1
    assert cli.main([*asked, "--namespace", "given"]) == 1
    told = re.findall("Secret (.*)/cpupool-webhook-tls", capsys.readouterr().err)
    assert told == ["from-file", "from-variable", "given"]
    monkeypatch.setenv("POD_NAMESPACE", "../other")
    assert cli.main(asked) == 2


def test_an_admin_logs_in_with_a_kubeconfig_from_anywhere(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with login(folder) as cluster:
        fill(cluster.server)
        path = cluster.kubeconfig({"none": {"token": "x"}, "jane": cluster.certificate("jane")})
        asked = ["certs", "--namespace", "cpupool", "--kubeconfig", str(path)]

        assert cli.main([*asked, "--context", "jane"]) == 0

        assert "serving certificate made" in capsys.readouterr().out
        assert [place for place, _ in cluster.server.updates] == [SECRET, CONFIGURATION, SECRET]
        assert {request.user for request in cluster.server.requests} == {"jane"}


@pytest.mark.parametrize(
    "option", ["--namespace", "--secret", "--service", "--webhook-configuration"]
)
def test_a_name_that_kubernetes_does_not_allow_is_refused(
    server: FakeAPIServer, option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("../secrets", "a.b", "A", "a" * 64, ""):
        assert run(server, option, name) == (2, "")
        assert f"{name!r} is no DNS label" in capsys.readouterr().err
    assert server.requests == []


def test_without_the_library_it_is_said_how_to_get_it() -> None:
    hidden = "import sys; sys.modules['cryptography'] = None; from cpupool import cli; cli.run()"
    done = subprocess.run(
        [sys.executable, "-c", hidden, "certs", "--namespace", "cpupool"],
        stderr=subprocess.PIPE,
        text=True,
        check=False,
        timeout=DEADLINE_S,
    )
    assert (done.returncode, done.stderr) == (
        2,
        "cpupool: cryptography is missing; in cpupool's folder: pip install '.[webhook]'\n",
    )


def test_outside_a_cluster_the_api_server_must_be_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    assert cli.main(["certs", "--namespace", "cpupool"]) == 2
    assert "name its address with --api-server" in capsys.readouterr().err


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
