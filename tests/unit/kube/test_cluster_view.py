from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from cpupool.core.names import Names
from cpupool.kube.client import APIServer
from cpupool.kube.cluster_view import ClusterView
from cpupool.telemetry.metrics import Metrics
from tests.apiserver import FakeAPIServer
from tests.loops import running_all
from tests.waiting import DEADLINE_S, eventually

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import pytest


def body(name: str, **spec: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "uid": f"{name}-uid"},
        "spec": {"containers": [{"name": "main"}], **spec},
    }


@contextmanager
def joined(
    server: FakeAPIServer, node: str, pods_changed: Callable[[], None] = lambda: None
) -> Iterator[tuple[ClusterView, threading.Event]]:
    changed = threading.Event()
    api = APIServer.at(server.url)
    cluster = ClusterView(api, node, Names(), Metrics(), changed.set, pods_changed=pods_changed)
    with running_all(cluster):
        yield cluster, changed


def test_a_node_knows_its_own_pods_and_labels() -> None:
    with FakeAPIServer("node-a", {"nodeType": "dpdk"}) as server:
        server.set_pods([body("web"), body("other", nodeName="node-b")])
        with joined(server, "node-a") as (cluster, changed):
            eventually(lambda: cluster.labels() and cluster.pods(), "both lists")
            assert [pod.name for pod in cluster.pods() or ()] == ["web"]
            assert cluster.labels() == {"nodeType": "dpdk"}
            changed.clear()
            server.set_labels({"nodeType": "plain"})
            eventually(lambda: cluster.labels() == {"nodeType": "plain"}, "the label")
            assert changed.wait(DEADLINE_S)
            cluster.events.node("Odd", "one")
            eventually(lambda: server.events, "the Event")


def test_a_pod_is_no_change_of_labels_or_of_the_config_map() -> None:
    pods_changed = threading.Event()
    with (
        FakeAPIServer("node-a") as server,
        joined(server, "node-a", pods_changed.set) as (_, changed),
    ):
        eventually(lambda: changed.is_set() and pods_changed.is_set(), "both lists")
        pods_changed.clear()
        changed.clear()
        server.set_pods([body("web")])
        assert pods_changed.wait(DEADLINE_S)
        assert not changed.is_set()


def test_it_asks_for_no_more_than_its_rights() -> None:
    with FakeAPIServer("node-a") as server, joined(server, "node-a") as (cluster, _):
        cluster.events.node("Odd", "one")
        eventually(
            lambda: server.watching("pods") and server.watching("nodes") and server.events,
            "everything that there is to ask",
        )
        assert server.verbs() == {
            ("list", "pods"),
            ("watch", "pods"),
            ("list", "nodes"),
            ("watch", "nodes"),
            ("create", "events"),
        }
        selectors = {
            (asked.resource, asked.parameters["fieldSelector"])
            for asked in server.requests
            if asked.verb != "create"
        }
        assert selectors == {("pods", "spec.nodeName=node-a"), ("nodes", "metadata.name=node-a")}


def test_a_node_that_is_not_there_has_no_labels(caplog: pytest.LogCaptureFixture) -> None:
    with FakeAPIServer("node-a") as server, joined(server, "typo") as (cluster, _):
        eventually(lambda: "no such node" in caplog.text, "a word on the node's name")
        eventually(lambda: cluster.pods() == (), "the pods")
        assert cluster.labels() is None


def test_before_the_api_server_answers_nothing_is_known() -> None:
    with FakeAPIServer("node-a") as server:
        server.slow()
        with joined(server, "node-a") as (cluster, changed):
            eventually(lambda: len(server.requests) == 2, "both lists are asked for")
            assert (cluster.pods(), cluster.labels()) == (None, None)
            assert not changed.is_set()
