"""The goal of memory nodes (`cpuset.mems`): a container takes its memory from the right NUMA nodes.

A write may take seconds, because the kernel moves the pages of the container meanwhile. So the goal
makes one write at a time, not in the thread that keeps the CPUs, and only

* at the creation of a container: by its runtime (NRI), or the first time that the agent sees it;
* later, if the container may be migrated.

The writes are direct and have the order of CPU sets (`write_order.py`): they widen the cgroups
above a container that stand in the way, and never narrow them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

from cpupool.core.workloads import ContainerID
from cpupool.enforce import apply
from cpupool.enforce.foreign_writers import Reason, reason
from cpupool.enforce.notices import Notice
from cpupool.enforce.ports import CgroupAccess
from cpupool.enforce.repair import Postponed
from cpupool.telemetry import log as logs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
    from collections.abc import Set as AbstractSet

    from cpupool.core.assignments import MemoryNodes
    from cpupool.core.cgroups import FoundContainer
    from cpupool.core.cpuset import CPUSet
    from cpupool.enforce.notices import NoticeKey
    from cpupool.enforce.repair import Target
    from cpupool.manager.facts import ContainerKey
    from cpupool.manager.resolve import PlacedContainer, Resolution
    from cpupool.telemetry.metrics import Metrics

log = logs.get(__name__)

_EVENT: Final = "MemoryNodesMissed"
_LASTS_S: Final = 2.0
_TURN_S: Final = 0.5
"""The longest time for the writes of one turn: the next turn knows newer decisions."""


class MemoryTree(CgroupAccess, Protocol):
    """The memory nodes of the cgroups in a `CgroupTree`, under the same paths."""

    def with_memory(self) -> CPUSet:
        """Return the NUMA nodes of this machine that have memory.

        Raises:
            HostError: they cannot be read.
        """
        ...

    def migrating(self, path: str) -> bool:
        """Return whether a switch of the cgroup lets writes move pages; version 2 has no switch.

        Raises:
            HostError: it cannot be read.
        """
        ...

    def let_migrate(self, path: str, *, on: bool) -> None:
        """Switch on or off that writes of a cgroup, and of those below it, move pages.

        Raises:
            HostError: it cannot be set.
        """
        ...


@dataclass(frozen=True, slots=True)
class _Container:
    """A container with memory nodes; a new one may be written as at its creation."""

    key: ContainerKey
    placed: PlacedContainer
    new: bool


class MemoryGoal:
    """Keeps the memory nodes of the containers that have some; a `repair.Goal`.

    Args:
        tree: the memory nodes.
        carry_out: makes a write, and returns when it is done; it raises the errors of the write,
            and `Postponed` if it does not wait for the end.
        placed: container → its memory nodes: the runtime needs them, because each of its updates
            writes all values that it remembers of a container.
        metrics: counts writes.
        now_s: a monotonic clock.
    """

    problem = "memory nodes not set"
    pause_s = 1.0

    def __init__(
        self,
        tree: MemoryTree,
        carry_out: Callable[[Callable[[], None]], None],
        placed: MutableMapping[ContainerID, CPUSet],
        metrics: Metrics,
        now_s: Callable[[], float],
    ) -> None:
        self._tree = tree
        self._carry_out = carry_out
        self._placed = placed
        self._metrics = metrics
        self._now_s = now_s
        self._until_s = 0.0
        # Path → whether the container is new; those of the first look ran before the agent did.
        self._new: dict[str, bool] = {}
        self._looked = False
        self._containers: dict[str, _Container] = {}
        # Path → the other nodes that a container stays on, because it may not be migrated.
        self._staying: dict[str, CPUSet] = {}

    def wants(
        self, found: Sequence[FoundContainer], resolution: Resolution
    ) -> Mapping[str, MemoryNodes]:
        """Return the memory nodes of each container that has some, new containers first."""
        self._until_s = self._now_s() + _TURN_S
        looked, self._looked = self._looked, True
        before, self._new, self._containers = self._new, {}, {}
        for container in found:
            key = (container.pod, ContainerID(container.id))
            placed = resolution.containers.get(key)
            new = looked and before.get(container.path, True)
            if placed is not None and placed.assignment.memory is not None:
                self._containers[container.path] = _Container(key, placed, new)
            elif placed is not None and placed.assignment.cause is None:
                # Without memory nodes at its creation, a container is not new when it gets some.
                new = False
            self._new[container.path] = new
        self._staying = {path: on for path, on in self._staying.items() if path in self._containers}
        for gone in self._placed.keys() - {each.key[1] for each in self._containers.values()}:
            del self._placed[gone]
        first = sorted(self._containers.items(), key=lambda each: not each[1].new)
        return {path: memory for path, each in first if (memory := each.placed.assignment.memory)}

    def put_right(
        self, key: str, want: MemoryNodes, _now_s: float, /, *, was_right: bool
    ) -> Reason | None:
        """Write the memory nodes of a container that differ, if it may be written."""
        has = self._tree.effective(key)
        self._staying.pop(key, None)
        if has == want.nodes and not self._tree.migrating(key):
            self._settle(key, want)
            return None
        want.check(self._tree.with_memory())
        if has != want.nodes and not (want.migrates or self._containers[key].new):
            self._staying[key] = has
            return None
        started_s = self._now_s()
        if started_s >= self._until_s:
            raise Postponed(key)
        self._carry_out(partial(self._write, key, want))
        took_s = self._now_s() - started_s
        found = reason(new=self._containers[key].new and not was_right, was_right=was_right)
        self._settle(key, want)
        self._metrics.memory_written(found.value, took_s)
        log.info(
            "memory nodes set",
            cgroup=key,
            found=has,
            nodes=want.nodes,
            by=found.value,
            ms=f"{took_s * 1000:.1f}",
        )
        return found

    def stays(self, _key: str, _changed: AbstractSet[str], /) -> bool:
        """Return False: some files of a target have no watch."""
        return False

    def notices(
        self, targets: Mapping[str, Target[MemoryNodes]]
    ) -> Iterator[tuple[NoticeKey, Notice]]:
        """Yield the containers whose memory lies on other nodes, or does not stay on theirs."""
        for path, each in self._containers.items():
            for why, remedy in self._complaints(path, targets[path]):
                yield (each.key, _EVENT), _notice(each.placed, why, remedy)

    def _complaints(self, path: str, target: Target[MemoryNodes]) -> Iterator[tuple[str, str]]:
        if target.stuck:
            yield target.stuck, "look at cpuset.mems of its cgroup and of those above it"
        elif target.contested:
            yield (
                "another program overwrites cpuset.mems of its cgroup again and again",
                "find the program that writes this cgroup too",
            )
        elif path in self._staying and target.want:
            other = f"it is on NUMA node {self._staying[path]}, not {target.want.nodes}"
            why = f"{other}, and the agent may not migrate it"
            yield why, "create the pod again, or let it be migrated (annotation memory-migrates)"

    def _settle(self, path: str, has: MemoryNodes) -> None:
        self._new[path] = False
        self._placed[self._containers[path].key[1]] = has.nodes

    def _write(self, path: str, want: MemoryNodes) -> None:
        try:
            self._tree.let_migrate(path, on=want.migrates)
            apply.bring(self._tree, path, want.nodes)
        finally:
            # A write of another program moves no pages.
            self._tree.let_migrate(path, on=False)


def _notice(placed: PlacedContainer, why: str, remedy: str) -> Notice:
    return Notice(
        _EVENT,
        "memory is not on its NUMA nodes",
        placed.pod,
        placed.container.name,
        why,
        remedy,
        _LASTS_S,
    )
