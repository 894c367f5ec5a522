"""The loop that sizes pools: its period, its log, and the file that says why."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import pytest

from cpupool.core.cpu_time import CPUTime
from cpupool.core.cpuset import CPUSet
from cpupool.core.errors import HostFileError
from cpupool.plugins.config_file import parse
from cpupool.plugins.cpu import CPUPlugin
from cpupool.plugins.load_sizing import PERIOD_S
from cpupool.plugins.nic import NICPlugin
from cpupool.plugins.pool_loop import PoolLoop
from cpupool.policies.qrm.katalyst import RECLAIMED_MILLI
from tests.unit.plugins.asking import LAYOUT, Asked, ask

if TYPE_CHECKING:
    from pathlib import Path

POOLS = "pools: {online: {minCpus: 4}, fixed: {cpus: 8}, rest: {weight: 2}}\n"
ROLES = "roles: {web: {pool: online}}\n"


class Machine:
    """A clock, CPU time that grows with it, and the loop."""

    def __init__(self, folder: Path) -> None:
        self.status = folder / "run/pools.json"
        self.now_s = 100.0
        self.cpus = 0.0
        self.used_us = 0.0
        self.reads = 0
        self.error = ""
        self.used = "web"
        self.restart()
        self.configure(POOLS)

    def restart(self) -> None:
        self.loop = PoolLoop(self.read, self.status, lambda: self.now_s)

    def configure(self, pools: str) -> None:
        self.plugin = CPUPlugin(LAYOUT, parse("f.yaml", pools + ROLES), "mark")
        self.asked = Asked(self.plugin)
        self.asked.allocate(ask("web", 1, "web"))

    def read(self) -> CPUTime:
        self.reads += 1
        if self.error:
            raise HostFileError("/proc/stat", self.error, "mount it")
        return CPUTime(dict.fromkeys(LAYOUT.cpus, 0), {self.used: round(self.used_us)})

    def pass_(self, seconds: float = PERIOD_S) -> None:
        """Let time pass, and let the server look."""
        self.now_s += seconds
        self.used_us += self.cpus * seconds * 1e6
        state = self.loop.sized(self.plugin, self.plugin.settled(self.asked.state))
        self.loop.publish(self.plugin, state)
        self.asked.state = state

    @property
    def size(self) -> int:
        return len(self.asked.state.pools["online"])

    @property
    def written(self) -> dict[str, Any]:
        return {pool["pool"]: pool for pool in self.document["pools"]}

    @property
    def headroom(self) -> Any:
        return self.document["headroom"]

    @property
    def document(self) -> Any:
        document = json.loads(self.status.read_text())
        assert document["schema"] == "cpupool-pools/1"
        return document


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_a_pool_follows_its_load_and_the_file_says_why(
    machine: Machine, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    machine.pass_()
    assert machine.written["online"]["why"] == "not measured: keeps 4 CPUs"
    machine.cpus = 4.0
    machine.pass_()
    assert machine.size == 6
    assert machine.written == {
        "online": {
            "pool": "online",
            "cpus": "0-1,40-43",
            "why": "4.0 in use: needs 6: from 4 to 6 CPUs",
            "at_least": 4,
            "before": 4,
            "used_cpus": 4.0,
            "waiting": None,
            "most": None,
            "needed": 6,
            "share": 6,
            "size": 6,
        },
        "fixed": {
            "pool": "fixed",
            "cpus": str(machine.asked.state.pools["fixed"]),
            "why": "the file says 8 CPUs",
        },
        "rest": {
            "pool": "rest",
            "cpus": str(machine.asked.state.pools["rest"]),
            "why": "the part 2 of what the other pools leave",
        },
    }
    (line,) = [each.getMessage() for each in caplog.records if each.levelname == "INFO"]
    assert "online" in line
    assert "4.0 in use: needs 6: from 4 to 6 CPUs" in line


def test_a_pool_on_a_node_is_explained_and_follows_the_load_within_it(machine: Machine) -> None:
    machine.configure("pools: {online: {minCpus: 4}, share: {}}\n")
    bound = {"memory_enhancement": '{"numa_binding": "true"}'}
    online = {**bound, "cpu_enhancement": '{"cpuset_pool": "online"}'}
    machine.asked.allocate(ask("bound", 6, says=bound), 0)
    machine.asked.allocate(ask("followed", 8, says=online), 1)
    machine.used, machine.cpus = "followed", 0.0
    machine.pass_()
    machine.cpus = 31.0
    for _ in range(4):
        machine.pass_()
    assert machine.written["share-NUMA0"] == {
        "pool": "share-NUMA0",
        "cpus": str(machine.asked.state.pools["share-NUMA0"]),
        "why": "its pods on NUMA node 0 request 6 CPUs",
    }
    found = machine.written["online-NUMA1"]
    assert found["why"] == "31.0 in use: needs 39 of 40 on its NUMA node: from 38 to 39 CPUs"
    assert (found["at_least"], found["most"], found["size"]) == (4, 40, 39)
    assert machine.asked.state.pools["online-NUMA1"] <= CPUSet.parse("40-79")


def test_headroom_is_explained_logged_kept_and_offered(
    machine: Machine, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    machine.configure("pools: {online: {cpus: 60}, reclaim: {}}\n")
    assert machine.plugin.stock(machine.asked.state, "cpu").keys() == {"cpu"}
    machine.asked.allocate(ask("batch", 1, says={"qos_level": "reclaimed_cores"}))
    machine.used, machine.cpus = "batch", 11.0
    machine.pass_()
    assert machine.headroom["why"] == "not measured of 20: 20 CPUs for reclaimed pods"
    machine.pass_()
    assert machine.headroom == {
        "why": "11.0 in use of 20: from 20 to 21 CPUs for reclaimed pods",
        "supply": 20,
        "used_cpus": 11.0,
        "before": 20.0,
        "cpus": 21.0,
    }
    (line,) = [each.getMessage() for each in caplog.records if each.levelname == "INFO"]
    assert "headroom" in line
    offered = machine.plugin.stock(machine.asked.state, "cpu")[RECLAIMED_MILLI]
    assert offered.by_node == {0: (10500, 10500), 1: (10500, 10500)}
    assert offered.of_node
    # After a restart of the plugin it has what it had.
    machine.restart()
    machine.pass_()
    assert machine.headroom["why"] == "not measured of 20: 21 CPUs for reclaimed pods"
    machine.configure("pools: {online: {cpus: 60}}\n")
    machine.pass_()
    assert not machine.headroom
    assert machine.plugin.stock(machine.asked.state, "cpu").keys() == {"cpu"}


def test_it_reads_once_in_a_period(machine: Machine) -> None:
    for seconds in (PERIOD_S, PERIOD_S / 2, PERIOD_S / 4, PERIOD_S / 4):
        machine.pass_(seconds)
    assert machine.reads == 2


def test_without_such_a_pool_it_reads_nothing(machine: Machine) -> None:
    machine.configure("pools: {online: {cpus: 6}}\n")
    machine.pass_()
    assert (machine.reads, machine.size) == (0, 6)
    assert machine.written["online"]["why"] == "the file says 6 CPUs"
    machine.configure("pools: {online: {minCpus: 4}}\n")
    machine.pass_(0)
    assert machine.written["online"]["why"] == "not measured yet"


def test_a_reading_that_fails_is_said_once_and_moves_nothing(
    machine: Machine, caplog: pytest.LogCaptureFixture
) -> None:
    machine.cpus = 4.0
    machine.pass_()
    machine.pass_()
    machine.error = "is gone"
    machine.pass_()
    machine.pass_()
    assert machine.size == 6
    assert caplog.text.count("load not measured, pools keep their sizes") == 1
    machine.error, machine.cpus = "", 12.0
    machine.pass_()
    machine.error = "is gone"
    machine.pass_()
    assert machine.size == 9
    assert caplog.text.count("load not measured, pools keep their sizes") == 2


def test_a_file_that_cannot_be_written_moves_nothing_and_is_written_later(
    machine: Machine, caplog: pytest.LogCaptureFixture
) -> None:
    machine.status.parent.write_text("")
    machine.cpus = 4.0
    for _ in range(3):
        machine.pass_()
    assert machine.size == 6
    assert caplog.text.count("`cpupool explain --pools` cannot be written") == 1
    machine.status.parent.unlink()
    machine.pass_()
    assert machine.written["online"]["cpus"] == "0-1,40-43"


def test_a_file_without_news_gets_the_time(machine: Machine) -> None:
    machine.configure("pools: {online: {cpus: 6}}\n")
    machine.pass_()
    before = machine.status.stat()
    os.utime(machine.status, (0, 0))
    machine.pass_()
    after = machine.status.stat()
    assert (after.st_ino, after.st_mtime > 0) == (before.st_ino, True)


def test_a_deleted_file_is_written_again(machine: Machine) -> None:
    machine.configure("pools: {online: {cpus: 6}}\n")
    machine.pass_()
    machine.status.unlink()
    machine.pass_()
    machine.pass_()
    assert len(CPUSet.parse(machine.written["online"]["cpus"])) == 6


def test_other_plugins_have_no_pools(machine: Machine) -> None:
    plugin = NICPlugin((), frozenset({0}))
    state = machine.asked.state
    assert machine.loop.sized(plugin, state) is state
    machine.loop.publish(plugin, state)
    assert not machine.status.exists()
