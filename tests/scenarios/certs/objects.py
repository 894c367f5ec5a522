"""The Secret and the webhook's configuration in a fake API server, and what keeps them."""

from __future__ import annotations

import base64
import io
import logging
import queue
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from cryptography import x509
from cryptography.x509.verification import PolicyBuilder, Store

from cpupool import cli
from cpupool.kube.client import APIServer
from cpupool.webhook.certificate_keeper import CertificateKeeper
from cpupool.webhook.certificate_maker import CertificateMaker
from cpupool.webhook.https import certificate_renewal
from cpupool.webhook.https.certificate_renewal import SecretContents
from cpupool.webhook.objects import Installed
from tests.waiting import DEADLINE_S

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

    from tests.apiserver import FakeAPIServer

log = logging.getLogger(__name__)

INSTALLED = Installed("cpupool", "cpupool-webhook-tls", "cpupool-webhook", "cpupool-webhook")
WATCHED = "mutatingwebhookconfigurations"
SECRET = "/api/v1/namespaces/cpupool/secrets/cpupool-webhook-tls"
CONFIGURATION = (
    "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/cpupool-webhook"
)
NAMES = certificate_renewal.service_names("cpupool-webhook", "cpupool")
NOW = datetime(2026, 11, 21, 8, 0, 0, tzinfo=UTC)
DAY = timedelta(days=1)


def encoded(text: bytes) -> str:
    return base64.b64encode(text).decode()


def decoded(secret: dict[str, Any]) -> dict[str, bytes]:
    return {name: base64.b64decode(text) for name, text in secret.get("data", {}).items()}


def bundles(configuration: dict[str, Any]) -> list[bytes]:
    webhooks = configuration["webhooks"]
    return [base64.b64decode(one["clientConfig"].get("caBundle", "")) for one in webhooks]


def fill(server: FakeAPIServer, contents: SecretContents | None = None) -> None:
    """Hold what the manifests make, or what was made of that."""
    contents = contents or SecretContents()
    data = {
        name: encoded(text)
        for name, text in {**contents.ca_data(), **contents.serving_data()}.items()
    }
    server.keep(SECRET, {"kind": "Secret", "type": "Opaque", **({"data": data} if data else {})})
    trusting = {"caBundle": encoded(contents.bundle)} if contents.trusted else {}
    service = {"namespace": "cpupool", "name": "cpupool-webhook"}
    webhooks = [
        {"name": f"{name}.cpupool.io", "clientConfig": {"service": service, **trusting}}
        for name in ("pods", "more")
    ]
    server.keep(CONFIGURATION, {"kind": "MutatingWebhookConfiguration", "webhooks": webhooks})


def aged(days: int) -> SecretContents:
    """Give the contents when nothing is looked at for the last month of these days."""
    contents = SecretContents()
    for day in range(0, days - 29, 30):
        contents = certificate_renewal.without_expired(contents, NOW + day * DAY)
        if certificate_renewal.ca_due(contents, NAMES, NOW + day * DAY):
            contents = certificate_renewal.with_ca(contents, NOW + day * DAY)
        if certificate_renewal.serving_due(contents, NAMES, NOW + day * DAY):
            contents = certificate_renewal.with_serving(contents, NAMES, NOW + day * DAY)
    return contents


def maker(server: FakeAPIServer, now: datetime = NOW) -> CertificateMaker:
    return CertificateMaker(APIServer.at(server.url), INSTALLED, now=lambda: now)


def keeper(
    server: FakeAPIServer, clock_s: Callable[[], float] = time.monotonic
) -> CertificateKeeper:
    """Make a keeper that looks within this process."""
    look = maker(server).look
    return CertificateKeeper(APIServer.at(server.url), INSTALLED, look, clock_s=clock_s)


def verify(serving: bytes, bundle: bytes, now: datetime) -> None:
    trusted = Store(x509.load_pem_x509_certificates(bundle))
    shown = x509.load_pem_x509_certificate(serving)
    for name in NAMES:
        verifier = (
            PolicyBuilder().store(trusted).time(now).build_server_verifier(x509.DNSName(name))
        )
        verifier.verify(shown, [])


def check_history(server: FakeAPIServer, start: SecretContents, now: datetime) -> None:
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


def empty(server: FakeAPIServer, turns: Turns, *, after: int) -> None:
    for _ in range(after):
        turns.wait("admin")
    server.keep(SECRET, {"kind": "Secret"})


def command(server: FakeAPIServer, *options: str) -> list[str]:
    return [
        *(sys.executable, "-W", "error", "-m", "cpupool", "certs", "--namespace", "cpupool"),
        *("--api-server", server.url, *options),
    ]


def run(server: FakeAPIServer, *options: str) -> tuple[int, str]:
    out = io.StringIO()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdout", out)
        return cli.main(command(server, *options)[5:]), out.getvalue()
