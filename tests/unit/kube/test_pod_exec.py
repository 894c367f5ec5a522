"""A command in a container: what it has written, its exit code, and why there is neither."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, urlsplit

import pytest

from cpupool.kube import kubeconfig, pod_exec
from cpupool.kube.client import APIError, APIServer
from cpupool.kube.resources import PODS
from tests.apiserver import FakeAPIServer
from tests.apiserver.executions import Execution, ends_with, writes
from tests.kubeconfigs import login

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from cpupool.kube.pod_exec import Ended

TARGET = PODS.object("cpupool-agent-x", "cpupool", subresource="exec")
CONTAINER = (TARGET.text.removesuffix("/exec"), "agent")
COMMAND = ("env", "A=b c&d", "cpupool", "status")


@pytest.fixture
def server() -> Iterator[FakeAPIServer]:
    with FakeAPIServer(admin=True) as fake:
        yield fake


def run(fake: FakeAPIServer, limit_s: float = pod_exec.LIMIT_S) -> Ended:
    return pod_exec.run(APIServer.at(fake.url), TARGET, "agent", COMMAND, limit_s)


def error(fake: FakeAPIServer, limit_s: float = pod_exec.LIMIT_S) -> str:
    with pytest.raises(APIError) as refused:
        run(fake, limit_s)
    return str(refused.value)


@pytest.mark.parametrize("version", ["v4", "v5"])
def test_both_outputs_and_the_exit_code_come_whole(server: FakeAPIServer, version: str) -> None:
    server.protocols = [f"{version}.channel.k8s.io"]
    given: list[Sequence[str]] = []

    def ended(command: Sequence[str]) -> Execution:
        given.append(command)
        return Execution("╭─────────────╮\n".encode() * 500, b"it is silent\n", 3)

    server.containers[CONTAINER] = ended

    assert run(server) == pod_exec.Ended("╭─────────────╮\n" * 500, "it is silent\n", 3)
    assert given == [[*COMMAND]]


def test_a_proxy_of_the_environment_is_not_asked(
    server: FakeAPIServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    monkeypatch.delenv("no_proxy", raising=False)
    server.containers[CONTAINER] = lambda _command: Execution()
    assert run(server) == pod_exec.Ended("", "", 0)


def test_the_kubeconfigs_certificates_are_those_of_the_websocket(folder: Path) -> None:
    with login(folder, admin=True) as cluster:
        cluster.server.containers[CONTAINER] = lambda _command: Execution(b"all is right\n")
        path = cluster.kubeconfig({"jane": cluster.certificate("jane")})

        ended = pod_exec.run(kubeconfig.api_server(str(path)), TARGET, "agent", COMMAND)

        (asked,) = cluster.server.requests
        assert (ended.stdout, asked.user) == ("all is right\n", "jane")
        assert parse_qs(urlsplit(asked.path).query) == {
            "command": [*COMMAND],
            "container": ["agent"],
            "stdout": ["true"],
            "stderr": ["true"],
        }


def test_a_token_that_is_refused_is_renewed_for_the_next_request(folder: Path) -> None:
    token = folder / "token"
    token.write_text("old")
    with login(folder, admin=True) as cluster:
        cluster.server.containers[CONTAINER] = lambda _command: Execution()
        cluster.server.tokens = {"new"}
        path = cluster.kubeconfig({"jane": {"tokenFile": str(token)}})
        api = kubeconfig.api_server(str(path))
        with pytest.raises(APIError, match="401 Unauthorized"):
            pod_exec.run(api, TARGET, "agent", COMMAND)

        token.write_text("new")

        assert pod_exec.run(api, TARGET, "agent", COMMAND).code == 0


@pytest.mark.parametrize("verb", ["get", "create"])
def test_a_right_that_is_missing_is_named(server: FakeAPIServer, verb: str) -> None:
    server.containers[CONTAINER] = lambda _command: Execution()
    server.forbidden = {(verb, "pods/exec")}
    assert error(server) == (
        f"API server: create pods/exec: 403 Forbidden: {verb} pods/exec is forbidden; give this"
        " user the verbs get and create on pods/exec, in the namespace of the pod"
    )


def test_a_container_that_is_gone_is_reported_in_the_servers_words(server: FakeAPIServer) -> None:
    assert error(server) == (
        "API server: create pods/exec: 500 Internal Server Error: unable to upgrade connection:"
        ' container not found ("agent"); look at the pod with `kubectl describe pod`, and try again'
    )


def test_a_program_that_cannot_be_run_is_reported(server: FakeAPIServer) -> None:
    failure = 'exec: "env": executable file not found in $PATH'
    server.containers[CONTAINER] = lambda _command: Execution(code=failure)
    assert f"create pods/exec: broken: {failure}; look at the pod" in error(server)


def test_a_command_that_hangs_has_a_time_limit(server: FakeAPIServer) -> None:
    server.containers[CONTAINER] = lambda _command: Execution(b"so far", ends=False)
    assert error(server, 0.2) == (
        "API server: create pods/exec: broken: the command has not ended within 0.2 s; look at the"
        " pod with `kubectl describe pod`, and try again"
    )


def test_a_server_that_does_not_switch_has_the_same_limit(server: FakeAPIServer) -> None:
    over = threading.Event()

    def silent(_command: Sequence[str]) -> Execution:
        over.wait()
        return Execution()

    server.containers[CONTAINER] = silent
    try:
        assert "the command has not ended within 0.2 s" in error(server, 0.2)
    finally:
        over.set()


@pytest.mark.parametrize(
    ("frames", "again"),
    [
        pytest.param(writes(b"", 1 << 62), b"x" * 60_000, id="one frame"),
        pytest.param(writes(b"x"), writes(b"x" * 60_000), id="many frames"),
    ],
)
def test_an_answer_without_an_end_is_cut_off(
    server: FakeAPIServer, frames: bytes, again: bytes
) -> None:
    server.containers[CONTAINER] = lambda _command: Execution(frames=frames, again=again)
    assert error(server) == (
        "API server: create pods/exec: broken: the answer has more than 16 MiB; look at the pod"
        " with `kubectl describe pod`, and try again"
    )


def test_a_frame_that_comes_byte_by_byte_has_the_same_limit(server: FakeAPIServer) -> None:
    beginning = writes(b"", 1 << 62)
    server.containers[CONTAINER] = lambda _command: Execution(frames=beginning, again=b"x")
    assert "the command has not ended within 0.2 s" in error(server, 0.2)


@pytest.mark.parametrize(
    "status",
    [
        *(b"[" * 100_000, b'{"n":' + b"9" * 10_000 + b"}", b"5", b"\xff", b"{}"),
        *(b'{"status": 1}', b'{"status": "Failure", "details": []}'),
        *(
            b'{"status": "Failure", "details": {"causes": [{"reason": "ExitCode", "message": %s}]}}'
            % code
            # A process that ends with 256 ends with 0.
            for code in (b'"256"', b'"-1"', b'"x"', b"1", b'"1_0"')
        ),
    ],
)
def test_a_status_that_is_none_is_reported(server: FakeAPIServer, status: bytes) -> None:
    server.containers[CONTAINER] = lambda _command: Execution(frames=ends_with(status))
    assert error(server).endswith("it does not say how the command has ended; try again")


@pytest.mark.parametrize("ends", [False, True])
def test_a_connection_that_breaks_off_gives_no_half_of_an_answer(
    server: FakeAPIServer, *, ends: bool
) -> None:
    server.containers[CONTAINER] = lambda _command: Execution(b"half", ends=ends, lost=True)
    assert error(server).endswith("Connection to remote host was lost; try again")


def test_a_server_that_is_not_there(server: FakeAPIServer) -> None:
    server.down()
    assert error(server).endswith("; try again")


def test_credentials_follow_no_redirect(server: FakeAPIServer) -> None:
    server.refuse(307, headers={"Location": server.url.replace("http", "ws")})
    assert "Redirect limit exhausted; try again" in error(server)
    assert len(server.requests) == 1
