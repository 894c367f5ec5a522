from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from cpupool.kube.client import APIError, APIServer
from cpupool.kube.conversation import Conversation
from tests.apiserver import FakeAPIServer
from tests.waiting import DEADLINE_S, eventually

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def server() -> Iterator[FakeAPIServer]:
    with FakeAPIServer() as fake:
        yield fake


def test_a_refusal_carries_the_servers_words_and_a_remedy(server: FakeAPIServer) -> None:
    server.refuse(403, "Forbidden")
    with pytest.raises(APIError) as refused:
        Conversation(APIServer.at(server.url)).page("/api/v1/nodes", {})
    error = refused.value
    assert (error.status, error.reason, error.version_lost) == (403, "Forbidden", False)
    assert str(error) == (
        "API server: list nodes: 403 Forbidden: refused by the test; apply this pod's RBAC, which"
        " must grant list on nodes"
    )


def test_a_long_refusal_is_cut_short(server: FakeAPIServer) -> None:
    server.refuse(500, body=b"<html>" + b"x" * 200_000)
    with pytest.raises(APIError) as refused:
        Conversation(APIServer.at(server.url)).page("/api/v1/nodes", {})
    assert len(str(refused.value)) < 500


def test_the_time_that_a_server_asks_for_is_known(server: FakeAPIServer) -> None:
    for header in ("7", "soon"):
        server.refuse(429, "TooManyRequests", headers={"Retry-After": header})
    talk = Conversation(APIServer.at(server.url))
    waits = []
    for _ in range(2):
        with pytest.raises(APIError) as refused:
            talk.page("/api/v1/nodes", {})
        waits.append(refused.value.retry_after_s)
    assert waits == [7, 0]


def test_nobody_there_is_told_apart_from_a_broken_answer(server: FakeAPIServer) -> None:
    talk = Conversation(APIServer(server.url, answer_s=0.1))
    server.slow()
    with pytest.raises(APIError) as silent:
        talk.page("/api/v1/nodes", {})
    server.down()
    with pytest.raises(APIError, match="check that the API server runs") as refused:
        talk.page("/api/v1/nodes", {})
    assert (silent.value.reason, refused.value.reason) == ("broken", "unreachable")


def test_an_interruption_ends_a_request_that_waits(server: FakeAPIServer) -> None:
    talk = Conversation(APIServer(server.url, answer_s=10 * DEADLINE_S))
    server.slow()
    errors: list[APIError] = []

    def ask() -> None:
        try:
            talk.page("/api/v1/nodes", {})
        except APIError as error:
            errors.append(error)

    thread = threading.Thread(target=ask)
    thread.start()
    eventually(lambda: server.requests, "the request has arrived")
    talk.interrupt()
    thread.join(DEADLINE_S)
    assert not thread.is_alive()
    assert errors


def test_an_interruption_is_kept_for_the_next_request_and_pause(server: FakeAPIServer) -> None:
    talk = Conversation(APIServer.at(server.url))
    talk.interrupt()
    with pytest.raises(APIError, match="interrupted"):
        talk.page("/api/v1/nodes", {})
    talk.pause(30, at_least_s=10 * DEADLINE_S)
    assert not server.requests
    assert talk.interrupted
    talk.resume()
    assert talk.page("/api/v1/nodes", {})["items"]
