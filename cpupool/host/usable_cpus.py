"""The machine without the CPUs that cgroups withhold from containers.

Kernel documents: Documentation/admin-guide/cgroup-v2.rst, section "Cpuset Interface Files", and
Documentation/admin-guide/cgroup-v1/cpusets.rst.

On version 2 a container can have the CPUs in `cpuset.cpus.effective` of kubepods, and the CPUs of
containers that are isolated partitions (`host/isolated_partitions.py`). Kubepods lacks a CPU in two
cases: another cgroup is a partition and has this CPU (systemd: `CPUSetPartition=`); or the
`cpuset.cpus` of kubepods, or of a cgroup above it, lacks this CPU. If a container has lost all its
CPUs, it runs on the CPUs of its parent, which include CPUs of other pods.

The kernel sends no event about lost CPUs. But it sends an event about the write that makes a
partition or a smaller set (inotify(7)). The *base* is the top of the cgroup hierarchy. For a
partition one of three things is true: it is directly below the base; a cgroup above it is a
partition; a cgroup above it lists the partition's CPUs in `cpuset.cpus.exclusive`. So the watch has
the first level, and the cgroups on the way to kubepods (`--cgroup-root`). While a cgroup of the
first level is a partition, or has `cpuset.cpus.exclusive`, a cgroup outside of the watch can take
CPUs. Then the machine watcher also looks every second.

On version 1 the cgroups above kubepods (`--cgroup-root`) limit what a container can have. The
kernel removes an offline CPU from every set except that of the base, and never adds it again. So if
a CPU has just come back online and a set does not have it, the agent does not count this as a
limit: it adds the CPU to the set (`CgroupFS.make_room`). It does the same in kubepods and below.
Only the kubelet and the kernel write these sets.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar, Final, Protocol

from cpupool.core import withheld
from cpupool.core.cpuset import CPUSet
from cpupool.core.errors import CgroupNotFound, HostFileError
from cpupool.core.withheld import Withheld
from cpupool.host import cgroup_names
from cpupool.host.cgroup_files import CgroupFiles, above
from cpupool.host.cgroupfs import CgroupVersion, hierarchy
from cpupool.host.files import DirectoryWatch
from cpupool.telemetry import log as logs
from cpupool.telemetry.failures import Failures

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from cpupool.core.topology import CPUTopology
    from cpupool.loops.step_loop import Watch

log = logs.get(__name__)

_CPUS: Final = "cpuset.cpus"
_EXCLUSIVE: Final = "cpuset.cpus.exclusive"
_GRANTED: Final = "cpuset.cpus.exclusive.effective"
_PARTITION: Final = "cpuset.cpus.partition"
_MEMBER: Final = "member"
_WRITTEN: Final = frozenset({_CPUS, _EXCLUSIVE, _PARTITION})
_INVALID: Final = "invalid"


class TopologySource(Protocol):
    """The source of the machine's CPUs."""

    def online(self) -> CPUSet:
        """Return the CPUs that are online now; cheap enough for 20 calls a second."""
        ...

    def topology(self) -> CPUTopology:
        """Read the whole topology.

        Raises:
            HostFileError: sysfs does not have the content that the kernel documents.
        """
        ...


class Withholding(Protocol):
    """What keeps running CPUs from containers."""

    @property
    def unwatched(self) -> bool:
        """Whether a cgroup may take CPUs now without an event of `watch`."""
        ...

    def withheld(self) -> tuple[Withheld, ...]:
        """Return the CPUs that the last look at the topology has left out."""
        ...

    def watch(self, changed: Callable[[], None]) -> Watch:
        """Return a watch that calls back when CPUs may have been taken or given back."""
        ...


def usable(machine: TopologySource, cgroup: Path, cgroup_root: str = "") -> CPUTopology:
    """Read the CPUs that containers can have; all CPUs where cpupool sees no cgroups.

    Args:
        machine: all CPUs of the machine.
        cgroup: the folder that stands for `/sys/fs/cgroup`.
        cgroup_root: the kubelet's `--cgroup-root`; empty for the usual places.

    Raises:
        HostFileError: the machine cannot be read.
    """
    with suppress(HostFileError):
        return UsableCPUs(machine, cgroup, cgroup_root).topology()
    return machine.topology()


class UsableCPUs:
    """The machine's CPUs that containers can have; a `TopologySource` and a `Withholding`.

    Any thread may call it.

    Args:
        machine: all CPUs of the machine.
        cgroup: the folder that stands for `/sys/fs/cgroup`.
        cgroup_root: the kubelet's `--cgroup-root`; empty for the usual places.

    Raises:
        HostFileError: no hierarchy has the cpuset controller.
    """

    def __init__(self, machine: TopologySource, cgroup: Path, cgroup_root: str = "") -> None:
        self._machine = machine
        self._base, version = hierarchy(cgroup)
        self._files = CgroupFiles(self._base, {}, "see cpuset(7)")
        places = cgroup_names.kubepods(cgroup_root)
        self._limits: _PartitionLimits | _SetLimits = (
            _SetLimits(self._files, places)
            if version is CgroupVersion.V1
            else _PartitionLimits(self._files, places)
        )
        self._watch: DirectoryWatch | None = None
        self._lock = threading.Lock()
        self._found: tuple[Withheld, ...] = ()
        self._failures = Failures()

    def online(self) -> CPUSet:
        """Return the CPUs that are online now and that containers can have.

        Raises:
            HostFileError: a file cannot be read or holds no CPU list.
        """
        online, parts = self._look()
        return online - withheld.all_of(parts)

    @property
    def unwatched(self) -> bool:
        """Whether a cgroup may take CPUs now without an event of `watch`."""
        watch = self._watch
        watched = watch is not None and watch.watching and watch.complete
        return not watched or self._limits.handed_down()

    def withheld(self) -> tuple[Withheld, ...]:
        """Return the CPUs that the last answer of `online` or `topology` has left out."""
        return self._found

    def watch(self, changed: Callable[[], None]) -> DirectoryWatch:
        """Return a watch of the base, the cgroups directly below it, and those down to kubepods.

        Args:
            changed: called when one of them may have taken CPUs or given them back.
        """
        way = {self._base / path for path in self._limits.way}

        def enters(path: Path) -> bool:
            return path.parent == self._base or path in way

        def tell(path: Path) -> None:
            # A new cgroup may have got its CPUs before it is watched.
            if path.name in _WRITTEN or enters(path) or path == self._base:
                changed()

        self._watch = DirectoryWatch(
            self._base,
            tell,
            depth=max(path.count("/") for path in self._limits.way) + 1,
            writes=True,
            concerns=_may_take,
            enters=enters,
        )
        return self._watch

    def topology(self) -> CPUTopology:
        """Read the whole topology; CPUs that containers cannot have are as offline ones.

        Raises:
            HostFileError: a file cannot be read, or has another content than documented.
        """
        machine = self._machine.topology()
        _, parts = self._look()
        if not parts:
            return machine
        usable = machine.cut_to(machine.online - withheld.all_of(parts))
        return replace(usable, withheld=parts)

    def _look(self) -> tuple[CPUSet, tuple[Withheld, ...]]:
        """Return the CPUs that are online, and those of them that containers cannot have.

        A cgroup that cannot be read withholds the CPUs that it withheld before. The result follows
        CPUs that go offline meanwhile.
        """
        with self._lock:
            online = self._machine.online()
            try:
                parts = tuple(self._limits.withheld(online))
            except HostFileError as error:
                if self._failures.begins(error):
                    log.warning("cgroups not read", reason=error)
                parts = self._found
            else:
                self._failures.ends()
            # A machine without any CPU for containers runs none: the cgroups say something else.
            self._found = parts if online - withheld.all_of(parts) else ()
            return online, self._found


def _may_take(name: str) -> bool:
    """Return whether a file or a cgroup of this name can take CPUs from others."""
    cgroup = cgroup_names.is_cgroup(name) or cgroup_names.is_service(name)
    return cgroup or name in _WRITTEN


class _Limits:
    """The CPUs that the cgroups from the base down keep from containers.

    Args:
        files: the files of the hierarchy.
        places: where the cgroup of all pods can be.

    Attributes:
        way: the places, and the cgroups above them.
    """

    _runs_on: ClassVar[str]

    def __init__(self, files: CgroupFiles, places: Sequence[str]) -> None:
        self._files = files
        self._places = places
        self.way = frozenset(path for place in places for path in (place, *above(place)))

    def handed_down(self) -> bool:
        """Return whether cgroups that are not on the way, nor of the first level, can take CPUs."""
        return False

    def _sets(self, *paths: str) -> dict[str, CPUSet]:
        """Return cgroup → the CPUs that it runs on; without those that have no cpuset."""
        return {path: cpus for path in paths if (cpus := self._cpus(path, self._runs_on))}

    def _cpus(self, path: str, name: str) -> CPUSet:
        with suppress(CgroupNotFound):
            return self._files.cpus(path, name)
        return CPUSet()

    def _text(self, path: str, name: str) -> str:
        with suppress(CgroupNotFound):
            return self._files.read(path, name)
        return ""


class _PartitionLimits(_Limits):
    """The CPUs that cgroup version 2 keeps from containers: those not effective in kubepods."""

    _runs_on = "cpuset.cpus.effective"

    def withheld(self, online: CPUSet) -> Iterator[Withheld]:
        """Yield the CPUs that containers cannot have, each with the cgroup that keeps them."""
        places = self._sets(*self._places)
        left = online
        # This function does not know which place the kubelet uses, so each place is a limit.
        for place, cpus in places.items():
            if missing := left - cpus:
                sets = self._sets("", *reversed(above(place)), place)
                for part in self._causes(missing, sets):
                    left -= part.cpus
                    yield part

    def handed_down(self) -> bool:
        """Return whether a cgroup of the first level is a partition, or hands CPUs down."""
        return any(
            self._text(path, _EXCLUSIVE) or self._text(path, _PARTITION) not in {"", _MEMBER}
            for path in self._files.directories("")
        )

    def _causes(self, missing: CPUSet, sets: Mapping[str, CPUSet]) -> Iterator[Withheld]:
        for path, state in self._partitions("", is_partition=True):
            mine = missing & self._has(path, state)
            if path in sets or not mine:
                continue
            missing -= mine
            # A container may be isolated on its own CPUs, or isolate some of them.
            if taken := mine - self._own(path):
                yield Withheld(taken, f"/{path}", state)
        for path, cpus in sets.items():
            if lacking := missing - cpus:
                missing -= lacking
                yield Withheld(lacking, f"/{path}")

    def _has(self, path: str, state: str) -> CPUSet:
        if _INVALID in state:
            # It runs on the CPUs of its parent, and the kernel may keep those that it lists.
            return self._cpus(path, _EXCLUSIVE) or self._cpus(path, _CPUS)
        return self._cpus(path, self._runs_on) | self._cpus(path, _GRANTED)

    def _partitions(self, path: str, *, is_partition: bool) -> Iterator[tuple[str, str]]:
        """Walk the partitions below a cgroup, the innermost first, each with its state.

        The parent of a partition is one, too, or hands its CPUs down in `cpuset.cpus.exclusive`.
        """
        for name in self._files.directories(path):
            below = f"{path}/{name}".lstrip("/")
            handed = bool(self._text(below, _EXCLUSIVE))
            state = self._text(below, _PARTITION) if handed or is_partition else _MEMBER
            partition = state not in {"", _MEMBER}
            if handed or partition:
                yield from self._partitions(below, is_partition=partition)
            if partition:
                yield below, state

    def _own(self, path: str) -> CPUSet:
        """Return the CPUs of the container that a cgroup is, or is in; none outside containers."""
        parts = path.split("/")
        pods = [number for number, part in enumerate(parts[:-1]) if cgroup_names.pod_id(part)]
        return self._cpus("/".join(parts[: pods[0] + 2]), _CPUS) if pods else CPUSet()


class _SetLimits(_Limits):
    """The CPUs that cgroup version 1 keeps from containers: a cgroup above kubepods lacks them."""

    _runs_on = _CPUS

    def __init__(self, files: CgroupFiles, places: Sequence[str]) -> None:
        super().__init__(files, places)
        self._before: CPUSet | None = None
        self._owed = CPUSet()
        self._denied = CPUSet()

    def withheld(self, online: CPUSet) -> Iterator[Withheld]:
        """Yield the CPUs that containers cannot have, each with the cgroup that lacks them."""
        there = [place for place in self._places if self._sets(place)]
        sets = self._sets("", *(path for place in there for path in reversed(above(place))))
        missing = CPUSet.union(online - cpus for cpus in sets.values())
        returned = CPUSet() if self._before is None else online - self._before
        self._owed = (self._owed | returned - self._denied) & missing
        denied = missing - self._owed
        # A CPU that was denied when it went offline is denied when it comes back.
        self._before, self._denied = online, denied | self._denied - online
        for path, cpus in sets.items():
            if lacking := denied - cpus:
                denied -= lacking
                yield Withheld(lacking, f"/{path}")
