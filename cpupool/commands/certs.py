"""`cpupool certs`: the webhook's certificates, for those who have no cert-manager."""

from __future__ import annotations

import argparse
import json
import logging
import os
from typing import TYPE_CHECKING, Any, Final, TextIO

from cpupool.commands import UsageError, add_command, add_setting
from cpupool.commands.services import (
    add_kubeconfig,
    api_server,
    asked_to_end,
    missing,
    own_namespace,
)
from cpupool.core.names import DNS_LABEL
from cpupool.kube.client import SERVICE_ACCOUNT
from cpupool.supervisor import supervise
from cpupool.telemetry import log
from cpupool.telemetry.health import Health
from cpupool.version import VERSION

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cpupool.commands import Commands
    from cpupool.roles.certificates import CertificateKeeper, Outcome

_NAMESPACE: Final = "POD_NAMESPACE"
_DAY: Final = "%Y-%m-%d"
_SILENT_S: Final = 900.0
"""Longer than a loop pauses after trouble, and than a slow API server takes for what it asks."""
_EXAMPLES: Final = """\
examples:
  cpupool certs --watch                  in a pod of the webhook's Deployment
  cpupool certs --kubeconfig ~/.kube/config --context prod --namespace cpupool
  kubectl proxy & cpupool certs --api-server http://127.0.0.1:8001 --namespace cpupool

A certificate authority of its own signs the webhook's certificate; both are renewed in time and
kept in the Secret. The authorities to trust are written into the MutatingWebhookConfiguration.
What is good is left alone, and several may run at once.

Exit code 0: all is well now, or with --watch, it was asked to end; 1: it did not come to that; 2:
the command line is wrong.
"""


def add_parser(commands: Commands, summary: str) -> None:
    """Add the command's arguments."""
    parser = add_command(
        commands,
        "certs",
        summary,
        "Makes what the webhook's certificates lack in the cluster, and renews what is due.",
        _EXAMPLES,
    )
    parser.add_argument(
        "--namespace",
        metavar="NAME",
        type=_label,
        default=os.environ.get(_NAMESPACE),
        help=f"where the webhook is installed (default: the variable {_NAMESPACE}, or the namespace"
        " of this pod)",
    )
    for option, default, meaning in (
        ("--secret", "cpupool-webhook-tls", "the Secret that holds the certificates"),
        ("--service", "cpupool-webhook", "the Service of the webhook"),
        ("--webhook-configuration", "cpupool-webhook", "the MutatingWebhookConfiguration"),
    ):
        parser.add_argument(
            option,
            metavar="NAME",
            type=_label,
            default=default,
            help=f"{meaning} (default: %(default)s)",
        )
    add_setting(parser, "api-server")
    add_kubeconfig(parser)
    add_setting(parser, "log-format")
    shape = parser.add_mutually_exclusive_group()
    shape.add_argument("--watch", action="store_true", help="stay, and keep them good")
    shape.add_argument("--json", action="store_true", help="print one JSON object instead")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace, out: TextIO) -> int:
    """Look at the certificates once, or until SIGTERM or SIGINT.

    Raises:
        UsageError: a library is missing, or the namespace or the API server is not named.
        CPUPoolError: something could not be read or written.
    """
    level = logging.INFO if arguments.watch else logging.WARNING
    log.set_up(level, json=arguments.log_format == "json")
    if arguments.watch:
        # First: until then the kernel keeps SIGTERM from the first process of a container.
        stop = asked_to_end()
        keeper = _keeper(arguments)
        log.get(__name__).info("certificates are watched", version=VERSION)
        health = Health()
        loops = keeper.loops(health.beat)
        for name in loops:
            health.expect(name, _SILENT_S)
        supervise(loops, stop, keeper.wake, health.hung)
        return 0
    outcome = _keeper(arguments).look()
    if arguments.json:
        print(json.dumps(_as_json(outcome), indent=2), file=out)
    else:
        out.writelines(f"{line}\n" for line in _lines(outcome))
    return 0


def _keeper(arguments: argparse.Namespace) -> CertificateKeeper:
    try:
        # Imported here, because who installs cpupool without the webhook has no such library.
        from cpupool.roles.certificates import CertificateKeeper, Installed  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise missing(error) from error
    namespace = arguments.namespace or own_namespace(SERVICE_ACCOUNT)
    if not namespace:
        raise UsageError(f"the namespace is not known; give --namespace, or set {_NAMESPACE}")
    server = api_server(arguments.api_server, arguments.kubeconfig, arguments.context)
    installed = Installed(
        namespace=namespace,
        secret=arguments.secret,
        service=arguments.service,
        configuration=arguments.webhook_configuration,
    )
    return CertificateKeeper(server, installed)


def _label(text: str) -> str:
    if not DNS_LABEL.fullmatch(text):
        raise argparse.ArgumentTypeError(f"{text!r} is no DNS label; write it as cpupool-webhook")
    return text


def _lines(outcome: Outcome) -> Iterator[str]:
    if not outcome.changes:
        yield "all is well"
    for change in outcome.changes:
        yield f"{change.what}: {change.why}"
    for name, term in outcome.terms.items():
        yield f"{name}: good until {term.until:{_DAY}}, renewed from {term.renewal:{_DAY}} on"


def _as_json(outcome: Outcome) -> dict[str, Any]:
    return {
        "changes": [{"what": change.what, "why": change.why} for change in outcome.changes],
        "certificates": {
            name: {"until": term.until.isoformat(), "renewal": term.renewal.isoformat()}
            for name, term in outcome.terms.items()
        },
    }
