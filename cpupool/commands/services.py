"""What the commands ask for that run in a cluster, and stay."""

from __future__ import annotations

import os
import signal
import threading
from contextlib import suppress
from typing import TYPE_CHECKING

from cpupool.commands import UsageError, add_setting
from cpupool.config.settings import DNS_LABEL
from cpupool.kube.client import SERVICE_ACCOUNT, APIServer, NoAPIServer
from cpupool.kube.config_map import ConfigMapName

if TYPE_CHECKING:
    import argparse
    from pathlib import Path


def add_api_server(parser: argparse.ArgumentParser) -> None:
    """Add `--api-server`, for `api_server`."""
    add_setting(parser, "api-server")


def api_server(url: str) -> APIServer:
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
    add_setting(parser, "configmap")


def config_map(text: str) -> ConfigMapName | None:
    """Return the ConfigMap to follow; None where the folder alone counts."""
    namespace, _, name = text.rpartition("/")
    namespace = namespace or own_namespace(SERVICE_ACCOUNT)
    return ConfigMapName(namespace, name) if name and namespace else None


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
    add_setting(parser, "metrics-port")


def add_log_format(parser: argparse.ArgumentParser) -> None:
    """Add `--log-format`."""
    add_setting(parser, "log-format")


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
