"""The application in `examples/`, run as its container would."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from cpupool.core.cpuset import CPUSet
from tests.waiting import DEADLINE_S, eventually

APP = Path(__file__).parents[2] / "examples/shared-cpus/app.py"

pytestmark = pytest.mark.skipif(
    not os.sched_getaffinity(0) >= {0, 1}, reason="CPUs 0 and 1 are needed"
)


def _threads(pid: int) -> set[CPUSet]:
    """Give the CPUs of each thread."""
    found = set()
    for task in Path(f"/proc/{pid}/task").iterdir():
        with suppress(ProcessLookupError):
            found.add(CPUSet(os.sched_getaffinity(int(task.name))))
    return found


@pytest.mark.parametrize("ending", [signal.SIGTERM, signal.SIGINT], ids=str)
def test_a_worker_runs_on_each_cpu_that_is_there_until_it_is_asked_to_end(
    ending: signal.Signals,
) -> None:
    variables = {"EXCLUSIVE_CPUS": "0,8190", "SHARED_CPUS": "1"}
    with subprocess.Popen([sys.executable, APP], env=variables, stdout=subprocess.PIPE) as process:
        pinned = {CPUSet.of(0), CPUSet.of(1)}
        eventually(lambda: pinned <= _threads(process.pid), "both work")
        process.send_signal(ending)
        told, _ = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 0
    assert re.findall(r"CPU (\d+): \d+ rounds\n", told.decode()) in (["0", "1"], ["1", "0"])
