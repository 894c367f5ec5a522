from __future__ import annotations

import ssl
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest
import trustme

from cpupool.kube import client, views
from cpupool.kube.client import APIError, APIServer, NoAPIServer
from cpupool.kube.connection import APIConnection
from cpupool.kube.reflector import Reflector
from cpupool.kube.resources import NODES
from tests.apiserver import FakeAPIServer
from tests.loops import running
from tests.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@contextmanager
def pod_of_a_cluster(folder: Path) -> Iterator[tuple[FakeAPIServer, APIServer]]:
    """Serve https as a cluster does, and mount a service account with the token `first`."""
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    authority.cert_pem.write_to_path(str(folder / "ca.crt"))
    (folder / "token").write_text("first\n")
    with FakeAPIServer(tls=context) as fake:
        fake.tokens = {"first"}
        environment = {
            "KUBERNETES_SERVICE_HOST": "127.0.0.1",
            "KUBERNETES_SERVICE_PORT": fake.url.rpartition(":")[2],
        }
        yield fake, APIServer.in_cluster(environment, folder)


def ask(server: APIServer) -> list[object]:
    items: list[object] = APIConnection(server).page(NODES.collection(), {})["items"]
    return items


def test_a_pod_speaks_as_its_service_account(folder: Path) -> None:
    with pod_of_a_cluster(folder) as (_, server):
        assert len(ask(server)) == 1


def test_a_renewed_token_is_used_at_once_when_the_old_one_is_refused(folder: Path) -> None:
    with pod_of_a_cluster(folder) as (fake, server):
        ask(server)
        fake.tokens = {"second"}
        (folder / "token").write_text("second\n")
        with pytest.raises(APIError) as refused:
            ask(server)
        assert refused.value.status == 401
        assert len(ask(server)) == 1


def test_a_renewed_token_is_used_before_the_old_one_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pod_of_a_cluster(folder) as (fake, server):
        ask(server)
        fake.tokens = {"first", "second"}
        (folder / "token").write_text("second\n")
        ask(server)
        monkeypatch.setattr(client, "TOKEN_AGE_S", 0.0)
        ask(server)
        fake.tokens = {"second"}
        assert len(ask(server)) == 1


@pytest.mark.parametrize("text", [None, b"", b"two words", b"\xff", b"a\nb"])
def test_a_missing_or_damaged_token_says_so(folder: Path, text: bytes | None) -> None:
    with pod_of_a_cluster(folder) as (fake, server):
        (folder / "token").unlink()
        if text is not None:
            (folder / "token").write_bytes(text)
        with pytest.raises(APIError, match="mount the service account's token"):
            ask(server)
        assert not fake.requests
        (folder / "token").write_text("first")
        assert len(ask(server)) == 1


def test_a_watch_over_tls_tells_changes_and_ends_when_it_shall(folder: Path) -> None:
    with pod_of_a_cluster(folder) as (fake, server):
        nodes = Reflector(server, NODES.collection(), views.node, changed=lambda: None)
        with running(nodes.run, wake=nodes.wake):
            eventually(lambda: fake.watching("nodes"), "a watch")
            fake.set_labels({"nodeType": "dpdk"})
            eventually(
                lambda: [node.labels for node in nodes.items() or ()] == [{"nodeType": "dpdk"}],
                "the label",
            )


def test_an_ipv6_service_address_is_understood(folder: Path) -> None:
    trustme.CA().cert_pem.write_to_path(str(folder / "ca.crt"))
    environment = {"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "6443"}
    connection = APIServer.in_cluster(environment, folder).connection()
    assert (connection.host, connection.port) == ("fd00::1", 6443)


def test_outside_a_cluster_it_says_what_to_give() -> None:
    with pytest.raises(NoAPIServer, match="--api-server"):
        APIServer.in_cluster({})


@pytest.mark.parametrize(
    "url",
    ["", "127.0.0.1:8001", "ftp://host", "http://", "http://h:port", "http://me@h", "http://h?a=b"],
)
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(NoAPIServer, match="is no address of an API server"):
        APIServer.at(url)


@pytest.mark.parametrize(
    ("url", "target"),
    [
        ("http://127.0.0.1:8001", "/api/v1/pods?limit=5"),
        ("http://127.0.0.1:8001/", "/api/v1/pods?limit=5"),
        ("https://rancher/k8s/clusters/c-1/", "/k8s/clusters/c-1/api/v1/pods?limit=5"),
    ],
)
def test_an_address_may_have_a_path(url: str, target: str) -> None:
    assert APIServer.at(url).target("/api/v1/pods", {"limit": "5"}) == target
