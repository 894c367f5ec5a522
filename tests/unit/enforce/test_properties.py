from __future__ import annotations

import math
import re
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from cpupool.core.bandwidth import Bandwidth, Limit
from cpupool.core.cgroups import FoundContainer
from cpupool.core.pools import NodePools, Pool
from cpupool.core.properties import Properties
from cpupool.enforce.properties import PropertiesGoal
from cpupool.enforce.repair import Keeper
from cpupool.enforce.writer_choice import Writers
from cpupool.host.cgroupfs import CgroupVersion
from cpupool.manager.manager import Manager
from cpupool.telemetry.metrics import Metrics
from tests import builders
from tests.machines import MACHINES
from tests.property_folders import GIB, MAIN, PropertyFolder
from tests.runtimes import ModelRuntime

if TYPE_CHECKING:
    from pathlib import Path

    from cpupool.core.workloads import ContainerID

V1, V2 = CgroupVersion
BOTH = pytest.mark.parametrize("version", CgroupVersion)
LIMIT = {V1: "memory.limit_in_bytes", V2: "memory.max"}
SWAP = {V1: "memory.memsw.limit_in_bytes", V2: "memory.swap.max"}


class Node:
    """A node with the pod `web`, whose container's cgroup lies in a written folder."""

    def __init__(self, folder: Path, version: CgroupVersion, wanted: Properties) -> None:
        self.there = PropertyFolder(folder, version)
        self.wanted = wanted
        self.limit: Limit | None = None
        self.nri = ModelRuntime()
        self.metrics = Metrics()
        self.now_s = 1_000.0
        manager = Manager()
        manager.reconfigure(
            NodePools.of(Pool.named("default", "0")), MACHINES["single_cpu"].topology()
        )
        manager.observe(pods=[builders.pod("web")])
        self._resolution = manager.snapshot().resolution
        writers = Writers(None, self.nri, ModelRuntime())
        self.keeper = Keeper(PropertiesGoal(self.there.tree, writers, self.metrics))

    def keep(self, wanted: Properties | None = None, after_s: float = 5.0) -> list[str]:
        """Let the keeper look, after a while; return what pods' owners must know."""
        self.wanted = self.wanted if wanted is None else wanted
        self.now_s += after_s
        placed = {
            key: replace(
                found,
                assignment=replace(found.assignment, properties=self.wanted, limit=self.limit),
            )
            for key, found in self._resolution.containers.items()
        }
        resolution = replace(self._resolution, containers=placed)
        found = [
            FoundContainer("web-uid", f"{name}-id", f"kubepods/podweb-uid/{name}-id", "0")
            for name in ("main", "sandbox")
        ]
        kept = self.keeper.keep(found, resolution, self.now_s)
        assert {notice.event for notice in kept.values()} <= {"PropertiesMissed"}
        return [notice.why for notice in kept.values()]

    def counted(self) -> dict[str, int]:
        page = self.metrics.render()[1].decode()
        line = r'^cpupool_property_repairs_total{reason="(\w+)"} (\S+)$'
        return {reason: int(float(n)) for reason, n in re.findall(line, page, re.MULTILINE)}


@BOTH
def test_a_container_gets_what_plugins_set_and_keeps_it(
    version: CgroupVersion, folder: Path
) -> None:
    node = Node(folder, version, Properties(512, memory_bytes=GIB, swap_bytes=GIB))
    assert node.keep() == []
    assert node.there.tree.properties(MAIN, node.wanted) == node.wanted
    assert node.counted() == {"new": 1}
    node.there.put(LIMIT[version], str(GIB + 1))
    assert node.keep() == []
    # Less than a page is no difference.
    assert node.there.has(LIMIT[version]) == [str(GIB + 1)]
    assert node.keep(Properties(512, memory_bytes=2 * GIB, swap_bytes=2 * GIB)) == []
    assert node.there.has(LIMIT[version]) == [str(2 * GIB)]
    node.there.put(SWAP[version], str(3 * GIB))
    assert node.keep() == []
    assert node.there.tree.properties(MAIN, node.wanted) == node.wanted
    assert node.counted() == {"new": 1, "moved": 1, "unknown": 1}
    assert node.keeper.due_s == math.inf


def test_a_fight_is_told_and_waits_longer(folder: Path) -> None:
    node = Node(folder, V2, Properties(512))
    node.keep()
    told: list[str] = []
    for _ in range(20):
        node.there.put("cpu.weight", "100")
        told = node.keep(after_s=0.3)
    assert told == ["another program overwrites its cgroup again and again"]
    assert node.there.has("cpu.weight") == ["100"]
    assert node.now_s < node.keeper.due_s < node.now_s + 10


def test_a_runtime_that_has_the_container_is_asked_for_what_differs_only(folder: Path) -> None:
    wanted = Properties(512, Bandwidth(25_000), GIB, oom_score_adj=500)
    node = Node(folder, V2, wanted)
    node.keep()
    asked: list[Properties] = []

    def adjusted(container: ContainerID, properties: Properties) -> None:
        assert container == "main-id"
        asked.append(properties)
        node.there.tree.write(MAIN, properties)

    node.nri.here, node.nri.lists, node.nri.adjusted = True, {"main-id": "0"}, adjusted
    node.there.put("cpu.max", "max 100000")
    assert node.keep() == []
    node.there.put("memory.swap.max", "0")
    assert node.keep(replace(wanted, memory_bytes=2 * GIB)) == []
    # It keeps the swap that it has.
    assert asked == [
        Properties(bandwidth=Bandwidth(25_000)),
        Properties(memory_bytes=2 * GIB, swap_bytes=2 * GIB),
    ]
    assert node.there.has("memory.max", "memory.swap.max") == [str(2 * GIB), "0"]

    node.nri.adjusted = lambda _container, _properties: None
    (why,) = node.keep(replace(wanted, memory_bytes=3 * GIB))
    assert "it has memory 2147483648, memory and swap 2147483648" in why
    node.nri.busy = True
    node.keep()
    assert node.keeper.due_s == node.now_s + 0.1
    node.nri.lists.clear()
    node.nri.busy = False
    node.there.end()
    node.keep(after_s=20)


def test_the_cpu_time_that_cpupool_decides_is_left_alone(folder: Path) -> None:
    node = Node(folder, V1, Properties(bandwidth=Bandwidth(25_000)))
    node.limit = Limit(None)
    assert node.keep() == []
    assert node.there.has("cpu.cfs_quota_us") == ["-1"]
    node.limit = None
    assert node.keep() == []
    assert node.there.has("cpu.cfs_quota_us") == ["25000"]


def test_the_score_alone_is_no_goal(folder: Path) -> None:
    node = Node(folder, V1, Properties(oom_score_adj=500))
    node.there.end()
    assert node.keep() == []
    assert node.keeper.due_s == math.inf


def test_memory_that_is_in_use_is_not_limited_below(folder: Path) -> None:
    node = Node(folder, V2, Properties(512, memory_bytes=GIB))
    node.there.put("memory.current", str(GIB + 1))
    (why,) = node.keep()
    assert f"it uses more than the {GIB} bytes of memory that its new limit allows" in why
    assert node.there.has("memory.max", "cpu.weight") == ["max", "59"]
    assert node.keep() == [why]
    node.there.put("memory.current", str(GIB))
    assert node.keep() == []
    assert node.there.has("memory.max", "memory.swap.max") == [str(GIB), "max"]
    # More is never too little.
    node.there.put("memory.current", str(3 * GIB))
    assert node.keep(Properties(memory_bytes=-1)) == []


@BOTH
def test_what_the_kernel_lacks_is_told_and_not_tried(version: CgroupVersion, folder: Path) -> None:
    unified = {"io.weight": "50"} if version is V1 else {}
    node = Node(folder, version, Properties(512, None, GIB, GIB, unified=unified))
    node.there.file(SWAP[version]).unlink()
    lacks = "this node's cgroups cannot set memory and swap 1073741824"
    assert node.keep() == [lacks + ", io.weight 50" * (version is V1)]
    assert node.there.has(LIMIT[version]) == [str(GIB)]
    node.keep()
    assert node.counted() == {"new": 1}
    assert node.keeper.due_s == math.inf


def test_a_container_that_ends_is_no_trouble(folder: Path) -> None:
    node = Node(folder, V2, Properties(512))
    node.keep()
    node.there.end()
    assert node.keep() == []
