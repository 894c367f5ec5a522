"""The agent as a process, and the CPU time and memory of processes, as the kernel counts them."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final

from cpupool.local.cgroups import EmulatedCgroups
from cpupool.local.node import EmbeddedNode

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.apiserver import FakeAPIServer
    from tests.machines import Machine

PATIENCE_S: Final = 60.0
IDLE_S: Final = 0.05
AS_IN_THE_IMAGE: Final = {"MALLOC_ARENA_MAX": "1", "MALLOC_TRIM_THRESHOLD_": "65536"}
"""The variables that `Containerfile` sets."""


@contextmanager
def agent(
    api: FakeAPIServer,
    machine: Machine,
    pools: str,
    *options: str,
    nri: bool = False,
    log: IO[str] | int = subprocess.DEVNULL,
) -> Iterator[tuple[EmbeddedNode, int]]:
    """Run an agent on an embedded node until the block ends; give the node and its process id.

    Args:
        api: the API server, which lists the node's pods.
        machine: the node's.
        pools: the text of the pool file.
        options: the agent's own.
        nri: whether the node's runtime has NRI.
        log: where the agent writes its log.
    """
    with tempfile.TemporaryDirectory(prefix="cpl-") as name, ExitStack() as stack:
        folder = Path(name)
        written = machine.write(folder)
        config = folder / "etc"
        config.mkdir()
        (config / "poolconfig-bench.yaml").write_text(pools)
        online = machine.topology().online
        place = stack.enter_context(EmulatedCgroups(folder, online, "measuring"))
        node = stack.enter_context(
            EmbeddedNode(
                folder,
                place,
                sysfs=written.sys,
                nri=nri,
                changed=lambda: api.set_pods(node.bodies()["items"]),
            )
        )
        # As in the image, the bytecode is there before the start.
        environment = {**os.environ, **AS_IN_THE_IMAGE, "PYTHONPYCACHEPREFIX": f"{name}/bytecode"}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        command = (sys.executable, "-m", "cpupool", "agent")
        subprocess.run([*command, "--help"], env=environment, stdout=subprocess.DEVNULL, check=True)
        process = subprocess.Popen(
            [
                *(*command, "--host-root", name),
                *("--config", str(config), "--node-name", api.node, "--api-server", api.url),
                *options,
            ],
            env=environment,
            stderr=log,
        )
        stack.callback(process.wait, PATIENCE_S)
        stack.callback(process.terminate)
        yield node, process.pid


def cpu_s(pid: int) -> float:
    """Add up the time on a CPU of every thread (proc_pid_schedstat, nanoseconds)."""
    used_ns = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        # A thread may end meanwhile.
        with suppress(FileNotFoundError, ProcessLookupError):
            used_ns += int((task / "schedstat").read_text().split()[0])
    return used_ns / 1e9


def await_idle(pid: int) -> None:
    """Wait until a process has used no CPU time worth mention for a moment."""
    before_s = -1.0
    while (now_s := cpu_s(pid)) - before_s > IDLE_S / 10:
        before_s = now_s
        time.sleep(IDLE_S)


def memory(pid: int) -> str:
    """Give resident and proportional memory."""
    rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
    kib = {line.split(":")[0]: int(line.split()[1]) for line in rollup.splitlines()[1:]}
    return f"RSS {kib['Rss'] / 1024:.1f} MiB, PSS {kib['Pss'] / 1024:.1f} MiB"


def resident_mib() -> float:
    """Return how much memory of this process is resident (proc_pid_statm, pages)."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def peak_mib(pid: int) -> float:
    """Return the most resident memory that a process has had."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) / 1024
