"""Threads that are never idle, and how often the kernel has stopped them."""

from __future__ import annotations

import os
import subprocess
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from tests.waiting import DEADLINE_S

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

QUIET_S: Final = 1.0
"""Ten of the kernel's periods: a busy thread that has too little is throttled in each."""


@contextmanager
def spinning(cpus: Sequence[int], *cgroups: Path) -> Iterator[None]:
    """Keep CPUs busy, each with a thread of its own that is pinned there, in these cgroups.

    They are processes of one thread each, and a busy loop: what polls a network card looks so to
    the scheduler.
    """
    started: list[subprocess.Popen[bytes]] = []
    try:
        for cpu in cpus:
            process = subprocess.Popen(["sh", "-c", "while :; do :; done"])
            started.append(process)
            for cgroup in cgroups:
                (cgroup / "cgroup.procs").write_text(str(process.pid))
            os.sched_setaffinity(process.pid, {cpu})
        yield
    finally:
        for process in started:
            process.kill()
            process.wait(DEADLINE_S)


def throttled(cgroup: Path) -> int:
    """Read in how many periods the kernel has stopped a cgroup's threads."""
    for line in (cgroup / "cpu.stat").read_text().splitlines():
        name, number = line.split()
        if name == "nr_throttled":
            return int(number)
    raise AssertionError(f"{cgroup}: no nr_throttled in cpu.stat")
