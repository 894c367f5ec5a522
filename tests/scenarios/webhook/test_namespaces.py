from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from tests.apiserver import FakeAPIServer
from tests.pods import stored
from tests.scenarios.webhook.processes import (
    ALLOWED,
    ENABLE_SHARED,
    MIXED,
    NAMESPACE,
    POOLS,
    Dripping,
    Files,
    WebhookProcess,
    answered,
    asking,
    mixing,
    started,
)
from tests.waiting import DEADLINE_S, eventually
from tests.webhooks import JSON

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


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


def test_a_webhook_that_can_ask_no_server_says_how_it_could(tmp_path: Path) -> None:
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
def test_what_keeps_it_from_starting_is_reported_in_one_line(
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
