from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from cpupool.core.cgroups import CgroupNode
from cpupool.core.cpuset import CPUSet
from cpupool.core.errors import CgroupNotFound, CgroupWriteRejected, HostFileError
from cpupool.enforce.apply import bring
from cpupool.host.cgroup_memory import CgroupMemory
from cpupool.host.cgroupfs import CgroupVersion
from cpupool.host.root import HostRoot

if TYPE_CHECKING:
    from pathlib import Path

POD = "kubepods/podweb"
CONTAINER = f"{POD}/main"
INNER = f"{CONTAINER}/init"
BOTH = pytest.mark.parametrize("version", CgroupVersion)


class Files:
    """The memory nodes of a cgroup tree in a folder; nothing in it enforces anything."""

    def __init__(self, folder: Path, version: CgroupVersion) -> None:
        self._v1 = version is CgroupVersion.V1
        root = HostRoot.under(folder).cgroup
        self.base = root / "cpuset" if self._v1 else root
        for path in ("", "kubepods", POD, CONTAINER, INNER):
            self.make(path, "0-1")
        if not self._v1:
            (self.base / "cgroup.controllers").write_text("cpuset\n")
            (self.base / "cpuset.mems").unlink()
        self.tree = CgroupMemory(root)

    def make(self, path: str, nodes: str) -> None:
        folder = self.base / path
        folder.mkdir(parents=True)
        (folder / "cpuset.cpus").write_text("0-7\n")
        (folder / "cpuset.mems").write_text(f"{nodes}\n")
        if self._v1:
            (folder / "cpuset.memory_migrate").write_text("0\n")
        else:
            (folder / "cpuset.mems.effective").write_text(f"{nodes}\n")
            (folder / "cgroup.subtree_control").write_text("")

    def has(self, name: str = "cpuset.mems") -> dict[str, str]:
        files = sorted(self.base.rglob(name))
        return {str(file.parent.relative_to(self.base)): file.read_text().strip() for file in files}


@BOTH
def test_the_nodes_with_memory_are_those_of_the_root(
    tmp_path: Path, version: CgroupVersion
) -> None:
    files = Files(tmp_path, version)
    assert files.tree.with_memory() == CPUSet.of(0, 1)
    name = "cpuset.mems" if version is CgroupVersion.V1 else "cpuset.mems.effective"
    (files.base / name).write_text("x\n")
    with pytest.raises(HostFileError):
        files.tree.with_memory()


@BOTH
def test_nodes_are_read_and_written_and_cpus_stay(tmp_path: Path, version: CgroupVersion) -> None:
    files = Files(tmp_path, version)
    ancestors, node = files.tree.read(CONTAINER)
    both = CPUSet.of(0, 1)
    assert ancestors == (CgroupNode("kubepods", both), CgroupNode(POD, both))
    assert node == CgroupNode(CONTAINER, both, (CgroupNode(INNER, both),))
    files.tree.write(CONTAINER, CPUSet.of(1))
    assert files.has()[CONTAINER] == "1"
    assert set(files.has("cpuset.cpus").values()) == {"0-7"}
    with pytest.raises(ValueError, match="empty"):
        files.tree.write(CONTAINER, CPUSet())


def test_on_version_1_the_cgroup_runs_on_its_own_nodes_and_on_2_on_the_effective(
    tmp_path: Path,
) -> None:
    v1 = Files(tmp_path / "v1", CgroupVersion.V1)
    bring(v1.tree, CONTAINER, CPUSet.of(1))
    assert v1.has() == {
        ".": "0-1",
        "kubepods": "0-1",
        POD: "0-1",
        CONTAINER: "1",
        INNER: "1",
    }
    v2 = Files(tmp_path / "v2", CgroupVersion.V2)
    with pytest.raises(CgroupWriteRejected):
        bring(v2.tree, CONTAINER, CPUSet.of(1))
    assert v2.has()[CONTAINER] == "0-1", "a write without effect is undone"


def test_empty_cgroups_of_version_1_are_filled_from_the_root(tmp_path: Path) -> None:
    files = Files(tmp_path, CgroupVersion.V1)
    for path in (POD, CONTAINER, INNER):
        (files.base / path / "cpuset.mems").write_text("\n")
    bring(files.tree, CONTAINER, CPUSet.of(1))
    assert files.has()[POD] == "0-1"
    assert files.has()[CONTAINER] == "1"


def test_migration_is_switched_for_a_cgroup_and_those_below_on_version_1(tmp_path: Path) -> None:
    files = Files(tmp_path, CgroupVersion.V1)
    flags = "cpuset.memory_migrate"
    files.tree.let_migrate(CONTAINER, on=True)
    assert {path for path, flag in files.has(flags).items() if flag == "1"} == {CONTAINER, INNER}
    assert files.tree.migrating(CONTAINER)
    files.tree.let_migrate(CONTAINER, on=False)
    assert set(files.has(flags).values()) == {"0"}
    assert not files.tree.migrating(CONTAINER)


def test_version_2_has_no_such_switch(tmp_path: Path) -> None:
    files = Files(tmp_path, CgroupVersion.V2)
    files.tree.let_migrate(CONTAINER, on=True)
    assert files.has("cpuset.memory_migrate") == {}
    assert not files.tree.migrating(CONTAINER)


@BOTH
def test_a_cgroup_that_has_ended_is_reported_and_needs_no_switch(
    tmp_path: Path, version: CgroupVersion
) -> None:
    files = Files(tmp_path, version)
    shutil.rmtree(files.base / CONTAINER)
    files.tree.let_migrate(CONTAINER, on=False)
    with pytest.raises(CgroupNotFound):
        files.tree.effective(CONTAINER)
    with pytest.raises(CgroupNotFound):
        files.tree.write(CONTAINER, CPUSet.of(1))
