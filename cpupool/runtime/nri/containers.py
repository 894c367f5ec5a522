"""The containers that the runtime has, by its reports through NRI."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from cpupool.core.workloads import ContainerID
from cpupool.runtime.nri.messages import ContainerState

if TYPE_CHECKING:
    from collections.abc import Iterable

    from cpupool.core.cpuset import CPUSet
    from cpupool.manager.facts import ContainerKey
    from cpupool.runtime.nri.messages import NRIContainer


@dataclass(slots=True)
class KnownContainer:
    """A container that the runtime has.

    Attributes:
        key: the ids in its cgroup's path.
        cpus: the runtime's CPU list for it; empty for none.
        started: the runtime has brought it onto its CPUs, so that it runs or may run.
        moved: the runtime was asked for other CPUs before the container started. The runtime may
            have made the container with the CPUs before.
    """

    key: ContainerKey
    cpus: CPUSet
    started: bool
    moved: bool = False


class Containers(dict[ContainerID, KnownContainer]):
    """The containers by their ids.

    Attributes:
        delayed: created containers that wait until others have left their CPUs.
    """

    def __init__(self) -> None:
        super().__init__()
        self.delayed: set[ContainerID] = set()

    @classmethod
    def named(cls, named: Iterable[NRIContainer]) -> Self:
        """Return the containers that the runtime names."""
        containers = cls()
        for container in named:
            if container.key is not None:
                started = container.state is not ContainerState.CREATED
                known = KnownContainer(container.key, container.cpu.cpu_set, started=started)
                containers[container.id] = known
        return containers

    def starting(self, container: ContainerID) -> bool:
        """Return whether the runtime is still bringing a new container onto its CPUs."""
        known = self.get(container)
        return known is not None and not known.started and container not in self.delayed

    def runs(self, pod: str) -> bool:
        """Return whether a container of a pod runs; `pod` is the id in cgroup names."""
        return any(known.started and known.key[0] == pod for known in self.values())

    def start(self, container: ContainerID) -> bool:
        """Record a container as started; return whether it is known."""
        known = self.get(container)
        if known is not None:
            known.started = True
        return known is not None

    def start_all(self) -> None:
        """Record every container as started: the runtime may not report their starts any more."""
        self.delayed.clear()
        for known in self.values():
            known.started = True

    def end(self, container: ContainerID) -> None:
        """Forget a container."""
        self.pop(container, None)
        self.delayed.discard(container)
