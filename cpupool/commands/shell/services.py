"""The options and helpers of the commands that run in a cluster until a signal ends them."""

from __future__ import annotations

import os
import signal
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from cpupool.commands.shell.exit_codes import UsageError
from cpupool.commands.shell.options import add_setting
from cpupool.core.names import DNS_LABEL
from cpupool.kube.client import SERVICE_ACCOUNT, APIServer, NoAPIServer
from cpupool.kube.config_map import ConfigMapName

if TYPE_CHECKING:
    import argparse
    from pathlib import Path

_KUBECTLS: Final = "~/.kube/config"
"""The file that kubectl reads without the variable KUBECONFIG."""


def add_kubeconfig(parser: argparse.ArgumentParser) -> None:
    """Add `--kubeconfig` and `--context`, for `api_server`."""
    add_setting(parser, "kubeconfig")
    add_setting(parser, "context")


def api_server(url: str, kubeconfig: str = "", context: str = "") -> APIServer:
    """Return the API server of this address, of this kubeconfig, or of the cluster.

    Args:
        url: its address; empty for none.
        kubeconfig: the kubeconfig; empty for none.
        context: which context of it; with no kubeconfig named, of the one that kubectl reads.

    Raises:
        UsageError: there is none, or two are named.
    """
    try:
        if not (kubeconfig or context):
            return APIServer.at(url) if url else APIServer.in_cluster(os.environ)
        if url:
            given = "--kubeconfig" if kubeconfig else "--context"
            raise UsageError(f"--api-server and {given} name two API servers; leave one out")
        return _outside(kubeconfig or os.environ.get("KUBECONFIG") or _KUBECTLS, context)
    except NoAPIServer as error:
        raise UsageError(error) from error


def _outside(kubeconfig: str, context: str) -> APIServer:
    try:
        # Imported here, because the library is installed only where commands run off the cluster.
        from cpupool.kube.kubeconfig import api_server as of_kubeconfig  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise missing(error, "cluster") from error
    return of_kubeconfig(kubeconfig, context)


def config_map(text: str) -> ConfigMapName | None:
    """Return the ConfigMap to follow; None to read only the folder."""
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


def own_pod(folder: Path) -> str:
    """Return `namespace/name` of this pod, by its host name; empty where this is none.

    Args:
        folder: where a pod's service account is mounted.
    """
    namespace = own_namespace(folder)
    return f"{namespace}/{os.uname().nodename}" if namespace else ""


def asked_to_end() -> threading.Event:
    """Return an event that SIGTERM and SIGINT set from now on."""
    stop = threading.Event()

    def end(_number: int, _frame: object) -> None:
        # The handler may interrupt this thread while that holds the event's lock.
        threading.Thread(target=stop.set, name="signal").start()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end)
    return stop


def missing(error: ModuleNotFoundError, extra: str = "webhook") -> UsageError:
    """Name the command that installs an optional library.

    Args:
        error: names the library.
        extra: of cpupool's, which brings it.
    """
    library = str(error.name).partition(".")[0]
    return UsageError(f"{library} is missing; in cpupool's folder: pip install '.[{extra}]'")
