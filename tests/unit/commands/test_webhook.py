"""What the webhook's command line comes to."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Any

import pytest

from cpupool import cli
from cpupool.commands import webhook as command
from cpupool.commands.shell.exit_codes import BAD_INPUT
from cpupool.telemetry.server import TelemetryServer
from cpupool.webhook.admission.rules import CFSQuotas, RequiredAgent
from cpupool.webhook.https.server import HTTPSServer
from cpupool.webhook.service import Webhook

if TYPE_CHECKING:
    import threading
    from collections.abc import Iterator
    from pathlib import Path

    from cpupool.webhook.service import WebhookSettings


@pytest.fixture(autouse=True)
def _signals() -> Iterator[None]:
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in handlers.items():
        signal.signal(number, handler)


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """End before anything runs, and tell what would have."""
    found: dict[str, Any] = {}
    made = Webhook.__init__

    def init(webhook: Webhook, settings: WebhookSettings, *others: Any) -> None:
        found["settings"] = settings
        made(webhook, settings, *others)

    def serve(webhook: Webhook, telemetry: TelemetryServer | None, stop: threading.Event) -> None:
        found.update(webhook=webhook, telemetry=telemetry, stop=stop)
        webhook.server.close()
        if telemetry:
            telemetry.close()

    monkeypatch.setattr(Webhook, "__init__", init)
    monkeypatch.setattr(command, "serve", serve)
    return found


def test_every_option_reaches_its_place(ended: dict[str, Any], tmp_path: Path) -> None:
    arguments = [
        *("--port", "0", "--metrics-port", "0", "--config", str(tmp_path)),
        *("--tls-cert-file", "a.crt", "--tls-private-key-file", "a.key"),
        *("--require-agent", "guaranteed"),
        *("--cfs-quotas", "shared", "--resource-domain", "example.com", "--log-format", "json"),
        *("--api-server", "http://127.0.0.1:8001"),
    ]
    assert cli.main(["webhook", *arguments]) == 0
    settings = ended["settings"]
    assert settings.config == tmp_path
    assert (str(settings.certificate), str(settings.key)) == ("a.crt", "a.key")
    assert settings.rules.names.domain == "example.com"
    assert settings.rules.cfs_quotas is CFSQuotas.SHARED
    assert settings.rules.required_agent is RequiredAgent.GUARANTEED
    assert str(settings.api_server) == "http://127.0.0.1:8001"
    assert ended["telemetry"] is None


@pytest.mark.parametrize("host", ["10.0.0.1", ""])
def test_the_api_server_is_that_of_the_cluster_if_there_is_one(
    ended: dict[str, Any], monkeypatch: pytest.MonkeyPatch, host: str
) -> None:
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", host)
    assert cli.main(["webhook", "--port", "0", "--metrics-port", "0"]) == 0
    found = ended["settings"].api_server
    assert (str(found) if found else "") == (f"https://{host}:443" if host else "")


def test_what_is_no_address_of_an_api_server_is_refused(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert cli.main(["webhook", "--port", "0", "--api-server", "nowhere"]) == BAD_INPUT
    assert "is no address of an API server" in capsys.readouterr().err


def test_the_defaults_are_those_of_the_manifests(
    ended: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    ports = []

    def anywhere(server: Any, address: str, port: int, *others: Any, **named: Any) -> None:
        # The ports may be taken here.
        ports.append((address, port))
        made[type(server)](server, "127.0.0.1", 0, *others, **named)

    made = {one: one.__init__ for one in (HTTPSServer, TelemetryServer)}
    for one in made:
        monkeypatch.setattr(one, "__init__", anywhere)
    assert cli.main(["webhook"]) == 0
    settings = ended["settings"]
    assert ports == [("", 8443), ("", 9404)]
    assert str(settings.config) == "/etc/cpu-pooler"
    assert str(settings.certificate) == "/etc/cpupool/tls/tls.crt"
    assert str(settings.key) == "/etc/cpupool/tls/tls.key"
    assert settings.rules.cfs_quotas is CFSQuotas.ALL
    assert settings.rules.required_agent is RequiredAgent.NONE


@pytest.mark.parametrize("port", ["65536", "-1", "x"])
def test_what_is_no_port_is_refused(port: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["webhook", "--port", port]) == BAD_INPUT
    assert "is no port" in capsys.readouterr().err
