"""The cost of a webhook without requests: CPU time and wake-ups of its threads.

It follows the ConfigMap of the pools, and is probed as often as daemonsets/webhook says.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from contextlib import closing, contextmanager
from heapq import heapify, heapreplace
from http.client import HTTPConnection
from pathlib import Path
from typing import TYPE_CHECKING, Final

import yaml

from benchmarks.processes import AS_IN_THE_IMAGE, PATIENCE_S, cpu_s, memory
from benchmarks.rest import MEASURED_S, SETTLES_S, Use, free_port
from tests.apiserver import FakeAPIServer
from tests.webhooks import LOCALHOST, Secret

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.rows import Row

POOLS: Final = "pools: {exclusive-a: {cpus: 2-5}, shared-a: {cpus: 6-7}, default: {cpus: 0-1}}\n"
_DEPLOYMENT: Final = Path(__file__).parents[1] / "daemonsets" / "webhook" / "deployment.yaml"
_CONFIG_MAP: Final = "/api/v1/namespaces/cpupool/configmaps/cpu-pooler-configmap"


def webhook_rest() -> Iterator[Row]:
    """The webhook at rest, with the kubelet's probes."""
    port = free_port()
    with _running(port) as pid:
        _probe(port, SETTLES_S)
        before, used_s = Use.of(pid), cpu_s(pid)
        measured_s = _probe(port, MEASURED_S)
        after, resident = Use.of(pid), memory(pid)
        an_hour_s = (cpu_s(pid) - used_s) / measured_s * 3600
    woken = after.switches - before.switches
    each = ", ".join(f"{count / measured_s:.2f}" for _, count in woken.most_common())
    yield "webhook, CPU at rest", f"{an_hour_s:.2f} s an hour", "1.5 s an hour"
    yield "webhook, wake-ups at rest", f"{woken.total() / measured_s:.2f} a second", "2 a second"
    yield "  by thread", each, "-"
    yield "webhook, resident at rest", resident, "-"
    yield "webhook, threads", str(len(after.switches)), "-"


@contextmanager
def _running(port: int) -> Iterator[int]:
    """Run a webhook whose probes have this port until the block ends; give its process id."""
    with tempfile.TemporaryDirectory(prefix="cpl-") as name, FakeAPIServer() as server:
        server.keep_config_map(_CONFIG_MAP, a=POOLS)
        folder = Path(name)
        (folder / "poolconfig-a.yaml").write_text(POOLS)
        secret = Secret(folder / "tls")
        secret.rotate()
        command = (
            *(sys.executable, "-m", "cpupool", "webhook", "--port", "0", "--config", name),
            *("--api-server", server.url, "--configmap", "cpupool/cpu-pooler-configmap"),
            *("--tls-cert-file", str(secret.certificate)),
            *("--tls-private-key-file", str(secret.key), "--metrics-port", str(port)),
        )
        environment = {**os.environ, **AS_IN_THE_IMAGE}
        with subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL) as process:
            try:
                _await_ready(port)
                yield process.pid
            finally:
                process.terminate()


def _probe(port: int, seconds: float) -> float:
    """Probe the webhook for a time as the kubelet does; return how long that took."""
    (container,) = yaml.safe_load(_DEPLOYMENT.read_text())["spec"]["template"]["spec"]["containers"]
    probes = [container[name] for name in ("readinessProbe", "livenessProbe")]
    began_s = time.monotonic()
    due = [(0.0, probe["periodSeconds"], probe["httpGet"]["path"]) for probe in probes]
    heapify(due)
    while due[0][0] < seconds:
        due_s, period_s, path = due[0]
        time.sleep(max(0.0, began_s + due_s - time.monotonic()))
        assert _asked(port, path) == 200
        heapreplace(due, (due_s + period_s, period_s, path))
    return time.monotonic() - began_s


def _asked(port: int, path: str) -> int:
    with closing(HTTPConnection(LOCALHOST, port, timeout=PATIENCE_S)) as connection:
        connection.request("GET", path)
        response = connection.getresponse()
        response.read()
        return response.status


def _await_ready(port: int) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while True:
        try:
            if _asked(port, "/readyz") == 200:
                return
        except OSError:
            pass
        assert time.monotonic() < deadline_s
        time.sleep(0.05)
