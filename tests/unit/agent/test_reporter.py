from __future__ import annotations

import threading
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from cpupool.agent.reporter import Reporter
from cpupool.core.cpuset import CPUSet
from cpupool.core.withheld import Withheld
from cpupool.enforce.sweep import SweepReport
from cpupool.host.status_file import StatusFile
from cpupool.manager.manager import Manager
from cpupool.telemetry.metrics import Metrics
from tests import builders
from tests.machines import MACHINES
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
    ("worked_s", "pause_s"), [(0.0, 0.5), (0.0002, 0.5), (0.001, 1.0), (1.0, 2.0)]
)
def test_the_status_takes_a_thousandth_of_a_cpu_at_most(
    tmp_path: Path, worked_s: float, pause_s: float
) -> None:
    clock = iter((5.0, 5.0 + worked_s))
    reporter = Reporter(
        Manager(),
        without_runtime(),
        StatusFile(tmp_path / "status.json"),
        telemetry=builders.telemetry(),
        cpu_s=lambda: next(clock),
    )
    reporter.swept(SweepReport())
    stop = Stop()
    reporter.run(stop)
    assert stop.waited_s == pytest.approx(pause_s)
    assert (tmp_path / "status.json").exists()


def test_cpus_that_another_cgroup_keeps_are_counted(tmp_path: Path) -> None:
    manager, metrics = Manager(), Metrics()
    part = Withheld(CPUSet.of(2, 3), "/dpdk.service", "isolated")
    manager.update_topology(replace(MACHINES["laptop_4c8t"].topology(), withheld=(part,)))
    status = StatusFile(tmp_path / "status.json")
    reporter = Reporter(
        manager, without_runtime(), status, telemetry=builders.telemetry(metrics=metrics)
    )
    reporter.swept(SweepReport())
    reporter.run(Stop())
    assert "\ncpupool_withheld_cpus 2.0\n" in metrics.render()[1].decode()
