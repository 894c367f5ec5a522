"""CFS quotas on this machine's own cgroup v1: what throttles a container, and what does not."""

from __future__ import annotations

import os
import threading
import uuid
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from cpupool.core.bandwidth import Bandwidth
from cpupool.core.errors import CgroupNotFound, CgroupWriteRejected
from cpupool.core.pools import NodePools, Pool
from cpupool.core.workloads import ContainerID
from cpupool.enforce.quota_repair import QuotaGoal
from cpupool.enforce.repair import Keeper
from cpupool.host.bandwidth import CFSBandwidth
from cpupool.host.cgroupfs import CgroupFS
from cpupool.manager.manager import Manager
from cpupool.telemetry.metrics import Metrics
from tests import builders
from tests.kernel.v1 import CGROUP, CPU, CPUSETS, needed
from tests.machines import MACHINES
from tests.runtimes import without_runtime
from tests.throttling import QUIET_S, spinning, throttled
from tests.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cpupool.core.workloads import Pod
    from cpupool.enforce.notices import Notice

ONE_CPU = Bandwidth(100_000)
POOLS = NodePools.of(
    Pool.named("exclusive_a", "1"), Pool.named("shared_a", "0"), Pool.named("default", "2")
)


pytestmark = needed(CPU, CPUSETS)


@dataclass
class Node:
    """A part of this machine's hierarchies, as kubelet and runtime use them."""

    root: str = field(default_factory=lambda: f"cpupool-test-{os.getpid()}-{uuid.uuid4().hex[:8]}")
    manager: Manager = field(default_factory=Manager)

    def __post_init__(self) -> None:
        self.quotas = CFSBandwidth(CGROUP, f"/{self.root}")
        self.cpusets = CgroupFS(CGROUP, f"/{self.root}")
        self.keeper = Keeper(QuotaGoal(self.quotas, without_runtime(), Metrics()))
        self.manager.reconfigure(POOLS, MACHINES["arm_no_smt"].topology())

    def make(self, path: str, quota: Bandwidth | None = None) -> None:
        for base in (CPUSETS, CPU):
            (base / path).mkdir()
        for file in ("cpuset.mems", "cpuset.cpus"):
            (CPUSETS / path / file).write_text((CPUSETS / path / ".." / file).read_text())
        if quota:
            self.quotas.limit(path, quota)

    def run(self, name: str) -> str:
        """Make a pod of one container with a CPU of its own and a shared one, limited as by the
        kubelet to one CPU; give the container's cgroup."""
        identifier = ContainerID(uuid.uuid4().hex * 2)
        asked = builders.container(exclusive_a=1, shared_a=1_000)
        main = replace(asked, id=identifier, limit_milli=1_000)
        pod = replace(builders.pod(name, main), limit_milli=1_000)
        self.make(f"{self.root}/kubepods/pod{pod.uid}", ONE_CPU)
        path = f"{self.root}/kubepods/pod{pod.uid}/{identifier}"
        self.make(path, ONE_CPU)
        self.know(pod)
        return path

    def know(self, pod: Pod) -> None:
        self.manager.observe(pods=[pod])
        self.manager.accept(builders.given(pod, exclusive_a="1", shared_a="0"))

    def keep(self) -> list[Notice]:
        found = tuple(self.cpusets.containers())
        return list(self.keeper.keep(found, self.manager.snapshot().resolution, 0.0).values())

    def has(self, container: str) -> tuple[Bandwidth | None, ...]:
        """Give what the pod has, and the container."""
        pod = container.rpartition("/")[0]
        return self.quotas.bandwidth(pod), self.quotas.bandwidth(container)

    def clear(self) -> None:
        for base in (CPUSETS, CPU):
            for folder, _, _ in os.walk(base / self.root, topdown=False):
                Path(folder).rmdir()


@pytest.fixture
def node() -> Iterator[Node]:
    made = Node()
    try:
        made.make(made.root)
        # Containers here are busy for more than one CPU's time whatever else this machine does, and
        # leave some to it: other tests have deadlines.
        (CPU / made.root / "cpu.shares").write_text("65536")
        made.make(f"{made.root}/kubepods")
        yield made
    finally:
        made.clear()


def stops(container: str) -> int:
    """Count how often a container's threads were stopped by its own limit or the pod's."""
    return throttled(CPU / container) + throttled(CPU / container / "..")


def test_a_mixed_container_is_throttled_without_the_lift_and_never_with_it(node: Node) -> None:
    without = node.run("without")
    with spinning([1, 0], CPU / without, CPUSETS / without):
        eventually(lambda: stops(without), "one CPU's time is too little for two busy threads")

    lifted = node.run("lifted")
    assert node.keep() == []
    assert node.has(lifted) == (Bandwidth(), Bandwidth())
    with spinning([1, 0], CPU / lifted, CPUSETS / lifted):
        threading.Event().wait(QUIET_S)
        assert stops(lifted) == 0

        # A foreign write, then a resize: the kubelet writes the pod's first.
        for quota in (Bandwidth(50_000), Bandwidth(150_000)):
            pod = lifted.rpartition("/")[0]
            for path in (lifted, pod) if quota.quota_us < ONE_CPU.quota_us else (pod, lifted):
                node.quotas.limit(path, quota)
            assert node.keep() == []
            assert node.has(lifted) == (Bandwidth(), Bandwidth())
        before = stops(lifted)
        threading.Event().wait(1)
        assert stops(lifted) == before


def test_when_the_container_has_ended_the_pod_has_its_own_limit_again(node: Node) -> None:
    container = node.run("web")
    pod = container.rpartition("/")[0]
    node.make(f"{pod}/sandbox")
    node.keep()
    for base in (CPUSETS, CPU):
        (base / container).rmdir()
    assert node.keep() == []
    assert node.has(container) == (ONE_CPU, None)
    with pytest.raises(CgroupNotFound):
        node.quotas.limit(container, ONE_CPU)


def test_the_kernel_says_why_it_takes_no_more_than_the_pod_has(node: Node) -> None:
    container = node.run("web")
    with pytest.raises(CgroupWriteRejected, match=r"Invalid argument; .* above it has less"):
        node.quotas.limit(container, Bandwidth(100_001))
    assert node.has(container) == (ONE_CPU, ONE_CPU)
    node.quotas.limit(container, Bandwidth(40_000, 50_000))
    assert node.has(container) == (ONE_CPU, Bandwidth(40_000, 50_000))
