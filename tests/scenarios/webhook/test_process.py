from __future__ import annotations

import json
import logging
import signal
import socket
import threading
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from tests import policies
from tests.apiserver import FakeAPIServer
from tests.certificates import uses_library
from tests.pods import container, pod, review, stored
from tests.scenarios.webhook.processes import (
    BAD,
    MORE,
    POOLS,
    Files,
    WebhookProcess,
    asking,
    started,
)
from tests.waiting import DEADLINE_S, eventually
from tests.webhooks import LOCALHOST, Client

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


log = logging.getLogger(__name__)


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

    def test_the_longest_notice_follows_the_pools_at_creation_and_at_a_later_edit(
        self, process: WebhookProcess
    ) -> None:
        before, body = pod(container()), pod(container())
        body["metadata"]["annotations"] = {"nokia.k8s.io/cpu-notice-seconds": "60"}

        def allowed() -> list[bool]:
            reviews = (review(body), review(body, "UPDATE", old=before))
            return [process.ask(each).document["response"]["allowed"] for each in reviews]

        assert allowed() == [False, False]
        dynamic = "cpuManager: {policy: dynamic, reserved: 1, maxNoticeSeconds: 60}\n"
        process.files.pools.show(worker=POOLS + dynamic)
        eventually(lambda: allowed() == [True, True], "the longer notice is known")
        process.files.pools.show(worker=POOLS)
        eventually(lambda: allowed() == [False, False], "the usual notice counts")

    def test_a_policy_that_is_unknown_here_stops_no_pool_file(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("PYTHONPATH", policies.installed(tmp_path))
        files = Files(tmp_path)
        elsewhere = "nodeSelector: {a: b}\npools: {shared-c: {cpus: 9}}\n"
        files.pools.show(
            worker=POOLS + "cpuManager: {policy: highest}\n",
            other=elsewhere + "cpuManager:\n  policy: nowhere\n",
        )
        files.secret.rotate()
        with started(files) as webhook:
            webhook.await_line("certificate in use")
            for pool, known in (("exclusive-a", True), ("shared-c", True), ("shared-d", False)):
                response = webhook.ask(asking(pool)).document["response"]
                assert response["allowed"] == known, response
        assert "poolconfig-other.yaml:4:11: cpuManager.policy: unknown" in webhook.log
        assert "highest; " not in webhook.log
        assert "refused" not in webhook.log

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

    def test_the_library_that_makes_certificates_is_not_in_it(
        self, process: WebhookProcess
    ) -> None:
        assert process.ask(asking()).status == 200
        assert not uses_library(process.process.pid)

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
        waits = webhook.await_line("certificate not taken")
        assert "wait for `cpupool certs`" in waits
        assert "elsewhere give --tls-cert-file" in waits
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
