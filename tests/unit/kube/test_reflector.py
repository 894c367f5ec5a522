from __future__ import annotations

import json
import logging
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from cpupool.core.errors import ManifestError
from cpupool.kube import connection
from cpupool.kube.client import APIServer
from cpupool.kube.reflector import Reflector
from cpupool.kube.resources import CONFIG_MAPS, PODS, WEBHOOK_CONFIGURATIONS, Resource
from cpupool.telemetry.metrics import Metrics
from tests.apiserver import FakeAPIServer
from tests.loops import running
from tests.waiting import DEADLINE_S, eventually

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from cpupool.kube.resources import APIPath

NODE = "node-a"


def body(name: str, value: str = "1", node: str = NODE) -> dict[str, Any]:
    """Make a body of which the tests keep `value`."""
    return {
        "metadata": {"name": name, "uid": f"{name}-uid"},
        "spec": {"nodeName": node, "v": value},
    }


def kept(given: Mapping[str, Any]) -> tuple[str, str]:
    value = given["spec"]["v"]
    if not isinstance(value, str):
        raise ManifestError(given["metadata"]["name"], "spec.v", "is no text")
    return given["metadata"]["name"], value


class Followed:
    """A reflector that runs, and how often it said that something has changed."""

    def __init__(self, url: str, *, answer_s: float = DEADLINE_S, watch_s: float = 240.0) -> None:
        self.metrics = Metrics()
        self.changes = 0
        self.stop = threading.Event()
        self.reflector = Reflector(
            APIServer(url, answer_s=answer_s),
            PODS.collection(),
            kept,
            fields=f"spec.nodeName={NODE}",
            changed=self._changed,
            restarted=self.metrics.watch_restarted,
            watch_s=watch_s,
        )
        self.thread = threading.Thread(target=self.reflector.run, args=(self.stop,))

    def known(self) -> dict[str, str]:
        return dict(self.reflector.items() or ())

    def restarts(self, reason: str) -> bool:
        wanted = f'cpupool_watch_restarts_total{{reason="{reason}",resource="pods"}}'
        return wanted in self.metrics.render()[1].decode()

    def end(self) -> None:
        self.stop.set()
        self.reflector.wake()
        self.thread.join(DEADLINE_S)
        assert not self.thread.is_alive()

    def _changed(self) -> None:
        self.changes += 1


@contextmanager
def following(url: str, **more: Any) -> Iterator[Followed]:
    followed = Followed(url, **more)
    followed.thread.start()
    try:
        yield followed
    finally:
        followed.end()


@pytest.fixture
def server() -> Iterator[FakeAPIServer]:
    with FakeAPIServer(NODE) as fake:
        fake.set_pods([body("a"), body("b"), body("other", node="node-b")])
        yield fake


def expect(followed: Followed, **values: str) -> None:
    eventually(lambda: followed.known() == values, lambda: f"{values}, not {followed.known()}")


def test_nothing_is_known_until_a_complete_list_is(server: FakeAPIServer) -> None:
    server.page = 1
    with following(server.url) as followed:
        assert followed.reflector.synced.wait(DEADLINE_S)
        expect(followed, a="1", b="1")
    assert followed.changes == 1
    assert Followed(server.url).reflector.items() is None
    lists = [asked.parameters for asked in server.requests if asked.verb == "list"]
    assert [sorted(asked) for asked in lists] == [
        ["fieldSelector", "limit", "resourceVersion"],
        ["continue", "fieldSelector", "limit"],
    ]
    assert lists[0]["resourceVersion"] == "0"
    assert {asked["fieldSelector"] for asked in lists} == {"spec.nodeName=node-a"}


def test_changes_arrive_through_one_watch_and_no_further_list(server: FakeAPIServer) -> None:
    with following(server.url) as followed:
        expect(followed, a="1", b="1")
        server.set_pods([body("a", "2"), body("b")])
        expect(followed, a="2", b="1")
        server.set_pods([body("b"), body("c")])
        expect(followed, b="1", c="1")
    assert followed.changes == 4
    assert (server.count("list", "pods"), server.count("watch", "pods")) == (1, 1)


def test_a_change_that_makes_no_difference_wakes_no_role(server: FakeAPIServer) -> None:
    with following(server.url) as followed:
        expect(followed, a="1", b="1")
        server.set_pods([{**body("a"), "status": {"phase": "Running"}}, body("b")])
        server.set_pods([{**body("a"), "status": {"phase": "Running"}}, body("b", "2")])
        expect(followed, a="1", b="2")
    assert followed.changes == 2


def test_a_watch_goes_on_from_the_last_bookmark(server: FakeAPIServer) -> None:
    with following(server.url) as followed:
        expect(followed, a="1", b="1")
        eventually(lambda: server.watching("pods"), "a watch")
        server.bookmark("pods")
        server.end_watches()
        eventually(lambda: server.count("watch", "pods") == 2, "a second watch")
        first, second = (one.parameters for one in server.requests if one.verb == "watch")
        assert int(second["resourceVersion"]) > int(first["resourceVersion"])
        assert first["allowWatchBookmarks"] == "true"
        assert 240 <= int(first["timeoutSeconds"]) <= 264
        assert followed.restarts("ended")
    assert server.count("list", "pods") == 1


def test_what_happens_between_two_watches_is_not_lost(server: FakeAPIServer) -> None:
    with following(server.url) as followed:
        expect(followed, a="1", b="1")
        eventually(lambda: server.watching("pods"), "a watch")
        server.down()
        server.set_pods([body("a", "2")])
        server.set_pods([body("a", "3")])
        eventually(lambda: followed.restarts("unreachable"), "a connection refused")
        assert followed.known() == {"a": "1", "b": "1"}
        server.up()
        expect(followed, a="3")
    assert server.count("list", "pods") == 1


@pytest.mark.parametrize("mid_line", [b"", b'{"type":"MODIFIED","object":{"metadata":{"uid'])
def test_a_dropped_connection_costs_nothing(
    server: FakeAPIServer, mid_line: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    with following(server.url) as followed:
        expect(followed, a="1", b="1")
        eventually(lambda: server.watching("pods"), "a watch")
        server.drop_watches(mid_line)
        server.set_pods([body("a", "2")])
        expect(followed, a="2")
        eventually(lambda: followed.restarts("broken"), "the drop is counted")
        assert not caplog.records
    assert server.count("list", "pods") == 1


@pytest.mark.parametrize("as_status", [False, True])
def test_a_lost_version_calls_for_a_list_that_replaces_everything(
    server: FakeAPIServer, as_status: bool
) -> None:
    with following(server.url) as followed:
        expect(followed, a="1", b="1")
        eventually(lambda: server.watching("pods"), "a watch")
        server.down()
        server.set_pods([body("b", "2"), body("c")])
        server.gone(as_status=as_status)
        server.up()
        expect(followed, b="2", c="1")
        assert followed.restarts("410")
    lists = [asked.parameters for asked in server.requests if asked.verb == "list"]
    # Not from a cache: it may be older than what was seen.
    assert "resourceVersion" not in lists[-1]


def test_a_lost_version_is_answered_at_once_however_long_the_server_was_away(
    server: FakeAPIServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    impatient = True
    monkeypatch.setattr("cpupool.kube.connection.LONGEST_PAUSE_S", 3600.0)
    monkeypatch.setattr("random.uniform", lambda low, high: low if impatient else high)
    with following(server.url) as followed:
        expect(followed, a="1", b="1")
        eventually(lambda: server.watching("pods"), "a watch")
        server.refuse(500, times=14)
        server.drop_watches()
        eventually(lambda: server.count("watch", "pods") >= 16, "many failures and a watch")
        eventually(lambda: server.watching("pods"), "the watch")
        impatient = False
        server.gone()
        eventually(lambda: followed.restarts("410"), "the loss is noticed")
        server.set_pods([body("c")])
        expect(followed, c="1")


def test_a_running_watch_learns_that_its_version_is_gone(server: FakeAPIServer) -> None:
    with following(server.url) as followed:
        expect(followed, a="1", b="1")
        eventually(lambda: server.watching("pods"), "a watch")
        server.gone()
        eventually(lambda: followed.restarts("410"), "the loss is noticed")
        server.set_pods([body("a", "2"), body("b")])
        expect(followed, a="2", b="1")
        assert server.count("list", "pods") == 2
        eventually(lambda: server.watching("pods"), "a watch")
        server.gone()
        eventually(lambda: server.count("watch", "pods") >= 3, "a list and a watch")
    assert followed.changes == 2


def test_a_version_from_the_future_calls_for_a_list(server: FakeAPIServer) -> None:
    causes = [{"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}]
    status = {"code": 504, "reason": "Timeout", "details": {"causes": causes}}
    with following(server.url) as followed:
        expect(followed, a="1", b="1")
        eventually(lambda: server.watching("pods"), "a watch")
        server.send("pods", error_line(status))
        eventually(lambda: server.count("list", "pods") == 2, "a second list")


def error_line(status: Mapping[str, Any]) -> bytes:
    return json.dumps({"type": "ERROR", "object": status}).encode()


@pytest.mark.parametrize(
    "line",
    [
        b"this is not JSON",
        b"[]",
        b"\xff\xfe",
        b'{"type":"ADDED"}',
        b'{"type":"ADDED","object":[]}',
        b'{"type":"ADDED","object":{"spec":{}}}',
        b'{"type":"ADDED","object":{"metadata":{"uid":"x"}}}',
        b'{"type":"ADDED","object":{"metadata":{"name":"x","resourceVersion":"8"},"spec":{"v":"1"}}}',
        b'{"type":"ADDED","object":{"metadata":{"uid":7,"resourceVersion":"8"}}}',
        b'{"type":[],"object":{"metadata":{"uid":"x","resourceVersion":"8"}}}',
        b'{"type":"SHUFFLED","object":{"metadata":{"uid":"x","resourceVersion":"8"}}}',
        b'{"a":' * 100_000,
    ],
)
def test_an_event_that_is_none_calls_for_a_list(server: FakeAPIServer, line: bytes) -> None:
    with following(server.url) as followed:
        expect(followed, a="1", b="1")
        eventually(lambda: server.watching("pods"), "a watch")
        server.send("pods", line)
        eventually(lambda: followed.restarts("malformed"), "the event is refused")
        server.set_pods([body("a", "2")])
        expect(followed, a="2")
    assert server.count("list", "pods") == 2


def test_an_endless_event_is_cut_off(
    server: FakeAPIServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "LONGEST_LINE_BYTES", 100_000)
    with following(server.url) as followed:
        expect(followed, a="1", b="1")
        eventually(lambda: server.watching("pods"), "a watch")
        long = body("a", "x" * 200_000)
        long["metadata"]["resourceVersion"] = "200"
        server.send("pods", json.dumps({"type": "MODIFIED", "object": long}).encode())
        eventually(lambda: server.count("list", "pods") == 2, "a second list")
        assert followed.known() == {"a": "1", "b": "1"}


def test_an_event_may_come_in_many_pieces(server: FakeAPIServer) -> None:
    with following(server.url) as followed:
        expect(followed, a="1", b="1")
        server.set_pods([body("a", "x" * 300_000), body("b")])
        expect(followed, a="x" * 300_000, b="1")
        server.set_pods([body("a", "2"), body("b")])
        expect(followed, a="2", b="1")
    assert server.count("list", "pods") == 1


def test_an_odd_body_hides_no_other_and_keeps_what_was_known(
    server: FakeAPIServer, caplog: pytest.LogCaptureFixture
) -> None:
    odd = body("a")
    odd["spec"]["v"] = 7
    strange = body("c")
    strange["spec"]["v"] = None
    with caplog.at_level(logging.WARNING), following(server.url) as followed:
        expect(followed, a="1", b="1")
        server.set_pods([odd, strange, body("b", "2")])
        expect(followed, a="1", b="2")
        server.gone()
        eventually(lambda: server.count("list", "pods") == 2, "a second list")
        server.set_pods([odd, strange, body("b", "3")])
        expect(followed, a="1", b="3")
        told = [one.getMessage() for one in caplog.records if "cannot be read" in one.getMessage()]
        assert [("a: spec.v" in one, "c: spec.v" in one) for one in told] == [
            (True, False),
            (False, True),
        ]
        server.set_pods([body("a", "2")])
        expect(followed, a="2")


def test_a_server_that_falls_silent_is_given_up(server: FakeAPIServer) -> None:
    with following(server.url, answer_s=1.0, watch_s=1.0) as followed:
        eventually(lambda: server.watching("pods"), "a watch")
        server.slow()
        eventually(lambda: followed.restarts("broken"), "the silence is noticed")
        server.set_pods([body("a", "2")])
        server.up()
        expect(followed, a="2")


@pytest.mark.parametrize(
    ("status", "reason", "advice"),
    [
        (401, "Unauthorized", "token is mounted"),
        (403, "Forbidden", "must grant watch on pods"),
        (429, "TooManyRequests", "tried again"),
        (500, "InternalError", "tried again"),
    ],
)
def test_a_refusal_is_reported_once_with_its_remedy_and_survived(
    server: FakeAPIServer,
    caplog: pytest.LogCaptureFixture,
    status: int,
    reason: str,
    advice: str,
) -> None:
    with caplog.at_level(logging.INFO), following(server.url) as followed:
        expect(followed, a="1", b="1")
        eventually(lambda: server.watching("pods"), "a watch")
        server.refuse(status, reason, times=4)
        server.end_watches()
        eventually(lambda: server.count("watch", "pods") == 6, "four refusals, then a watch")
        server.set_pods([body("a", "2")])
        expect(followed, a="2")
        assert followed.restarts(str(status))
    warned = [one.getMessage() for one in caplog.records if one.levelno == logging.WARNING]
    assert len(warned) == 1
    assert f"watch pods: {status} {reason}" in warned[0]
    assert advice in warned[0]
    assert any("answers again" in one.getMessage() for one in caplog.records)
    assert server.count("list", "pods") == 1


def test_a_page_that_no_api_server_wrote_is_survived(server: FakeAPIServer) -> None:
    server.refuse(502, body=b"<html>Bad gateway")
    server.refuse(200, body=b"<html>Log in here")
    server.refuse(200, body=b'{"items": 7, "metadata": {}}')
    server.refuse(200, body=b'{"items": [], "metadata": {}}')
    server.refuse(200, body=b'{"items": [{}], "metadata": {"resourceVersion": "1"}}')
    with following(server.url) as followed:
        expect(followed, a="1", b="1")
        assert followed.restarts("malformed")
        assert followed.restarts("502")
    assert server.count("list", "pods") == 6


def test_a_server_that_asks_for_time_gets_it(server: FakeAPIServer) -> None:
    # A long time: were it not kept, the list would be there long before the end of this test.
    server.refuse(429, "TooManyRequests", headers={"Retry-After": "30"})
    with following(server.url) as followed:
        eventually(lambda: followed.restarts("429"), "the refusal")
        assert not followed.reflector.synced.wait(0.5)
        followed.reflector.wake()
        expect(followed, a="1", b="1")


@pytest.mark.parametrize("state", ["watching", "silent", "away"])
def test_it_ends_at_once_whatever_it_waits_for(server: FakeAPIServer, state: str) -> None:
    with following(server.url, answer_s=10 * DEADLINE_S) as followed:
        if state == "watching":
            eventually(lambda: server.watching("pods"), "a watch")
        elif state == "silent":
            server.slow()
        else:
            expect(followed, a="1", b="1")
            server.down()
            eventually(lambda: followed.restarts("unreachable"), "a connection refused")
        followed.end()


def test_waking_does_not_lose_the_place(server: FakeAPIServer) -> None:
    with following(server.url) as followed:
        expect(followed, a="1", b="1")
        for _ in range(3):
            eventually(lambda: server.watching("pods"), "a watch")
            followed.reflector.wake()
        server.set_pods([body("a", "2")])
        expect(followed, a="2")
    assert server.count("list", "pods") == 1


@pytest.mark.parametrize(
    "collection",
    [
        CONFIG_MAPS.collection("cpupool"),
        WEBHOOK_CONFIGURATIONS.collection(),
    ],
)
def test_a_single_object_is_followed_through_its_deletion(
    server: FakeAPIServer, collection: APIPath
) -> None:
    changed = threading.Semaphore(0)
    reflector = Reflector(
        APIServer.at(server.url),
        collection,
        kept,
        fields="metadata.name=wanted",
        changed=changed.release,
    )
    server.keep(f"{collection.text}/other", body("other"))
    with running(reflector.run, wake=reflector.wake):
        known: list[object] = []
        for there in (False, True, False, True):
            if there:
                server.keep(f"{collection.text}/wanted", body("wanted"))
            elif known:
                server.forget(f"{collection.text}/wanted")
            assert changed.acquire(timeout=DEADLINE_S)
            known.append(reflector.items())
    assert known == [(), (("wanted", "1"),), (), (("wanted", "1"),)]


def test_a_whole_cluster_is_followed_and_only_what_is_converted_is_kept() -> None:
    with FakeAPIServer(admin=True) as server:
        server.page = 2
        server.set_pods([body(name, node=f"node-{name}") for name in "abc"])
        reflector = Reflector(
            APIServer.at(server.url),
            PODS.collection(),
            lambda given: given["spec"]["nodeName"],
            changed=lambda: None,
        )
        with running(reflector.run, wake=reflector.wake):
            eventually(lambda: reflector.items() == ("node-a", "node-b", "node-c"), "all pods")
            eventually(lambda: server.watching("pods"), "a watch")
            server.keep("/api/v1/namespaces/web/pods/d", body("d", node="node-d"))
            eventually(lambda: len(reflector.items() or ()) == 4, "a pod of another namespace")
    asked = [request.parameters for request in server.requests]
    assert len(asked) == 3
    assert not any({"fieldSelector", "labelSelector"} & parameters.keys() for parameters in asked)


def test_a_label_selector_narrows_a_namespace() -> None:
    leases = Resource("coordination.k8s.io", "v1", "leases")

    def keep(api: FakeAPIServer, namespace: str, name: str, **labels: str) -> None:
        path = leases.object(name, namespace).text
        api.keep(path, {"metadata": {"labels": labels}})

    with FakeAPIServer(admin=True) as api:
        keep(api, "web", "ours", app="cpupool")
        keep(api, "web", "theirs", app="other")
        keep(api, "db", "elsewhere", app="cpupool")
        reflector = Reflector(
            APIServer.at(api.url),
            leases.collection("web"),
            lambda given: given["metadata"]["name"],
            labels="app=cpupool",
            changed=lambda: None,
        )
        with running(reflector.run, wake=reflector.wake):
            eventually(lambda: reflector.items() == ("ours",), "the list")
            eventually(lambda: api.watching("leases"), "a watch")
            keep(api, "web", "another", app="other")
            keep(api, "web", "second", app="cpupool")
            eventually(lambda: reflector.items() == ("ours", "second"), "the second")
    assert {request.parameters["labelSelector"] for request in api.requests} == {"app=cpupool"}
