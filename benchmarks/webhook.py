"""The cost of requests to the webhook, beside a minimal server of the same libraries."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import closing, contextmanager
from pathlib import Path
from statistics import quantiles
from typing import TYPE_CHECKING

from tests.pods import container, pod, process, review
from tests.webhooks import LOCALHOST, Client, Secret

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.rows import Row

REQUESTS = 4000
CONNECTIONS = (1, 8)
POOLS = "pools: {exclusive-a: {cpus: 2-5}, shared-a: {cpus: 6-7}, default: {cpus: 0-1}}\n"
MINIMAL = """\
import sys
import uvicorn
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import Route

async def answer(request):
    await request.body()
    return Response(b"x" * 1500, media_type="application/json")

app = Starlette(routes=[Route("/mutating-pods", answer, methods=["POST"])])
print("port=%s " % sys.argv[1], file=sys.stderr, flush=True)
uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), http="h11", access_log=False,
            log_level="critical", ssl_certfile=sys.argv[2], ssl_keyfile=sys.argv[3])
"""


def webhook() -> Iterator[Row]:
    """The webhook under load, and a minimal server of the same libraries."""
    with tempfile.TemporaryDirectory(prefix="cpl-") as name:
        folder = Path(name)
        secret = Secret(folder / "tls")
        secret.rotate()
        theirs = ["-c", MINIMAL, str(_free_port()), str(secret.certificate), str(secret.key)]
        for what, command in (("webhook", ours(folder, secret)), ("minimal server", theirs)):
            with running(command, secret) as (pid, port):
                yield (f"{what} at rest", _memory(pid), "-")
                for connections in CONNECTIONS:
                    shown = f"{what}, requests over {connections} connections"
                    yield (shown, _load(port, secret, connections), "-")
                yield (f"{what} afterwards", _memory(pid), "-")


def ours(folder: Path, secret: Secret) -> list[str]:
    """Return Python's arguments for a webhook, after writing its pool file into the folder."""
    (folder / "poolconfig-a.yaml").write_text(POOLS)
    return [
        *("-m", "cpupool", "webhook", "--port", "0", "--metrics-port", "0"),
        *("--config", str(folder), "--tls-cert-file", str(secret.certificate)),
        *("--tls-private-key-file", str(secret.key)),
    ]


def _free_port() -> int:
    with socket.create_server((LOCALHOST, 0)) as server:
        port: int = server.getsockname()[1]
        return port


def document() -> bytes:
    """Return a review of a pod that requests pools, as JSON."""
    both = {"exclusive-a": "2", "shared-a": "300"}
    entry = {
        "container": "main",
        "processes": [process(cpus=2), process("b", pool="shared-a", cpus=300)],
    }
    body = pod(container(pools=both), container("side"), processes=[entry])
    return json.dumps(review(body)).encode()


@contextmanager
def running(command: list[str], secret: Secret) -> Iterator[tuple[int, int]]:
    """Run a server until the block ends; give its process id and its port."""
    with subprocess.Popen([sys.executable, *command], stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr
        found = re.search(r"port=(\d+) ", process.stderr.readline())
        assert found
        # What it logs is read and forgotten.
        reader = threading.Thread(target=process.stderr.read)
        reader.start()
        try:
            _await(int(found[1]), secret)
            yield process.pid, int(found[1])
        finally:
            process.kill()
            reader.join()


def _await(port: int, secret: Secret) -> None:
    deadline_s = time.monotonic() + 30
    while True:
        try:
            with closing(Client(port, secret.trusting())) as client:
                client.shown()
                return
        except OSError:
            assert time.monotonic() < deadline_s
            threading.Event().wait(0.05)


def _load(port: int, secret: Secret, connections: int) -> str:
    taken_ms: list[float] = []
    body = document()

    def ask() -> None:
        with closing(Client(port, secret.trusting())) as client:
            for _ in range(REQUESTS // connections):
                began = time.perf_counter()
                assert client.post("/mutating-pods", body).status == 200
                taken_ms.append((time.perf_counter() - began) * 1000)

    threads = [threading.Thread(target=ask) for _ in range(connections)]
    began = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    percentiles = quantiles(taken_ms, n=100)
    return (
        f"{len(taken_ms) / (time.perf_counter() - began):.0f}/s,"
        f" p50 {percentiles[49]:.2f} ms, p99 {percentiles[98]:.2f} ms"
    )


def _memory(pid: int) -> str:
    found = re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
    assert found
    return f"RSS {int(found[1]) / 1024:.1f} MiB"
