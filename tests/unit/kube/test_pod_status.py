from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from cpupool.core.workloads import PodUID
from cpupool.kube.client import APIError, APIServer
from cpupool.kube.pod_status import PodStatus
from tests import builders
from tests.apiserver import FakeAPIServer
from tests.printed import EVIL

if TYPE_CHECKING:
    from collections.abc import Iterator

WEB = builders.pod("web")
PATH = "/api/v1/namespaces/default/pods/web"


@pytest.fixture
def server() -> Iterator[FakeAPIServer]:
    with FakeAPIServer() as fake:
        yield fake


def show(server: FakeAPIServer, phase: str = "Pending") -> None:
    body: dict[str, Any] = {
        "metadata": {"name": "web", "uid": WEB.uid},
        "status": {"phase": phase, "qosClass": "Guaranteed"},
    }
    server.set_pods([body])


def test_a_pending_pod_fails(server: FakeAPIServer) -> None:
    show(server)
    PodStatus(APIServer.at(server.url)).fail(WEB, "SMTAlignmentError", "Pod was rejected: no")
    assert server.kept(PATH)["status"] == {
        "phase": "Failed",
        "reason": "SMTAlignmentError",
        "message": "Pod was rejected: no",
        "qosClass": "Guaranteed",
    }
    (asked,) = server.requests
    assert (asked.method, asked.path) == ("PATCH", f"{PATH}/status")


def test_the_message_of_a_pod_that_fails_is_one_printable_line(server: FakeAPIServer) -> None:
    show(server)
    PodStatus(APIServer.at(server.url)).fail(WEB, "Odd", f"a plugin says {EVIL * 100}")
    said = server.kept(PATH)["status"]["message"]
    assert said.startswith("a plugin says \\u001b]0;owned\\u0007")
    assert said.isprintable()
    assert len(said) <= 1024


@pytest.mark.parametrize("phase", ["Running", "Succeeded"])
def test_a_pod_that_has_started_does_not_fail(server: FakeAPIServer, phase: str) -> None:
    show(server, phase)
    with pytest.raises(APIError) as refused:
        PodStatus(APIServer.at(server.url)).fail(WEB, "SMTAlignmentError", "no")
    assert refused.value.status == 422
    assert server.kept(PATH)["status"]["phase"] == phase


def test_a_successor_with_the_same_name_does_not_fail(server: FakeAPIServer) -> None:
    show(server)
    before = replace(WEB, uid=PodUID("another-uid"))
    with pytest.raises(APIError):
        PodStatus(APIServer.at(server.url)).fail(before, "SMTAlignmentError", "no")
    assert server.kept(PATH)["status"]["phase"] == "Pending"


def test_after_an_interruption_no_pod_fails(server: FakeAPIServer) -> None:
    show(server)
    status = PodStatus(APIServer.at(server.url))
    status.interrupt()
    with pytest.raises(APIError):
        status.fail(WEB, "SMTAlignmentError", "no")
    with pytest.raises(APIError):
        status.annotate(WEB, "a", "b")
    assert server.kept(PATH)["status"]["phase"] == "Pending"
    assert annotated(server) == {}


def annotated(server: FakeAPIServer) -> dict[str, str]:
    found: dict[str, str] = server.kept(PATH)["metadata"].get("annotations", {})
    return found


@pytest.mark.parametrize("before", [{}, {"a": "b"}, {"x.example/cpus": "1"}])
def test_an_annotation_is_added_to_the_others(
    server: FakeAPIServer, before: dict[str, str]
) -> None:
    metadata: dict[str, Any] = {"name": "web", "uid": WEB.uid}
    status = {"phase": "Running", "qosClass": "Guaranteed"}
    server.set_pods([{"metadata": {**metadata, "annotations": before}, "status": status}])

    PodStatus(APIServer.at(server.url)).annotate(WEB, "x.example/cpus", "2-3")

    assert annotated(server) == {**before, "x.example/cpus": "2-3"}
    assert server.kept(PATH)["status"] == status
    (asked,) = server.requests
    assert (asked.method, asked.path) == ("PATCH", f"{PATH}/status")


def test_a_successor_with_the_same_name_gets_no_annotation(server: FakeAPIServer) -> None:
    show(server)
    before = replace(WEB, uid=PodUID("another-uid"))
    with pytest.raises(APIError) as refused:
        PodStatus(APIServer.at(server.url)).annotate(before, "x.example/cpus", "2-3")
    assert refused.value.status == 422
    assert annotated(server) == {}
