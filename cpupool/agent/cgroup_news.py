"""The changes in the cgroups of pods, which ask for a sweep at once, soon, later, or not.

The start of a pod is dozens of events, and few of them can leave a container on wrong CPUs.
"""

from __future__ import annotations

import os
import threading
from contextlib import ExitStack, contextmanager, suppress
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Final

from cpupool.core.workloads import ContainerID
from cpupool.host import (
    bandwidth,
    cgroup_memory,
    cgroup_names,
    cgroup_properties,
    isolated_partitions,
)
from cpupool.host.files import DirectoryWatch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from cpupool.enforce.writer_choice import Writers

_CGROUP_LEVELS: Final = 5
"""Below kubepods: QoS class, pod, and three that a runtime and a container may make."""
_CPUS: Final = "cpuset.cpus"
_AT_ONCE: Final = {_CPUS} | bandwidth.FILES
"""The files that decide where, and for how long, the processes of a container run."""
_KEPT_FILES: Final = _AT_ONCE.union(
    cgroup_memory.FILES, cgroup_properties.FILES, isolated_partitions.FILES
)
"""The files that cpupool keeps, and writes again when another program has written them."""


class Look(Enum):
    """The time at which the cpusetter must look at the containers."""

    AT_ONCE = "at once"
    SOON = "soon"
    LATER = "later"
    """The change leaves every container where it is: one look serves it and others."""
    NOT = "not"


class CgroupNews:
    """Follows the cgroups of pods, and remembers in which of them anything has changed.

    Args:
        places: the folders below which the cgroups of pods are, and whether they have the CPUs of
            containers there.
        writers: who writes each container.
        stays: returns whether the container with this cgroup is where it belongs; any thread calls
            it.
        shares: returns whether a pod, by the id in its cgroup's name, only shares CPUs, so that its
            end moves no container; any thread calls it.
        starts_right: returns whether a container that the runtime has started, with this cgroup, is
            where it belongs and lacks nothing; any thread calls it.
    """

    def __init__(
        self,
        places: Mapping[Path, bool],
        writers: Writers,
        stays: Callable[[Path], bool],
        shares: Callable[[str], bool] = lambda _pod: False,
        starts_right: Callable[[Path, ContainerID], bool] = lambda _cgroup, _container: False,
    ) -> None:
        self._places = places
        self._writers = writers
        self._stays = stays
        self._shares = shares
        self._starts_right = starts_right
        self._starting: dict[ContainerID, Path] = {}
        # The pods that share, by an answer since the last sweep: a pod's end is many events.
        self._sharing: set[str] = set()
        self._watches: list[DirectoryWatch] = []
        self._touched = _Touched()

    @contextmanager
    def followed(self, look: Callable[[Look], None]) -> Iterator[None]:
        """Follow the cgroups for as long as the context lasts.

        Args:
            look: called with each change, in a thread of the watches.
        """

        def changed(path: Path, *, sets: bool) -> bool:
            when = of(path, self._writers, self._stays, self._only_shares, sets=sets)
            self._touched.add(pod(path))
            if when is Look.NOT and sets:
                self._note_start(path)
            look(when)
            # By NRI it is a sandbox, most often, which the runtime has yet to write. Otherwise the
            # next event may be a container that runs on wrong CPUs.
            return when is Look.AT_ONCE and self._writers.asks()

        self._watches = [
            DirectoryWatch(
                place,
                partial(changed, sets=sets),
                depth=_CGROUP_LEVELS,
                writes=True,
                concerns=_concerns_containers,
            )
            for place, sets in self._places.items()
        ]
        with ExitStack() as ending:
            for watch in self._watches:
                ending.callback(watch.stop)
            yield

    def ensure(self) -> bool:
        """Watch the folders that are new, or that could not be watched before.

        Returns:
            Whether a watch has begun: no event has named what came before it.
        """
        new = [watch for watch in self._watches if watch.ensure()]
        if new:
            self._touched.add(None)
        return any(watch.watching for watch in new)

    def starts_right(self, container: ContainerID) -> bool:
        """Return whether a container that the runtime has started is where it belongs.

        Any thread may call it, once for each container. The second answer for a container is no,
        and so is the answer for a container whose cgroup is not known.
        """
        cgroup = self._starting.pop(container, None)
        return cgroup is not None and self._starts_right(cgroup, container)

    def _only_shares(self, pod: str) -> bool:
        if pod not in self._sharing:
            if not self._shares(pod):
                return False
            self._sharing.add(pod)
        return True

    def _note_start(self, path: Path) -> None:
        container = ContainerID(cgroup_names.container_id(path.name))
        if cgroup_names.is_cgroup(path.name) and self._writers.starting(container):
            self._starting[container] = path

    def anything(self) -> None:
        """Note that anything may have changed; any thread may call it."""
        self._touched.add(None)

    def take(self) -> frozenset[str] | None:
        """Return the pods in whose cgroups anything has changed, None for any; and begin anew."""
        touched = self._touched.take()
        self._sharing.clear()
        # A container whose creation has failed never starts. Other threads change the table now.
        for container in tuple(self._starting):
            if not self._writers.starting(container):
                self._starting.pop(container, None)
        watched = all(watch.complete for watch in self._watches)
        # A start may wait without an event: a CPU that went offline sends none here.
        return touched if watched and not self._writers.delays else None


def of(
    path: Path,
    writers: Writers,
    stays: Callable[[Path], bool],
    shares: Callable[[str], bool],
    *,
    sets: bool,
) -> Look:
    """Return when the cpusetter is to look because something has changed.

    Args:
        path: the cgroup that is new or gone, or the file that was written.
        writers: who writes each container.
        stays: returns whether the container with this cgroup is where it belongs.
        shares: returns whether a pod, by the id in its cgroup's name, only shares CPUs.
        sets: whether the cgroups there have the CPUs of containers.
    """
    directory = cgroup_names.is_cgroup(path.name)
    cgroup = path if directory else path.parent
    if writers.starting(ContainerID(cgroup_names.container_id(cgroup.name))):
        # The runtime brings it onto its CPUs, and names it once it has started.
        return Look.NOT
    if path.name == _CPUS and not writers.delays and stays(cgroup):
        # Most often the cpusetter has written it.
        return Look.NOT
    of_container = cgroup_names.pod_id(cgroup.parent.name) is not None
    runs = sets and path.is_dir() if directory else path.name in _AT_ONCE
    # A start that waits may wait for a container to go.
    if (of_container and runs) or writers.delays:
        return Look.AT_ONCE
    # On version 2 a write of a pod's CPUs moves its containers, too.
    moves = not directory and (path.name in _AT_ONCE or path.name.startswith(_CPUS))
    if moves and cgroup_names.pod_id(cgroup.name) is not None:
        moves = not _is_empty(cgroup)
    concerned = None if moves else pod(path)
    return Look.LATER if concerned is not None and shares(concerned) else Look.SOON


def _concerns_containers(name: str) -> bool:
    # Every exec writes cgroup.procs, which moves no container.
    return name in _KEPT_FILES or cgroup_names.is_cgroup(name)


def _is_empty(cgroup: Path) -> bool:
    """Return whether a cgroup has no other in it; one that comes is an event of its own."""
    with suppress(FileNotFoundError), os.scandir(cgroup) as entries:
        return not any(entry.is_dir(follow_symlinks=False) for entry in entries)
    return True


def pod(path: Path) -> str | None:
    """Return the only pod whose containers a change can concern; None if it can concern others.

    Args:
        path: the cgroup that is new or gone, or the file that was written.
    """
    if path.name.startswith("cpuset.cpus."):
        # On version 2 a partition takes CPUs from the cgroups around it.
        return None
    pods = (cgroup_names.pod_id(name) for name in reversed(path.parts))
    return next((pod for pod in pods if pod is not None), None)


class _Touched:
    """The pods in whose cgroups anything has changed since a sweep; any thread may call it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pods: set[str] = set()
        self._anything = True

    def add(self, pod: str | None) -> None:
        """Note a change in the cgroups of a pod; None for any pod."""
        with self._lock:
            if pod is None:
                self._anything = True
            else:
                self._pods.add(pod)

    def take(self) -> frozenset[str] | None:
        """Return the pods, None for any, and begin anew."""
        with self._lock:
            pods = None if self._anything else frozenset(self._pods)
            self._pods, self._anything = set(), False
        return pods
