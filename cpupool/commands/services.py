"""What the commands ask for that run in a cluster, and stay."""

from __future__ import annotations

import argparse
import os
import signal
import threading
from contextlib import suppress

from cpupool.commands import METRICS_PORT, UsageError
from cpupool.kube.client import APIServer, NoAPIServer


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
    """Give an event that SIGTERM and SIGINT set from now on."""
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda _number, _frame: stop.set())
    return stop


def missing(error: ModuleNotFoundError) -> UsageError:
    """Say how a library is had that only some installations have."""
    library = str(error.name).partition(".")[0]
    return UsageError(f"{library} is missing; in cpupool's folder: pip install '.[webhook]'")
