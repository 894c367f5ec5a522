from __future__ import annotations

import json
import threading
from typing import TYPE_CHECKING

import pytest

from cpupool.kube.client import APIError, APIServer
from cpupool.kube.connection import APIConnection
from cpupool.kube.resources import NODES, PODS, Resource
from tests.apiserver import FakeAPIServer
from tests.apiserver.http import Listener
from tests.waiting import DEADLINE_S, eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.apiserver.http import Handler


@pytest.fixture
def server() -> Iterator[FakeAPIServer]:
    with FakeAPIServer() as fake:
        yield fake


def test_a_refusal_carries_the_servers_words_and_a_remedy(server: FakeAPIServer) -> None:
    server.refuse(403, "Forbidden")
    with pytest.raises(APIError) as refused:
        APIConnection(APIServer.at(server.url)).page(NODES.collection(), {})
    error = refused.value
    assert (error.status, error.reason, error.version_lost) == (403, "Forbidden", False)
    assert str(error) == (
        "API server: list nodes: 403 Forbidden: refused by the test; apply this pod's RBAC, which"
        " must grant list on nodes"
    )


def test_a_turn_begins_uninterrupted_and_the_last_one_has_a_beat_before(
    server: FakeAPIServer,
) -> None:
    connection, stop, beats = APIConnection(APIServer.at(server.url)), threading.Event(), []
    connection.interrupt()
    for _ in connection.turns(stop, lambda: beats.append(connection.interrupted)):
        assert not connection.interrupted
        if len(beats) == 2:
            stop.set()
        connection.interrupt()

    assert beats == [True, True, True]
    assert not connection.interrupted


def test_an_object_that_is_gone_is_no_fault_of_the_address(server: FakeAPIServer) -> None:
    # As Kubernetes 1.36 answers.
    gone = {
        "kind": "Status",
        "reason": "NotFound",
        "message": 'nodes "a" not found',
        "details": {"name": "a", "kind": "nodes"},
        "code": 404,
    }
    server.refuse(404, body=json.dumps(gone).encode())
    server.refuse(404, body=b"404 page not found")
    connection = APIConnection(APIServer.at(server.url))
    refusals = []
    for _ in range(2):
        with pytest.raises(APIError) as refused:
            connection.get(NODES.object("a"))
        refusals.append(str(refused.value))
    assert refusals[0].endswith('nodes "a" not found; it was deleted, or never was there')
    assert refusals[1].endswith("check that --api-server names the API server")


def test_a_long_refusal_is_cut_short(server: FakeAPIServer) -> None:
    server.refuse(500, body=b"<html>" + b"x" * 200_000)
    with pytest.raises(APIError) as refused:
        APIConnection(APIServer.at(server.url)).page(NODES.collection(), {})
    assert len(str(refused.value)) < 500


def test_the_time_that_a_server_asks_for_is_known(server: FakeAPIServer) -> None:
    for header in ("7", "soon", "7200", "9" * 400):
        server.refuse(429, "TooManyRequests", headers={"Retry-After": header})
    connection = APIConnection(APIServer.at(server.url))
    waits = []
    for _ in range(4):
        with pytest.raises(APIError) as refused:
            connection.page(NODES.collection(), {})
        waits.append(refused.value.retry_after_s)
    assert waits == [7, 0, 3600, 3600]


def test_a_server_that_is_not_there_is_distinguished_from_a_broken_answer(
    server: FakeAPIServer,
) -> None:
    connection = APIConnection(APIServer(server.url, answer_s=0.1))
    server.slow()
    with pytest.raises(APIError) as silent:
        connection.page(NODES.collection(), {})
    server.down()
    with pytest.raises(APIError, match="check that the API server runs") as refused:
        connection.page(NODES.collection(), {})
    assert (silent.value.reason, refused.value.reason) == ("broken", "unreachable")


def test_each_object_of_a_page_is_taken_before_the_next_one_is_there() -> None:
    first, waited = threading.Event(), []

    def answer(handler: Handler, _method: str) -> None:
        handler.send_response(200)
        handler.end_headers()
        handler.wfile.write(b'{"metadata": {"resourceVersion": "1"}, "items": ["a"')
        waited.append(first.wait(DEADLINE_S))
        handler.wfile.write(b', "b"]}')
        handler.close_connection = True

    def take(item: object) -> None:
        taken.append(item)
        first.set()

    taken: list[object] = []
    listener = Listener(answer, tls=None)
    listener.start()
    try:
        connection = APIConnection(APIServer.at(listener.url))
        page = connection.visit(PODS.collection(), {}, take)
    finally:
        listener.stop()
        listener.hang_up()
    assert page == {"metadata": {"resourceVersion": "1"}}
    assert taken == ["a", "b"]
    assert waited == [True]


def test_an_interruption_ends_a_request_that_waits(server: FakeAPIServer) -> None:
    connection = APIConnection(APIServer(server.url, answer_s=10 * DEADLINE_S))
    server.slow()
    errors: list[APIError] = []

    def ask() -> None:
        try:
            connection.page(NODES.collection(), {})
        except APIError as error:
            errors.append(error)

    thread = threading.Thread(target=ask)
    thread.start()
    eventually(lambda: server.requests, "the request has arrived")
    connection.interrupt()
    thread.join(DEADLINE_S)
    assert not thread.is_alive()
    assert errors


def test_an_interruption_is_kept_for_the_next_request_and_pause(server: FakeAPIServer) -> None:
    connection = APIConnection(APIServer.at(server.url))
    connection.interrupt()
    with pytest.raises(APIError, match="interrupted"):
        connection.page(NODES.collection(), {})
    connection.pause(30, at_least_s=10 * DEADLINE_S)
    assert not server.requests
    assert connection.interrupted
    connection.resume()
    assert connection.page(NODES.collection(), {})["items"]


LEASES = Resource("coordination.k8s.io", "v1", "leases")
LEASE = LEASES.object("node-a", "kube-node-lease")


@pytest.fixture
def cluster() -> Iterator[FakeAPIServer]:
    with FakeAPIServer(admin=True) as fake:
        fake.keep(LEASE.text, {"spec": {"holderIdentity": "a", "leaseTransitions": 1}})
        yield fake


def asked(server: FakeAPIServer) -> tuple[str, str, str]:
    last = server.requests[-1]
    return last.method, last.content_type, last.path


def test_a_merge_patch_changes_and_deletes_fields(cluster: FakeAPIServer) -> None:
    connection = APIConnection(APIServer.at(cluster.url))

    lease = connection.merge_patch(
        LEASE, {"spec": {"holderIdentity": "b", "leaseTransitions": None}}
    )

    assert lease["spec"] == {"holderIdentity": "b"}
    assert (
        lease["metadata"]["resourceVersion"]
        == cluster.kept(LEASE.text)["metadata"]["resourceVersion"]
    )
    assert asked(cluster) == ("PATCH", "application/merge-patch+json", LEASE.text)
    assert cluster.verbs() == {("patch", "leases")}


def test_a_json_patch_is_taken_as_a_whole_or_not_at_all(cluster: FakeAPIServer) -> None:
    connection = APIConnection(APIServer.at(cluster.url))
    replace = {"op": "replace", "path": "/spec/holderIdentity", "value": "b"}

    with pytest.raises(APIError) as refused:
        connection.json_patch(
            LEASE, [replace, {"op": "test", "path": "/spec/leaseTransitions", "value": 2}]
        )
    assert refused.value.status == 422
    assert cluster.kept(LEASE.text)["spec"]["holderIdentity"] == "a"

    assert connection.json_patch(LEASE, [replace])["spec"]["holderIdentity"] == "b"
    assert asked(cluster) == ("PATCH", "application/json-patch+json", LEASE.text)


def applied(**spec: object) -> dict[str, object]:
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": "other"},
        "spec": spec,
    }


def test_server_side_apply_creates_and_owns_its_fields(cluster: FakeAPIServer) -> None:
    connection = APIConnection(APIServer.at(cluster.url))
    other = LEASES.object("other", "kube-node-lease")

    made = connection.apply(other, applied(holderIdentity="a", leaseTransitions=1), manager="one")
    assert made["spec"] == {"holderIdentity": "a", "leaseTransitions": 1}
    assert asked(cluster) == (
        "PATCH",
        "application/apply-patch+yaml",
        f"{other.text}?fieldManager=one",
    )

    with pytest.raises(APIError) as refused:
        connection.apply(other, applied(holderIdentity="b"), manager="two")
    assert (refused.value.status, refused.value.reason) == (409, "Conflict")

    forced = connection.apply(other, applied(holderIdentity="b"), manager="two", force=True)
    assert forced["spec"] == {"holderIdentity": "b", "leaseTransitions": 1}
    assert asked(cluster)[2] == f"{other.text}?fieldManager=two&force=true"

    assert connection.apply(other, applied(), manager="one")["spec"] == {"holderIdentity": "b"}


def test_a_subresource_has_rights_and_fields_of_its_own(cluster: FakeAPIServer) -> None:
    connection = APIConnection(APIServer.at(cluster.url))
    pod = "/api/v1/namespaces/web/pods/upf"
    cluster.keep(pod, {"spec": {"nodeName": "node-a"}, "status": {"phase": "Pending"}})
    both = {"spec": {"nodeName": "node-b"}, "status": {"phase": "Failed"}}

    connection.merge_patch(PODS.object("upf", "web", subresource="status"), both)
    assert cluster.kept(pod)["spec"] == {"nodeName": "node-a"}
    assert cluster.kept(pod)["status"] == {"phase": "Failed"}
    assert cluster.verbs() == {("patch", "pods/status")}

    connection.merge_patch(PODS.object("upf", "web"), {"status": {"phase": "Running"}})
    assert cluster.kept(pod)["status"] == {"phase": "Failed"}


def test_a_patch_from_another_version_is_refused(cluster: FakeAPIServer) -> None:
    connection = APIConnection(APIServer.at(cluster.url))

    with pytest.raises(APIError) as refused:
        connection.merge_patch(LEASE, {"metadata": {"resourceVersion": "1"}})
    assert refused.value.status == 409

    with pytest.raises(APIError) as missing:
        connection.merge_patch(LEASES.object("none", "web"), {})
    assert missing.value.status == 404
