"""The cost of an agent that has nothing to do: CPU time, wake-ups of its threads, memory."""

from __future__ import annotations

import socketserver
import threading
import time
from collections import Counter
from contextlib import closing
from dataclasses import dataclass
from http.client import HTTPConnection
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Final

from benchmarks.processes import agent, memory
from cpupool.core.names import Names
from tests.apiserver import FakeAPIServer
from tests.machines import Machine

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.rows import Row

POOLS: Final = (
    'pools:\n  exclusive_a: {cpus: "0-1"}\n  exclusive_b: {cpus: "2-3"}\n'
    '  shared_a: {cpus: "4-5"}\n  default: {cpus: "6-7"}\n'
)
_PROGRAM: Final = Path("/bin/true")
"""Stands in for the process starter; without one the agent tries again and again."""
_REGISTERED_S: Final = 60.0
SETTLES_S: Final = 30.0
"""The time after which the start is over, with the retries after it and gRPC's threads."""
MEASURED_S: Final = 100.0
_PROBES: Final = ("/readyz", "/readyz", "/readyz", "/readyz", "/healthz")
_PROBES_EACH_S: Final = 4.0
"""The probes of daemonsets/agent, and as often."""


@dataclass(frozen=True, slots=True)
class Use:
    """The use of CPUs by a process since its start.

    Attributes:
        cpu_s: its CPU time.
        switches: thread → how often it gave up a CPU to wait.
    """

    cpu_s: float
    switches: Counter[str]

    @classmethod
    def of(cls, pid: int) -> Use:
        """Read it from the kernel; of a thread that has ended it has the CPU time only."""
        process = Path(f"/proc/{pid}")
        # utime and stime in ticks of 10 ms, as counted for ended threads, too (proc_pid_stat(5)).
        fields = (process / "stat").read_text().rsplit(")", 1)[1].split()
        switches: Counter[str] = Counter()
        for task in (process / "task").iterdir():
            for line in (task / "status").read_text().splitlines():
                if line.startswith("voluntary_ctxt_switches:"):
                    switches[task.name] = int(line.split()[1])
        return cls((int(fields[11]) + int(fields[12])) / 100, switches)


def rest() -> Iterator[Row]:
    """The agent at rest, with three pools and the kubelet's probes."""
    for pods in (0, 20):
        with FakeAPIServer() as api:
            port = free_port()
            machine = Machine(cores=8)
            options = ("--metrics-port", str(port), "--starter", str(_PROGRAM.resolve()))
            with agent(api, machine, POOLS, *options) as (node, pid):
                for pool in ("exclusive_a", "exclusive_b", "shared_a"):
                    node.kubelet.wait_for(
                        Names().resource(pool), lambda found: found.allocatable > 0, _REGISTERED_S
                    )
                for number in range(pods):
                    node.run_pod(
                        {
                            "kind": "Pod",
                            "metadata": {"name": f"p{number}"},
                            "spec": {"containers": [{"name": "main"}]},
                        }
                    )
                _probe(port, SETTLES_S)
                before = Use.of(pid)
                measured_s = _probe(port, MEASURED_S)
                after, resident = Use.of(pid), memory(pid)
        cpu_s = (after.cpu_s - before.cpu_s) / measured_s * 3600
        yield (f"CPU at rest, {pods} pods", f"{cpu_s:.1f} s an hour", "2 s an hour")
        woken = (after.switches - before.switches).total() / measured_s
        yield (f"wake-ups at rest, {pods} pods", f"{woken:.1f} a second", "5 a second")
        yield (f"resident at rest, {pods} pods", resident, "50 MiB resident")
        yield (f"threads, {pods} pods", str(len(after.switches)), "-")


def _probe(port: int, seconds: float) -> float:
    """Probe the agent for a time as the kubelet does; return how long that took."""
    began_s = time.monotonic()
    pages = cycle(_PROBES)
    while (passed_s := time.monotonic() - began_s) < seconds:
        with closing(HTTPConnection("127.0.0.1", port)) as connection:
            connection.request("GET", next(pages))
            connection.getresponse().read()
        threading.Event().wait(_PROBES_EACH_S)
    return passed_s


def free_port() -> int:
    """Return a port that no process listens on now."""
    with socketserver.TCPServer(("127.0.0.1", 0), socketserver.BaseRequestHandler) as server:
        return server.server_address[1]
