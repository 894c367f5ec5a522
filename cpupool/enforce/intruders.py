"""Finds the containers that keep a container from being alone on its own CPUs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from cpupool.core.cpuset import CPUSet
from cpupool.core.workloads import ContainerID

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from cpupool.core.cgroups import FoundContainer
    from cpupool.manager.facts import ContainerKey
    from cpupool.manager.resolve import Resolution


@dataclass(frozen=True, slots=True)
class Intruder:
    """A container on CPUs of another container.

    Attributes:
        key: the ids in its cgroup's path.
        path: its cgroup.
        cpus: the other container's own CPUs on which it runs.
    """

    key: ContainerKey
    path: str
    cpus: CPUSet


def intruders(
    resolution: Resolution,
    found: Iterable[FoundContainer],
    starting: ContainerKey,
    created: Callable[[ContainerID], bool],
) -> Iterator[Intruder]:
    """Yield the containers that must move before a container may start.

    These are other containers on its own CPUs, and the container itself if it has CPUs of another
    pod. A cgroup without CPUs holds no running process, or its ancestors' sets are its only limit
    for a moment: the sweep gives it a set.

    Args:
        resolution: the CPUs of every container.
        found: every container directory.
        starting: the container that is about to start.
        created: whether a container is not started yet: its own start is checked.
    """
    own = resolution.assignment(starting).exclusive
    others = resolution.owned_by_others(starting[0])
    # Most containers share one of a few texts.
    parsed: dict[str, CPUSet] = {}
    for container in found:
        has = parsed.get(container.cpus)
        if has is None:
            has = parsed[container.cpus] = CPUSet.parse_or_empty(container.cpus)
        key = (container.pod, ContainerID(container.id))
        strange = has & (others if key == starting else own)
        if not strange or (key != starting and created(key[1])):
            continue
        if strange := strange - resolution.assignment(key).cpus:
            yield Intruder(key, container.path, strange)
