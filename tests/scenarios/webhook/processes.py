"""A webhook as a process, and the reviews that tests ask of it."""

from __future__ import annotations

import http.client
import re
import socket
import sys
import threading
from contextlib import closing, contextmanager, suppress
from typing import TYPE_CHECKING, Any, Self

from cpupool.commands import webhook as command
from cpupool.telemetry.health import Health
from cpupool.telemetry.metrics import WebhookMetrics
from cpupool.telemetry.server import TelemetryServer
from cpupool.webhook.admission.rules import Rules
from cpupool.webhook.service import Webhook, WebhookSettings
from tests.mounts import Mount
from tests.pods import container, pod, review
from tests.processes import Process
from tests.waiting import DEADLINE_S, eventually
from tests.webhooks import LOCALHOST, PATIENT, Client, Secret

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from tests.webhooks import Answer

POOLS = "pools:\n  exclusive-a: {cpus: 2-5}\n  shared-a: {cpus: 6-7}\n  default: {cpus: 0-1}\n"
MORE = POOLS.replace("2-5}", "2-4}\n  exclusive-b: {cpus: 5}")
BAD = POOLS.replace("2-5", "5-2")
MIXED = POOLS + "mixedCPUs: {pool: shared-a}\n"
ENABLE_SHARED = "workload.openshift.io/enable-shared-cpus"
NAMESPACE = "/api/v1/namespaces/apps"
ALLOWED = {"workload.mixedcpus.openshift.io/allowed": ""}
USER = {"username": "system:serviceaccount:apps:deployer"}


def asking(pool: str = "exclusive-a", **request: Any) -> dict[str, Any]:
    """Make the review of a pod that asks for one CPU of a pool."""
    body = pod(container(pools={pool: "1"}, command=["app"]))
    return review(body, namespace="apps", userInfo=USER, **request)


def mixing(**request: Any) -> dict[str, Any]:
    """Make the review of a pod that asks for CPUs of its own and for shared ones."""
    limits = {"cpu": "2", "memory": "1Gi", ENABLE_SHARED: "1"}
    body = pod(container(resources={"limits": limits}))
    return review(body, namespace="apps", userInfo=USER, **request)


class Files:
    """The two mounted folders of a webhook."""

    def __init__(self, folder: Path) -> None:
        self.pools = Mount(folder / "pools")
        self.secret = Secret(folder / "tls")


class WebhookProcess(Process):
    """A webhook in a process of its own."""

    def __init__(self, files: Files, *before: str, after: Sequence[str] = ()) -> None:
        super().__init__(
            *(*before, sys.executable, "-W", "error", "-m", "cpupool", "webhook", "--port", "0"),
            *("--metrics-port", "0", "--config", files.pools.folder),
            *("--tls-cert-file", files.secret.certificate),
            *("--tls-private-key-file", files.secret.key),
            *after,
        )
        self.files = files

    @property
    def port(self) -> int:
        found = re.search(r" port=(\d+) ", self.await_line("webhook starts"))
        assert found
        return int(found[1])

    def client(self) -> closing[Client]:
        return closing(Client(self.port, self.files.secret.trusting()))

    def ask(self, document: object, path: str = "/mutating-pods") -> Answer:
        with self.client() as client:
            return client.post(path, document)


@contextmanager
def started(files: Files, *before: str, after: Sequence[str] = ()) -> Iterator[WebhookProcess]:
    """Run a webhook; how it ends is for the test to say, or not at all."""
    with WebhookProcess(files, *before, after=after).collecting() as webhook:
        yield webhook
    assert "Traceback" not in webhook.log


class Dripping:
    """An API server that answers a byte at a time, and for as long as somebody listens."""

    def __init__(self) -> None:
        self._socket = socket.create_server((LOCALHOST, 0))
        self._thread = threading.Thread(target=self._answer)
        self._end = threading.Event()
        self.url = f"http://{LOCALHOST}:{self._socket.getsockname()[1]}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join(DEADLINE_S)
        assert not self._thread.is_alive()

    def _answer(self) -> None:
        with suppress(OSError):
            client, _ = self._socket.accept()
            with client:
                client.sendall(b"HTTP/1.1 200 OK\r\nX: ")
                while not self._end.wait(0.1):
                    client.sendall(b"x")


def answered(webhook: WebhookProcess, document: Any) -> dict[str, Any]:
    """Ask again while a loaded machine keeps the API server from answering within a second."""
    given: dict[str, Any] = {}

    def in_time() -> bool:
        given.clear()
        given.update(webhook.ask(document).document["response"])
        message = given.get("status", {}).get("message", "")
        return not any(late in message for late in ("broken", "unreachable", "not answered"))

    eventually(in_time, lambda: str(given))
    return given


class Here:
    """A webhook in this process, whose probes have a port."""

    def __init__(self, folder: Path) -> None:
        self.files = Files(folder)
        self.metrics = WebhookMetrics()
        self.health = Health()
        self.stop = threading.Event()

    @contextmanager
    def running(self) -> Iterator[None]:
        settings = WebhookSettings(
            self.files.pools.folder,
            self.files.secret.certificate,
            self.files.secret.key,
            Rules(),
            address=LOCALHOST,
            port=0,
            limits=PATIENT,
        )
        self.webhook = Webhook(settings, self.metrics, self.health)
        self.telemetry = TelemetryServer(LOCALHOST, 0, self.metrics, self.health)
        thread = threading.Thread(
            target=command.serve, args=(self.webhook, self.telemetry, self.stop)
        )
        thread.start()
        try:
            yield
        finally:
            self.stop.set()
            thread.join(DEADLINE_S)
            assert not thread.is_alive()

    def ask(self, document: object) -> Answer:
        with closing(Client(self.webhook.server.port, self.files.secret.trusting())) as client:
            return client.post("/mutating-pods", document)

    def page(self, path: str) -> tuple[int, str]:
        with closing(
            http.client.HTTPConnection(LOCALHOST, self.telemetry.port, timeout=DEADLINE_S)
        ) as connection:
            connection.request("GET", path)
            response = connection.getresponse()
            return response.status, response.read().decode()

    def measured(self, series: str) -> float:
        """Give a series of /metrics."""
        found = re.search(rf"^{re.escape(series)} (\S+)$", self.page("/metrics")[1], re.MULTILINE)
        assert found, series
        return float(found[1])
