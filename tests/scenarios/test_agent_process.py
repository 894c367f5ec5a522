"""The agent as the process that a node runs, and the command that looks at it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from cpupool import cli
from cpupool.core.cpuset import CPUSet
from cpupool.host import files
from cpupool.host.cgroupfs import CgroupFS
from cpupool.local.cgroups import EmulatedCgroups
from cpupool.local.node import EmbeddedNode
from tests.machines import MACHINES
from tests.waiting import DEADLINE_S, eventually

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

POOLS = """
pools:
  exclusive_a: {cpus: "2-5"}
  shared_b: {cpus: "6-7"}
  default: {cpus: "0-1"}
nodeSelector: {role: worker}
"""


@dataclass
class World:
    """A node whose agent is a process of its own."""

    folder: Path
    node: EmbeddedNode

    @property
    def pods_file(self) -> Path:
        return self.folder / "pods.json"

    def publish(self) -> None:
        files.write_atomically(self.pods_file, json.dumps(self.node.bodies()).encode())

    @contextmanager
    def agent(self, labels: str = "role=worker", end: int = signal.SIGTERM) -> Iterator[Any]:
        process = subprocess.Popen(
            [
                *(sys.executable, "-W", "error", "-m", "cpupool", "agent"),
                *("--host-root", self.folder, "--config", self.folder / "etc"),
                *("--node-labels", labels, "--pods", self.pods_file),
            ],
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            yield process
        finally:
            process.send_signal(end)
            process.wait(DEADLINE_S)
            if process.stderr:
                process.stderr.close()

    def run(self, name: str, **pools: int) -> None:
        amounts = {f"nokia.k8s.io/{pool}": str(amount) for pool, amount in pools.items()}
        self.node.run_pod(
            {
                "kind": "Pod",
                "metadata": {"name": name},
                "spec": {"containers": [{"name": "main", "resources": {"limits": amounts}}]},
            }
        )
        self.publish()

    def cpus(self) -> dict[str, str]:
        return {
            process.pod.name: str(self.tree.effective(self.node.path_of(process)))
            for process in self.node.processes()
            if process.container
        }

    def await_cpus(self, **expected: str) -> None:
        eventually(lambda: self.cpus() == expected, lambda: f"{expected}: {self.cpus()}")

    def await_pool(self, pool: str, healthy: int) -> None:
        self.node.kubelet.wait_for(
            f"nokia.k8s.io/{pool}", lambda listing: listing.allocatable == healthy, DEADLINE_S
        )

    @property
    def tree(self) -> CgroupFS:
        return CgroupFS(self.node.root.cgroup, self.node.cgroup_root)


@pytest.fixture
def world(folder: Path) -> Iterator[World]:
    machine = MACHINES["arm_no_smt"].write(folder)
    (folder / "etc").mkdir()
    (folder / "etc/poolconfig-worker.yaml").write_text(POOLS)
    with (
        EmulatedCgroups(folder, machine.topology().online, "a test") as place,
        EmbeddedNode(folder, place, sysfs=machine.sys) as node,
    ):
        world = World(folder, node)
        world.publish()
        yield world


def test_pods_are_placed_kept_and_shown(world: World) -> None:
    with world.agent():
        world.await_pool("exclusive_a", 4)
        world.await_pool("shared_b", 2000)
        world.run("owner", exclusive_a=2)
        world.run("sharer", shared_b=10)
        world.run("plain")
        world.await_cpus(owner="2-3", sharer="6-7", plain="0-1")

        container = next(one for one in world.node.processes() if one.container)
        world.tree.write(world.node.path_of(container), CPUSet.parse("0-15"))
        world.await_cpus(owner="2-3", sharer="6-7", plain="0-1")

        status = ["status", "--file", str(world.folder / "run/cpupool/status.json")]
        machine = ["--topology", str(world.folder)]
        eventually(lambda: cli.main([*status, *machine]) == 0, "status sees all where they belong")


def test_a_killed_agent_that_starts_again_disturbs_nobody(world: World) -> None:
    with world.agent(end=signal.SIGKILL):
        world.await_pool("exclusive_a", 4)
        world.run("owner", exclusive_a=4)
        world.await_cpus(owner="2-5")

    # Whatever happens while no agent runs is put right by the next one.
    world.run("late")
    owner = next(one for one in world.node.processes() if one.container)
    file = world.node.root.cgroup / "cpuset" / world.node.path_of(owner) / "cpuset.cpus"
    written_ns = file.stat().st_mtime_ns
    with world.agent():
        world.await_cpus(owner="2-5", late="0-1")

    assert file.stat().st_mtime_ns == written_ns


def test_a_node_without_a_pool_file_runs_and_places_nobody(world: World) -> None:
    with world.agent(labels="role=other") as process:
        lines = iter(process.stderr.readline, "")
        assert any("no pool file matches this node" in line for line in lines)
    assert process.returncode == 0


def test_a_pool_file_that_does_not_fit_ends_the_agent_with_its_problems(world: World) -> None:
    bad = world.folder / "etc/poolconfig-worker.yaml"
    bad.write_text(POOLS.replace("6-7", "5-99"))

    with world.agent() as process:
        assert process.wait(DEADLINE_S) == 1
        said = process.stderr.read()

    assert (
        "poolconfig-worker.yaml:3:23: pools.exclusive_a.cpus: CPUs 5 are also in shared_b" in said
    )
    assert "Traceback" not in said


def test_the_agent_stops_at_once_and_leaves_no_socket(world: World) -> None:
    with world.agent() as process:
        world.await_pool("exclusive_a", 4)
        assert list(world.node.root.device_plugins.glob("cpupool-*"))
    assert process.returncode == 0
    assert not list(world.node.root.device_plugins.glob("cpupool-*"))


def test_no_cpu_is_offered_before_its_owner_is_known(world: World) -> None:
    """The pool was renamed while no agent ran, and the pods cannot be read at first."""
    with world.agent():
        world.await_pool("exclusive_a", 4)
        world.run("owner", exclusive_a=1)
        world.await_cpus(owner="2")
    pool_file = world.folder / "etc/poolconfig-worker.yaml"
    pool_file.write_text(POOLS.replace("exclusive_a", "exclusive_new"))
    world.pods_file.write_text("")

    with world.agent() as process:
        lines = iter(process.stderr.readline, "")
        assert any("this file is empty" in line for line in lines)
        assert world.node.kubelet.listing("nokia.k8s.io/exclusive_new").capacity == 0
        world.publish()
        world.await_pool("exclusive_new", 3)

    assert world.cpus() == {"owner": "2"}
