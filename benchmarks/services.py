"""The cost of the processes beside the agent: `python -m benchmarks.services`.

The webhook with a certificate and pool files, `cpupool certs --watch` after it has filled a Secret,
and one look at good certificates.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from benchmarks.processes import AS_IN_THE_IMAGE, PATIENCE_S, cpu_s, memory
from benchmarks.rows import ms
from cpupool.commands.pictures.drawing import show, table
from tests.apiserver import FakeAPIServer
from tests.scenarios.certs.objects import CONFIGURATION, bundles, fill
from tests.webhooks import Secret

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from benchmarks.rows import Row

POOLS: Final = "pools: {exclusive-a: {cpus: 2-5}, shared-a: {cpus: 6-7}, default: {cpus: 0-1}}\n"
RESTING_S: Final = 120.0
"""`certs` compares every minute."""
REPLACED: Final = 8


def main() -> None:
    """Measure all, and print the table."""
    show(table(("what", "measured", "aim"), list(services())), sys.stdout)


def services() -> Iterator[Row]:
    """The webhook and `certs --watch` at rest."""
    with tempfile.TemporaryDirectory(prefix="cpl-") as name, FakeAPIServer() as server:
        fill(server)
        applied = server.kept(CONFIGURATION)
        folder = Path(name)
        (folder / "poolconfig-a.yaml").write_text(POOLS)
        secret = Secret(folder / "tls")
        secret.rotate()
        api = ("--api-server", server.url)
        webhook = (
            *("webhook", "--port", "0", "--metrics-port", "0", "--config", name, *api),
            *("--tls-cert-file", str(secret.certificate)),
            *("--tls-private-key-file", str(secret.key)),
        )
        certs = ("certs", "--namespace", "cpupool", *api)
        with _running(folder, *webhook, said="certificate in use") as pid:
            yield from _at_rest("webhook", pid)
        with _running(folder, *certs, "--watch", said="certificates are good") as pid:
            yield from _at_rest("certs", pid)
            filled_ms = [_filled_ms(server, applied) for _ in range(REPLACED)]
            yield "replaced configuration until filled", ms(filled_ms), "2 s"
        for what, command, said in (
            ("webhook", webhook, "certificate in use"),
            ("certs", (*certs, "--watch"), "certificates are good"),
        ):
            with _running(folder, *command, said=said, before=("-X", "importtime")):
                yield f"{what}, modules imported", str(_imported(folder)), "-"
        yield "one look at good certificates", _one_look(*certs), "-"


def _at_rest(what: str, pid: int) -> Iterator[Row]:
    used_s = cpu_s(pid)
    time.sleep(RESTING_S)
    yield f"{what} at rest", memory(pid), "-"
    used_ms = (cpu_s(pid) - used_s) * 1000
    yield f"{what}, CPU time in {RESTING_S:.0f} s", f"{used_ms:.0f} ms", "-"


def _filled_ms(server: FakeAPIServer, applied: dict[str, object]) -> float:
    """Replace the configuration, and return how long it has no CAs."""
    began_s = time.monotonic()
    server.keep(CONFIGURATION, applied)
    _until(lambda: all(bundles(server.kept(CONFIGURATION))))
    taken_ms = (time.monotonic() - began_s) * 1000
    # Until it is at rest again.
    time.sleep(2)
    return taken_ms


@contextmanager
def _running(folder: Path, *command: str, said: str, before: tuple[str, ...] = ()) -> Iterator[int]:
    log = folder / "log"
    with (
        log.open("w") as written,
        subprocess.Popen(
            [sys.executable, *before, "-m", "cpupool", *command],
            env={**os.environ, **AS_IN_THE_IMAGE},
            stderr=written,
        ) as process,
    ):
        try:
            _until(lambda: said in log.read_text())
            yield process.pid
        finally:
            process.terminate()


def _imported(folder: Path) -> int:
    lines = (folder / "log").read_text().splitlines()
    return sum(line.startswith("import time:") for line in lines)


def _one_look(*command: str) -> str:
    process = subprocess.Popen(
        [sys.executable, "-m", "cpupool", *command],
        env={**os.environ, **AS_IN_THE_IMAGE},
        stdout=subprocess.DEVNULL,
    )
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    cpu_ms = (used.ru_utime + used.ru_stime) * 1000
    return f"{cpu_ms:.0f} ms of CPU, RSS at most {used.ru_maxrss / 1024:.1f} MiB"


def _until(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


if __name__ == "__main__":
    main()
