"""One ConfigMap, followed at an API server in small."""

from __future__ import annotations

import base64
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from cpupool.kube.client import APIServer
from cpupool.kube.config_map import ConfigMapName, ConfigMapWatch
from cpupool.telemetry.metrics import Metrics
from tests.apiserver import FakeAPIServer
from tests.loops import running
from tests.waiting import DEADLINE_S, eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

NAME = ConfigMapName("cpupool", "cpu-pooler-configmap")
PATH = "/api/v1/namespaces/cpupool/configmaps/cpu-pooler-configmap"
KEY = "poolconfig-a.yaml"


@pytest.fixture
def server() -> Iterator[FakeAPIServer]:
    with FakeAPIServer() as fake:
        fake.keep_config_map(PATH, a="1")
        yield fake


def watch(server: FakeAPIServer, changed: threading.Event | None = None) -> ConfigMapWatch:
    return ConfigMapWatch(
        APIServer.at(server.url),
        NAME,
        changed=(changed or threading.Event()).set,
        restarted=Metrics().watch_restarted,
    )


@contextmanager
def following(
    server: FakeAPIServer, changed: threading.Event | None = None
) -> Iterator[ConfigMapWatch]:
    watched = watch(server, changed)
    with running(watched.run, wake=watched.wake):
        yield watched


def expect(watched: ConfigMapWatch, text: str) -> None:
    eventually(lambda: watched.entries() == {KEY: text.encode()}, lambda: f"{watched.entries()}")


def test_each_edit_arrives_and_only_this_object_is_asked_for(server: FakeAPIServer) -> None:
    changed = threading.Event()
    with following(server, changed) as watched:
        watched.wait(DEADLINE_S)
        expect(watched, "1")
        changed.clear()
        server.keep_config_map(PATH, a="2")
        assert changed.wait(DEADLINE_S)
        expect(watched, "2")
        eventually(lambda: server.watching("configmaps"), "a watch")
    assert server.verbs() == {("list", "configmaps"), ("watch", "configmaps")}
    selectors = {asked.parameters["fieldSelector"] for asked in server.requests}
    assert selectors == {"metadata.name=cpu-pooler-configmap"}
    # The cache of one of several API servers may be older than what another one has shown.
    assert "resourceVersion" not in server.requests[0].parameters


def test_what_is_no_text_is_read_as_the_folder_shows_it(server: FakeAPIServer) -> None:
    binary = base64.b64encode(b"\xff\xfe").decode()
    data = {"a": "é", "half": "\ud800"}
    server.keep(PATH, {"kind": "ConfigMap", "data": data, "binaryData": {"b": binary}})
    with following(server) as watched:
        watched.wait(DEADLINE_S)
        half = b"\xed\xa0\x80"
        assert watched.entries() == {"a": "é".encode(), "half": half, "b": b"\xff\xfe"}


def test_a_body_that_cannot_be_read_changes_nothing(
    server: FakeAPIServer, caplog: pytest.LogCaptureFixture
) -> None:
    with following(server) as watched:
        expect(watched, "1")
        server.keep(PATH, {"kind": "ConfigMap", "binaryData": {"b": "no base64"}})
        eventually(lambda: "is no base64" in caplog.text, "a word on it")
        expect(watched, "1")


def test_a_lost_watch_a_missing_right_and_a_deletion_change_nothing(
    server: FakeAPIServer, caplog: pytest.LogCaptureFixture
) -> None:
    with following(server) as watched:
        expect(watched, "1")
        eventually(lambda: server.watching("configmaps"), "a watch")
        server.down()
        server.up()
        eventually(lambda: server.watching("configmaps"), "a watch again")
        expect(watched, "1")

        server.forget(PATH)
        eventually(lambda: "there is no such ConfigMap" in caplog.text, "a word on its end")
        assert "check --configmap" in caplog.text
        expect(watched, "1")
        server.keep_config_map(PATH, a="2")
        expect(watched, "2")

        server.forbidden = {("list", "configmaps"), ("watch", "configmaps")}
        server.end_watches()
        eventually(lambda: "must grant watch on configmaps" in caplog.text, "the remedy")
        asked = server.count("watch", "configmaps")
        eventually(lambda: server.count("watch", "configmaps") > asked, "another try")
        assert caplog.text.count("must grant watch on configmaps") == 1
        expect(watched, "2")
        server.keep_config_map(PATH, a="3")
        server.forbidden = set()
        expect(watched, "3")


def test_without_the_right_from_the_start_nothing_is_known(
    server: FakeAPIServer, caplog: pytest.LogCaptureFixture
) -> None:
    server.forbidden = {("list", "configmaps")}
    with following(server) as watched:
        eventually(lambda: "must grant list on configmaps" in caplog.text, "the remedy")
        assert watched.entries() is None


def test_waiting_ends_with_the_end(server: FakeAPIServer) -> None:
    server.slow("configmaps")
    watched = watch(server)
    waiting = threading.Thread(target=watched.wait, args=(DEADLINE_S,))
    waiting.start()
    watched.wake()
    waiting.join(DEADLINE_S)
    assert not waiting.is_alive()
    assert watched.entries() is None
