from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from cpupool.enforce.sweep import SweepReport
from cpupool.host.status_file import StatusFile
from cpupool.manager.manager import Manager
from cpupool.roles.reporter import Reporter
from cpupool.telemetry.health import Health
from cpupool.telemetry.metrics import Metrics
from tests.runtimes import without_runtime

if TYPE_CHECKING:
    from pathlib import Path


class Stop(threading.Event):
    """Is set by the first that waits for it."""

    waited_s: float | None = None

    def wait(self, timeout: float | None = None) -> bool:
        self.waited_s = timeout
        self.set()
        return True


@pytest.mark.parametrize(
    ("worked_s", "pause_s"), [(0.0, 0.5), (0.002, 0.5), (0.01, 1.0), (1.0, 2.0)]
)
def test_the_status_takes_a_hundredth_of_a_cpu_at_most(
    tmp_path: Path, worked_s: float, pause_s: float
) -> None:
    clock = iter((5.0, 5.0 + worked_s))
    reporter = Reporter(
        Manager(),
        without_runtime(),
        StatusFile(tmp_path / "status.json"),
        metrics=Metrics(),
        health=Health(),
        cpu_s=lambda: next(clock),
    )
    reporter.swept(SweepReport())
    stop = Stop()
    reporter.run(stop)
    assert stop.waited_s == pytest.approx(pause_s)
    assert (tmp_path / "status.json").exists()
