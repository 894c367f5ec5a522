"""The NodeResourceTopology of a node, followed and applied at an API server in small."""

from __future__ import annotations

import json
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from cpupool.kube.client import APIError, APIServer
from cpupool.kube.node_topology import NodeTopologyObject
from cpupool.wire.node_topology import GROUP, V1ALPHA1, V1ALPHA2, Field
from tests.apiserver import FakeAPIServer
from tests.loops import running
from tests.waiting import DEADLINE_S, eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

NODE = "node-a"
PLURAL = "noderesourcetopologies"
PATHS = {version: f"/apis/{GROUP}/{version}/{PLURAL}/{NODE}" for version in (V1ALPHA1, V1ALPHA2)}
ZONES = Field(("zones",))
NO_CRD = "serves no NodeResourceTopology of v1alpha2 or v1alpha1"
OFTEN_S = 0.01


@pytest.fixture
def server() -> Iterator[FakeAPIServer]:
    with FakeAPIServer(NODE) as fake:
        fake.crds = {GROUP: [V1ALPHA1, V1ALPHA2]}
        yield fake


class Followed(NodeTopologyObject):
    """The object, with what it tells."""

    def __init__(self, server: FakeAPIServer, look_s: float) -> None:
        self.changes = threading.Event()
        self.endings: list[tuple[str, str]] = []
        super().__init__(
            APIServer.at(server.url),
            NODE,
            restarted=lambda *ending: self.endings.append(ending),
            look_s=look_s,
        )
        self.wakes(self.changes.set)


@contextmanager
def following(server: FakeAPIServer, look_s: float = OFTEN_S) -> Iterator[Followed]:
    followed = Followed(server, look_s)
    with running(followed.run, wake=followed.wake):
        yield followed


def zones(followed: NodeTopologyObject) -> list[Any] | None:
    seen = followed.observed()
    return None if seen is None else [each.body["zones"] for each in seen]


def await_zones(followed: NodeTopologyObject, *expected: Any) -> None:
    eventually(lambda: zones(followed) == [*expected], lambda: f"{expected}: {zones(followed)}")


def lose_crd(server: FakeAPIServer) -> None:
    """Delete the CRD: its watches end, and its paths are not there."""
    server.crds = {}
    server.end_watches()


@pytest.mark.parametrize(
    ("served", "used"),
    [
        ([V1ALPHA1, V1ALPHA2], V1ALPHA2),
        ([V1ALPHA2, "v1beta1"], V1ALPHA2),
        ([V1ALPHA1], V1ALPHA1),
    ],
)
def test_the_better_version_that_is_served_is_read_and_written(
    server: FakeAPIServer, served: list[str], used: str
) -> None:
    server.crds = {GROUP: served}
    with following(server) as followed:
        await_zones(followed)
        assert followed.version == used
        followed.apply("1-2-3", {ZONES: []})
        await_zones(followed, [])
    kept = server.kept(PATHS[used])
    (owner,) = kept["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["name"], owner["uid"]) == ("Node", NODE, "1-2-3")
    (apply,) = (each for each in server.requests if each.verb == "patch")
    assert apply.content_type == "application/apply-patch+yaml"
    assert apply.parameters == {"fieldManager": "cpupool"}
    assert json.loads(apply.body)["apiVersion"] == f"{GROUP}/{used}"


def test_only_the_nodes_own_object_is_asked_for_and_each_change_is_told(
    server: FakeAPIServer,
) -> None:
    server.keep(PATHS[V1ALPHA2].replace(NODE, "node-b"), {"zones": ["b"]})
    with following(server) as followed:
        await_zones(followed)
        eventually(lambda: server.watching(PLURAL), "a watch")
        followed.changes.clear()
        server.keep(PATHS[V1ALPHA2], {"zones": ["a"]})
        assert followed.changes.wait(DEADLINE_S)
        await_zones(followed, ["a"])
        server.forget(PATHS[V1ALPHA2])
        await_zones(followed)
    selectors = {
        each.parameters["fieldSelector"] for each in server.requests if each.resource == PLURAL
    }
    assert selectors == {"metadata.name=node-a"}


@pytest.mark.parametrize("as_status", [False, True])
def test_a_watch_that_is_too_old_is_a_new_list(server: FakeAPIServer, *, as_status: bool) -> None:
    with following(server) as followed:
        eventually(lambda: server.watching(PLURAL), "a watch")
        server.gone(as_status=as_status)
        server.keep(PATHS[V1ALPHA2], {"zones": ["a"]})
        await_zones(followed, ["a"])
    assert (PLURAL, "410") in followed.endings


def test_a_crd_that_is_missing_is_one_line_and_counts_once_it_is_there(
    server: FakeAPIServer, caplog: pytest.LogCaptureFixture
) -> None:
    server.crds = {}
    with following(server) as followed:
        eventually(lambda: server.count("get", "apis") > 3, "the agent looks again")
        assert followed.observed() is None
        assert followed.version == ""
        server.crds = {GROUP: [V1ALPHA2]}
        await_zones(followed)
    (line,) = (each.message for each in caplog.records if NO_CRD in each.message)
    assert "kubectl create -k daemonsets/topology-crd" in line


def test_a_crd_that_is_deleted_may_come_back_in_another_version(
    server: FakeAPIServer, caplog: pytest.LogCaptureFixture
) -> None:
    with following(server) as followed:
        eventually(lambda: server.watching(PLURAL), "a watch")
        lose_crd(server)
        eventually(lambda: followed.observed() is None, "the object is not known any more")
        asked = server.count("get", "apis")
        eventually(lambda: server.count("get", "apis") > asked + 2, "the agent looks again")
        server.crds = {GROUP: [V1ALPHA1]}
        await_zones(followed)
        assert followed.version == V1ALPHA1
        assert caplog.text.count(NO_CRD) == 1
        # What has come back may be lost again.
        eventually(lambda: server.watching(PLURAL), "a watch")
        lose_crd(server)
        eventually(lambda: caplog.text.count(NO_CRD) == 2, "another line")


@pytest.mark.parametrize("verb", ["list", "watch"])
def test_a_right_that_is_missing_is_one_line_with_the_overlay(
    server: FakeAPIServer, verb: str, caplog: pytest.LogCaptureFixture
) -> None:
    server.forbidden = {(verb, PLURAL)}
    with following(server) as followed:
        eventually(lambda: server.count(verb, PLURAL) > 3, "the agent looks again")
        (line,) = (each.message for each in caplog.records if each.levelname == "WARNING")
        assert "component daemonsets/topology-reporter" in line
        server.forbidden = set()
        await_zones(followed)


@pytest.mark.parametrize("crd", [False, True])
def test_what_is_missing_is_not_looked_for_without_a_pause(*, crd: bool) -> None:
    with FakeAPIServer(NODE) as patient, FakeAPIServer(NODE) as asked_often:
        for server in (patient, asked_often):
            server.forbidden = {("list", PLURAL)}
            server.crds = {GROUP: [V1ALPHA2]} if crd else {}
        with following(patient, look_s=3600.0), following(asked_often):
            eventually(lambda: patient.count("get", "apis"), "a look")
            eventually(lambda: asked_often.count("get", "apis") > 20, "many looks of another one")
            eventually(lambda: patient.count("list", PLURAL) == int(crd), "its list")
            assert patient.count("get", "apis") == 1


@pytest.mark.parametrize(
    "body",
    [
        b"[]",
        b"no JSON",
        b"{}",
        b'{"versions": null}',
        b'{"versions": {"version": "v1alpha2"}}',
        b'{"versions": ["v1alpha2", 7, null, {"version": ["v1alpha2"]}, {}]}',
    ],
)
def test_a_damaged_list_of_versions_is_told_and_asked_for_again(
    server: FakeAPIServer, body: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    server.refuse(200, body=body)
    with following(server) as followed:
        await_zones(followed)
        assert followed.version == V1ALPHA2
    assert len([each for each in caplog.records if each.levelname == "WARNING"]) == 1


@pytest.mark.parametrize("status", [401, 403, 429, 500, 503])
def test_a_refused_list_of_versions_names_no_crd_and_is_asked_for_again(
    server: FakeAPIServer, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    server.refuse(status, "No", times=2)
    with following(server, look_s=3600.0) as followed:
        await_zones(followed)
    (line,) = (each.message for each in caplog.records if each.levelname == "WARNING")
    assert "topology-crd" not in line
    assert str(status) in line


def test_an_api_server_that_is_away_keeps_the_last_object_known(server: FakeAPIServer) -> None:
    server.keep(PATHS[V1ALPHA2], {"zones": ["a"]})
    with following(server, look_s=3600.0) as followed:
        await_zones(followed, ["a"])
        server.down()
        eventually(lambda: followed.endings, "the watch ends")
        assert zones(followed) == [["a"]]
        server.up()
        server.keep(PATHS[V1ALPHA2], {"zones": ["b"]})
        await_zones(followed, ["b"])


def test_an_apply_is_refused_where_another_manager_has_set_another_value(
    server: FakeAPIServer,
) -> None:
    with following(server) as followed:
        await_zones(followed)
        followed.apply("1-2-3", {ZONES: []})
        server.change_as("nfd-topology-updater", PATHS[V1ALPHA2], {"zones": [{"name": "node-0"}]})
        with pytest.raises(APIError, match="nfd-topology-updater") as refused:
            followed.apply("1-2-3", {ZONES: []})
        assert refused.value.status == 409
        eventually(
            lambda: (
                [each.others for each in followed.observed() or ()]
                == [{ZONES: "nfd-topology-updater"}]
            ),
            "the other manager",
        )


def test_wake_ends_a_request_that_hangs(server: FakeAPIServer) -> None:
    with following(server) as followed:
        await_zones(followed)
        server.slow(PLURAL)
        refused: list[APIError] = []

        def apply() -> None:
            with pytest.raises(APIError) as error:
                followed.apply("1-2-3", {ZONES: []})
            refused.append(error.value)

        applying = threading.Thread(target=apply)
        applying.start()
        eventually(lambda: server.count("patch", PLURAL), "the request")
        followed.wake()
        applying.join(DEADLINE_S)
        assert refused
    server.slow("apis")
    with following(server):
        eventually(lambda: server.count("get", "apis") == 2, "a request that hangs")
