"""Memory nodes of tests: a model of the kernel's rules, and containers that must have some."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from cpupool.core.cpuset import CPUSet
from cpupool.host.cgroupfs import CgroupVersion
from cpupool.telemetry.health import Health
from tests.cgroups import KernelModel

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cpupool.core.assignments import MemoryNodes
    from cpupool.manager.resolve import Resolution


class MemoryModel(KernelModel):
    """The memory nodes of a cgroup tree in memory; the kernel's rules are those of CPU sets.

    Args:
        version: whose rules apply.
        sets: path → list of nodes, parents first.
        online: the nodes with memory.

    Attributes:
        migrated: the cgroups whose pages a write has moved, in order.
        flags: the cgroups with `cpuset.memory_migrate` (version 1).
    """

    def __init__(
        self, version: CgroupVersion, sets: Mapping[str, str], online: str = "0-1"
    ) -> None:
        self.migrated: list[str] = []
        self.flags: set[str] = set()
        super().__init__(version, sets, online)

    def with_memory(self) -> CPUSet:
        return self.online

    def migrating(self, path: str) -> bool:
        return path in self.flags

    def let_migrate(self, path: str, *, on: bool) -> None:
        if self.version is CgroupVersion.V1:
            cgroups = {path, *self._below(path)}
            self.flags = self.flags | cgroups if on else self.flags - cgroups

    def write(self, path: str, cpus: CPUSet) -> None:
        before = self._own(path)
        super().write(path, cpus)
        leaves = bool(before - cpus)
        if leaves and (self.version is CgroupVersion.V2 or path in self.flags):
            self.migrated.append(path)


class Beats(Health):
    """Counts the beats of the one loop that it hears."""

    def __init__(self) -> None:
        self.beats = 0
        super().__init__()

    def beat(self, loop: str) -> None:
        del loop
        self.beats += 1


def having(resolution: Resolution, wanted: Mapping[str, MemoryNodes]) -> Resolution:
    """Return the resolution with memory nodes for containers, by the name of their pod."""
    if not wanted:
        return resolution
    placed = {
        key: replace(found, assignment=replace(found.assignment, memory=wanted.get(found.pod.name)))
        for key, found in resolution.containers.items()
    }
    return replace(resolution, containers=placed)


def on(nodes: str) -> CPUSet:
    """Return a set of NUMA nodes."""
    return CPUSet.parse(nodes)
