"""The directories of containers; a sweep reads only those again in which something has changed."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from cpupool.core.cgroups import POD_ITSELF
from cpupool.core.cpuset import CPUSet
from cpupool.core.workloads import ContainerID
from cpupool.manager.asking import Sources

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from collections.abc import Set as AbstractSet

    from cpupool.core.cgroups import FoundContainer
    from cpupool.enforce.ports import CgroupTree
    from cpupool.enforce.writer_choice import Writers
    from cpupool.manager.resolve import Resolution


class Directories:
    """Reads the cgroups of containers; only the sweeping thread calls it.

    Args:
        tree: the cgroups.
        writers: knows which container its runtime starts at this moment.
    """

    def __init__(self, tree: CgroupTree, writers: Writers) -> None:
        self._tree = tree
        self._writers = writers
        self._sources = Sources()
        self._there: tuple[FoundContainer, ...] = ()
        self._room = CPUSet()
        self._found_any = False

    def read(self, touched: AbstractSet[str] | None = None) -> tuple[FoundContainer, ...] | None:
        """Return every directory; None if they cannot be read.

        Args:
            touched: the pods whose directories to read, while the others stay as they were; None
                for all.
        """
        known: defaultdict[str, list[FoundContainer]] = defaultdict(list)
        if touched is not None:
            for found in self._there:
                if found.pod not in touched:
                    itself = found.id == POD_ITSELF
                    known[found.path if itself else found.path.rpartition("/")[0]].append(found)
        return self._sources.ask("cgroups", lambda: self._walk(known))

    def started(self, there: Iterable[FoundContainer]) -> tuple[FoundContainer, ...]:
        """Return the directories without those of containers that the runtime is starting."""
        return tuple(found for found in there if not self._writers.starting(ContainerID(found.id)))

    def make_room(self, resolution: Resolution) -> None:
        """Add the CPUs that have come online to the cgroups above containers."""
        if resolution.online <= self._room:
            self._room = resolution.online
            return

        def widened() -> bool:
            self._tree.make_room(
                resolution.online, lambda pod: resolution.assignment((pod, POD_ITSELF)).cpus
            )
            return True

        if self._sources.ask("room for CPUs", widened):
            self._room = resolution.online

    def check_root(self, found: tuple[FoundContainer, ...], resolution: Resolution) -> None:
        """Log once if the runtime has containers and the agent has found no cgroup of any."""
        self._found_any |= bool(found)
        if resolution.containers and not self._found_any:
            self._sources.complain(
                "kubepods", "no pod has a cgroup here; set --cgroup-root as the kubelet has it"
            )

    def _walk(self, known: Mapping[str, list[FoundContainer]]) -> tuple[FoundContainer, ...]:
        self._there = ()
        self._there = tuple(self._tree.containers(known))
        return self._there
