"""What plugins set beside CPUs, on the real kernel of a guest; `test_node.py` runs this there.

The answers come as the facts that they become: the calls to plugins have deadlines that an emulated
machine does not always keep. The embedded node lives in the cpuset hierarchy alone; the tests make
the cgroups for CPU time, memory and I/O, as the kubelet and the runtime do.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from cpupool.core.plugin_facts import AnswerPart, PluginFacts, RecordedAnswer
from cpupool.core.workloads import ContainerRef
from cpupool.host.cgroupfs import CgroupVersion, hierarchy
from cpupool.host.root import HostRoot
from cpupool.local.cgroups import RealCgroups
from tests.events import Heard
from tests.scenarios.test_embedded_node import living, manifest
from tests.vm.guest_node import directory, version
from tests.vm.inside import HOG_MIB, figure, hog, start
from tests.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from tests.scenarios.test_embedded_node import World

POOLS = """
pools:
  default: {cpus: "0-1"}
"""
NIC = "example.com/nic"
MIB = 1 << 20
SETS = {
    "CpuShares": "512",
    "CpuQuota": "25000",
    "CpuPeriod": "50000",
    "MemoryLimitInBytes": f"{128 * MIB}",
    "MemorySwapLimitInBytes": f"{256 * MIB}",
}
UNIFIED = {"Unified": f"io.weight=50,memory.high={96 * MIB}"}
V1 = {
    "cpu,cpuacct/cpu.shares": "512",
    "cpu,cpuacct/cpu.cfs_quota_us": "25000",
    "cpu,cpuacct/cpu.cfs_period_us": "50000",
    "memory/memory.limit_in_bytes": f"{128 * MIB}",
    "memory/memory.memsw.limit_in_bytes": f"{256 * MIB}",
}
V2 = {
    # 512 shares, as runc computes since 1.3.2.
    "cpu.weight": "59",
    "cpu.max": "25000 50000",
    "memory.max": f"{128 * MIB}",
    "memory.swap.max": f"{128 * MIB}",
    "memory.high": f"{96 * MIB}",
    "io.weight": "default 50",
}
FOREIGN = {
    "cpu,cpuacct/cpu.shares": "1024",
    "cpu,cpuacct/cpu.cfs_period_us": "100000",
    "cpu.weight": "100",
    "cpu.max": "max 100000",
    "io.weight": "default 100",
}
"""What another program writes; no limit where a file is not named here."""


@dataclass
class Guest:
    """A node with a container `main`, for which a plugin has answered.

    Attributes:
        made: the cgroups that the test has made.
    """

    world: World
    events: Heard
    made: list[Path] = field(default_factory=list)

    @property
    def v1(self) -> bool:
        return version(self.world) is CgroupVersion.V1

    def answer(self, **sets: str) -> None:
        """Let the plugin set properties: each is an accompanying resource of its answer."""
        (pod,) = self.world.node.pods()
        answers = {f"{NIC}-{name}": AnswerPart(name, value) for name, value in sets.items()}
        given = {ContainerRef(pod.uid, "main"): {NIC: RecordedAnswer(1.0, answers)}}
        # Before, the agent's own record of answers, which has none, becomes a fact once more.
        snapshot = self.world.agent.manager.snapshot
        eventually(lambda: snapshot().facts.recovered, "answers of an earlier agent are known")
        self.world.agent.manager.observe(plugins=PluginFacts(answers=given, enabled=True))
        self.world.agent.wake()

    def file(self, place: str) -> Path:
        """Return a file of the container; on version 1 its place begins with a hierarchy."""
        container = directory(self.world, "main")
        if not self.v1:
            return container / place
        controllers, name = place.split("/")
        below = container.relative_to(hierarchy(HostRoot().cgroup)[0])
        return HostRoot().cgroup / controllers / below / name

    def fill(self) -> None:
        """Make the container's other cgroups; on version 2 they are files of the same one."""
        if self.v1:
            for cgroup in {self.file(place).parent for place in V1}:
                cgroup.mkdir(parents=True)
                self.made.append(cgroup)
            return
        base, _ = hierarchy(HostRoot().cgroup)
        for above in reversed(directory(self.world, "main").parents):
            if above.is_relative_to(base):
                (above / "cgroup.subtree_control").write_text("+cpu +memory +io")

    def keeps(self, expected: Mapping[str, str]) -> None:
        """Wait until the kernel has this in the container's files."""

        def now() -> dict[str, str]:
            return {place: self.file(place).read_text().strip() for place in expected}

        eventually(lambda: now() == expected, lambda: f"{expected}: {now()}, {self.events.pods}")

    def hears(self, why: str) -> None:
        """Wait until the pod's owner hears of a property that is missed."""

        def heard() -> bool:
            told = [text for _, event, text in self.events.pods if event == "PropertiesMissed"]
            return any(why in text for text in told)

        eventually(heard, lambda: f"{why}: {self.events.pods}")


@contextmanager
def guest(folder: Path) -> Iterator[Guest]:
    """Run a node whose container has no cgroups for CPU time, memory and I/O yet."""
    home = RealCgroups(*hierarchy(HostRoot().cgroup), home="")
    heard = Heard()
    with living(folder, home, POOLS, HostRoot().sysfs, events=heard) as world:
        start(world, manifest("web", {"main": {}}))
        made = Guest(world, heard)
        try:
            yield made
        finally:
            for cgroup in made.made:
                for place in (cgroup, *cgroup.parents):
                    if len(place.relative_to(HostRoot().cgroup).parts) == 1:
                        break
                    place.rmdir()


def test_what_a_plugin_sets_is_written_and_kept_once_the_kernel_has_the_files(
    folder: Path,
) -> None:
    with guest(folder) as node:
        sets, expected = (SETS, V1) if node.v1 else (SETS | UNIFIED, V2)
        node.answer(**sets)
        node.hears("this node's cgroups cannot set CPU shares 512, ")
        node.fill()
        node.keeps(expected)
        # Memory comes after memory and swap, which may not have less.
        for place in reversed(expected):
            foreign = FOREIGN.get(place, "-1" if node.v1 else "max")
            node.file(place).write_text(foreign)
        node.keeps(expected)
        figure(f"kept by the kernel: {expected}")


def test_memory_in_use_is_limited_once_the_container_uses_less(folder: Path) -> None:
    with guest(folder) as node:
        node.answer(MemoryLimitInBytes=f"{2 * HOG_MIB * MIB}")
        node.fill()
        file = "memory/memory.limit_in_bytes" if node.v1 else "memory.max"
        node.keeps({file: f"{2 * HOG_MIB * MIB}"})
        with hog(node.file(file).parent) as process:
            node.answer(MemoryLimitInBytes=f"{HOG_MIB * MIB // 2}")
            node.hears("wait until it uses less, or raise the limit")
            assert process.poll() is None, "the kernel has killed nothing"
            assert node.file(file).read_text().strip() == f"{2 * HOG_MIB * MIB}"
        node.keeps({file: f"{HOG_MIB * MIB // 2}"})
