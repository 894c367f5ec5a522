"""The goal of properties: a container has what plugins set in addition to its CPUs and NUMA nodes.

The runtime creates a container with its properties if it asks cpupool (NRI). Afterwards, and
without NRI, this goal writes those that differ, through the writer of the container's CPUs. It
leaves out the CPU time of a container with a limit from cpupool (`quota_repair.py`), properties
that the kernel lacks, and the OOM score, which a process gets only at its creation.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

from cpupool.core.errors import CgroupWriteRejected, MemoryInUse
from cpupool.core.properties import UNLIMITED
from cpupool.core.workloads import ContainerID
from cpupool.enforce import repair
from cpupool.enforce.foreign_writers import Reason, reason
from cpupool.enforce.notices import Notice
from cpupool.telemetry import log as logs

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from collections.abc import Set as AbstractSet

    from cpupool.core.assignments import CPUAssignment
    from cpupool.core.cgroups import FoundContainer
    from cpupool.core.properties import Properties
    from cpupool.enforce.notices import NoticeKey
    from cpupool.enforce.repair import Target
    from cpupool.enforce.writer_choice import Writers
    from cpupool.manager.facts import ContainerKey
    from cpupool.manager.resolve import PlacedContainer, Resolution
    from cpupool.telemetry.metrics import Metrics

log = logs.get(__name__)

_EVENT: Final = "PropertiesMissed"
_LASTS_S: Final = 2.0
_NEW_S: Final = 2.0
"""The runtime first makes a cgroup, and writes what the kubelet asked for a moment later."""


class PropertyTree(Protocol):
    """The properties of the cgroups in a `CgroupTree`, under the same paths."""

    def properties(self, path: str, wanted: Properties) -> Properties:
        """Return the values of a cgroup for the properties that it must have.

        A value is the wanted one if the cgroup has it rounded, and None if this kernel lacks the
        property. With the memory comes the swap.

        Raises:
            CgroupNotFound: it has ended.
            HostError: it cannot be read.
        """
        ...

    def memory_in_use(self, path: str) -> int | None:
        """Return the bytes that a cgroup uses; None where the kernel refuses a limit below them.

        Raises:
            HostError: it cannot be read.
        """
        ...

    def write(self, path: str, properties: Properties) -> None:
        """Write properties of a cgroup.

        Raises:
            CgroupNotFound: it has ended.
            CgroupWriteRejected: the kernel refuses a value.
        """
        ...


@dataclass(frozen=True, slots=True)
class _Container:
    """A container with properties, and those that are kept."""

    key: ContainerKey
    placed: PlacedContainer
    kept: Properties


class PropertiesGoal:
    """Keeps the properties of the containers that have some; an `enforce.repair.Goal`.

    Args:
        tree: reads them, and writes those of cgroups that no runtime writes.
        writers: choose the writer of each container.
        metrics: counts repairs.
    """

    problem = "properties stay wrong"
    pause_s = repair.PAUSE_S

    def __init__(self, tree: PropertyTree, writers: Writers, metrics: Metrics) -> None:
        self._tree = tree
        self._writers = writers
        self._metrics = metrics
        self._resolution: Resolution | None = None
        self._concerned: Mapping[ContainerKey, Properties] = {}
        self._containers: Mapping[str, _Container] = {}
        # Path → the time of the first look.
        self._since_s: dict[str, float] = {}
        # Path → the properties that this kernel lacks.
        self._lacking: dict[str, Properties] = {}

    def wants(
        self, found: Sequence[FoundContainer], resolution: Resolution
    ) -> Mapping[str, Properties]:
        """Return the properties of each container that has some."""
        if resolution is not self._resolution:
            self._resolution = resolution
            self._concerned = {
                key: kept
                for key, placed in resolution.containers.items()
                if placed.assignment.properties and (kept := _kept(placed.assignment))
            }
        keys = ((each.path, (each.pod, ContainerID(each.id))) for each in found)
        self._containers = {
            path: _Container(key, resolution.containers[key], self._concerned[key])
            for path, key in keys
            if key in self._concerned
        }
        self._since_s = {path: at for path, at in self._since_s.items() if path in self._containers}
        self._lacking = {
            path: what for path, what in self._lacking.items() if path in self._containers
        }
        return {path: each.kept for path, each in self._containers.items()}

    def put_right(
        self, key: str, want: Properties, now_s: float, /, *, was_right: bool
    ) -> Reason | None:
        """Write the properties of a container that differ, and read them back."""
        since_s = self._since_s.setdefault(key, now_s)
        has = self._tree.properties(key, want)
        self._lacking[key] = want.lacking(has)
        wrong = want.differing(has)
        in_use = self._in_use(key, wrong)
        if in_use is not None:
            wrong = replace(wrong, memory_bytes=None, swap_bytes=None)
        found = None
        if wrong:
            found = reason(new=now_s - since_s < _NEW_S, was_right=was_right)
            self._write(key, wrong, has, found)
        if in_use is not None:
            raise in_use
        return found

    def stays(self, _key: str, _changed: AbstractSet[str], /) -> bool:
        """Return False: some files of a target have no watch."""
        return False

    def notices(
        self, targets: Mapping[str, Target[Properties]]
    ) -> Iterator[tuple[NoticeKey, Notice]]:
        """Yield the containers that lack a property, or do not have it for long."""
        for path, each in self._containers.items():
            for why, remedy in self._complaints(path, targets[path]):
                yield (each.key, _EVENT), _notice(each.placed, why, remedy)

    def _complaints(self, path: str, target: Target[Properties]) -> Iterator[tuple[str, str]]:
        if target.stuck:
            yield target.stuck, "look at its cgroup and at those above it"
        elif target.contested:
            yield (
                "another program overwrites its cgroup again and again",
                "find what resizes the pod, or writes this cgroup too",
            )
        elif lacking := self._lacking.get(path):
            yield (
                f"this node's cgroups cannot set {lacking}",
                "switch it on in the kernel, as swapaccount=1, or let the plugin not set it",
            )

    def _in_use(self, path: str, wrong: Properties) -> MemoryInUse | None:
        """Return why the memory cannot be limited now."""
        limit_bytes = wrong.memory_bytes
        if limit_bytes is None or limit_bytes == UNLIMITED:
            return None
        used_bytes = self._tree.memory_in_use(path)
        if used_bytes is None or used_bytes <= limit_bytes:
            return None
        return MemoryInUse(path, limit_bytes, used_bytes)

    def _write(self, path: str, wrong: Properties, had: Properties, reason: Reason) -> None:
        container = self._containers[path].key[1]
        directly = partial(self._tree.write, path, wrong)
        writer = self._writers.adjust(path, container, wrong, directly)
        has = self._tree.properties(path, wrong)
        if still := wrong.differing(has):
            why = f"it has {has}; find the program that writes this cgroup too"
            raise CgroupWriteRejected(path, str(still), 0, why)
        self._metrics.properties_repaired(reason.value)
        log.info(
            "properties set",
            cgroup=path,
            found=had,
            properties=wrong,
            by=reason.value,
            way=writer.value,
        )


def _kept(assignment: CPUAssignment) -> Properties:
    wanted = assignment.properties
    return wanted if assignment.limit is None else replace(wanted, bandwidth=None)


def _notice(placed: PlacedContainer, why: str, remedy: str) -> Notice:
    return Notice(
        _EVENT,
        "a container lacks what a plugin sets",
        placed.pod,
        placed.container.name,
        why,
        remedy,
        _LASTS_S,
    )
