"""The role that measures the load, with a clock and CPU times of the test."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cpupool.agent import load_watcher
from cpupool.agent.load_watcher import LoadWatcher
from cpupool.core.cpu_manager import CPUManager, Suppression
from cpupool.core.cpu_time import CPUTime
from cpupool.core.cpuset import CPUSet
from cpupool.core.errors import HostFileError
from cpupool.core.orchestration import Orchestration, QoS
from cpupool.core.pools import NodePools
from cpupool.core.workloads import QoSClass
from cpupool.manager.manager import Manager
from cpupool.policies.view import BEST_EFFORT
from cpupool.telemetry.health import Health
from tests import builders
from tests.loops import running
from tests.machines import MACHINES
from tests.waiting import eventually

MACHINE = MACHINES["telco_2s_2n_16c32t"].topology()
OFF = CPUManager("koordinator", reserved=CPUSet.of(0))
ON = replace(OFF, suppression=Suppression(50))
BE = replace(
    builders.pod("be", builders.container("main")),
    qos=QoSClass.BEST_EFFORT,
    orchestration=Orchestration(QoS.BE),
)


class Node:
    """A node of 32 CPUs whose load the test sets, and the role that measures it."""

    def __init__(self, manager: CPUManager = ON) -> None:
        self.now_s = 100.0
        self.readings = 0
        self.used_us = 0
        self.fault: Exception | None = None
        self.changes = 0
        self.manager = Manager()
        self.configure(manager)
        self.manager.observe(pods=[BE])
        self.manager.adopt(())
        self.watcher = LoadWatcher(
            self.manager,
            self.read,
            health=Health(),
            changed=self.changed,
            now_s=lambda: self.now_s,
        )

    def configure(self, manager: CPUManager) -> None:
        self.manager.reconfigure(NodePools.of(cpu_manager=manager), MACHINE)

    def read(self) -> CPUTime:
        self.readings += 1
        if self.fault:
            raise self.fault
        of_each = dict.fromkeys(range(32), self.used_us // 32)
        return CPUTime(of_each, {"ls-uid": self.used_us})

    def changed(self) -> None:
        self.changes += 1

    def passes(self, used_cpus: float = 0, seconds: float = 1.0) -> float:
        """Let time pass, in which a pod uses some CPUs; return the pause after the step."""
        self.now_s += seconds
        self.used_us += int(used_cpus * seconds * 1_000_000)
        return self.watcher.step()

    @property
    def best_effort(self) -> int:
        return len(self.manager.snapshot().resolution.view.extents[BEST_EFFORT])


def test_a_load_reduces_the_set_and_its_end_restores_it(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    node = Node()
    node.passes(used_cpus=9)
    assert (node.best_effort, node.changes) == (32, 0)

    node.passes(used_cpus=9)
    assert (node.best_effort, node.changes) == (6, 1)
    assert "shared set follows the load" in caplog.text
    assert "before=0-31" in caplog.text
    assert "6 of 32 CPUs: the other pods use 9.0 CPUs" in caplog.text

    sizes = [node.best_effort for _ in range(4) if node.passes()]
    assert sizes == [10, 14, 15, 15]
    assert node.changes == 4
    assert caplog.text.count("shared set follows the load") == 4


def test_it_reads_once_in_a_period() -> None:
    node = Node()
    assert node.passes() == pytest.approx(1.0)
    assert node.passes(seconds=0.25) == pytest.approx(0.75)
    assert node.passes(used_cpus=9, seconds=0.5) == pytest.approx(0.25)
    assert (node.readings, node.best_effort) == (1, 32)

    node.passes(used_cpus=9, seconds=0.25)
    assert node.readings == 2


def test_it_reads_nothing_while_no_set_follows_the_load() -> None:
    node = Node(OFF)
    assert node.passes(used_cpus=9) == pytest.approx(60.0)
    assert node.passes(used_cpus=9) == pytest.approx(60.0)
    assert node.readings == 0

    node.configure(ON)
    for _ in range(2):
        node.passes(used_cpus=9)
    assert (node.readings, node.best_effort) == (2, 6)

    node.configure(OFF)
    node.passes(used_cpus=9)
    assert (node.readings, node.best_effort) == (2, 32)

    # The mean of the time in which it was off is no load of now.
    node.configure(ON)
    node.passes()
    assert node.best_effort == 32


def test_a_measurement_that_fails_changes_nothing_and_is_told_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    node = Node()
    for _ in range(2):
        node.passes(used_cpus=9)
    node.fault = HostFileError("/proc/stat", "cannot be read", "give cpupool the host's /proc")
    for _ in range(3):
        node.passes(used_cpus=20)
    assert (node.best_effort, node.changes) == (6, 1)
    assert caplog.text.count("load not measured, shared sets keep their sizes") == 1

    node.fault = None
    node.passes(used_cpus=20)
    assert node.best_effort == 6
    node.passes(used_cpus=12)
    assert node.best_effort == 3
    node.fault = HostFileError("/proc/stat", "cannot be read", "give cpupool the host's /proc")
    node.passes()
    assert caplog.text.count("load not measured, shared sets keep their sizes") == 2


def test_a_reading_that_does_not_fit_the_one_before_changes_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    node = Node()
    for _ in range(2):
        node.passes(used_cpus=9)
    for _ in range(2):
        node.used_us = 0
        node.passes()
        node.used_us = 1_000_000_000
        node.passes()
    assert (node.best_effort, node.changes) == (6, 1)
    assert caplog.text.count("a CPU time has decreased") == 2
    node.passes(used_cpus=12)
    assert node.best_effort == 3


def test_the_loop_measures_and_hears_of_an_edit() -> None:
    node = Node(OFF)
    health = Health()
    health.expect(load_watcher.NAME, 1e9)
    watcher = LoadWatcher(
        node.manager, node.read, health=health, changed=node.changed, period_s=0.001
    )
    with running(watcher.run, wake=watcher.wake):
        node.configure(ON)
        watcher.wake()
        # No pod works: half of the CPUs without the reserved one.
        eventually(lambda: node.best_effort == 15, lambda: str(node.best_effort))
    assert node.changes
