from __future__ import annotations

import errno
import os
import shutil
from typing import TYPE_CHECKING

import pytest

from cpupool.core.cgroups import POD_ITSELF, CgroupNode, FoundContainer
from cpupool.core.cpuset import CPUSet
from cpupool.core.errors import CgroupNotFound, CgroupWriteRejected, HostFileError
from cpupool.host.cgroupfs import CgroupFS, CgroupVersion, hierarchy
from cpupool.host.root import HostRoot
from tests.cgroups import CgroupTreeContract, Ground

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

UID = "1b2c3d4e-0000-1111-2222-333344445555"
SLICE = "1b2c3d4e_0000_1111_2222_333344445555"
ID = "ab12" * 16


class Files:
    """The files of a cgroup tree in an ordinary folder; nothing in it enforces anything."""

    def __init__(self, folder: Path, version: CgroupVersion) -> None:
        self.version = version
        self.root = HostRoot.under(folder)
        v1 = version is CgroupVersion.V1
        self.base = self.root.cgroup / "cpuset" if v1 else self.root.cgroup
        self.make("", "0-7")
        if not v1:
            (self.base / "cgroup.controllers").write_text("cpuset cpu io memory pids\n")

    def make(self, path: str, cpus: str, effective: str | None = None) -> None:
        folder = self.base / path
        folder.mkdir(parents=True)
        (folder / "cpuset.cpus").write_text(f"{cpus}\n")
        if self.version is CgroupVersion.V1:
            (folder / "cpuset.mems").write_text("0\n")
        else:
            (folder / "cpuset.cpus.effective").write_text(f"{effective or cpus}\n")
            (folder / "cgroup.subtree_control").write_text("")

    def own(self, path: str) -> str:
        return (self.base / path / "cpuset.cpus").read_text().strip()

    def remove(self, path: str) -> None:
        shutil.rmtree(self.base / path)

    def tree(self, cgroup_root: str = "") -> CgroupFS:
        return CgroupFS(self.root.cgroup, cgroup_root)


@pytest.fixture
def v1(tmp_path: Path) -> Files:
    return Files(tmp_path, CgroupVersion.V1)


@pytest.fixture
def v2(tmp_path: Path) -> Files:
    return Files(tmp_path, CgroupVersion.V2)


class TestFilesOfCgroupV1(CgroupTreeContract):
    @pytest.fixture
    def ground(self, v1: Files) -> Ground:
        v1.make("kubepods", "0-1")
        return Ground(v1.tree(), "kubepods", v1.make, v1.remove)


@pytest.mark.parametrize("version", CgroupVersion)
def test_the_hierarchy_with_the_cpuset_controller_is_found(
    tmp_path: Path, version: CgroupVersion
) -> None:
    files = Files(tmp_path, version)
    assert hierarchy(files.root.cgroup) == (files.base, version)


def test_a_unified_tree_without_cpuset_beside_a_v1_hierarchy_is_not_taken(v1: Files) -> None:
    (v1.root.cgroup / "cgroup.controllers").write_text("hugetlb\n")
    assert hierarchy(v1.root.cgroup) == (v1.base, CgroupVersion.V1)


def test_a_machine_without_cpusets_is_reported_with_what_to_mount(tmp_path: Path) -> None:
    with pytest.raises(HostFileError, match="mount -t cgroup2") as caught:
        CgroupFS(tmp_path)
    assert caught.value.path == str(tmp_path)


@pytest.mark.parametrize("version", CgroupVersion)
@pytest.mark.parametrize(
    ("cgroup_root", "path", "container"),
    [
        pytest.param("", f"kubepods/pod{UID}/{ID}", ID, id="cgroupfs, Guaranteed, containerd"),
        pytest.param("", f"kubepods/burstable/pod{UID}/{ID}", ID, id="cgroupfs, Burstable, docker"),
        pytest.param(
            "",
            f"kubepods/besteffort/pod{UID}/crio-{ID}",
            ID,
            id="cgroupfs, BestEffort, CRI-O",
        ),
        pytest.param(
            "",
            f"kubepods.slice/kubepods-pod{SLICE}.slice/cri-containerd-{ID}.scope",
            ID,
            id="systemd, Guaranteed, containerd",
        ),
        pytest.param(
            "",
            f"kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{SLICE}.slice/docker-{ID}.scope",
            ID,
            id="systemd, Burstable, cri-dockerd",
        ),
        pytest.param(
            "",
            f"kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{SLICE}.slice/crio-{ID}.scope",
            ID,
            id="systemd, BestEffort, CRI-O",
        ),
        pytest.param(
            "",
            f"kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-burstable.slice/kubelet-kubepods-burstable-pod{SLICE}.slice/cri-containerd-{ID}.scope",
            ID,
            id="kind, found without a setting",
        ),
        pytest.param(
            "/my-node", f"my-node/kubepods/pod{UID}/{ID}", ID, id="a cgroup root, cgroupfs"
        ),
        pytest.param(
            "/my-node",
            f"my_node.slice/my_node-kubepods.slice/my_node-kubepods-pod{SLICE}.slice/crio-{ID}.scope",
            ID,
            id="a cgroup root, systemd",
        ),
        pytest.param(
            "",
            f"kubepods/burstable/pod{UID}/crio-conmon-{ID}",
            f"crio-conmon-{ID}",
            id="a monitor is found under its whole name",
        ),
    ],
)
def test_a_container_is_found_at(
    tmp_path: Path,
    version: CgroupVersion,
    cgroup_root: str,
    path: str,
    container: str,
) -> None:
    files = Files(tmp_path, version)
    files.make(path, "2-3")
    found = list(files.tree(cgroup_root).containers())
    assert [(one.pod, one.id, one.path, one.cpus) for one in found] == [
        (UID, container, path, "2-3")
    ]


def test_only_directories_of_pods_are_walked_and_only_one_level_deep(v1: Files) -> None:
    v1.make("kubepods/podx/c/nested", "0")
    (v1.base / "kubepods/podx/c/cpuset.cpus").write_text("0-3\n")
    v1.make("kubepods/something/c", "0")
    v1.make("system/podx/c", "0")
    (v1.base / "kubepods/podx/tasks").write_text("")
    (v1.base / "kubepods/podx/link").symlink_to(v1.base / "kubepods/podx/c")
    assert [found.path for found in v1.tree().containers()] == ["kubepods/podx/c"]


def test_a_walk_gives_text_that_is_no_list_as_it_stands(v1: Files) -> None:
    v1.make("kubepods/podx/c", "0-3,soup")
    assert [found.cpus for found in v1.tree().containers()] == ["0-3,soup"]


def test_a_walk_skips_what_vanishes_meanwhile(v1: Files) -> None:
    for name in ("a", "b"):
        v1.make(f"kubepods/podx/{name}", "0")
        v1.make(f"kubepods/pody/{name}", "0")
    walk = v1.tree().containers()
    first = next(walk).path
    v1.remove(f"kubepods/pod{'y' if 'podx' in first else 'x'}")
    sibling = first[:-1] + ("b" if first.endswith("a") else "a")
    v1.remove(sibling)
    assert list(walk) == []


def test_a_walk_skips_what_vanishes_while_its_file_is_open(
    v1: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    v1.make("kubepods/podx/c", "0")

    def vanish(descriptor: int, size: int) -> bytes:
        v1.remove("kubepods/podx/c")
        # What the kernel answers; an ordinary file would still be read.
        raise OSError(errno.ENODEV, os.strerror(errno.ENODEV))

    monkeypatch.setattr(os, "read", vanish)
    assert list(v1.tree().containers()) == []


def test_a_nested_cgroup_that_loses_its_files_while_it_is_read_is_left_out(v1: Files) -> None:
    for path in ("kubepods", "kubepods/podx", "kubepods/podx/c"):
        v1.make(path, "0-1")
    (v1.base / "kubepods/podx/c/vanishing").mkdir()
    _, container = v1.tree().read("kubepods/podx/c")
    assert container == CgroupNode("kubepods/podx/c", CPUSet.of(0, 1))


def test_a_file_that_is_there_and_cannot_be_read_is_an_error(v1: Files) -> None:
    (v1.base / "kubepods/podx/c/cpuset.cpus").mkdir(parents=True)
    with pytest.raises(HostFileError, match=os.strerror(errno.EISDIR)):
        list(v1.tree().containers())


def test_a_folder_that_is_there_and_cannot_be_read_is_an_error(v1: Files) -> None:
    (v1.base / "kubepods").write_text("")
    with pytest.raises(HostFileError, match=os.strerror(errno.ENOTDIR)):
        list(v1.tree().containers())


def test_reading_text_that_is_no_list_names_the_file(v1: Files) -> None:
    v1.make("kubepods/podx/c", "0-3,soup")
    with pytest.raises(HostFileError, match="'soup'") as caught:
        v1.tree().effective("kubepods/podx/c")
    assert caught.value.path == str(v1.base / "kubepods/podx/c/cpuset.cpus")


def test_a_list_of_every_second_of_8192_cpus_is_read_whole(v1: Files) -> None:
    every_second = CPUSet(range(0, 8192, 2))
    v1.make("kubepods/podx/c", str(every_second))
    assert v1.tree().effective("kubepods/podx/c") == every_second


def test_on_v2_a_container_runs_on_the_effective_set_and_keeps_its_own(v2: Files) -> None:
    v2.make("kubepods/podx/c", "0-5", effective="0-3")
    tree = v2.tree()
    assert [found.cpus for found in tree.containers()] == ["0-3"]
    assert tree.effective("kubepods/podx/c") == CPUSet.parse("0-3")
    assert tree.read("kubepods/podx/c")[1] == CgroupNode("kubepods/podx/c", CPUSet.parse("0-5"))


def test_a_set_is_written_without_strides_over_a_longer_one(v1: Files) -> None:
    v1.make("kubepods/podx/c", "0-1,3-5,7")
    v1.tree().write("kubepods/podx/c", CPUSet.parse("0-6:2"))
    assert (v1.base / "kubepods/podx/c/cpuset.cpus").read_text() == "0,2,4,6"


def test_on_v1_empty_memory_nodes_are_filled_from_the_nearest_ancestor_that_has_some(
    v1: Files,
) -> None:
    v1.make("kubepods/podx", "0-7")
    v1.make("kubepods/podx/c", "")
    (v1.base / "cpuset.mems").write_text("0-1\n")
    (v1.base / "kubepods/cpuset.mems").write_text("1\n")
    for path in ("kubepods/podx", "kubepods/podx/c"):
        (v1.base / path / "cpuset.mems").write_text("\n")
    v1.tree().write("kubepods/podx/c", CPUSet.of(2))
    for path in ("kubepods/podx", "kubepods/podx/c"):
        assert (v1.base / path / "cpuset.mems").read_text() == "1"


def test_on_v1_memory_nodes_that_are_set_are_left_alone(v1: Files) -> None:
    v1.make("kubepods/podx/c", "0")
    (v1.base / "kubepods/podx/c/cpuset.mems").write_text("1\n")
    v1.tree().write("kubepods/podx/c", CPUSet.of(2))
    assert (v1.base / "kubepods/podx/c/cpuset.mems").read_text() == "1\n"


@pytest.mark.parametrize(
    "notices",
    [
        pytest.param(lambda tree: list(tree.containers()), id="by a walk"),
        pytest.param(lambda tree: tree.read("kubepods/podx/c"), id="before a write"),
    ],
)
def test_on_v1_a_pod_is_found_itself_while_a_container_is_there_that_the_kernel_has_emptied(
    v1: Files, notices: Callable[[CgroupFS], object]
) -> None:
    for path in ("kubepods", "kubepods/podx", "kubepods/podx/c", "kubepods/pody/c"):
        v1.make(path, "0-7")
    tree = v1.tree()
    assert {one.id for one in tree.containers()} == {"c"}
    (v1.base / "kubepods/podx/c/cpuset.cpus").write_text("\n")
    notices(tree)
    tree.write("kubepods/podx/c", CPUSet.of(1))

    def found() -> list[FoundContainer]:
        return [one for one in tree.containers() if one.pod == "x"]

    itself = FoundContainer("x", POD_ITSELF, "kubepods/podx", "0-7")
    assert found() == [FoundContainer("x", "c", "kubepods/podx/c", "1"), itself]
    v1.make("kubepods/podx/again", "1")
    assert itself in found()
    v1.remove("kubepods/podx/c")
    assert [one.id for one in found()] == ["again"]
    v1.make("kubepods/podx/c", "1")
    assert {one.id for one in found()} == {"again", "c"}


def test_on_v1_a_container_that_comes_during_a_walk_is_not_forgotten(v1: Files) -> None:
    for path in ("kubepods", "kubepods/podx", "kubepods/podx/c"):
        v1.make(path, "0-7")
    tree = v1.tree()
    walk = tree.containers()
    next(walk)
    v1.make("kubepods/pody", "0-7")
    v1.make("kubepods/pody/c", "1")
    assert len(list(tree.containers())) == 2
    assert list(walk) == []
    (v1.base / "kubepods/pody/c/cpuset.cpus").write_text("\n")
    assert [one.id for one in tree.containers() if one.pod == "y"] == ["c", POD_ITSELF]


def test_on_v1_a_container_that_nothing_has_filled_yet_has_lost_no_process(v1: Files) -> None:
    for path in ("kubepods", "kubepods/podx"):
        v1.make(path, "0-7")
    v1.make("kubepods/podx/c", "")
    tree = v1.tree()
    for _ in range(2):
        assert [one.id for one in tree.containers()] == ["c"]
    tree.read("kubepods/podx/c")
    tree.write("kubepods/podx/c", CPUSet.of(1))
    assert [one.id for one in tree.containers()] == ["c"]


def test_on_v1_a_container_whose_process_is_still_there_has_not_lost_it_yet(v1: Files) -> None:
    for path in ("kubepods", "kubepods/podx", "kubepods/podx/c"):
        v1.make(path, "0-7")
    processes = v1.base / "kubepods/podx/c/cgroup.procs"
    processes.write_text("1\n")
    tree = v1.tree()

    def found() -> list[str]:
        return [one.id for one in tree.containers()]

    assert found() == ["c"]
    (v1.base / "kubepods/podx/c/cpuset.cpus").write_text("\n")
    assert found() == ["c"]
    tree.write("kubepods/podx/c", CPUSet.of(1))
    assert found() == ["c"]
    processes.write_text("")
    assert found() == ["c", POD_ITSELF]


def test_on_v2_no_process_leaves_its_container(v2: Files) -> None:
    v2.make("kubepods/podx", "0-7")
    v2.make("kubepods/podx/c", "0")
    tree = v2.tree()
    assert [one.cpus for one in tree.containers()] == ["0"]
    # As where somebody takes the controller away.
    (v2.base / "kubepods/podx/c/cpuset.cpus.effective").unlink()
    assert [(one.id, one.cpus) for one in tree.containers()] == [("c", "")]


@pytest.mark.parametrize(
    ("version", "above"),
    [(CgroupVersion.V1, ["my-node", "my-node/kubepods"]), (CgroupVersion.V2, ["my-node/kubepods"])],
)
def test_a_cgroup_root_is_among_the_ancestors_where_a_cpu_does_not_come_back_to_it_by_itself(
    tmp_path: Path, version: CgroupVersion, above: list[str]
) -> None:
    files = Files(tmp_path, version)
    for path in ("my-node", "my-node/kubepods", "my-node/kubepods/podx"):
        files.make(path, "0-3")
    ancestors, _ = files.tree("/my-node").read("my-node/kubepods/podx")
    assert ancestors == tuple(CgroupNode(path, CPUSet.parse("0-3")) for path in above)


def test_on_v2_a_container_without_the_controller_is_found_with_no_cpus(v2: Files) -> None:
    v2.make("kubepods/podx", "0-7")
    (v2.base / "kubepods/podx/c").mkdir()
    tree = v2.tree()
    assert [(found.path, found.cpus) for found in tree.containers()] == [("kubepods/podx/c", "")]
    assert tree.read("kubepods/podx/c")[1] == CgroupNode("kubepods/podx/c", CPUSet())


def test_on_v2_the_controller_is_enabled_from_the_base_down_to_the_containers_parent(
    v2: Files,
) -> None:
    for path in ("kubepods", "kubepods/podx", "kubepods/podx/c"):
        v2.make(path, "0-7")
    (v2.base / "kubepods/podx/c/cpuset.cpus").unlink()
    # An ordinary folder does not grow the file then, as the kernel's does.
    with pytest.raises(CgroupNotFound):
        v2.tree().write("kubepods/podx/c", CPUSet.of(2))
    enabled = {
        str(file.parent.relative_to(v2.base)): file.read_text()
        for file in v2.base.rglob("cgroup.subtree_control")
    }
    assert enabled == {
        ".": "+cpuset",
        "kubepods": "+cpuset",
        "kubepods/podx": "+cpuset",
        "kubepods/podx/c": "",
    }


def test_on_v2_the_controller_is_not_touched_for_a_cgroup_that_has_it_or_is_gone(
    v2: Files,
) -> None:
    v2.make("kubepods/podx/c", "0-7")
    v2.tree().write("kubepods/podx/c", CPUSet.of(2))
    with pytest.raises(CgroupNotFound):
        v2.tree().write("kubepods/podx/gone", CPUSet.of(2))
    assert (v2.base / "cgroup.subtree_control").read_text() == ""


def test_a_refusal_carries_the_cgroup_the_value_and_the_kernels_reason(v1: Files) -> None:
    v1.make("kubepods/podx/c", "0")
    (v1.base / "kubepods/podx/c/cpuset.cpus").unlink()
    (v1.base / "kubepods/podx/c/cpuset.cpus").mkdir()
    with pytest.raises(CgroupWriteRejected, match=r"kubepods/podx/c.*'2-3'.*directory") as caught:
        v1.tree().write("kubepods/podx/c", CPUSet.parse("2-3"))
    assert (caught.value.path, caught.value.value, caught.value.errno) == (
        "kubepods/podx/c",
        "2-3",
        errno.EISDIR,
    )


def test_a_pod_that_cannot_pass_the_controller_on_is_named(v2: Files) -> None:
    for path in ("kubepods", "kubepods/podx"):
        v2.make(path, "0-7")
    (v2.base / "kubepods/podx/c").mkdir()
    (v2.base / "kubepods/podx/cgroup.subtree_control").unlink()
    (v2.base / "kubepods/podx/cgroup.subtree_control").mkdir()
    with pytest.raises(CgroupWriteRejected, match="must not hold processes") as caught:
        v2.tree().write("kubepods/podx/c", CPUSet.of(2))
    assert (caught.value.path, caught.value.value) == ("kubepods/podx", "+cpuset")


def test_on_v1_cpus_that_came_back_are_given_to_what_lies_above_containers(v1: Files) -> None:
    levels = ("lab", "lab/kubepods", "lab/kubepods/burstable")
    pods = ("lab/kubepods/podu1", "lab/kubepods/burstable/podu2", "lab/kubepods/burstable/podu3")
    for path in (*levels, *pods):
        v1.make(path, "0-3")
    v1.make("lab/kubepods/podu1/c", "1")
    needed = {"u1": "4-5", "u2": "0,9", "u3": "1"}

    v1.tree("/lab").make_room(CPUSet.parse("0-9"), lambda pod: CPUSet.parse(needed[pod]))

    assert [v1.own(path) for path in levels] == ["0-7"] * 3
    assert [v1.own(path) for path in pods] == ["0-5", "0-3", "0-3"]
    assert v1.own("lab/kubepods/podu1/c") == "1"


def test_on_v2_they_come_back_by_themselves(v2: Files) -> None:
    for path in ("kubepods", "kubepods/podu1"):
        v2.make(path, "0-3")
    v2.tree().make_room(CPUSet.parse("0-7"), lambda _: CPUSet.of(4))
    assert (v2.own("kubepods"), v2.own("kubepods/podu1")) == ("0-3", "0-3")
