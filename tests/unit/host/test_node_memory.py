from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from cpupool.core.errors import HostFileError
from cpupool.core.node_topology import NodeMemory
from cpupool.host import node_memory
from cpupool.host.sysfs import FolderTree

if TYPE_CHECKING:
    from pathlib import Path

GIB = 2**30


def write(sysfs: Path, node: int, total_kib: int, **pages: str) -> None:
    folder = sysfs / f"devices/system/node/node{node}"
    folder.mkdir(parents=True)
    (folder / "meminfo").write_text(
        f"Node {node} MemTotal:       {total_kib} kB\nNode {node} MemFree:        1024 kB\n"
    )
    for size, count in pages.items():
        place = folder / f"hugepages/hugepages-{size.removeprefix('of_')}"
        place.mkdir(parents=True)
        (place / "nr_hugepages").write_text(f"{count}\n")


def test_each_node_has_its_memory_and_its_pages(tmp_path: Path) -> None:
    write(tmp_path, 0, 16 * 2**20, of_2048kB="512", of_1048576kB="2")
    write(tmp_path, 8, 8 * 2**20, of_2048kB="0")

    assert node_memory.read(FolderTree(tmp_path)) == {
        0: NodeMemory(16 * GIB, {2 * 2**20: 512, GIB: 2}),
        8: NodeMemory(8 * GIB, {2 * 2**20: 0}),
    }


def test_a_node_without_memory_has_none(tmp_path: Path) -> None:
    write(tmp_path, 0, 1024)
    write(tmp_path, 1, 0)

    assert node_memory.read(FolderTree(tmp_path))[1] == NodeMemory(0)


def test_other_names_are_no_nodes(tmp_path: Path) -> None:
    write(tmp_path, 0, 1024)
    nodes = tmp_path / "devices/system/node"
    for name in ("has_cpu", "node", "nodes1", "node1x"):
        shutil.copytree(nodes / "node0", nodes / name)

    assert node_memory.read(FolderTree(tmp_path)).keys() == {0}


def test_a_kernel_that_does_not_tell_has_no_memory(tmp_path: Path) -> None:
    assert node_memory.read(FolderTree(tmp_path)) == {}
    (tmp_path / "devices/system/node/node0").mkdir(parents=True)
    assert node_memory.read(FolderTree(tmp_path)) == {}


@pytest.mark.parametrize("count", ["many", "-1", "9" * 5000])
def test_a_number_of_pages_that_is_none_is_named(tmp_path: Path, count: str) -> None:
    write(tmp_path, 0, 1024, of_2048kB=count)

    with pytest.raises(HostFileError, match=rf"nr_hugepages.*'{count[:40]}' is no number"):
        node_memory.read(FolderTree(tmp_path))


def test_a_total_that_no_machine_has_is_none(tmp_path: Path) -> None:
    write(tmp_path, 0, 1024)
    write(tmp_path, 1, 10**4000)

    assert node_memory.read(FolderTree(tmp_path)).keys() == {0}
