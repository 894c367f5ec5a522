"""The cost of the process starter where its CPUs are right already."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from statistics import quantiles
from typing import TYPE_CHECKING

from cpupool.core.cpuset import CPUSet

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from benchmarks.rows import Row

STARTS = 1000


def starter() -> Iterator[Row]:
    """The process starter where its CPUs are right already."""
    with tempfile.TemporaryDirectory(prefix="cpl-") as folder:
        subprocess.run(["tools/starter.sh", folder], check=True)
        program = str(Path(folder) / platform.machine() / "process-starter")
        command = [shutil.which("true") or "/bin/true"]
        environment = {"EXCLUSIVE_CPUS": str(CPUSet(os.sched_getaffinity(0)))}
        words = [program, "--exclusive", "EXCLUSIVE_CPUS", "--", *command]
        # In turns, so that both meet the same machine.
        pairs = [(_start(command, environment), _start(words, environment)) for _ in range(STARTS)]
    for place, kind in enumerate(("wall", "CPU")):
        alone, started = ([one[place] for one in side] for side in zip(*pairs, strict=True))
        more = [after - before for before, after in zip(alone, started, strict=True)]
        ratio = quantiles(started, n=100)[49] / quantiles(alone, n=100)[49]
        yield (f"a command, {kind} time", _p50_p99(alone), "-")
        yield (f"the same by the process starter, {ratio:.2f} times that", _p50_p99(started), "-")
        yield (f"what the process starter adds, {kind} time", _p50_p99(more), "2 ms")


def _start(words: list[str], environment: dict[str, str]) -> tuple[float, float]:
    """Run a command, exec and exit included: how many ms passed, and how many of CPU it took."""
    began = time.perf_counter()
    _, status, used = os.wait4(os.posix_spawn(words[0], words, environment), 0)
    assert status == 0
    return (time.perf_counter() - began) * 1000, (used.ru_utime + used.ru_stime) * 1000


def _p50_p99(values_ms: Sequence[float]) -> str:
    percentiles = quantiles(values_ms, n=100)
    return f"p50 {percentiles[49]:.2f} ms, p99 {percentiles[98]:.2f} ms"
