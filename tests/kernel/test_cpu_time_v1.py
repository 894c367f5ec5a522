"""CPU time of real processes in this machine's own cgroup v1, and pods beside a narrowed one."""

from __future__ import annotations

import os
import subprocess
import time
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from cpupool.core.cpuset import CPUSet
from cpupool.enforce.apply import bring
from cpupool.host.cgroupfs import CgroupFS
from cpupool.host.cpu_time import CPUTimes
from cpupool.policies.koordinator.best_effort import Load
from tests.kernel.test_cgroup_v1 import affinity
from tests.kernel.v1 import CGROUP, CPUSETS, needed
from tests.throttling import spinning
from tests.waiting import DEADLINE_S, eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

CPUACCT = CGROUP / "cpuacct"
BOTH = CPUSet.of(0, 1)
pytestmark = needed(CPUACCT, CPUSETS)


@dataclass
class Node:
    """A part of this machine's hierarchies, as kubelet and runtime use them."""

    root: str = field(default_factory=lambda: f"cpupool-test-{os.getpid()}-{uuid.uuid4().hex[:8]}")
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def make(self, path: str, cpus: str = "0-1") -> None:
        """Make a cgroup and those above it, in both hierarchies."""
        for step in (*reversed(Path(path).parents[:-1]), Path(path)):
            (CPUACCT / self.root / step).mkdir(parents=True, exist_ok=True)
            directory = CPUSETS / self.root / step
            if not directory.exists():
                directory.mkdir(parents=True)
                for name, text in {"cpuset.mems": "0", "cpuset.cpus": cpus}.items():
                    (directory / name).write_text(text)

    def start(self, path: str) -> int:
        """Start a process that only waits, in a cgroup; return its id."""
        process = subprocess.Popen(["sleep", "300"])
        self.processes.append(process)
        (CPUSETS / self.root / path / "cgroup.procs").write_text(str(process.pid))
        return process.pid

    def clear(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait(DEADLINE_S)
        for base in (CPUACCT, CPUSETS):
            for folder, _, _ in os.walk(base / self.root, topdown=False):
                Path(folder).rmdir()


@pytest.fixture
def node() -> Iterator[Node]:
    made = Node()
    try:
        for base in (CPUACCT, CPUSETS):
            (base / made.root).mkdir()
        for name, text in {"cpuset.mems": "0", "cpuset.cpus": "0-1"}.items():
            (CPUSETS / made.root / name).write_text(text)
        yield made
    finally:
        made.clear()


def test_the_work_of_a_pod_is_its_own_and_that_of_the_cpus(node: Node) -> None:
    busy, idle = "kubepods/burstable/podbusy/one", "kubepods/besteffort/podidle/one"
    for path in (busy, idle):
        node.make(path)
    times = CPUTimes(Path("/proc"), CGROUP, f"/{node.root}")
    with spinning([0, 1], CPUACCT / node.root / busy):
        began_s, before = time.monotonic(), times.read()
        after = before

        def worked() -> bool:
            nonlocal after
            after = times.read()
            return after.by_pod_us["busy"] - before.by_pod_us["busy"] > 500_000

        eventually(worked, "half a second of work")
        use = after.since(before, time.monotonic() - began_s)

    load = Load.of(use, BOTH, best_effort={"idle"}, outside=())
    assert set(use.by_pod_milli) == {"busy", "idle"}
    assert load.pods_milli == load.others_milli == use.by_pod_milli["busy"] > 0
    assert use.by_pod_milli["idle"] == 0
    # Both CPUs may be busy with more; the kernel counts them by ticks of 10 ms.
    assert load.node_milli > load.pods_milli / 2


def test_a_pod_starts_beside_one_whose_container_is_narrowed(node: Node) -> None:
    tree = CgroupFS(CGROUP, f"/{node.root}")
    narrowed = "kubepods/besteffort/podfirst/one"
    node.make(narrowed)
    process = node.start(narrowed)
    bring(tree, f"{node.root}/{narrowed}", CPUSet.of(0))
    assert affinity(process) == "0"

    # The runtime gives a new pod what the folder of its class has.
    node.make("kubepods/besteffort/podsecond/one")
    late = node.start("kubepods/besteffort/podsecond/one")
    assert affinity(late) == "0-1"
    bring(tree, f"{node.root}/kubepods/besteffort/podsecond/one", CPUSet.of(0))

    assert affinity(late) == "0"
    assert tree.effective(f"{node.root}/kubepods/besteffort") == BOTH
    assert tree.effective(f"{node.root}/kubepods/besteffort/podsecond") == BOTH


def test_in_a_narrowed_folder_no_pod_starts(node: Node) -> None:
    node.make("kubepods/besteffort")
    (CPUSETS / node.root / "kubepods/besteffort/cpuset.cpus").write_text("0")

    with pytest.raises(PermissionError):
        node.make("kubepods/besteffort/podlate/one")
