from __future__ import annotations

import re
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from cpupool import cli
from cpupool.commands import certs
from cpupool.kube.client import APIServer
from cpupool.webhook.certificate_maker import CertificateMaker
from cpupool.webhook.https import certificate_renewal
from cpupool.webhook.objects import NotInstalled
from tests.kubeconfigs import login
from tests.scenarios.certs.objects import (
    CONFIGURATION,
    INSTALLED,
    NOW,
    SECRET,
    decoded,
    fill,
    maker,
    run,
)
from tests.waiting import DEADLINE_S

if TYPE_CHECKING:
    from datetime import datetime
    from pathlib import Path

    from tests.apiserver import FakeAPIServer


def test_the_command_says_what_it_made_and_until_when_it_will_do(server: FakeAPIServer) -> None:
    code, text = run(server)
    assert code == 0
    lines = text.splitlines()
    assert lines[:3] == [
        "CA made: there is none with its key",
        "bundle published: the configuration had another one",
        "serving certificate made: there is none",
    ]
    contents = certificate_renewal.read(decoded(server.kept(SECRET)))
    terms = contents.terms()
    assert lines[3:] == [
        f"{name}: good until {terms[name].until:%Y-%m-%d},"
        f" renewed from {terms[name].renewal:%Y-%m-%d} on"
        for name in ("serving", "ca")
    ]
    assert run(server) == (0, "\n".join(["all is well", *lines[3:], ""]))


@pytest.mark.parametrize("path", [SECRET, CONFIGURATION])
def test_what_is_missing_is_reported_with_what_to_apply(
    server: FakeAPIServer, path: str, capsys: pytest.CaptureFixture[str]
) -> None:
    server.forget(path)
    title = (
        "Secret cpupool/cpupool-webhook-tls"
        if path == SECRET
        else "MutatingWebhookConfiguration cpupool-webhook"
    )
    assert run(server) == (1, "")
    assert capsys.readouterr().err == (
        f"cpupool: {title}: there is none; apply the webhook's manifests:"
        " kubectl apply -k daemonsets/webhook\n"
    )
    assert server.updates == []


def test_a_configuration_without_a_webhook_is_not_ours(server: FakeAPIServer) -> None:
    bodies: list[dict[str, Any]] = [{}, {"webhooks": None}, {"webhooks": []}]
    for body in bodies:
        server.keep(CONFIGURATION, body)
        with pytest.raises(NotInstalled, match="there is no webhook in it"):
            maker(server).look()
    assert server.updates == []


@pytest.mark.parametrize(
    ("status", "reason", "told"),
    [
        (403, "Forbidden", "there is no right to get it; apply the webhook's manifests"),
        (500, "InternalError", "500 InternalError: refused by the test"),
        (401, "Unauthorized", "401 Unauthorized: refused by the test"),
    ],
)
def test_a_refusal_is_one_line(
    server: FakeAPIServer,
    capsys: pytest.CaptureFixture[str],
    status: int,
    reason: str,
    told: str,
) -> None:
    server.refuse(status, reason)
    assert run(server) == (1, "")
    said = capsys.readouterr().err
    assert told in said
    assert said.count("\n") == 1


def test_a_right_to_write_that_is_missing_is_reported(server: FakeAPIServer) -> None:
    def meanwhile() -> datetime:
        server.refuse(403, "Forbidden")
        return NOW

    reading = CertificateMaker(APIServer.at(server.url), INSTALLED, now=meanwhile)
    with pytest.raises(NotInstalled, match=r"^Secret cpupool/.*no right to update it"):
        reading.look()


def test_a_server_that_is_away_is_one_line(
    server: FakeAPIServer, capsys: pytest.CaptureFixture[str]
) -> None:
    server.down()
    assert run(server) == (1, "")
    assert "check that the API server runs" in capsys.readouterr().err


def test_the_namespace_is_that_of_the_pod_unless_it_is_given(
    server: FakeAPIServer,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(certs, "SERVICE_ACCOUNT", folder)
    asked = ["certs", "--api-server", server.url]
    assert cli.main(asked) == 2
    assert "give --namespace, or set POD_NAMESPACE" in capsys.readouterr().err
    (folder / "namespace").write_text("from-file\n")
    assert cli.main(asked) == 1
    monkeypatch.setenv("POD_NAMESPACE", "from-variable")
    assert cli.main(asked) == 1
    assert cli.main([*asked, "--namespace", "given"]) == 1
    told = re.findall("Secret (.*)/cpupool-webhook-tls", capsys.readouterr().err)
    assert told == ["from-file", "from-variable", "given"]
    monkeypatch.setenv("POD_NAMESPACE", "../other")
    assert cli.main(asked) == 2


@pytest.mark.parametrize(
    "option", ["--namespace", "--secret", "--service", "--webhook-configuration"]
)
def test_a_name_that_kubernetes_does_not_allow_is_refused(
    server: FakeAPIServer, option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("../secrets", "a.b", "A", "a" * 64, ""):
        assert run(server, option, name) == (2, "")
        assert f"{name!r} is no DNS label" in capsys.readouterr().err
    assert server.requests == []


def test_without_the_library_it_is_said_how_to_get_it() -> None:
    hidden = "import sys; sys.modules['cryptography'] = None; from cpupool import cli; cli.run()"
    done = subprocess.run(
        [sys.executable, "-c", hidden, "certs", "--namespace", "cpupool"],
        stderr=subprocess.PIPE,
        text=True,
        check=False,
        timeout=DEADLINE_S,
    )
    assert (done.returncode, done.stderr) == (
        2,
        "cpupool: cryptography is missing; in cpupool's folder: pip install '.[webhook]'\n",
    )


def test_outside_a_cluster_the_api_server_must_be_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    assert cli.main(["certs", "--namespace", "cpupool"]) == 2
    assert "name its address with --api-server, or name a --kubeconfig" in capsys.readouterr().err


def test_an_admin_logs_in_with_a_kubeconfig_from_anywhere(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with login(folder) as cluster:
        fill(cluster.server)
        path = cluster.kubeconfig({"none": {"token": "x"}, "jane": cluster.certificate("jane")})
        asked = ["certs", "--namespace", "cpupool", "--kubeconfig", str(path)]

        assert cli.main([*asked, "--context", "jane"]) == 0

        assert "serving certificate made" in capsys.readouterr().out
        assert [place for place, _ in cluster.server.updates] == [SECRET, CONFIGURATION, SECRET]
        assert {request.user for request in cluster.server.requests} == {"jane"}
