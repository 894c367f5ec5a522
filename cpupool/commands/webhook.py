"""`cpupool webhook`: runs the admission webhook, which the API server asks about pods."""

from __future__ import annotations

import logging
import os
import resource
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Final, TextIO

from cpupool.commands.shell.options import POOL_FOLDER, add_command, add_setting, typed
from cpupool.commands.shell.rules import add_rules, rules
from cpupool.commands.shell.services import (
    api_server,
    asked_to_end,
    config_map,
    missing,
)
from cpupool.config import settings
from cpupool.loops.supervisor import supervise
from cpupool.telemetry import log
from cpupool.telemetry.health import Health
from cpupool.telemetry.metrics import WebhookMetrics
from cpupool.telemetry.server import TelemetryServer
from cpupool.version import VERSION

if TYPE_CHECKING:
    import argparse

    from cpupool.commands.shell.options import Commands
    from cpupool.kube.client import APIServer
    from cpupool.loops.supervisor import Loop
    from cpupool.webhook.service import Webhook

_TLS: Final = Path("/etc/cpupool/tls")
_EXAMPLES = """\
examples:
  cpupool webhook                        in a pod of the Deployment
  mkdir pools && cp poolconfig-dpdk.yaml pools
  cpupool webhook --port 9443 --metrics-port 0 --config pools \\
      --tls-cert-file tls.crt --tls-private-key-file tls.key

Exit code 0: it was asked to end; 1: a part of it failed; 2: the command line is wrong.
"""


def add_parser(commands: Commands, summary: str) -> None:
    """Add the command's arguments."""
    parser = add_command(
        commands,
        "webhook",
        summary,
        "Checks pods that request pools, for the API server: completes a correct pod, and denies"
        " another one with all its problems.",
        _EXAMPLES,
    )
    parser.add_argument(
        "--port",
        metavar="PORT",
        type=typed(settings.port),
        default=8443,
        help="port of HTTPS (default: %(default)s)",
    )
    parser.add_argument(
        "--tls-cert-file",
        metavar="FILE",
        type=Path,
        default=_TLS / "tls.crt",
        help="the certificate and those that lead to its CA; a new one is taken at once, a missing"
        " one waited for (default: %(default)s)",
    )
    parser.add_argument(
        "--tls-private-key-file",
        metavar="FILE",
        type=Path,
        default=_TLS / "tls.key",
        help="the certificate's key (default: %(default)s)",
    )
    parser.add_argument(
        "--config",
        metavar="DIR",
        type=Path,
        default=POOL_FOLDER,
        help="folder with the cluster's poolconfig-<name>.yaml files; edits are followed, and"
        " without files a pool is unknown only by the form of its name (default: %(default)s)",
    )
    add_setting(parser, "configmap")
    add_rules(parser)
    add_setting(parser, "api-server")
    add_setting(parser, "metrics-port")
    add_setting(parser, "log-format")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace, _out: TextIO) -> int:
    """Run the webhook until SIGTERM or SIGINT.

    Raises:
        UsageError: the libraries of the webhook are not installed, or `--api-server` is no address.
        CPUPoolError: a part of it failed, or a port cannot be had.
    """
    # First: until then the kernel keeps SIGTERM from the first process of a container.
    stop = asked_to_end()
    try:
        from cpupool.webhook.service import Webhook, WebhookSettings  # noqa: PLC0415 - an extra of its own
    except ModuleNotFoundError as error:
        raise missing(error) from error
    log.set_up(logging.INFO, json=arguments.log_format == "json")
    metrics, health = WebhookMetrics(), Health()
    followed = config_map(arguments.configmap)
    made = WebhookSettings(
        config=arguments.config,
        certificate=arguments.tls_cert_file,
        key=arguments.tls_private_key_file,
        rules=rules(arguments),
        port=arguments.port,
        api_server=_api_server(arguments.api_server),
        config_map=followed,
    )
    webhook = Webhook(made, metrics, health)
    probes = arguments.metrics_port
    telemetry = TelemetryServer("", probes, metrics, health) if probes else None
    log.get(__name__).info(
        "webhook starts",
        version=VERSION,
        port=webhook.server.port,
        pools=arguments.config,
        configmap=followed or "not followed",
    )
    _allow_files()
    serve(webhook, telemetry, stop)
    return 0


def _allow_files() -> None:
    """Use as many file descriptors as the container may: each silent client has one."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def _api_server(url: str) -> APIServer | None:
    """Return the API server; None outside a cluster without a named one."""
    return api_server(url) if url or os.environ.get("KUBERNETES_SERVICE_HOST") else None


def serve(webhook: Webhook, telemetry: TelemetryServer | None, stop: threading.Event) -> None:
    """Run until `stop` is set; probes hear of the end while requests are still answered.

    Raises:
        CPUPoolError: a part of it failed.
    """
    answered = threading.Event()

    def answer(stop: threading.Event) -> None:
        try:
            webhook.server.run(stop)
        finally:
            answered.set()
            if telemetry:
                telemetry.wake()

    loops: dict[str, Loop] = {**webhook.loops(), "server": answer}
    if telemetry:
        loops["telemetry"] = lambda _stop: telemetry.run(answered)
    supervise(loops, stop, webhook.wake)
