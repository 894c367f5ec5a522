"""Best-effort pods under a forged load, by an agent process: who is narrowed, and what starts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from cpupool import cli
from cpupool.core.cpuset import CPUSet
from tests.machines import MACHINES
from tests.scenarios.test_agent_process import living
from tests.scenarios.test_koordinator import ALL, CLASS, POOLS, run
from tests.scenarios.test_mixed_cpus import Runtime
from tests.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.nri_runtime import FakeRuntime
    from tests.scenarios.test_agent_process import World

SETTINGS = "{enable: true, cpuSuppressThresholdPercent: 70}"
ON = POOLS.replace('"0-0"', f'"0-0", resourceUsedThresholdWithBE: {SETTINGS}')
IDLE = "0-4"
"""70 % of the eight CPUs are 5.6, and one is reserved for the system."""


class Load:
    """The kernel's files about CPU time; nothing works but what a test forges."""

    def __init__(self, world: World) -> None:
        self._proc = world.folder / "proc"
        self._ticks = 0
        (world.place.root / "cpuacct").mkdir()
        self.system_worked(0)

    def system_worked(self, ticks: int) -> None:
        """Let CPU 0 have been busy for some more time, without a pod."""
        self._ticks += ticks
        busy = [self._ticks, *[0] * 15]
        lines = [f"cpu{cpu} {ticks} 0 0 0 0 0 0 0 0 0\n" for cpu, ticks in enumerate(busy)]
        # In one step, as the kernel shows it.
        (self._proc / "stat.new").write_text("".join(lines))
        (self._proc / "stat.new").rename(self._proc / "stat")

    def break_off(self) -> None:
        (self._proc / "stat").write_text("")


@pytest.fixture
def world(folder: Path) -> Iterator[World]:
    with living(folder, MACHINES["arm_no_smt"].write(folder), {"role": "worker"}) as world:
        world.mount.show(worker=POOLS)
        yield world


@pytest.fixture
def load(world: World) -> Load:
    return Load(world)


def folder_cpus(world: World) -> str:
    """Return the set of the folder of all best-effort pods."""
    return (world.place.root / "cpuset/kubepods/besteffort/cpuset.cpus").read_text().strip()


def test_containers_alone_are_narrowed_and_pods_start_beside_them(
    world: World, load: Load, capsys: pytest.CaptureFixture[str]
) -> None:
    with world.agent() as agent:
        run(world, "ls", "LS", "500m")
        run(world, "be", "BE")
        whole = {"ls/": ALL, "ls/main": ALL, "be/": ALL}
        world.await_containers({**whole, "be/main": ALL})
        before = folder_cpus(world)

        world.mount.show(worker=ON)
        world.await_containers({**whole, "be/main": IDLE})

        # A pod that starts now has the folder's CPUs to begin with.
        run(world, "late", "BE")
        whole |= {"late/": ALL}
        world.await_containers({**whole, "be/main": IDLE, "late/main": IDLE})

        load.system_worked(10**9)
        shrunk = agent.await_line("leaves -")
        assert "2 of 8 CPUs" in shrunk
        assert "cpus=0-1 before=0-4" in shrunk
        assert CPUSet.parse(folder_cpus(world)) == CPUSet.parse(before) >= CPUSet.parse(ALL)
        # It grows again, by one CPU of eight at a time.
        agent.await_line("cpus=0-4 before=0-3")
        world.await_containers({**whole, "be/main": IDLE, "late/main": IDLE})

        status = str(world.folder / "run/cpupool/status.json")
        explain = ["explain", "be", "--file", status, "--topology", str(world.folder)]
        told = "best-effort pods are suppressed to 5 of 8 CPUs"
        eventually(
            lambda: cli.main(explain) == 0 and told in capsys.readouterr().out,
            "explain sees it where it belongs",
        )

        world.mount.show(worker=POOLS)
        world.await_containers({**whole, "be/main": ALL, "late/main": ALL})
    assert folder_cpus(world) == before


def test_an_owner_that_arrives_is_left_alone(world: World, load: Load) -> None:
    world.mount.show(worker=ON)
    with world.agent():
        run(world, "be", "BE")
        world.await_cpus(be=IDLE)

        run(world, "lse", "LSE", "2", "1-2")
        # CPUs 1 and 2 are replaced by the next ones.
        world.await_cpus(be="0,3-6", lse="1-2")

        load.break_off()
        run(world, "lsr", "LSR", "2", "3-4")
        # Without a measurement the number stays: one of the five is a lent one.
        world.await_cpus(be="0,3,5-7", lse="1-2", lsr="3-4")


@pytest.mark.usefixtures("load")
def test_a_container_is_created_with_the_narrowed_set(world: World, runtime: FakeRuntime) -> None:
    world.mount.show(worker=ON)
    with world.agent():
        nri = Runtime(world, runtime)
        be = run(world, "be", "BE")
        world.await_cpus(be=IDLE)

        answer = nri.create(be, "0-15", {}, {CLASS: "BE"})

        assert answer.adjust.linux.resources.cpu.cpus == IDLE
