"""What a process takes of the machine, as the kernel counts it."""

from __future__ import annotations

from pathlib import Path
from typing import Final

AS_IN_THE_IMAGE: Final = {"MALLOC_ARENA_MAX": "1", "MALLOC_TRIM_THRESHOLD_": "65536"}
"""The variables that `Containerfile` sets."""


def cpu_s(pid: int) -> float:
    """Add up the time on a CPU of every thread (proc_pid_schedstat, nanoseconds)."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


def memory(pid: int) -> str:
    """Give resident and proportional memory."""
    rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
    kib = {line.split(":")[0]: int(line.split()[1]) for line in rollup.splitlines()[1:]}
    return f"RSS {kib['Rss'] / 1024:.1f} MiB, PSS {kib['Pss'] / 1024:.1f} MiB"
