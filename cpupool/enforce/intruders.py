"""Finds the containers that keep a container from being alone on its own CPUs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from cpupool.core.cpuset import CPUSet
from cpupool.core.grants import PodOwner
from cpupool.core.workloads import ContainerID

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from cpupool.manager.facts import ContainerKey
    from cpupool.manager.ports import FoundContainer
    from cpupool.manager.resolve import Resolution
    from cpupool.policies.base import NodeView


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


@dataclass(frozen=True, slots=True)
class _Walk:
    """A walk over every container directory.

    Attributes:
        view: the policies' view of the node when the walk began.
        found: what the walk found.
    """

    view: NodeView
    found: tuple[FoundContainer, ...]

    def pods_near(self, starting: ContainerKey, resolution: Resolution) -> Callable[[str], bool]:
        """Return which pods may have a container on a container's own CPUs, by their ids.

        A container that the walk saw elsewhere is elsewhere, if the CPUs had their owner by then:
        since then cpupool and the runtime have given the CPUs to no other container.
        """
        own, view = resolution.assignment(starting).exclusive, resolution.view
        owned = self.view.grants.of(PodOwner(starting[0])).values()
        if not own <= CPUSet.union(grant.cpus for grant in owned):
            return lambda _pod: True
        if self.view.topology.online != view.topology.online:
            # The kernel has moved containers on its own.
            return lambda _pod: True
        texts = {container.cpus for container in self.found}
        on_own = {text for text in texts if not own.isdisjoint(CPUSet.parse_or_empty(text))}
        away = {container.pod for container in self.found}
        away -= {container.pod for container in self.found if container.cpus in on_own}
        away.discard(starting[0])
        return lambda pod: pod not in away


class Neighbours:
    """Walks the containers that may be on the CPUs of a container which is about to start.

    The sweep reads every container; the start of one container waits, and leaves out what the last
    sweep has seen elsewhere. A pod whose cgroup is new since then is read.

    Args:
        walk: walks the container directories of the pods that suit.
    """

    def __init__(self, walk: Callable[[Callable[[str], bool]], Iterable[FoundContainer]]) -> None:
        self._walk = walk
        self._last: _Walk | None = None

    def saw(self, view: NodeView, found: tuple[FoundContainer, ...]) -> None:
        """Take what a walk over every container directory has found.

        Args:
            view: the policies' view of the node when the walk began.
            found: what the walk found.
        """
        self._last = _Walk(view, found)

    def of(self, starting: ContainerKey, resolution: Resolution) -> Iterable[FoundContainer]:
        """Walk the containers that may be on a container's own CPUs, and those of its pod.

        Raises:
            HostFileError: a directory or file is there and cannot be read.
        """
        last = self._last
        return self._walk(last.pods_near(starting, resolution) if last else lambda _pod: True)
