"""Pools that follow their load on the embedded node: the containers in them follow, too."""

from __future__ import annotations

import sys
from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING

from cpupool import cli
from cpupool.plugins.config import Aims
from cpupool.plugins.load_sizing import PERIOD_S
from tests.clocked import CLOCK
from tests.processes import Process
from tests.scenarios.seeds.test_qos_resource_manager import ALL, configure, of_role, world
from tests.scenarios.test_resource_plugins import asked_by_the_runtime, right, served, started

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import pytest

    from tests.scenarios.test_agent_process import World

__all__ = ["world"]

CONFIG = """
pools:
  online: {minCpus: 8}
  offline: {weight: 1}
roles:
  online-micro_service: {pool: online}
  ETL: {pool: offline}
"""
PAUSE_S = Aims().pause_s
NS_PER_S = 1_000_000_000


class Load:
    """What pods use, and a clock that goes on when a test says so.

    Args:
        world: the node.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._now_s = 1000.0
        self._used_ns: Counter[str] = Counter()
        self.clock = world.folder / "plugins/clock"
        idle = "".join(f"cpu{cpu} 0 0 0 0 0 0 0 0 0 0\n" for cpu in range(80))
        (world.folder / "proc/stat").write_text(idle)
        (world.place.root / "cpuacct").mkdir()
        self._tell()

    def goes_on(self, process: Process, seconds: float, why: str, **cpus: float) -> None:
        """Let pods use so many CPUs for so long; wait for the decision."""
        for name, count in cpus.items():
            self._used_ns[name] += round(count * seconds * NS_PER_S)
            path = self._pod(name) / "cpuacct.usage"
            path.parent.mkdir(parents=True, exist_ok=True)
            _replace(path, f"{self._used_ns[name]}\n")
        self._now_s += seconds
        self._tell()
        process.await_line(f'why="{why}"')

    def _pod(self, name: str) -> Path:
        cgroup = self._world.path(name).rpartition("/")[0]
        return self._world.place.root / "cpuacct" / cgroup

    def _tell(self) -> None:
        self.clock.parent.mkdir(exist_ok=True)
        _replace(self.clock, str(self._now_s))


def _replace(path: Path, text: str) -> None:
    fresh = path.with_suffix(".new")
    fresh.write_text(text)
    fresh.replace(path)


@contextmanager
def plugin(world: World, load: Load) -> Iterator[Process]:
    process = Process(
        *("env", f"{CLOCK}={load.clock}"),
        *(sys.executable, "-W", "error", "-m", "tests.clocked", "resource-plugin", "cpu"),
        *("--host-root", world.folder, "--config", world.folder / "plugins/config.yaml"),
        "--verbose",
    )
    with process.collecting():
        yield process


def test_containers_follow_a_pool_that_follows_its_load(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    configure(world, CONFIG)
    load = Load(world)
    with plugin(world, load) as process, asked_by_the_runtime(world) as agent:
        served(agent)
        for name, role in (("web", "online-micro_service"), ("etl", "ETL")):
            started(world, of_role(world, name, role, cpu="4"))
        right(world, ALL, web="0-3,40-43", etl="4-39,44-79")

        # It grows by 10 CPUs at most, and keeps those that it has.
        busy = {"web": 16.0, "etl": 60.0}
        load.goes_on(process, PERIOD_S, "16.0 in use: needs 20: from 8 to 18 CPUs", **busy)
        right(world, ALL, web="0-7,40-49", etl="8-39,50-79")
        load.goes_on(process, PERIOD_S, "16.0 in use: needs 20: from 18 to 20 CPUs", **busy)
        right(world, ALL, web="0-9,40-49", etl="10-39,50-79")

        # It shrinks by 2 CPUs, when it has needed fewer for long, and again after a pause.
        load.goes_on(process, PERIOD_S, "4.0 in use: needs 20: 20 CPUs", web=4.0)
        load.goes_on(process, PAUSE_S, "4.0 in use: needs 18: from 20 to 18 CPUs", web=4.0)
        right(world, ALL, web="0-9,40-47", etl="10-39,48-79")
        load.goes_on(process, PERIOD_S, "4.0 in use: needs 18: 18 CPUs", web=4.0)
        load.goes_on(process, PAUSE_S, "4.0 in use: needs 16: from 18 to 16 CPUs", web=4.0)
        right(world, ALL, web="0-7,40-47", etl="8-39,48-79")

        assert cli.main(["explain", f"--pools={world.node.root.plugin_pools}"]) == 0
    assert capsys.readouterr().out == (
        "online: 0-7,40-47 (16 CPUs): 4.0 in use: needs 16: from 18 to 16 CPUs\n"
        "offline: 8-39,48-79 (64 CPUs): the part 1 of what the other pools leave\n"
    )
