"""A model of the kernel's cpuset rules, and the tests that it shares with the real trees."""

from __future__ import annotations

import errno
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from cpupool.core.cgroups import POD_ITSELF, CgroupNode, FoundContainer
from cpupool.core.cpuset import CPUSet
from cpupool.core.errors import CgroupNotFound, CgroupWriteRejected
from cpupool.enforce.apply import bring
from cpupool.enforce.write_order import Write
from cpupool.host import cgroup_names
from cpupool.host.cgroupfs import CgroupVersion

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from cpupool.enforce.ports import CgroupTree

POD_UID = "1b2c3d4e-0000-1111-2222-333344445555"
CONTAINER_ID = "ab" * 32


def overwrite(file: Path, cpus: object) -> None:
    """Write the set of an emulated cgroup while an agent runs, in one step as a kernel takes it.

    A file that is cut before it is filled is found empty, and repaired in between.
    """
    with file.open("r+b", buffering=0) as opened:
        opened.write(f"{cpus}\n".encode().ljust(file.stat().st_size, b"\n"))


class KernelModel:
    """A cgroup tree in memory that enforces what the kernel does, and can be interfered with.

    Sources: validate_change() in the kernel's kernel/cgroup/cpuset.c, and
    Documentation/admin-guide/cgroup-v2.rst, section "Cpuset".

    Args:
        version: whose rules apply.
        sets: path → CPU list, parents first.
        online: the CPUs of the machine; what is above the first cgroup.

    Attributes:
        sets: path → its own set.
        online: as given; shrink it to take a CPU offline on version 2.
        writes: every write that was accepted.
        before_write: number of a write, from 1 → what happens just before it. It may raise.
        refusing: paths whose writes are refused with EIO.
    """

    def __init__(
        self, version: CgroupVersion, sets: Mapping[str, str], online: str = "0-7"
    ) -> None:
        self.version = version
        self.online = self._possible = CPUSet.parse(online)
        self.sets: dict[str, CPUSet] = {}
        self.writes: list[Write] = []
        self.before_write: dict[int, Callable[[], None]] = {}
        self.refusing: set[str] = set()
        self._emptied: set[str] = set()
        self._asked = 0
        for path, cpus in sets.items():
            self.make(path, cpus)

    def make(self, path: str, cpus: str) -> None:
        """Add a cgroup."""
        self.sets[path] = CPUSet()
        if cpus:
            self._set(path, CPUSet.parse(cpus))

    def remove(self, path: str) -> None:
        """Remove a cgroup with all below it."""
        for one in [path, *self._below(path)]:
            del self.sets[one]
        self._emptied &= self.sets.keys()

    def switch_off(self, cpus: CPUSet) -> None:
        """Take CPUs offline as version 1 does: out of every set, and they do not come back.

        The processes of a container that keeps none move into its pod's cgroup.
        """
        self.online -= cpus
        for path, own in self.sets.items():
            self.sets[path] = own - cpus
            if own and not self.sets[path]:
                self._emptied.add(path)

    def make_room(self, online: CPUSet, of_pod: Callable[[str], CPUSet]) -> None:
        """Widen what is there, from the root down, on version 1."""
        for path, own in self.sets.items() if self.version is CgroupVersion.V1 else ():
            name = path.rpartition("/")[2]
            pod = cgroup_names.pod_id(name)
            above = pod is not None or path == "kubepods" or cgroup_names.is_qos_level(name)
            if above and own:
                self.sets[path] = own | ((of_pod(pod) if pod else online) & self.online)

    def containers(
        self, known: Mapping[str, Sequence[FoundContainer]] | None = None
    ) -> Iterator[FoundContainer]:
        known = known or {}
        moved: dict[str, FoundContainer] = {}
        for path in self.sets:
            *_, pod, name = ("", *path.split("/"))
            uid = cgroup_names.pod_id(pod)
            if cgroup_names.pod_id(name) is not None:
                yield from known.get(path, ())
            elif uid is not None and _parent(path) not in known:
                cpus = str(self.effective(path))
                yield FoundContainer(uid, cgroup_names.container_id(name), path, cpus)
                if path in self._emptied:
                    above = _parent(path)
                    on = str(self.effective(above))
                    moved[above] = FoundContainer(uid, POD_ITSELF, above, on)
        yield from moved.values()

    def read(self, path: str) -> tuple[tuple[CgroupNode, ...], CgroupNode]:
        above: list[CgroupNode] = []
        parent = _parent(path)
        while parent:
            above.insert(0, CgroupNode(parent, self._own(parent)))
            parent = _parent(parent)
        return tuple(above), self._node(path)

    def write(self, path: str, cpus: CPUSet) -> None:
        self._asked += 1
        if self._asked in self.before_write:
            self.before_write[self._asked]()
        if path in self.refusing:
            raise rejected(path, errno.EIO)
        if not cpus:
            raise ValueError("an empty set must never get here")
        self._set(path, cpus)
        self.writes.append(Write(path, cpus))

    def effective(self, path: str) -> CPUSet:
        own = self._own(path)
        if self.version is CgroupVersion.V1:
            return own
        parent = _parent(path)
        room = self.effective(parent) if parent else self.online
        return own & room or room

    def _set(self, path: str, cpus: CPUSet) -> None:
        self._own(path)
        if not cpus <= self._possible:
            raise rejected(path, errno.EINVAL)
        if self.version is CgroupVersion.V1:
            parent = _parent(path)
            if not cpus <= (self.sets[parent] if parent else self.online):
                raise rejected(path, errno.EACCES)
            if any(not self.sets[child] <= cpus for child in self._below(path)):
                raise rejected(path, errno.EBUSY)
        self.sets[path] = cpus

    def _own(self, path: str) -> CPUSet:
        if path not in self.sets:
            raise CgroupNotFound(path)
        return self.sets[path]

    def _node(self, path: str) -> CgroupNode:
        children = (self._node(child) for child in self._below(path) if _parent(child) == path)
        return CgroupNode(path, self._own(path), tuple(children))

    def _below(self, path: str) -> list[str]:
        return [other for other in self.sets if other.startswith(f"{path}/")]


def rejected(path: str, number: int) -> CgroupWriteRejected:
    """Make the error of a write that the kernel refuses."""
    return CgroupWriteRejected(path, "", number, errno.errorcode[number])


@dataclass(frozen=True)
class Ground:
    """A tree to test on, and how to change it past cpupool.

    Attributes:
        tree: what is tested; it has nothing but kubepods, with CPUs 0-1.
        kubepods: the path of the cgroup of all pods.
        make: adds a cgroup with a CPU list.
        remove: removes a cgroup without children.
    """

    tree: CgroupTree
    kubepods: str
    make: Callable[[str, str], None]
    remove: Callable[[str], None]

    def container(self, cpus: str, **nested: str) -> str:
        """Make a pod with CPUs 0-1 and a container in it, with nested cgroups by name."""
        pod = f"{self.kubepods}/pod{POD_UID}"
        path = f"{pod}/{CONTAINER_ID}"
        self.make(pod, "0-1")
        self.make(path, cpus)
        for name, own in nested.items():
            self.make(f"{path}/{name}", own)
        return path


class CgroupTreeContract:
    """What every cgroup tree does. A subclass gives the fixture `ground`."""

    def test_a_container_is_found_with_its_pod_its_id_and_its_cpus(self, ground: Ground) -> None:
        path = ground.container("0-1", nested="0")
        assert list(ground.tree.containers()) == [
            FoundContainer(POD_UID, CONTAINER_ID, path, "0-1")
        ]

    def test_what_is_known_is_not_read_again_and_ends_with_its_pod(self, ground: Ground) -> None:
        path = ground.container("0-1")
        pod = path.rpartition("/")[0]
        before = list(ground.tree.containers())
        ground.tree.write(path, CPUSet.of(1))
        assert list(ground.tree.containers({pod: before})) == before
        for ended in (path, pod):
            ground.remove(ended)
        assert list(ground.tree.containers({pod: before})) == []

    def test_a_node_without_pods_has_no_containers(self, ground: Ground) -> None:
        assert list(ground.tree.containers()) == []

    def test_ancestors_are_read_down_to_the_pod_and_children_with_the_container(
        self, ground: Ground
    ) -> None:
        path = ground.container("0-1", nested="0")
        ancestors, node = ground.tree.read(path)
        assert [(above.path, above.cpus, above.children) for above in ancestors][-2:] == [
            (ground.kubepods, CPUSet.of(0, 1), ()),
            (f"{ground.kubepods}/pod{POD_UID}", CPUSet.of(0, 1), ()),
        ]
        nested = CgroupNode(f"{path}/nested", CPUSet.of(0))
        assert node == CgroupNode(path, CPUSet.of(0, 1), (nested,))

    def test_a_set_that_is_written_takes_effect(self, ground: Ground) -> None:
        path = ground.container("0-1")
        ground.tree.write(path, CPUSet.of(1))
        assert ground.tree.effective(path) == CPUSet.of(1)
        assert [found.cpus for found in ground.tree.containers()] == ["1"]

    def test_a_cgroup_that_has_ended_is_reported_by_every_call(self, ground: Ground) -> None:
        path = ground.container("0-1")
        ground.remove(path)
        assert list(ground.tree.containers()) == []
        for call in (
            ground.tree.read,
            ground.tree.effective,
            lambda gone: ground.tree.write(gone, CPUSet.of(1)),
        ):
            with pytest.raises(CgroupNotFound) as caught:
                call(path)
            assert caught.value.path == path

    def test_an_empty_set_is_never_written(self, ground: Ground) -> None:
        path = ground.container("0-1")
        with pytest.raises(ValueError, match="empty"):
            ground.tree.write(path, CPUSet())
        assert ground.tree.effective(path) == CPUSet.of(0, 1)

    def test_a_container_moves_with_the_nested_cgroup_that_had_its_cpus(
        self, ground: Ground
    ) -> None:
        path = ground.container("0", nested="0")
        assert bring(ground.tree, path, CPUSet.of(1))
        assert ground.tree.effective(path) == CPUSet.of(1)
        assert ground.tree.effective(f"{path}/nested") == CPUSet.of(1)

    def test_a_pod_is_widened_for_its_container(self, ground: Ground) -> None:
        path = ground.container("0")
        pod = f"{ground.kubepods}/pod{POD_UID}"
        ground.tree.write(pod, CPUSet.of(0))
        bring(ground.tree, path, CPUSet.of(0, 1))
        assert ground.tree.effective(path) == CPUSet.of(0, 1)
        assert ground.tree.effective(pod) == CPUSet.of(0, 1)

    def test_a_container_that_is_right_is_not_written(self, ground: Ground) -> None:
        path = ground.container("1", nested="1")
        assert bring(ground.tree, path, CPUSet.of(1)) == ()


class V1RulesContract:
    """What cgroup version 1 refuses. A subclass gives the fixture `ground`."""

    def test_a_child_is_not_given_what_its_parent_lacks(self, ground: Ground) -> None:
        path = ground.container("0", nested="0")
        with pytest.raises(CgroupWriteRejected) as caught:
            ground.tree.write(f"{path}/nested", CPUSet.of(0, 1))
        assert caught.value.errno == errno.EACCES
        assert ground.tree.effective(f"{path}/nested") == CPUSet.of(0)

    def test_a_parent_keeps_what_its_child_has(self, ground: Ground) -> None:
        path = ground.container("0-1", nested="0-1")
        with pytest.raises(CgroupWriteRejected) as caught:
            ground.tree.write(path, CPUSet.of(0))
        assert caught.value.errno == errno.EBUSY
        assert ground.tree.effective(path) == CPUSet.of(0, 1)

    def test_a_cpu_that_the_machine_lacks_is_refused_and_nothing_is_changed(
        self, ground: Ground
    ) -> None:
        path = ground.container("0")
        with pytest.raises(CgroupWriteRejected):
            bring(ground.tree, path, CPUSet.of(0, 8191))
        assert ground.tree.effective(path) == CPUSet.of(0)


class V2RulesContract:
    """What cgroup version 2 does otherwise. A subclass gives the fixture `ground`."""

    def test_a_cgroup_without_a_set_runs_on_its_parents(self, ground: Ground) -> None:
        path = ground.container("", nested="")
        assert [found.cpus for found in ground.tree.containers()] == ["0-1"]
        bring(ground.tree, path, CPUSet.of(1))
        assert ground.tree.effective(f"{path}/nested") == CPUSet.of(1)

    def test_a_set_beyond_the_parents_is_cut(self, ground: Ground) -> None:
        path = ground.container("0", nested="0")
        ground.tree.write(f"{path}/nested", CPUSet.of(0, 1))
        assert ground.tree.effective(f"{path}/nested") == CPUSet.of(0)

    def test_a_set_outside_the_parents_falls_back_to_the_parents(self, ground: Ground) -> None:
        path = ground.container("0", nested="0")
        ground.tree.write(f"{path}/nested", CPUSet.of(1))
        assert ground.tree.effective(f"{path}/nested") == CPUSet.of(0)


def model_ground(version: CgroupVersion) -> Ground:
    """Give a model of a machine with CPUs 0-1 and kubepods."""
    model = KernelModel(version, {"kubepods": "0-1"}, online="0-1")
    return Ground(model, "kubepods", model.make, model.remove)


def _parent(path: str) -> str:
    return path.rpartition("/")[0]
