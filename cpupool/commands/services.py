"""What the commands ask for that run in a cluster, and stay."""

from __future__ import annotations

import argparse
import os
import re
import signal
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from cpupool.commands import METRICS_PORT, UsageError
from cpupool.kube.client import SERVICE_ACCOUNT, APIServer, NoAPIServer
from cpupool.kube.config_map import ConfigMapName

if TYPE_CHECKING:
    from pathlib import Path

DNS_LABEL: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_CONFIG_MAP: Final = re.compile(rf"({DNS_LABEL.pattern}/)?[a-z0-9]([-a-z0-9.]{{0,251}}[a-z0-9])?")


def add_api_server(parser: argparse.ArgumentParser) -> None:
    """Add `--api-server`, for `api_server`."""
    parser.add_argument(
        "--api-server",
        metavar="URL",
        help="address of the API server, as `kubectl proxy` gives it (default: that of the cluster"
        " in which this is a pod)",
    )


def api_server(url: str | None) -> APIServer:
    """Give the API server of this address, or of the cluster.

    Raises:
        UsageError: there is neither.
    """
    try:
        return APIServer.at(url) if url else APIServer.in_cluster(os.environ)
    except NoAPIServer as error:
        raise UsageError(str(error)) from error


def add_config_map(parser: argparse.ArgumentParser) -> None:
    """Add `--configmap`, for `config_map`."""
    parser.add_argument(
        "--configmap",
        metavar="[NAMESPACE/]NAME",
        type=_config_map,
        default="cpu-pooler-configmap",
        help="the ConfigMap that --config shows, to be told of its edits by the API server and at"
        " once; '' for the folder alone (default: %(default)s, in the namespace of this pod)",
    )


def config_map(text: str) -> ConfigMapName | None:
    """Return the ConfigMap to follow; None where the folder alone counts."""
    namespace, _, name = text.rpartition("/")
    namespace = namespace or own_namespace(SERVICE_ACCOUNT)
    return ConfigMapName(namespace, name) if name and namespace else None


def _config_map(text: str) -> str:
    if text and not _CONFIG_MAP.fullmatch(text):
        raise argparse.ArgumentTypeError(
            f"{text!r} is no name of a ConfigMap; write NAMESPACE/NAME"
        )
    return text


def own_namespace(folder: Path) -> str:
    """Return the namespace of this pod; empty where this is none.

    Args:
        folder: where a pod's service account is mounted.
    """
    with suppress(OSError, UnicodeDecodeError):
        text = (folder / "namespace").read_text("ascii").strip()
        if DNS_LABEL.fullmatch(text):
            return text
    return ""


def add_metrics_port(parser: argparse.ArgumentParser) -> None:
    """Add `--metrics-port`."""
    parser.add_argument(
        "--metrics-port",
        metavar="PORT",
        type=port,
        default=METRICS_PORT,
        help="port of /healthz, /readyz and /metrics; 0 for none (default: %(default)s)",
    )


def port(text: str) -> int:
    """Read a port from the command line."""
    with suppress(ValueError):
        number = int(text)
        if 0 <= number < 2**16:
            return number
    raise argparse.ArgumentTypeError(f"{text!r} is no port; give a number up to 65535, or 0")


def add_log_format(parser: argparse.ArgumentParser) -> None:
    """Add `--log-format`."""
    parser.add_argument(
        "--log-format",
        choices=("text", "json"),
        default="text",
        help="how log lines are written (default: %(default)s)",
    )


def asked_to_end() -> threading.Event:
    """Return an event that SIGTERM and SIGINT set from now on."""
    stop = threading.Event()

    def end(_number: int, _frame: object) -> None:
        # The handler may interrupt this thread while that holds the event's lock.
        threading.Thread(target=stop.set, name="signal").start()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end)
    return stop


def missing(error: ModuleNotFoundError) -> UsageError:
    """Say how a library is had that only some installations have."""
    library = str(error.name).partition(".")[0]
    return UsageError(f"{library} is missing; in cpupool's folder: pip install '.[webhook]'")
