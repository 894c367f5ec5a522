"""The webhook as a pod of its Deployment runs it, asked as an API server asks."""

from __future__ import annotations

import http.client
import json
import logging
import re
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from contextlib import ExitStack, closing, contextmanager, suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Self

import pytest
import trustme

from cpupool.admission.rules import Rules
from cpupool.commands import webhook as command
from cpupool.roles.webhook import Settings, Webhook
from cpupool.telemetry.health import Health
from cpupool.telemetry.metrics import WebhookMetrics
from cpupool.telemetry.server import TelemetryServer
from tests.apiserver import FakeAPIServer
from tests.mounts import Mount
from tests.pods import container, pod, review, stored
from tests.processes import Process
from tests.waiting import DEADLINE_S, eventually
from tests.webhooks import JSON, LOCALHOST, PATIENT, Client, Secret

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from tests.webhooks import Answer

log = logging.getLogger(__name__)

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


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WebhookProcess]:
    files = Files(tmp_path_factory.mktemp("webhook"))
    files.pools.show(worker=POOLS)
    files.secret.rotate()
    with started(files) as webhook:
        webhook.await_line("certificate in use")
        yield webhook


class TestProcess:
    def test_a_pod_is_completed_and_then_left_alone(self, process: WebhookProcess) -> None:
        document = asking()
        response = process.ask(document).document["response"]
        assert response["uid"] == "u-1"
        completed = stored(document["request"]["object"], response)
        (made,) = completed["spec"]["containers"]
        assert made["command"] == ["/opt/cpupool/process-starter"]
        assert made["resources"]["limits"]["cpu"] == "1100m"
        again = process.ask(review(completed)).document["response"]
        assert again == {"uid": "u-1", "allowed": True}
        assert process.ask(document, "/validating-pods").document["response"] == again

    def test_a_pod_is_denied_with_what_is_wrong(self, process: WebhookProcess) -> None:
        for path in ("/mutating-pods", "/validating-pods"):
            response = process.ask(asking("exclusive-x"), path).document["response"]
            assert not response["allowed"]
            assert "no pool file has an exclusive or shared pool" in response["status"]["message"]

    def test_an_edit_of_the_pools_is_followed_unless_it_is_a_bad_one(
        self, process: WebhookProcess
    ) -> None:
        def allowed(pool: str) -> bool:
            answer: bool = process.ask(asking(pool)).document["response"]["allowed"]
            return answer

        process.files.pools.show(worker=MORE)
        eventually(lambda: allowed("exclusive-b"), "the new pool is known")
        process.files.pools.show(worker=BAD)
        process.await_line("pool configuration refused")
        assert "poolconfig-worker.yaml:2:" in process.await_line("problem=")
        assert allowed("exclusive-b")
        process.files.pools.show(worker=POOLS)
        eventually(lambda: not allowed("exclusive-b"), "the pool is gone")

    def test_certificates_are_rotated_under_load_without_a_failed_request(
        self, process: WebhookProcess
    ) -> None:
        ended = threading.Event()
        answers: dict[str, int] = {}
        failures: list[BaseException] = []

        def load(name: str, *, kept: bool) -> None:
            answers[name] = 0
            client = Client(process.port, process.files.secret.trusting())
            try:
                while not ended.is_set():
                    response = client.post("/mutating-pods", asking()).document["response"]
                    assert "patch" in response
                    answers[name] += 1
                    if not kept:
                        client.close()
            except BaseException as error:  # noqa: BLE001 - a thread's edge: the test tells of it
                failures.append(error)
            finally:
                client.close()

        threads = [
            threading.Thread(target=load, args=(f"{kept} {number}",), kwargs={"kept": kept})
            for number in range(2)
            for kept in (True, False)
        ]
        for thread in threads:
            thread.start()
        try:
            for _ in range(20):
                newest = process.files.secret.rotate()
                eventually(lambda: self._shown(process) == newest, "new clients are shown it")  # noqa: B023
            eventually(
                lambda: failures or (len(answers) == 4 and min(answers.values()) >= 100),
                lambda: f"enough requests, not {answers}",
            )
        finally:
            ended.set()
            for thread in threads:
                thread.join(DEADLINE_S)
        assert not failures

    def _shown(self, process: WebhookProcess) -> bytes:
        with process.client() as client:
            return client.shown()


def test_a_pool_is_known_before_the_folder_shows_it_and_stays_so(tmp_path: Path) -> None:
    path = "/api/v1/namespaces/cpupool/configmaps/cpu-pooler-configmap"
    files = Files(tmp_path)
    files.pools.show(worker=POOLS)
    files.secret.rotate()
    with FakeAPIServer() as server:
        server.keep_config_map(path, worker=POOLS)
        followed = ("--api-server", server.url, "--configmap", "cpupool/cpu-pooler-configmap")
        with started(files, after=followed) as webhook:

            def allowed(pool: str) -> bool:
                answer: bool = webhook.ask(asking(pool)).document["response"]["allowed"]
                return answer

            webhook.await_line("certificate in use")
            assert not allowed("exclusive-b")
            begun_s = time.monotonic()
            server.keep_config_map(path, worker=MORE)
            eventually(lambda: allowed("exclusive-b"), "the new pool is known")
            log.info("from an edit to its pods: %.3f s", time.monotonic() - begun_s)

            files.pools.show(worker=POOLS)
            server.forget(path)
            webhook.await_line("there is no such ConfigMap")
            server.down()
            files.secret.rotate()
            eventually(
                lambda: webhook.log.count("certificate in use") == 2, "a look at both folders"
            )
            assert allowed("exclusive-b")
            webhook.process.send_signal(signal.SIGTERM)
            assert webhook.process.wait(DEADLINE_S) == 0


def test_a_process_waits_for_its_certificate_and_ends_with_its_last_answer(
    tmp_path: Path,
) -> None:
    with started(Files(tmp_path)) as webhook, ExitStack() as stack:
        assert "wait for `cpupool certs`" in webhook.await_line("certificate not taken")
        webhook.await_line("pools not known")
        with pytest.raises(OSError, match=r"EOF|reset"):
            webhook.ask(asking())
        webhook.files.secret.rotate()
        webhook.await_line("certificate in use")

        client = stack.enter_context(webhook.client())

        def sent_elsewhere() -> bool:
            answer = webhook.ask(asking())
            assert answer.status == 200
            return answer.headers.get("connection") == "close"

        def slowly() -> Iterator[bytes]:
            """Send a request of which half is there when the process is asked to end."""
            text = json.dumps(asking()).encode()
            yield text[:100]
            webhook.process.send_signal(signal.SIGTERM)
            eventually(sent_elsewhere, "new clients are still answered, and sent elsewhere")
            yield text[100:]

        assert "patch" in client.post("/mutating-pods", slowly()).document["response"]
        assert webhook.process.wait(DEADLINE_S) == 0


def test_a_process_without_file_descriptors_takes_clients_again_when_there_are_some(
    tmp_path: Path,
) -> None:
    files = Files(tmp_path)
    files.secret.rotate()
    few = ("sh", "-c", 'ulimit -n 32; exec "$@"', "sh")
    with started(files, *few) as webhook, ExitStack() as stack:
        webhook.await_line("certificate in use")
        for _ in range(30):
            address = (LOCALHOST, webhook.port)
            stack.enter_context(socket.create_connection(address, timeout=DEADLINE_S))
        webhook.await_line("connection not taken")
        assert webhook.ask(asking()).status == 200


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


@pytest.fixture(scope="module")
def server() -> Iterator[FakeAPIServer]:
    with FakeAPIServer() as server:
        yield server


@pytest.fixture(scope="module")
def webhook(
    server: FakeAPIServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[WebhookProcess]:
    """Give a webhook that can ask an API server, and where OpenShift's resource is switched on."""
    files = Files(tmp_path_factory.mktemp("webhook"))
    files.pools.show(worker=MIXED)
    files.secret.rotate()
    with started(files, after=("--api-server", server.url)) as webhook:
        webhook.await_line("certificate in use")
        yield webhook


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


class TestNamespaces:
    @pytest.fixture(autouse=True)
    def _annotated(self, server: FakeAPIServer) -> None:
        server.up()
        server.keep(NAMESPACE, {"metadata": {"name": "apps", "annotations": ALLOWED}})
        server.requests.clear()

    def test_a_pod_of_an_annotated_namespace_is_marked(
        self, webhook: WebhookProcess, server: FakeAPIServer
    ) -> None:
        document = mixing()
        response = answered(webhook, document)
        made = stored(document["request"]["object"], response)
        assert made["metadata"]["annotations"] == {"cpu-shared.crio.io/main": "enable"}
        assert made["spec"]["containers"][0]["resources"] == {
            "limits": {"cpu": "2", "memory": "1Gi", ENABLE_SHARED: "1"}
        }
        questions = server.count("get", "namespaces")
        assert webhook.ask(asking()).document["response"]["allowed"]
        assert server.count("get", "namespaces") == questions >= 1

    @pytest.mark.parametrize("metadata", [{}, {"annotations": None}, {"annotations": {"a": "b"}}])
    def test_a_pod_of_another_namespace_is_denied_and_the_next_one_asked_for_anew(
        self, webhook: WebhookProcess, server: FakeAPIServer, metadata: Any
    ) -> None:
        server.keep(NAMESPACE, {"metadata": metadata})
        message = answered(webhook, mixing())["status"]["message"]
        assert message.startswith("metadata.namespace: apps is not allowed to have")
        server.keep(NAMESPACE, {"metadata": {"annotations": ALLOWED}})
        assert answered(webhook, mixing())["allowed"]

    @pytest.mark.parametrize(
        ("status", "words"), [(403, "must grant get on namespaces"), (500, "500 InternalError")]
    )
    def test_a_refusal_keeps_the_pod_out(
        self, webhook: WebhookProcess, server: FakeAPIServer, status: int, words: str
    ) -> None:
        # For each try of `answered`; `up` forgets those that are left.
        server.refuse(status, "InternalError" if status == 500 else "Forbidden", times=1000)
        message = answered(webhook, mixing())["status"]["message"]
        assert "whether apps may have workload.openshift.io/enable-shared-cpus is not" in message
        assert words in message
        assert message.endswith("; then create the pod again")

    def test_a_silent_api_server_keeps_out_only_the_pods_that_need_it(
        self, webhook: WebhookProcess, server: FakeAPIServer
    ) -> None:
        server.slow()
        with webhook.client() as waiting:
            waiting.connection.request("POST", "/mutating-pods", json.dumps(mixing()), dict(JSON))
            eventually(lambda: server.count("get", "namespaces") == 1, "the API server is asked")
            assert webhook.ask(asking()).document["response"]["allowed"]
            message = waiting.answer().document["response"]["status"]["message"]
        assert "get namespaces: broken: " in message

    def test_an_api_server_that_never_comes_to_an_end_is_not_waited_for(
        self, tmp_path: Path
    ) -> None:
        files = Files(tmp_path)
        files.pools.show(worker=MIXED)
        files.secret.rotate()
        with Dripping() as server, started(files, after=("--api-server", server.url)) as webhook:
            webhook.await_line("certificate in use")
            message = webhook.ask(mixing()).document["response"]["status"]["message"]
        assert "the API server has not answered within 2 s; see why" in message

    def test_a_strange_namespace_is_not_asked_for(
        self, webhook: WebhookProcess, server: FakeAPIServer
    ) -> None:
        document = mixing()
        document["request"]["namespace"] = "../nodes"
        message = webhook.ask(document).document["response"]["status"]["message"]
        assert "no namespace can be called so" in message
        assert not server.requests

    def test_an_edit_of_the_pool_file_switches_it_off_and_on(
        self, webhook: WebhookProcess, server: FakeAPIServer
    ) -> None:
        def ours() -> bool:
            return "patch" in webhook.ask(mixing()).document["response"]

        webhook.files.pools.show(worker=POOLS)
        eventually(lambda: not ours(), "it is somebody else's")
        server.requests.clear()
        assert webhook.ask(mixing()).document["response"] == {"uid": "u-1", "allowed": True}
        assert not server.requests
        webhook.files.pools.show(worker=MIXED)
        eventually(ours, "it is ours again")


def test_a_webhook_that_can_ask_nobody_says_how_it_could(tmp_path: Path) -> None:
    files = Files(tmp_path)
    files.pools.show(worker=MIXED)
    files.secret.rotate()
    with started(files, "env", "-u", "KUBERNETES_SERVICE_HOST") as webhook:
        webhook.await_line("certificate in use")
        message = webhook.ask(mixing()).document["response"]["status"]["message"]
        assert "run it in a pod of the cluster, or with --api-server" in message
        assert webhook.ask(asking()).document["response"]["allowed"]


@pytest.mark.parametrize(
    ("prepare", "code", "told"),
    [
        (
            "sys.modules['uvicorn'] = None",
            2,
            "uvicorn is missing; in cpupool's folder: pip install '.[webhook]'",
        ),
        ("import socket; s = socket.create_server(('', 0)); port = s.getsockname()[1]", 1, "port "),
    ],
)
def test_what_keeps_it_from_starting_is_told_in_one_line(
    prepare: str, code: int, told: str
) -> None:
    script = (
        f"import sys; port = 0; {prepare}; from cpupool import cli;"
        "sys.exit(cli.main(['webhook', '--port', str(port), '--metrics-port', '0']))"
    )
    ended = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert ended.returncode == code
    assert told in ended.stderr
    assert ended.stderr.count("\n") == 1


class Here:
    """A webhook in this process, whose probes have a port."""

    def __init__(self, folder: Path) -> None:
        self.files = Files(folder)
        self.metrics = WebhookMetrics()
        self.health = Health()
        self.stop = threading.Event()

    @contextmanager
    def running(self) -> Iterator[None]:
        settings = Settings(
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


@pytest.fixture
def here(tmp_path: Path) -> Here:
    made = Here(tmp_path)
    made.files.pools.show(worker=POOLS)
    made.files.secret.rotate()
    return made


class TestProbes:
    def test_it_is_ready_while_it_has_a_certificate_and_is_not_asked_to_end(
        self, tmp_path: Path
    ) -> None:
        here = Here(tmp_path)
        with here.running():
            eventually(lambda: "cpupool certs" in here.page("/readyz")[1], "it says what it needs")
            assert here.page("/readyz")[0] == 503
            eventually(lambda: here.page("/healthz") == (200, "server: ok\nwebhook: ok\n"), "alive")
            here.files.secret.rotate()
            eventually(lambda: here.page("/readyz") == (200, "certificate: ok\n"), "it is ready")

    def test_it_is_not_ready_for_as_long_as_it_ends(self, here: Here) -> None:
        def slowly() -> Iterator[bytes]:
            """Send a request of which half is there when the end begins."""
            text = json.dumps(asking()).encode()
            yield text[:100]
            here.stop.set()
            eventually(lambda: "it is ending" in here.page("/readyz")[1], "it says so")
            for _ in range(3):
                assert here.page("/readyz")[0] == 503
                assert here.page("/healthz")[0] == 200
            yield text[100:]

        with here.running():
            eventually(lambda: here.page("/readyz")[0] == 200, "it is ready")
            assert here.ask(slowly()).status == 200

    @pytest.mark.parametrize("version", [None, 9])
    def test_a_pair_that_is_bad_is_kept_out_and_told_once(
        self, here: Here, version: int | None, caplog: pytest.LogCaptureFixture
    ) -> None:
        with here.running():
            eventually(lambda: here.page("/readyz")[0] == 200, "it is ready")
            bad = "no certificate"
            if version:
                good = ssl.PEM_cert_to_DER_cert(here.files.secret.certificate.read_text())
                of_version_3 = b"\xa0\x03\x02\x01\x02"
                changed = good.replace(of_version_3, of_version_3[:-1] + bytes([version]), 1)
                assert changed != good
                bad = ssl.DER_cert_to_PEM_cert(changed)
            here.files.secret.show(bad, here.files.secret.key.read_text())
            eventually(lambda: "certificate not taken" in caplog.text, "it says so")
            for _ in range(3):
                here.webhook.look()
            assert caplog.text.count("certificate not taken") == 1
            assert here.page("/readyz")[0] == 200
            assert here.ask(asking()).status == 200

    def test_a_key_that_cannot_be_read_is_told_with_what_to_do(self, tmp_path: Path) -> None:
        here = Here(tmp_path)
        here.files.secret.certificate.touch()
        here.files.secret.key.mkdir()
        with here.running():
            eventually(
                lambda: "tls.key: Is a directory; let this process" in here.page("/readyz")[1],
                "it says so",
            )

    def test_a_certificate_that_has_expired_is_told(
        self, here: Here, caplog: pytest.LogCaptureFixture
    ) -> None:
        pair = trustme.CA().issue_cert(LOCALHOST, not_after=datetime(2020, 1, 1, tzinfo=UTC))
        certificate = pair.cert_chain_pems[0].bytes().decode()
        with here.running():
            eventually(lambda: here.page("/readyz")[0] == 200, "it is ready")
            assert "expired" not in caplog.text
            here.files.secret.show(certificate, pair.private_key_pem.bytes().decode())
            eventually(lambda: "certificate has expired" in caplog.text, "it says so")


class TestMetrics:
    REVIEWS = "cpupool_admission_reviews_total"

    def test_reviews_are_counted_by_what_becomes_of_them(
        self, here: Here, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with here.running():
            eventually(lambda: here.page("/readyz")[0] == 200, "it is ready")
            here.ask(asking())
            here.ask(asking("exclusive-x"))
            here.ask(review(pod(container()), "UPDATE", old=pod(container())))
            here.ask(review(pod(), "DROP TABLE"))
            assert here.ask({}).status == 400
            with monkeypatch.context() as patched:
                patched.setattr("cpupool.admission.review.admit", lambda *_: 1 / 0)
                assert here.ask(asking()).status == 500
            for operation, decision, count in (
                ("CREATE", "mutated", 1),
                ("CREATE", "denied", 1),
                ("CREATE", "failed", 1),
                ("UPDATE", "allowed", 1),
                ("other", "allowed", 1),
                ("other", "unreadable", 1),
            ):
                labels = f'{{decision="{decision}",operation="{operation}"}}'
                assert here.measured(self.REVIEWS + labels) == count
            assert here.measured("cpupool_admission_review_duration_seconds_count") == 6
            assert here.measured('cpupool_https_refused_total{status="400"}') == 1
            assert here.measured('cpupool_https_refused_total{status="500"}') == 1
            assert "cpupool_containers" not in here.page("/metrics")[1]

    def test_the_pool_files_are_told_to_be_good_or_bad(self, here: Here) -> None:
        def valid(number: int) -> bool:
            return here.measured("cpupool_config_valid") == number

        with here.running():
            eventually(lambda: valid(1), "they are good")
            here.files.pools.show(worker=BAD)
            eventually(lambda: valid(0), "they are bad")
            here.files.pools.show()
            eventually(lambda: valid(1), "there are none")
            response = here.ask(asking("exclusive-x")).document["response"]
            assert response["allowed"]

    def test_the_certificates_end_is_told(self, here: Here) -> None:
        # trustme's certificates are good until 2999 is over.
        with here.running():
            eventually(
                lambda: here.measured("cpupool_certificate_expiry_timestamp_seconds") > 3e10,
                "its end",
            )


class TestLog:
    def test_what_is_done_to_a_pod_is_told_in_one_line_with_who_asked(
        self, here: Here, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level("INFO", "cpupool")
        with here.running():
            eventually(lambda: here.page("/readyz")[0] == 200, "it is ready")
            caplog.clear()
            here.ask(asking(dryRun=True))
            here.ask(asking("exclusive-x"))
            here.ask(review(pod(container())))
            hostile = asking() | {}
            hostile["request"] |= {"userInfo": {"username": "a\nb c"}, "namespace": 5}
            here.ask(hostile)
        lines = [line for line in caplog.messages if line.startswith("pod ")]
        user = "user=system:serviceaccount:apps:deployer"
        assert lines[0] == f"pod completed pod=apps/a {user} operation=CREATE dry_run=true"
        assert lines[1].startswith(f"pod denied pod=apps/a {user} operation=CREATE reason=")
        assert lines[2:] == ['pod completed pod=5/a user="a\\nb c" operation=CREATE']
