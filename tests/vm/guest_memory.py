"""Memory nodes on the real kernel of a guest with two NUMA nodes; `test_node.py` runs this there.

The agent keeps the CPUs. No policy sets memory nodes yet, so the tests run a memory keeper of their
own beside it, which follows the agent's sweeps.
"""

from __future__ import annotations

import re
import threading
import time
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from cpupool.agent.memory_keeper import MemoryKeeper
from cpupool.core.assignments import MemoryNodes
from cpupool.core.plugin_facts import PluginFacts
from cpupool.host.cgroup_memory import CgroupMemory
from cpupool.host.cgroupfs import CgroupVersion, hierarchy
from cpupool.host.root import HostRoot
from cpupool.local.cgroups import RealCgroups
from cpupool.manager.resolve import Snapshot
from tests import builders
from tests.events import Heard
from tests.loops import running
from tests.memory import Beats, having, on
from tests.scenarios.test_embedded_node import living, manifest
from tests.vm.guest_node import directory, version
from tests.vm.inside import HOG_MIB, figure, hog, runs_on, start
from tests.waiting import DEADLINE_S, eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cpupool.core.cpuset import CPUSet
    from cpupool.enforce.sweep import SweepReport
    from tests.scenarios.test_embedded_node import World

POOLS = """
pools:
  exclusive_a: {cpus: "2,4"}
  default: {cpus: "0-1"}
"""
_ANONYMOUS = re.compile(r" N(\d+)=(\d+)")
_PAGE_KIB = 4


class Gate(CgroupMemory):
    """The memory nodes; the end of a write that moves memory waits for a test.

    Attributes:
        begun: set when such a write begins.
        let: the end waits for it.
        took_s: how long the kernel took for each write.
    """

    def __init__(self, cgroup: Path) -> None:
        self.begun, self.let = threading.Event(), threading.Event()
        self.let.set()
        self.took_s: list[float] = []
        super().__init__(cgroup)

    def write(self, path: str, cpus: CPUSet) -> None:
        started_s = time.monotonic()
        self.begun.set()
        super().write(path, cpus)
        self.took_s.append(time.monotonic() - started_s)
        assert self.let.wait(DEADLINE_S)


@dataclass
class Guest:
    """A node with a memory keeper.

    Attributes:
        wanted: pod → its memory nodes.
    """

    world: World
    tree: Gate
    events: Heard
    wanted: dict[str, MemoryNodes] = field(default_factory=dict)

    def decided(self) -> Snapshot:
        now = self.world.agent.manager.snapshot()
        facts = replace(now.facts, plugins=PluginFacts(enabled=True))
        return Snapshot(facts, having(now.resolution, self.wanted))

    def run(self, name: str, pools: dict[str, int]) -> None:
        """Start a pod with one container of its name."""
        start(self.world, manifest(name, {name: pools}))

    def nodes(self, name: str) -> str:
        """Return the memory nodes that the container's cgroup has in effect."""
        files = directory(self.world, name)
        v1 = version(self.world) is CgroupVersion.V1
        return (files / f"cpuset.mems{'' if v1 else '.effective'}").read_text().strip()

    @contextmanager
    def hog(self, name: str) -> Iterator[int]:
        """Let a process in a container fill memory; give its id."""
        with hog(directory(self.world, name)) as process:
            yield process.pid


@contextmanager
def guest(folder: Path) -> Iterator[Guest]:
    home = RealCgroups(*hierarchy(HostRoot().cgroup), home="")
    tree, heard = Gate(HostRoot().cgroup), Heard()
    keepers: list[MemoryKeeper] = []
    health = Beats()

    def swept(report: SweepReport) -> None:
        for keeper in keepers:
            keeper.swept(report)

    with living(folder, home, POOLS, HostRoot().sysfs, observe=swept) as world:
        made = Guest(world, tree, heard)
        keeper = MemoryKeeper(
            made.decided,
            tree,
            placed={},
            look=world.agent.wake,
            telemetry=builders.telemetry(events=heard, health=health),
        )
        with running(keeper.run, wake=keeper.wake):
            keepers.append(keeper)
            try:
                # A container that runs before the first look is not new.
                eventually(lambda: health.beats > 1, "the first look")
                yield made
            finally:
                tree.let.set()


def memory_of(pid: int) -> dict[int, int]:
    """Return NUMA node → MiB of a process's own memory there, by numa_maps (proc_pid_numa_maps)."""
    pages: Counter[int] = Counter()
    for line in Path(f"/proc/{pid}/numa_maps").read_text().splitlines():
        if "anon=" in line and "file=" not in line:
            for node, count in _ANONYMOUS.findall(line):
                pages[int(node)] += int(count)
    return {node: count * _PAGE_KIB // 1024 for node, count in pages.items()}


def lies_on(pid: int, node: int) -> None:
    """Wait until the memory of a process lies on a node, and hardly any on another."""

    def there() -> bool:
        has = memory_of(pid)
        return has.get(node, 0) >= HOG_MIB and has.get(1 - node, 0) < HOG_MIB // 8

    eventually(there, lambda: f"{HOG_MIB} MiB on node {node}: {memory_of(pid)}")


def test_memory_lies_on_its_node_from_creation_and_moves_while_cpus_are_repaired(
    folder: Path,
) -> None:
    with guest(folder) as node:
        assert node.tree.with_memory() == on("0-1")
        node.wanted = {"far": MemoryNodes(on("1")), "owner": MemoryNodes(on("0"), migrates=True)}
        node.run("far", {})
        node.run("owner", {"exclusive_a": 1})
        eventually(lambda: (node.nodes("far"), node.nodes("owner")) == ("1", "0"), "at creation")
        with node.hog("far") as far, node.hog("owner") as owner:
            lies_on(far, 1)
            lies_on(owner, 0)
            figure(f"at creation: far {memory_of(far)}, owner {memory_of(owner)} MiB by node")

            node.tree.took_s.clear()
            node.tree.begun.clear()
            node.tree.let.clear()
            node.wanted = {
                "far": MemoryNodes(on("0")),
                "owner": MemoryNodes(on("1"), migrates=True),
            }
            node.world.agent.wake()
            assert node.tree.begun.wait(DEADLINE_S)
            begun_s = time.monotonic()
            written_s = drift(directory(node.world, "owner"))
            runs_on(node.world, owner="2", far="0-1")
            moved = "" if node.tree.took_s else "not "
            figure(
                f"a drift that took {written_s:.2f} s to write is repaired"
                f" {time.monotonic() - begun_s:.2f} s after the memory began to move, which has"
                f" {moved}ended"
            )
            node.tree.let.set()
            eventually(lambda: node.nodes("owner") == "1", "the other node")
            lies_on(owner, 1)
            # The pages are there before the write that moves them returns.
            eventually(lambda: node.tree.took_s, "the end of the write")
            figure(f"{HOG_MIB} MiB moved in {node.tree.took_s[0]:.2f} s: owner {memory_of(owner)}")

            # It may not be migrated, and its owner hears of it.
            eventually(lambda: node.events.pods, "the Event")
            assert {(pod, reason) for pod, reason, _ in node.events.pods} == {
                ("far", "MemoryNodesMissed")
            }
            assert node.nodes("far") == "1"
            lies_on(far, 1)
            if version(node.world) is CgroupVersion.V1:
                flags = [
                    (directory(node.world, name) / "cpuset.memory_migrate").read_text().strip()
                    for name in ("far", "owner")
                ]
                assert flags == ["0", "0"]


def test_a_foreign_write_is_undone_and_a_node_that_lacks_is_refused(folder: Path) -> None:
    with guest(folder) as node:
        node.wanted = {"moves": MemoryNodes(on("1"), migrates=True)}
        node.run("moves", {})
        eventually(lambda: node.nodes("moves") == "1", "at creation")
        with node.hog("moves") as pid:
            lies_on(pid, 1)
            (directory(node.world, "moves") / "cpuset.mems").write_text("0")
            eventually(lambda: len(node.tree.took_s) > 1, "repaired")
            eventually(lambda: node.nodes("moves") == "1", "back")
            lies_on(pid, 1)
            figure(f"moved back in {node.tree.took_s[-1]:.2f} s: {memory_of(pid)} MiB by node")
            node.wanted = {"moves": MemoryNodes(on("1,5"), migrates=True)}
            node.world.agent.wake()
            eventually(lambda: node.events.pods, "the Event")
            assert "no memory on NUMA node 5" in node.events.pods[0][2]
            assert node.nodes("moves") == "1"
            lies_on(pid, 1)


def drift(container: Path) -> float:
    """Write all CPUs into a container's set past the agent; return how long the kernel took."""
    started_s = time.monotonic()
    (container / "cpuset.cpus").write_text("0-15")
    return time.monotonic() - started_s
