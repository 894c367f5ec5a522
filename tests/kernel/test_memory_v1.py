"""Memory nodes on this machine's own cgroup v1, with real processes."""

from __future__ import annotations

import os
import subprocess
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from cpupool.core.assignments import MemoryNodes
from cpupool.core.cpuset import CPUSet
from cpupool.core.errors import CgroupNotFound, CgroupWriteRejected
from cpupool.core.pools import NodePools, Pool
from cpupool.enforce.apply import bring
from cpupool.enforce.memory_nodes import MemoryGoal
from cpupool.enforce.repair import Keeper
from cpupool.host.cgroup_memory import CgroupMemory
from cpupool.host.cgroupfs import CgroupFS
from cpupool.manager.manager import Manager
from cpupool.telemetry.metrics import Metrics
from tests import builders
from tests.kernel.v1 import CGROUP, CPUSETS, needed
from tests.machines import MACHINES
from tests.memory import having
from tests.waiting import DEADLINE_S

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = needed(CPUSETS)

LACKING = CPUSet.of(1000)


@pytest.fixture
def root() -> Iterator[str]:
    """Give the path of a cgroup of this test's own that stands for the root."""
    made = f"cpupool-test-{os.getpid()}-{uuid.uuid4().hex[:8]}"
    (CPUSETS / made).mkdir()
    yield made
    for folder, _, _ in os.walk(CPUSETS / made, topdown=False):
        Path(folder).rmdir()


@pytest.fixture
def container(root: str) -> str:
    """Give the path of a container that has no memory nodes yet, as those above it."""
    path = f"{root}/kubepods/podweb-uid/main-id"
    (CPUSETS / path / "init").mkdir(parents=True)
    return path


def read(path: str, name: str = "cpuset.mems") -> str:
    return (CPUSETS / path / name).read_text().strip()


def test_a_new_container_gets_nodes_and_a_process_can_enter(root: str, container: str) -> None:
    tree = CgroupMemory(CGROUP, f"/{root}")
    wanted = tree.with_memory()
    manager = Manager()
    manager.reconfigure(NodePools.of(Pool.named("default", "0")), MACHINES["single_cpu"].topology())
    manager.observe(pods=[builders.pod("web")])
    goal = MemoryGoal(tree, lambda write: write(), {}, Metrics(), lambda: 0.0)
    keeper = Keeper(goal)
    found = tuple(CgroupFS(CGROUP, f"/{root}").containers())
    for looked, nodes in ((), wanted), (found, wanted), (found, LACKING):
        nodes_of = {"web": MemoryNodes(nodes, migrates=True)}
        resolution = having(manager.snapshot().resolution, nodes_of)
        told = keeper.keep(looked, resolution, 0.0)
    # What the machine lacks is refused, and what the container had is left.
    assert [str(notice.why) for notice in told.values()] == [
        f"no memory on NUMA node {LACKING}; this machine has memory on {wanted}, choose from these"
    ]
    assert read(container) == read(f"{root}/kubepods") == str(wanted)
    assert read(container, "cpuset.memory_migrate") == "0"
    CgroupFS(CGROUP, f"/{root}").write(f"{root}", CPUSet.of(0, 1))
    for above in (f"{root}/kubepods", f"{root}/kubepods/podweb-uid", container):
        CgroupFS(CGROUP, f"/{root}").write(above, CPUSet.of(0, 1))
    with subprocess.Popen(["sleep", "300"]) as process:
        (CPUSETS / container / "cgroup.procs").write_text(str(process.pid))
        process.kill()
        process.wait(DEADLINE_S)


def test_the_kernel_refuses_a_node_that_it_lacks_and_nothing_stays(
    root: str, container: str
) -> None:
    tree = CgroupMemory(CGROUP, f"/{root}")
    bring(tree, container, tree.with_memory())
    with pytest.raises(CgroupWriteRejected, match="no memory"):
        bring(tree, container, tree.with_memory() | LACKING)
    assert read(container) == str(tree.with_memory())


def test_the_switch_of_migration_is_the_kernels(root: str, container: str) -> None:
    tree = CgroupMemory(CGROUP, f"/{root}")
    tree.let_migrate(container, on=True)
    assert read(container, "cpuset.memory_migrate") == "1"
    assert read(f"{container}/init", "cpuset.memory_migrate") == "1"
    assert read(f"{root}/kubepods", "cpuset.memory_migrate") == "0"
    assert tree.migrating(container)
    tree.let_migrate(container, on=False)
    assert not tree.migrating(container)
    with pytest.raises(CgroupNotFound):
        tree.effective(f"{container}/gone")
