"""A kubeconfig logs in as kubectl does."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest
import yaml

from cpupool.kube import kubeconfig
from cpupool.kube.client import APIError, APIServer, NoAPIServer
from cpupool.kube.connection import APIConnection
from cpupool.kube.resources import NODES
from tests.apiserver import FakeAPIServer
from tests.kubeconfigs import Login, login

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def cluster(folder: Path) -> Iterator[Login]:
    with login(folder) as found:
        yield found


def ask(server: APIServer) -> int:
    return len(APIConnection(server).page(NODES.collection(), {})["items"])


def test_a_token_logs_in(cluster: Login) -> None:
    cluster.server.tokens = {"secret"}
    path = cluster.kubeconfig({"admin": {"token": "secret"}})

    assert ask(kubeconfig.api_server(str(path))) == 1


def test_the_context_chooses_the_user(cluster: Login) -> None:
    cluster.server.tokens = {"second"}
    path = cluster.kubeconfig({"a": {"token": "first"}, "b": {"token": "second"}})

    assert ask(kubeconfig.api_server(str(path), "b")) == 1
    with pytest.raises(APIError, match="401"):
        ask(kubeconfig.api_server(str(path)))


def test_several_files_are_one_kubeconfig(cluster: Login, tmp_path: Path) -> None:
    cluster.server.tokens = {"secret"}
    path = cluster.kubeconfig({"admin": {"token": "secret"}})
    document = yaml.safe_load(path.read_text())
    users = {"users": document.pop("users")}
    path.write_text(yaml.safe_dump(document))
    other = tmp_path / "users"
    other.write_text(yaml.safe_dump(users))

    assert ask(kubeconfig.api_server(f"{path}:{other}")) == 1


def test_a_certificate_logs_in(cluster: Login) -> None:
    path = cluster.kubeconfig({"admin": cluster.certificate("jane")})

    assert ask(kubeconfig.api_server(str(path))) == 1
    assert cluster.server.requests[-1].user == "jane"


def test_a_token_file_is_read_again_when_its_token_is_refused(cluster: Login) -> None:
    cluster.server.tokens = {"first"}
    token = cluster.folder / "token"
    token.write_text("first")
    server = kubeconfig.api_server(str(cluster.kubeconfig({"admin": {"tokenFile": str(token)}})))
    ask(server)
    token.write_text("second")
    cluster.server.tokens = {"second"}

    with pytest.raises(APIError, match="401"):
        ask(server)
    assert ask(server) == 1


def test_a_plugin_logs_in_with_a_token_and_renews_it_before_it_expires(cluster: Login) -> None:
    # Within five minutes of its end the client takes it for expired.
    soon = datetime.now(UTC) + timedelta(seconds=60)
    script = f"""
runs = folder / "runs"
runs.write_text(runs.read_text() + "x" if runs.exists() else "x")
token = "token-" + str(len(runs.read_text()))
answer({{"token": token, "expirationTimestamp": "{soon:%Y-%m-%dT%H:%M:%SZ}"}})
"""
    server = kubeconfig.api_server(str(cluster.kubeconfig({"admin": cluster.plugin(script)})))
    for run in (2, 3):
        cluster.server.tokens = {f"token-{run}"}
        assert ask(server) == 1


def test_a_plugin_logs_in_with_a_certificate_and_is_asked_again_when_it_is_refused(
    cluster: Login,
) -> None:
    for name in ("first", "second"):
        fields = cluster.certificate(name)
        (cluster.folder / name).write_text(yaml.safe_dump(fields))
    (cluster.folder / "now").write_text("first")
    script = """
import base64, yaml
fields = yaml.safe_load((folder / (folder / "now").read_text()).read_text())
text = lambda key: base64.b64decode(fields[key]).decode()
answer({
    "clientCertificateData": text("client-certificate-data"),
    "clientKeyData": text("client-key-data"),
})
"""
    server = kubeconfig.api_server(str(cluster.kubeconfig({"admin": cluster.plugin(script)})))
    ask(server)
    (cluster.folder / "now").write_text("second")
    cluster.server.refuse(401, "Unauthorized")
    with pytest.raises(APIError, match="401"):
        ask(server)
    ask(server)

    assert [request.user for request in cluster.server.requests] == ["first", "first", "second"]


def test_a_plugin_that_fails_says_why(cluster: Login) -> None:
    path = cluster.kubeconfig({"admin": cluster.plugin('sys.exit("log in with `cloud login`")\n')})

    with pytest.raises(NoAPIServer) as refused:
        kubeconfig.api_server(str(path))
    assert str(refused.value) == (
        f"{path}: the current context gives no credentials (exec: process returned 1. log in with"
        f" `cloud login`); check its user with `KUBECONFIG={path} kubectl auth whoami`"
    )
    assert not cluster.server.requests


def test_a_plugin_that_fails_later_is_reported_by_the_request(cluster: Login) -> None:
    script = """
if (folder / "ended").exists(): sys.exit("the session has ended")
answer({"token": "secret"})
"""
    server = kubeconfig.api_server(str(cluster.kubeconfig({"admin": cluster.plugin(script)})))
    cluster.server.tokens = {"secret"}
    ask(server)
    (cluster.folder / "ended").touch()
    cluster.server.tokens = {"other"}
    with pytest.raises(APIError, match="401"):
        ask(server)

    with pytest.raises(APIError, match="the session has ended"):
        ask(server)


def test_a_server_may_be_known_by_another_name(folder: Path) -> None:
    with login(folder, name="api.example.com") as cluster:
        user = {"admin": {"token": "secret"}}
        tunnel = kubeconfig.api_server(
            str(cluster.kubeconfig(user, **{"tls-server-name": "api.example.com"}))
        )
        assert ask(tunnel) == 1

        plain = kubeconfig.api_server(str(cluster.kubeconfig(user)))
        with pytest.raises(APIError, match="untrusted"):
            ask(plain)


def test_an_address_without_tls_needs_no_credentials(tmp_path: Path) -> None:
    with FakeAPIServer() as server:
        path = tmp_path / "kubeconfig"
        path.write_text(
            yaml.safe_dump(
                {
                    "clusters": [{"name": "c", "cluster": {"server": server.url}}],
                    "contexts": [{"name": "c", "context": {"cluster": "c"}}],
                    "current-context": "c",
                }
            )
        )
        assert ask(kubeconfig.api_server(str(path))) == 1


@pytest.mark.parametrize(
    ("users", "cluster_fields", "said"),
    [
        ({"admin": {}}, {}, "gives no credentials; check its user with `KUBECONFIG="),
        (
            {"admin": {"token": "t"}},
            {"insecure-skip-tls-verify": True},
            "insecure-skip-tls-verify is not supported; name the server's CA",
        ),
        (
            {"admin": {"token": "t"}},
            {"proxy-url": "http://proxy:3128"},
            "its proxy-url is not supported; run `kubectl proxy`",
        ),
        ({"admin": {"token": "t"}}, {"server": "api"}, "'api' is no address of an API server"),
        (
            {"admin": {"client-certificate": "gone.crt", "client-key": "gone.key"}},
            {},
            "cannot be used (File does not exist: ",
        ),
    ],
)
def test_what_cannot_be_used_is_refused_with_a_remedy(
    cluster: Login, users: dict[str, object], cluster_fields: dict[str, object], said: str
) -> None:
    path = cluster.kubeconfig(users, **cluster_fields)

    with pytest.raises(NoAPIServer) as refused:
        kubeconfig.api_server(str(path))
    assert said in str(refused.value)


def test_a_file_that_is_not_there_is_named(cluster: Login) -> None:
    with pytest.raises(NoAPIServer, match="gone: no such file; name a kubeconfig that is there"):
        kubeconfig.api_server(str(cluster.folder / "gone"))


@pytest.mark.parametrize("token", ["two\nlines", "\u20ac"])
def test_a_token_that_no_header_may_have_is_an_error_of_the_request(
    cluster: Login, token: str
) -> None:
    server = kubeconfig.api_server(str(cluster.kubeconfig({"admin": {"token": token}})))

    with pytest.raises(APIError, match="characters that no header may have"):
        ask(server)


@pytest.mark.parametrize("text", ["", "[1]", "a: [", "contexts: 1\ncurrent-context: a\n"])
def test_what_is_no_kubeconfig_is_refused(cluster: Login, text: str) -> None:
    path = cluster.folder / "kubeconfig"
    path.write_text(text)

    with pytest.raises(NoAPIServer, match="kubeconfig: the current context cannot be used"):
        kubeconfig.api_server(str(path))


def test_a_context_that_is_not_there_is_named(cluster: Login) -> None:
    path = cluster.kubeconfig({"admin": {"token": "t"}})

    with pytest.raises(NoAPIServer, match="the context 'typo' cannot be used"):
        kubeconfig.api_server(str(path), "typo")


def test_a_certificate_that_fits_no_key_is_refused(cluster: Login) -> None:
    mixed = {
        **cluster.certificate("a"),
        "client-key-data": cluster.certificate("b")["client-key-data"],
    }
    server = kubeconfig.api_server(str(cluster.kubeconfig({"admin": mixed})))

    with pytest.raises(APIError, match=r"its key .* cannot be used"):
        ask(server)


def test_a_proxy_of_the_environment_is_not_the_kubeconfigs(
    cluster: Login, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(os.environ, "HTTPS_PROXY", "http://127.0.0.1:1")
    path = cluster.kubeconfig({"admin": {"token": "t"}})

    assert ask(kubeconfig.api_server(str(path))) == 1
