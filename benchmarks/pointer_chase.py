"""A process that suffers from its neighbours' caches, under the policies `none` and `static`.

A pod with one CPU follows a chain of pointers through memory that fits into a shared cache, and
best-effort pods copy memory that does not. `python -m benchmarks.pointer_chase` prints the table
and draws the picture.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from array import array
from pathlib import Path
from typing import TYPE_CHECKING, Final

from benchmarks.documents import Times, table
from benchmarks.workloads import (
    IMAGES,
    NONE,
    STATIC,
    Curve,
    drawn,
    loaded_node,
    online,
    other_work,
    show,
)
from cpupool.core.cpuset import CPUSet
from cpupool.core.errors import HostError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

IMAGE: Final = IMAGES / "pointer-chase.svg"
CHASED_MIB: Final = 8
COPIED_MIB: Final = 64
ROUNDS: Final = 10
BATCHES: Final = 20_000
ACCESSES: Final = 100
"""How many are timed together."""
_SOURCE: Final = Path(__file__).with_name("memory_load.c")
CPUS: Final = 2
"""How many CPUs are used: one is for the others."""
_ALONE: Final = "static, no neighbour"
_RUNS: Final = {
    _ALONE: (STATIC, 0),
    "none, 1 neighbour": (NONE, 1),
    "static, 1 neighbour": (STATIC, 1),
    "none, 2 neighbours": (NONE, 2),
    "static, 2 neighbours": (STATIC, 2),
}
"""The policy, and how many neighbours there are."""
_CURVES: Final = {
    _ALONE: Curve("#555555", ":", 2.5),
    "none, 2 neighbours": Curve("#d55e00", "--"),
    "static, 2 neighbours": Curve("#0072b2", "-"),
}


def pointer_chase(tell: Callable[[str], None]) -> str:
    """Return a table of the times of accesses by policy; draw their distributions into `IMAGE`."""
    before = other_work()
    found: dict[str, list[float]] = {run: [] for run in _RUNS}
    try:
        with tempfile.TemporaryDirectory(prefix="cpl-") as folder:
            program = _compiled(Path(folder))
            for number in range(1, ROUNDS + 1):
                # In turns, so that all meet the same machine.
                for run, (policy, neighbours) in _RUNS.items():
                    tell(f"pointer chase, {run}, round {number}")
                    found[run] += _each_ns(program, policy, neighbours)
    except HostError as reason:
        return f"Not measured: {reason}"
    shown = {run: found[run] for run in _CURVES}
    IMAGE.write_bytes(drawn(shown, _CURVES, "accesses that are slower", "time of an access (ns)"))
    rows = [
        (*before, ""),
        *((run, *_figures(each_ns)) for run, each_ns in found.items()),
    ]
    header = ("policy", "ns: median / 99th percentile", "million accesses in a second")
    return table(header, rows)


def _each_ns(program: Path, policy: str, neighbours: int) -> Sequence[float]:
    """Return the time of an access, for each batch."""
    cpus = CPUSet(list(online())[:CPUS])
    chase = (str(program), "chase", str(CHASED_MIB << 20), str(BATCHES), str(ACCESSES))
    stream = (str(program), "stream", str(COPIED_MIB << 20))
    with loaded_node(policy, cpus, neighbours) as node:
        taken_ns = array("I", node.measured(chase, stream))
    return [batch_ns / ACCESSES for batch_ns in taken_ns]


def _figures(each_ns: Sequence[float]) -> tuple[str, str]:
    """Write the spread, and how many accesses there are in a second of elapsed time."""
    times = Times.of_values(each_ns)
    return f"{times.p50_ms:.0f} / {times.p99_ms:.0f}", f"{1000 * len(each_ns) / sum(each_ns):.1f}"


def _compiled(folder: Path) -> Path:
    if shutil.which("cc") is None:
        raise HostError("no C compiler: install cc (apt-get install gcc libc6-dev)")
    program = folder / "memory-load"
    subprocess.run(["cc", "-O2", "-o", program, _SOURCE], check=True)
    return program


if __name__ == "__main__":
    show(pointer_chase)
