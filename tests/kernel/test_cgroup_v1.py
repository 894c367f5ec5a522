"""CgroupFS and repair on this machine's own cgroup v1 cpuset hierarchy, with real processes."""

from __future__ import annotations

import os
import subprocess
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from cpupool.core.cpuset import CPUSet
from cpupool.enforce.apply import bring
from cpupool.host.cgroupfs import CgroupFS
from cpupool.host.processes import threads
from cpupool.host.sysfs import Sysfs
from cpupool.host.usable_cpus import UsableCPUs
from tests.cgroups import CgroupTreeContract, Ground, V1RulesContract
from tests.kernel.v1 import CPUSETS as BASE
from tests.kernel.v1 import needed
from tests.waiting import DEADLINE_S

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = needed(BASE)


@dataclass
class RealCgroups:
    """A tree of this test's own, and the processes that run in it."""

    root: str = field(default_factory=lambda: f"cpupool-test-{os.getpid()}-{uuid.uuid4().hex[:8]}")
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def make(self, path: str, cpus: str) -> None:
        (BASE / path).mkdir()
        if cpus:
            (BASE / path / "cpuset.mems").write_text((BASE / "cpuset.mems").read_text())
            (BASE / path / "cpuset.cpus").write_text(cpus)

    def remove(self, path: str) -> None:
        (BASE / path).rmdir()

    def start(self, path: str) -> int:
        """Start a process that only waits, in a cgroup; gives its id."""
        process = subprocess.Popen(["sleep", "300"])
        self.processes.append(process)
        (BASE / path / "cgroup.procs").write_text(str(process.pid))
        return process.pid

    def clear(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait(DEADLINE_S)
        for folder, _, _ in os.walk(BASE / self.root, topdown=False):
            Path(folder).rmdir()


def affinity(pid: int) -> str:
    """Give a process's `Cpus_allowed_list`, as the kernel shows it."""
    status = Path(f"/proc/{pid}/status").read_text()
    return next(
        line.split()[1] for line in status.splitlines() if line.startswith("Cpus_allowed_list:")
    )


@pytest.fixture
def real() -> Iterator[RealCgroups]:
    cgroups = RealCgroups()
    try:
        cgroups.make(cgroups.root, "0-1")
        yield cgroups
    finally:
        cgroups.clear()


@pytest.fixture
def ground(real: RealCgroups) -> Ground:
    kubepods = f"{real.root}/kubepods"
    real.make(kubepods, "0-1")
    tree = CgroupFS(BASE.parent, f"/{real.root}")
    return Ground(tree, kubepods, real.make, real.remove)


class TestRealCgroupV1(CgroupTreeContract, V1RulesContract):
    pass


def test_processes_of_a_container_and_below_it_run_where_they_are_put(
    real: RealCgroups, ground: Ground
) -> None:
    path = ground.container("0-1", nested="0-1")
    main, below = real.start(path), real.start(f"{path}/nested")
    bring(ground.tree, path, CPUSet.of(1))
    assert (affinity(main), affinity(below)) == ("1", "1")
    bring(ground.tree, path, CPUSet.of(0))
    assert (affinity(main), affinity(below)) == ("0", "0")


def test_a_disturbed_container_is_seen_and_repaired(real: RealCgroups, ground: Ground) -> None:
    path = ground.container("0-1")
    process = real.start(path)
    bring(ground.tree, path, CPUSet.of(0))
    (BASE / path / "cpuset.cpus").write_text("1")
    assert affinity(process) == "1"
    assert [found.cpus for found in ground.tree.containers()] == ["1"]
    bring(ground.tree, path, CPUSet.of(0))
    assert affinity(process) == "0"
    assert [found.cpus for found in ground.tree.containers()] == ["0"]


def test_a_cgroup_root_that_has_lost_a_cpu_is_given_it_back_for_its_container(
    real: RealCgroups, ground: Ground
) -> None:
    path = ground.container("0")
    for above in (path.rpartition("/")[0], ground.kubepods, real.root):
        ground.tree.write(above, CPUSet.of(0))
    bring(ground.tree, path, CPUSet.of(1))
    assert affinity(real.start(path)) == "1"


def test_threads_that_an_affinity_keeps_from_a_cpu_are_seen(
    real: RealCgroups, ground: Ground
) -> None:
    path = ground.container("0-1", nested="0-1")
    pids = [real.start(path), real.start(f"{path}/nested")]
    for pid in pids:
        os.sched_setaffinity(pid, {0})
    assert threads(Path("/proc"), BASE / path) == CPUSet.of(0)
    os.sched_setaffinity(pids[1], {1})
    assert threads(Path("/proc"), BASE / path) == CPUSet.of(0, 1)


def test_a_cgroup_root_limits_what_containers_can_have(real: RealCgroups, ground: Ground) -> None:
    machine = Sysfs.at(Path("/sys"))
    usable = UsableCPUs(machine, BASE.parent, f"/{real.root}")
    outside = machine.online() - CPUSet.of(0, 1)
    assert usable.online() == machine.online() - outside
    for path in (ground.kubepods, real.root):
        ground.tree.write(path, CPUSet.of(0))
    assert usable.online() == CPUSet.of(0)
    (part,) = usable.withheld()  # of the last answer
    assert (part.cpus, part.cgroup) == (machine.online() - CPUSet.of(0), f"/{real.root}")
    ground.tree.write(real.root, CPUSet.of(0, 1))
    assert usable.online() == machine.online() - outside


def test_a_cgroup_that_nothing_filled_yet_can_be_entered_after_a_repair(
    real: RealCgroups, ground: Ground
) -> None:
    path = ground.container("")
    with pytest.raises(OSError, match="No space left"):
        real.start(path)
    bring(ground.tree, path, CPUSet.of(1))
    assert affinity(real.start(path)) == "1"
