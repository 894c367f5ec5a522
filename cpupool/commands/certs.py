"""`cpupool certs`: makes the webhook's certificates in a cluster without cert-manager."""

from __future__ import annotations

import argparse
import json
import logging
import os
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any, Final, TextIO

from cpupool.commands.shell import door
from cpupool.commands.shell.exit_codes import UsageError
from cpupool.commands.shell.options import add_command, add_setting
from cpupool.commands.shell.services import (
    add_kubeconfig,
    api_server,
    asked_to_end,
    missing,
    own_namespace,
)
from cpupool.core.errors import CPUPoolError
from cpupool.core.names import DNS_LABEL
from cpupool.kube.client import SERVICE_ACCOUNT
from cpupool.loops.supervisor import supervise
from cpupool.telemetry import log
from cpupool.telemetry.health import Health
from cpupool.version import VERSION
from cpupool.webhook.certificate_keeper import CertificateKeeper
from cpupool.webhook.objects import Installed

if TYPE_CHECKING:
    import threading
    from collections.abc import Iterator

    from cpupool.commands.shell.options import Commands
    from cpupool.kube.client import APIServer
    from cpupool.webhook.certificate_maker import LookResult

_NAMESPACE: Final = "POD_NAMESPACE"
_DAY: Final = "%Y-%m-%d"
_SILENT_S: Final = 900.0
"""A time longer than a loop's pause after trouble, and than a look."""
_LOOK_S: Final = 300.0
"""A time longer than a slow API server takes for the questions of a look."""
_POLL_S: Final = 0.05
"""The longest delay until this process sees the end of a look in another process."""
_HANDED_ON: Final = (
    *("secret", "service", "webhook_configuration", "api_server", "kubeconfig", "context"),
    "log_format",
)
_EXAMPLES: Final = """\
examples:
  cpupool certs --watch                  in the pod of the webhook's certificates
  cpupool certs --kubeconfig ~/.kube/config --context prod --namespace cpupool
  kubectl proxy & cpupool certs --api-server http://127.0.0.1:8001 --namespace cpupool

The command makes a certificate authority (CA), which signs the webhook's certificate. It keeps both
in the Secret, renews them before they expire, and writes the trusted CAs into caBundle of the
MutatingWebhookConfiguration. It does not change valid certificates. Several processes may run at
the same time.

Exit code 0: the certificates are valid, or --watch was asked to end; 1: the work failed; 2: the
command line is wrong.
"""


def add_parser(commands: Commands, summary: str) -> None:
    """Add the command's arguments."""
    parser = add_command(
        commands,
        "certs",
        summary,
        "Makes, renews and publishes the webhook's certificates in the cluster.",
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
    shape.add_argument(
        "--watch", action="store_true", help="run until it is asked to end, and renew them in time"
    )
    shape.add_argument("--json", action="store_true", help="print one JSON object instead")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace, out: TextIO) -> int:
    """Look at the certificates once, or until SIGTERM or SIGINT.

    Raises:
        UsageError: a library is missing, or the namespace or the API server is not named.
        CPUPoolError: something could not be read or written.
    """
    # Without --json the output says what the log would.
    level = logging.INFO if arguments.watch or arguments.json else logging.WARNING
    log.set_up(level, json=arguments.log_format == "json")
    if arguments.watch:
        # First: until then the kernel keeps SIGTERM from the first process of a container.
        _watch(arguments, asked_to_end())
        return 0
    result = _look(arguments)
    if arguments.json:
        out.write(json.dumps(_as_json(result), indent=2) + "\n")
    else:
        for line in _lines(result):
            door.tell(line, out)
    return 0


def _look(arguments: argparse.Namespace) -> LookResult:
    try:
        # Imported here: its library is optional, and a process that only watches needs none.
        from cpupool.webhook.certificate_maker import CertificateMaker  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise missing(error) from error
    return CertificateMaker(_server(arguments), _installed(arguments)).look()


def _watch(arguments: argparse.Namespace, stop: threading.Event) -> None:
    installed = _installed(arguments)
    apart = _LookApart(arguments, installed.namespace, stop)
    keeper = CertificateKeeper(_server(arguments), installed, apart.look)
    log.get(__name__).info("certificates are watched", version=VERSION)
    health = Health()
    loops = keeper.loops(health.beat)
    for name in loops:
        health.expect(name, _SILENT_S)
    supervise(loops, stop, keeper.wake, health.hung)


class LookFailed(CPUPoolError):
    """A look in a process of its own has failed.

    Attributes:
        code: the exit code of the process; negative for the signal that ended it.
    """

    def __init__(self, code: int) -> None:
        self.code = code
        super().__init__(f"`cpupool certs` ended with {code}; a line before this one says why")


class _LookApart:
    """Looks by this command in a process of its own, which logs where this one does.

    Args:
        arguments: this command's.
        namespace: where the webhook is installed.
        stop: ends a look, too.
    """

    def __init__(
        self, arguments: argparse.Namespace, namespace: str, stop: threading.Event
    ) -> None:
        given = {"namespace": namespace} | {name: getattr(arguments, name) for name in _HANDED_ON}
        options = [f"--{name.replace('_', '-')}={value}" for name, value in given.items() if value]
        self._command = [sys.executable, "-m", "cpupool", "certs", "--json", *options]
        self._stop = stop

    def look(self) -> None:
        """Make and write the certificates that are due.

        Raises:
            LookFailed: it has failed, did not end in time, or must end now.
        """
        deadline_s = time.monotonic() + _LOOK_S
        with subprocess.Popen(  # noqa: S603 - this command; every value is an option's
            self._command, stdout=subprocess.DEVNULL
        ) as process:
            while process.poll() is None:
                if self._stop.wait(_POLL_S) or time.monotonic() > deadline_s:
                    process.kill()
                    process.wait()
        if process.returncode:
            raise LookFailed(process.returncode)


def _server(arguments: argparse.Namespace) -> APIServer:
    return api_server(arguments.api_server, arguments.kubeconfig, arguments.context)


def _installed(arguments: argparse.Namespace) -> Installed:
    namespace = arguments.namespace or own_namespace(SERVICE_ACCOUNT)
    if not namespace:
        raise UsageError(f"the namespace is not known; give --namespace, or set {_NAMESPACE}")
    return Installed(
        namespace=namespace,
        secret=arguments.secret,
        service=arguments.service,
        configuration=arguments.webhook_configuration,
    )


def _label(text: str) -> str:
    if not DNS_LABEL.fullmatch(text):
        raise argparse.ArgumentTypeError(f"{text!r} is no DNS label; write it as cpupool-webhook")
    return text


def _lines(result: LookResult) -> Iterator[str]:
    if not result.changes:
        yield "all is well"
    for change in result.changes:
        yield f"{change.what}: {change.why}"
    for name, term in result.terms.items():
        yield f"{name}: good until {term.until:{_DAY}}, renewed from {term.renewal:{_DAY}} on"


def _as_json(result: LookResult) -> dict[str, Any]:
    return {
        "changes": [{"what": change.what, "why": change.why} for change in result.changes],
        "certificates": {
            name: {"until": term.until.isoformat(), "renewal": term.renewal.isoformat()}
            for name, term in result.terms.items()
        },
    }
