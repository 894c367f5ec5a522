from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from cpupool.core.cpuset import CPUSet
from cpupool.core.errors import (
    CgroupNotFound,
    CgroupWriteRejected,
    HostFileError,
    PartitionUnsafe,
)
from cpupool.enforce.ports import Partition
from cpupool.host.isolated_partitions import Partitions
from cpupool.host.root import HostRoot
from tests.partitions import RELEASE, PartitionFiles

if TYPE_CHECKING:
    from pathlib import Path

ID = "ab12" * 16
POD = "kubepods/burstable/pod1b2c"
CPUS = CPUSet.of(4, 5)


@pytest.fixture
def files(tmp_path: Path) -> PartitionFiles:
    return PartitionFiles(tmp_path)


def test_every_cgroup_on_the_way_hands_the_cpus_down(files: PartitionFiles) -> None:
    path = files.make(f"{POD}/{ID}")
    files.write("kubepods", "cpuset.cpus.exclusive", "6-7")
    tree = files.tree()

    tree.isolate(path, CPUS)

    assert tree.partition(path) == Partition("isolated", CPUS)
    assert files.exclusive() == {
        "kubepods": "4-7",
        "kubepods/burstable": "4-5",
        POD: "4-5",
        path: "4-5",
    }
    assert list(tree.reserved()) == [(path, CPUS), ("kubepods", CPUSet.of(6, 7))]

    tree.release(path, CPUS)

    assert tree.partition(path) == Partition("member", CPUSet())
    assert files.exclusive() == {"kubepods": "6-7"}


def test_the_cgroups_above_kubepods_hand_down_too(files: PartitionFiles) -> None:
    path = files.make(f"my.slice/my-node.slice/my-node-kubepods.slice/{ID}")
    tree = files.tree(cgroup_root="my/node")
    tree.isolate(path, CPUS)
    assert list(files.exclusive().values()) == ["4-5"] * 4
    tree.release(path, CPUS)
    assert files.exclusive() == {}


@pytest.mark.parametrize(
    ("file", "device", "why"),
    [
        # One takes a text and has forgotten it, the other takes none.
        (
            "cpuset.cpus.partition",
            "/dev/null",
            "cpuset.cpus.partition is '' then, with 4-5 of 4-5; check that",
        ),
        (
            "cpuset.cpus.exclusive.effective",
            "/dev/null",
            "partition is 'isolated' then, with none of 4-5",
        ),
        ("cpuset.cpus.partition", "/dev/full", "No space left"),
    ],
)
def test_what_the_kernel_refuses_leaves_everything_as_it_was(
    files: PartitionFiles, file: str, device: str, why: str
) -> None:
    path = files.make(f"{POD}/{ID}")
    files.write("kubepods", "cpuset.cpus.exclusive", "6-7")
    (files.cgroup / path / file).unlink()
    (files.cgroup / path / file).symlink_to(device)

    with pytest.raises((CgroupWriteRejected, HostFileError), match=why):
        files.tree().isolate(path, CPUS)

    assert files.exclusive() == {"kubepods": "6-7"}


def test_cpus_of_unbound_workqueues_are_no_partition(files: PartitionFiles) -> None:
    path = files.make(f"{POD}/{ID}")
    tree = files.tree()
    for mask, cpus in (("ffffffff,ffffffff", "4-5"), ("0000002f", "5")):
        files.let_unbound_work_run(mask)
        with pytest.raises(PartitionUnsafe, match=f"on its CPUs {cpus}, .*workqueue.unbound_cpus"):
            tree.isolate(path, CPUS)
        assert files.exclusive() == {}

    # The kernel withholds the CPUs of an invalid partition.
    files.write(path, "cpuset.cpus.partition", "isolated invalid")
    with pytest.raises(PartitionUnsafe):
        tree.isolate(path, CPUS)
    assert files.state(path) == "member"

    files.let_unbound_work_run("everywhere")
    with pytest.raises(HostFileError, match=r"cpumask_requested.*everywhere"):
        tree.isolate(path, CPUS)
    assert files.exclusive() == {}

    files.let_unbound_work_run("ffffffff,ffffffcf")
    tree.isolate(path, CPUS)
    assert files.state(path) == "isolated"


def test_a_cgroup_that_ends_leaves_nothing_above_it(files: PartitionFiles) -> None:
    path = files.make(f"{POD}/{ID}")
    tree = files.tree()
    tree.isolate(path, CPUS)
    files.remove(POD)

    with pytest.raises(CgroupNotFound):
        tree.partition(path)
    with pytest.raises(CgroupNotFound):
        tree.isolate(path, CPUSet.of(6))
    assert list(tree.reserved()) == [("kubepods/burstable", CPUS)]

    tree.release(path, CPUS)

    assert files.exclusive() == {}


def test_what_a_container_nests_and_what_the_administrator_has_made_is_not_walked(
    files: PartitionFiles,
) -> None:
    path = files.make(f"{POD}/{ID}", "4-5", "isolated")
    files.make(f"{path}/container", "4")
    tree = files.tree()
    for above in (POD, "kubepods/burstable", "kubepods"):
        files.write(above, "cpuset.cpus.exclusive", "4-5")
    assert list(tree.reserved()) == [(path, CPUS)]

    for above in ("kubepods/burstable", "kubepods"):
        files.write(above, "cpuset.cpus.partition", "root")
        assert list(tree.reserved()) == []


def test_a_list_that_is_none_is_reported_with_its_file(files: PartitionFiles) -> None:
    files.make("kubepods", "everything")
    with pytest.raises(HostFileError, match=r"kubepods/cpuset\.cpus\.exclusive.*everything"):
        list(files.tree().reserved())


@pytest.mark.parametrize(
    ("release", "obstacle"),
    [(RELEASE, ""), ("6.1.0-18-amd64", "this node's kernel 6.1.0-18-amd64 is older than 6.7")],
)
def test_an_old_kernel_is_an_obstacle(files: PartitionFiles, release: str, obstacle: str) -> None:
    assert files.tree(release).obstacle == obstacle


def test_cgroup_version_1_is_an_obstacle(tmp_path: Path) -> None:
    root = HostRoot.under(tmp_path)
    (root.cgroup / "cpuset").mkdir(parents=True)
    (root.cgroup / "cpuset/cpuset.cpus").touch()
    assert Partitions(root, RELEASE).obstacle == "this node has cgroup version 1"
